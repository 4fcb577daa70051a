"""Token-exact traces out of a run, into a data set, and from there into the runs that adopt them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.command_line import CommandLine
from tests.support.recipes import recipe
from tests.support.rows import Scene, attempt, rollout, with_step
from trinity_db.arrays import codec
from trinity_db.data.exporter import export_rows
from trinity_db.data.files.readers import open_rows
from trinity_db.data.importer import import_rows
from trinity_db.data.records.columns import Columns
from trinity_db.data.rejects import Summary
from trinity_db.errors import ConfigError, NotFound
from trinity_db.models.chat.prompts import ChatRenderer
from trinity_db.postgres.connection import Database
from trinity_db.schema.states import WorkerRole
from trinity_db.store import adoption, payloads, runs, workers
from trinity_db.trainer.rows.encode import encode_adopted

TOKENS = """
SELECT e.id FROM trinity.experience e
WHERE e.run_id = (SELECT r.id FROM trinity.run r WHERE r.name = %s) ORDER BY e.rollout_id, e.step
"""
REWARDS = """
SELECT e.step, e.reward FROM trinity.experience e
WHERE e.run_id = (SELECT r.id FROM trinity.run r WHERE r.name = %s) ORDER BY e.rollout_id, e.step
"""
OURS = "trinity_db"


class Tokenizer:
    """No row has text that needs one."""

    chat_template: str | None = None
    eos_token_id: int | None = None
    all_special_tokens: tuple[str, ...] = ()
    added_tokens_decoder: Mapping[int, object] = {}


def save(scene: Scene, name: str, path: Path) -> list[dict[str, Any]]:
    export_rows(scene.database, "traces", name, path, lambda rows: None)
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def load(scene: Scene, path: Path, name: str = "traced") -> Summary:
    return import_rows(scene.database, open_rows(path), Columns("traces"), name, lambda done, total: None)


def tokens(scene: Scene, name: str) -> list[tuple[str, bytes]]:
    """The arrays of a run's rows, to the bit."""
    ids = scene.values(TOKENS, name)
    found = payloads.read(scene.database, ids)
    return [(codec.CODEC, codec.encode(found[id])) for id in ids]


def interleaved(mask: list[int]) -> codec.Payload:
    """An attempt of several turns, with a temperature of its own in one of them."""
    action_mask = np.array(mask, np.bool_)
    trained = int(action_mask.sum())
    logprobs = -np.geomspace(1e-7, 11.0, trained).astype(np.float32)
    versions = np.arange(trained, dtype=np.int32) // 2
    temperatures = np.linspace(0.5, 1.5, trained, dtype=np.float32)
    token_ids = np.arange(len(mask), dtype=np.int32)
    return codec.Payload(token_ids, action_mask, logprobs, versions, temperatures)


def explore(scene: Scene) -> None:
    """Attempts of one turn, of several turns and steps, one that failed, and one of an evaluation."""
    [one, other] = scene.claim(2)
    several = with_step(rollout(one, 1), payload=interleaved([0, 0, 1, 1, 0, 1, 1, 0, 0]))
    scene.write([rollout(one, 0, "1", (0, 1)), several])
    steps = attempt(other, 0, ["1", "0.25"], rewards=[{"score": 1.0, "form": 0.5}, {"score": 0.25}])
    scene.write([steps, rollout(other, 1, error="it fell over")])
    scene.process()
    scene.evaluate(1)


def test_a_run_goes_out_and_comes_in_to_the_token(scene: Scene, tmp_path: Path) -> None:
    explore(scene)
    traces = save(scene, scene.run.name, tmp_path / "run.jsonl")
    assert [len(trace["turns"]) for trace in traces] == [1, 3, 2]
    assert traces[1]["turns"][1]["prompt_token_ids"] == [0, 1, 2, 3, 4]
    assert traces[1]["turns"][2] | {"metadata": {}} == {
        "node_id": "0-2",
        "prompt_token_ids": list(range(9)),
        "completion_token_ids": [],
        "per_token_logps": [],
        "loss_mask": [0] * 9,
        "request": {},
        "response": {},
        "metadata": {},
    }
    assert [turn["metadata"][OURS]["versions"] for turn in traces[1]["turns"][:2]] == [[0, 0], [1, 1]]
    assert [turn["metadata"][OURS]["reward"] for turn in traces[2]["turns"]] == [1.5, 0.25]
    summary = load(scene, tmp_path / "run.jsonl")
    assert (summary.added, summary.rejected) == (3, 0), summary.reasons
    explored = tokens(scene, scene.run.name)
    assert tokens(scene, "traced") == explored[: len(explored) - 2], "all but the evaluation's"
    assert scene.rows(REWARDS, "traced") == scene.rows(REWARDS, scene.run.name)[:4]
    # Out again, and in again: nothing is new, nothing is another.
    assert save(scene, "traced", tmp_path / "again.jsonl") == traces
    assert (load(scene, tmp_path / "again.jsonl").known, len(tokens(scene, "traced"))) == (3, 4)


