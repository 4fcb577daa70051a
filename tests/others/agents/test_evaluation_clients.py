"""lm-evaluation-harness, unchanged, asks a version that `trinity-db serve --plain` serves.

Its likelihoods of answers are compared with a plain forward pass. Tasks and tokenizer are local files.
"""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from string import ascii_lowercase, digits
from typing import Any

import pytest
import torch
import yaml

from tests.acceptance.command import Store, new_store
from tests.others.agents.conftest import PACKAGES
from tests.support.waiting import wait_until
from trinity_db.models import load_model, load_tokenizer

ROWS: list[dict[str, Any]] = [
    {"question": "12=", "choices": ["21", "3", "104"], "answer": 0},
    {"question": "34=", "choices": ["3", "43"], "answer": 1},
]
TASK = {
    "dataset_path": "json",
    "test_split": "test",
    "doc_to_text": "question",
}
CHOICE = TASK | {
    "task": "choice",
    "output_type": "multiple_choice",
    "target_delimiter": "",
    "doc_to_choice": "choices",
    "doc_to_target": "answer",
    "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
}
WRITE = TASK | {
    "task": "write",
    "output_type": "generate_until",
    "doc_to_target": "{{choices[answer]}}",
    "generation_kwargs": {"until": ["="], "max_gen_toks": 3},
    "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
}
CHECKPOINT = "SELECT checkpoint FROM policy_version WHERE version = 1"


@pytest.fixture(scope="module")
def store(server: str, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A run of one step, and two tasks of the harness."""
    if not (PACKAGES / "lm_eval").exists():
        pytest.skip("lm-eval is not installed: make test-agents installs it")
    with new_store(server, template, tmp_path_factory.mktemp("plain")) as store:
        store.import_rows("answers", "demonstrations", [{"prompt": "12", "response": "21"}] * 2)
        sizes = {"hidden_size": 16, "layers": 1, "heads": 2, "context": 64}
        config = store.config(
            "run",
            model={"scratch": {"alphabet": f"{digits}{ascii_lowercase}=: \n", **sizes}},
            data=["answers"],
            algorithm="sft",
            trainer={"batch_size": 2},
        )
        ended = store.run("train", config)
        assert ended.code == 0, ended.stderr
        rows = store.folder / "rows.jsonl"
        rows.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
        (store.folder / "tasks").mkdir()
        for task in (CHOICE, WRITE):
            content = task | {"dataset_kwargs": {"data_files": {"test": str(rows)}}}
            (store.folder / "tasks" / f"{task['task']}.yaml").write_text(yaml.safe_dump(content))
        yield store


@pytest.fixture(scope="module")
def url(store: Store) -> str:
    """Where the run's version is served."""
    with closing(socket.create_server(("127.0.0.1", 0))) as probe:
        port = probe.getsockname()[1]
    served = store.start("serve", store.folder / "run.yaml", "--plain", "--port", str(port))

    def listens() -> bool:
        assert served.running, served.wait()
        return "endpoint for agents" in served.errors

    wait_until(listens, "it listens")
    return f"http://127.0.0.1:{port}/v1"


def evaluated(store: Store, model: str, arguments: str, *tasks: str, **options: str) -> dict[str, Any]:
    """The samples of each task, as the harness writes them."""
    output = store.folder / f"{model}-{len(list(store.folder.iterdir()))}"
    flags = [part for name, value in options.items() for part in (f"--{name}", value) if part]
    command = [
        *(sys.executable, "-m", "lm_eval", "run", "--model", model, "--model_args", arguments),
        *("--tasks", ",".join(tasks), "--include_path", str(store.folder / "tasks"), *flags),
        *("--output_path", str(output), "--log_samples"),
    ]
    offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(store.folder / "hub")}
    environment = {**os.environ, **offline, "PYTHONPATH": str(PACKAGES)}
    ended = subprocess.run(command, env=environment, cwd=store.folder, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    written = {task: next(output.rglob(f"samples_{task}_*.jsonl")).read_text() for task in tasks}
    return {task: [json.loads(line) for line in lines.splitlines()] for task, lines in written.items()}


def likelihood(folder: Path, prompt: str, answer: str) -> float:
    """Log-probability of an answer, by transformers alone."""
    ids = load_tokenizer(folder).encode(prompt + answer, add_special_tokens=False)
    with torch.no_grad():
        logprobs = load_model(folder, "cpu")(torch.tensor([ids])).logits[0].log_softmax(-1)
    first = len(ids) - len(answer)  # a character a token
    return float(sum(logprobs[place - 1, ids[place]] for place in range(first, len(ids))))


def test_likelihoods_by_local_completions_are_those_of_a_forward_pass(store: Store, url: str) -> None:
    folder = Path(store.value(CHECKPOINT))
    arguments = f"model=run,base_url={url}/completions,tokenizer={folder},max_length=64,num_concurrent=2"
    samples = evaluated(store, "local-completions", arguments, "choice", "write")
    for row, sample in zip(ROWS, samples["choice"], strict=True):
        found = [float(one[0][0]) for one in sample["resps"]]
        wanted = [likelihood(folder, row["question"], choice) for choice in row["choices"]]
        assert found == pytest.approx(wanted, abs=1e-4)
    assert [len(sample["resps"][0][0]) <= 3 for sample in samples["write"]] == [True, True]


def test_local_chat_completions_are_answered(store: Store, url: str) -> None:
    arguments = f"model=run,base_url={url}/chat/completions,max_length=64"
    samples = evaluated(store, "local-chat-completions", arguments, "write", apply_chat_template="")
    assert [isinstance(sample["resps"][0][0], str) for sample in samples["write"]] == [True, True]