def foreign() -> dict[str, Any]:
    """A trace of another system: an auxiliary call, a partial mask, a retry, and no word of ours."""

    def turn(
        number: int, prompt: list[int], completion: list[int], mask: list[int], **more: Any
    ) -> dict[str, Any]:
        return {
            "node_id": f"n{number}",
            "prompt_token_ids": prompt,
            "completion_token_ids": completion,
            "per_token_logps": [-0.5 - number - place for place in range(len(completion))],
            "loss_mask": [0] * len(prompt) + mask,
            "request": {},
            "response": {},
            "metadata": {},
            **more,
        }

    asked = {"messages": [{"role": "user", "content": "2+2?"}], "temperature": 1}
    turns = [
        turn(0, [9, 9], [8], [0], metadata={"role": "title"}),
        turn(1, [1, 2], [3, 4, 5], [1, 0, 1], request=asked),
        turn(2, [1, 2, 3, 4, 5, 6], [7], [1], response={"content": "4"}),
        turn(3, [1, 2], [4], [1]),
    ]
    return {"schema_version": 1, "turns": turns}


def test_a_trace_of_another_system_comes_back_with_each_turn_as_it_was(scene: Scene, tmp_path: Path) -> None:
    (tmp_path / "theirs.jsonl").write_text(json.dumps(foreign() | {"reward": 0.75}) + "\n")
    assert load(scene, tmp_path / "theirs.jsonl").added == 1
    assert scene.rows(REWARDS, "traced") == [(0, 0.75), (1, 0.75)]
    [trace] = save(scene, "traced", tmp_path / "ours.jsonl")
    for turn in trace["turns"]:
        turn["metadata"].pop(OURS)
    assert trace == foreign()
    save(scene, "traced", tmp_path / "ours.jsonl")
    assert load(scene, tmp_path / "ours.jsonl").known == 1


def test_bad_lines_are_kept_with_their_reason_and_the_others_are_imported(
    scene: Scene, tmp_path: Path
) -> None:
    bad = foreign()
    bad["turns"][1]["per_token_logps"].pop()
    lines = [json.dumps(bad), "{", json.dumps(foreign())]
    (tmp_path / "mixed.jsonl").write_text("\n".join(lines))
    summary = load(scene, tmp_path / "mixed.jsonl")
    assert (summary.added, summary.rejected) == (1, 2)
    assert summary.rejects_path is not None
    kept = [json.loads(line) for line in summary.rejects_path.read_text().splitlines()]
    assert [(one["line"], one["reason"][:17]) for one in kept] == [
        (1, "'per_token_logps'"),
        (2, "is not JSON: Expe"),
    ]


def test_log_probabilities_that_are_not_known_stay_unknown(scene: Scene, tmp_path: Path) -> None:
    theirs = foreign()
    for turn in theirs["turns"][1:3]:
        turn["per_token_logps"] = None
    (tmp_path / "theirs.jsonl").write_text(json.dumps(theirs) + "\n")
    assert load(scene, tmp_path / "theirs.jsonl").added == 1
    first, second = payloads.read(scene.database, scene.values(TOKENS, "traced")).values()
    assert (first.num_trained, first.logprobs) == (3, None)
    assert second.logprobs is not None
    [trace] = save(scene, "traced", tmp_path / "ours.jsonl")
    assert [turn["per_token_logps"] for turn in trace["turns"]] == [[-0.5], None, None, [-3.5]]
    assert load(scene, tmp_path / "ours.jsonl").known == 1


def test_a_fresh_store_gives_back_the_file_that_it_was_given(
    scene: Scene, database: Database, tmp_path: Path
) -> None:
    explore(scene)
    save(scene, scene.run.name, tmp_path / "run.jsonl")
    (tmp_path / "theirs.jsonl").write_text(json.dumps(foreign() | {"reward": 0.75}) + "\n")
    load(scene, tmp_path / "theirs.jsonl")
    save(scene, "traced", tmp_path / "traced.jsonl")
    for number, name in enumerate(("run.jsonl", "traced.jsonl")):
        rows = open_rows(tmp_path / name)
        import_rows(database, rows, Columns("traces"), f"set-{number}", lambda done, total: None)
        export_rows(database, "traces", f"set-{number}", tmp_path / f"again-{name}", lambda rows: None)
        assert (tmp_path / f"again-{name}").read_bytes() == (tmp_path / name).read_bytes()


def imitating(scene: Scene, vocabulary: int, length: int) -> Scene:
    """A run that adopts the traces, for a model of so many tokens that reads so many at a time."""
    run = scene.beside("imitation", data=["traced"])
    tokenizer: Any = Tokenizer()
    encode_adopted(
        run.database, run.run.id, run.trainer, ChatRenderer(tokenizer), vocabulary, length, lambda: False
    )
    return run


def test_a_run_that_adopts_a_trace_learns_from_its_tokens_and_from_no_text(
    scene: Scene, tmp_path: Path
) -> None:
    explore(scene)
    save(scene, scene.run.name, tmp_path / "run.jsonl")
    load(scene, tmp_path / "run.jsonl")
    run = imitating(scene, vocabulary=9, length=8)
    found = payloads.read(run.database, run.values(TOKENS, "imitation"))
    once, joined, *_ = found.values()
    assert joined.token_ids.tolist() == list(range(8)), "cut to the model's length"
    assert joined.action_mask.astype(int).tolist() == [0, 0, 1, 1, 0, 1, 1, 0]
    whole = interleaved([0, 0, 1, 1, 0, 1, 1, 0, 0])
    assert joined.logprobs is not None
    assert whole.logprobs is not None
    assert joined.logprobs.tobytes() == whole.logprobs.tobytes(), "those of the policy that sampled them"
    assert joined.temperatures is not None
    assert once.versions is not None
    assert set(once.versions.tolist()) == {codec.NO_VERSION}, "no policy of this run sampled them"
    lengths = "SELECT prompt_length, response_length FROM trinity.experience WHERE run_id = %s ORDER BY id"
    assert run.rows(lengths, run.run.id) == [(3, 2), (4, 4), (3, 1), (3, 2)]


def test_a_trace_of_another_model_is_dropped_and_says_so(scene: Scene, tmp_path: Path) -> None:
    (tmp_path / "theirs.jsonl").write_text(json.dumps(foreign()) + "\n")
    load(scene, tmp_path / "theirs.jsonl")
    run = imitating(scene, vocabulary=5, length=64)
    said = run.rows("SELECT reason, detail ->> 'error' FROM trinity.\"drop\" WHERE run_id = %s", run.run.id)
    error = "The row has token 7, and the model has 5: it comes from another model."
    assert said == [("untokenizable", error)]


def learned(scene: Scene) -> list[tuple[list[int], list[int]]]:
    """Tokens and mask of the rows that the run adopted."""
    found = payloads.read(scene.database, scene.values(TOKENS, "learner")).values()
    return [(one.token_ids.tolist(), one.action_mask.astype(int).tolist()) for one in found]


def mean_loss(folder: Path, rows: list[tuple[list[int], list[int]]]) -> float:
    """Of the trained tokens of rows, by the library's own model, one row at a time."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder)
    losses = []
    for token_ids, mask in rows:
        with torch.no_grad():
            logprobs = model(torch.tensor([token_ids])).logits[0].log_softmax(-1)
        losses += [-float(logprobs[at - 1, token_ids[at]]) for at, trained in enumerate(mask) if trained]
    return sum(losses) / len(losses)


def test_sft_learns_the_masked_tokens_of_traces(scene: Scene, tmp_path: Path) -> None:
    from tests.support.bench import Bench, settings, setup_of
    from trinity_db.trainer.service import Trainer

    bench = Bench(scene, tmp_path / "checkpoints")
    (tmp_path / "theirs.jsonl").write_text(json.dumps(foreign() | {"reward": 1}) + "\n")
    load(scene, tmp_path / "theirs.jsonl")
    with scene.database.transaction() as tx:
        run = runs.open_run(tx, "learner", {}, "rows", adoption.Sources(["traced"]))
        worker = workers.register(tx, run, WorkerRole.TRAIN)
    trainer = Trainer(scene.database, run, setup_of(settings(), recipe("sft"), bench.checkpoints))
    trainer.worker_id = worker
    trainer.start()
    expected = mean_loss(bench.checkpoints / "version-000000", learned(scene))
    assert trainer.work()
    loss = "SELECT value FROM trinity.metric WHERE run_id = %s AND name = 'loss'"
    assert scene.values(loss, run.id) == pytest.approx([expected], abs=1e-5)


def test_the_commands_take_a_run_out_and_in_again(
    scene: Scene, tmp_path: Path, command_line: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRINITY_DB_URL", scene.database.url)
    scene.explore(1)
    file = str(tmp_path / "run.jsonl.gz")
    said = command_line("export", scene.run.name, "--as", "traces", "--to", file).output
    assert said == f"2 traces of '{scene.run.name}' written to {file}\n"
    said = command_line("import", file, "--as", "traces", "--name", "back").output
    assert said.startswith(
        "back: 2 traces added, 0 already known, 0 rejected\n  read: turns, schema_version\n"
    )
    assert said.endswith("    trained: 2 of 5 tokens\n")
    assert tokens(scene, "back") == tokens(scene, scene.run.name)


def test_what_holds_no_tokens_has_no_traces_to_write(scene: Scene, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"'nothing' holds no traces\."):
        save(scene, "nothing", tmp_path / "out.jsonl")
    with pytest.raises(ConfigError, match=r"traces are JSON lines; name the file \.jsonl or \.jsonl\.gz\."):
        save(scene, scene.run.name, tmp_path / "out.parquet")
