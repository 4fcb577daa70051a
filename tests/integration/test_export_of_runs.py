"""What a run explored, written to files: prompts that an import can be trained on as the run was."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.rows import Scene, attempt, import_records, rollout, trajectory, with_step
from trinity_db.data.dataset import open_writer
from trinity_db.data.exporter import export_rows
from trinity_db.data.files.readers import open_rows
from trinity_db.data.importer import import_rows
from trinity_db.data.records.columns import Columns
from trinity_db.data.records.records import Kind, Task
from trinity_db.data.rejects import Summary
from trinity_db.store import rewards, runs
from trinity_db.store.selection import TaskSelection

TEMPLATE = "Q: {prompt}\nA:"
OWN = "agents/mine.py:attempt"
USER = {"role": "user", "content": "What color is the sky?"}
RENDERED = "<user>What color is the sky?<assistant>"

Export = Callable[[Scene, Kind], list[dict[str, Any]]]


@pytest.fixture
def export(tmp_path: Path) -> Export:
    """What the file holds that a run is exported to."""

    def export(scene: Scene, kind: Kind) -> list[dict[str, Any]]:
        path = tmp_path / "out.jsonl"
        export_rows(scene.database, kind, scene.run.name, path, lambda rows: None)
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        names = [tuple(row.pop("extra").values()) for row in rows]
        assert len(set(names)) == len(names)  # each row is told from all others
        return rows

    return export


def load(scene: Scene, path: Path, kind: Kind) -> Summary:
    """Import a file into the data set "again"."""
    return import_rows(scene.database, open_rows(path), Columns(kind), "again", lambda done, total: None)


def run_with(scene: Scene, workflow: str, data: Sequence[str] = ()) -> Scene:
    """A run with a template and a workflow, which may derive pairs."""
    config = {
        "seed": 0,
        "model": {"prompt_template": TEMPLATE},
        "explorer": {"workflow": workflow},
        "processors": {"pair": {"margin": 0.0}},
        "algorithm": {"name": "grpo"},
    }
    run = scene.beside("explored", config, data)
    run.publish(0, step=0)
    return run


def conversations(scene: Scene) -> Scene:
    """The same run, over a conversation."""
    open_writer(scene.database, "tasks", "talks")([Task({"messages": [USER], "answer": "1.0"})])
    with scene.database.transaction() as tx:
        return replace(
            scene, selection=TaskSelection({runs.find_taskset(tx, "talks"): 1.0}, seed=0, walk="sequential")
        )


def explore(scene: Scene, prompt: str) -> None:
    """A right and a wrong response to one task, asked so, processed and paired."""
    [group] = scene.claim(1)
    scene.write([with_step(rollout(group, member, str(1.0 - member)), prompt=prompt) for member in (0, 1)])
    scene.process()
    scene.pair()


def test_a_prompt_is_the_task_s_to_which_the_template_can_be_applied_again(
    scene: Scene, export: Export
) -> None:
    run = run_with(scene, "single_turn")
    explore(run, TEMPLATE.replace("{prompt}", "task 0"))
    assert export(run, "trajectories") == [
        {"prompt": "task 0", "response": "1.0", "reward": 1, "answer": "0"},
        {"prompt": "task 0", "response": "0.0", "reward": 0, "answer": "0"},
    ]
    assert export(run, "preferences") == [
        {"prompt": "task 0", "chosen": "1.0", "rejected": "0.0", "margin": 1}
    ]


def test_a_conversation_stays_one(scene: Scene, export: Export) -> None:
    run = conversations(run_with(scene, "single_turn"))
    explore(run, RENDERED)
    right, wrong = ([{"role": "assistant", "content": text}] for text in ("1.0", "0.0"))
    assert [(row["prompt"], row["response"]) for row in export(run, "trajectories")] == [
        ([USER], right),
        ([USER], wrong),
    ]
    assert export(run, "preferences") == [{"prompt": [USER], "chosen": right, "rejected": wrong, "margin": 1}]


def test_a_workflow_of_the_users_own_asked_what_it_asked(scene: Scene, export: Export) -> None:
    run = conversations(run_with(scene, OWN))
    explore(run, RENDERED)
    assert [(row["prompt"], row["response"]) for row in export(run, "trajectories")] == [
        (RENDERED, "1.0"),
        (RENDERED, "0.0"),
    ]
    assert export(run, "preferences") == [
        {"prompt": RENDERED, "chosen": "1.0", "rejected": "0.0", "margin": 1}
    ]


def test_each_step_of_an_attempt_has_the_prompt_that_it_answered(scene: Scene, export: Export) -> None:
    run = run_with(scene, OWN)
    [group] = run.claim(1)
    run.write([attempt(group, member, ["1.0", "0.5"]) for member in group.members])
    run.process()
    assert [(row["prompt"], row["response"]) for row in export(run, "trajectories")] == [
        ("prompt 0", "1.0"),
        ("prompt 0", "1.0"),
        ("prompt 1", "0.5"),
        ("prompt 1", "0.5"),
    ]


def test_what_a_person_called_good_has_the_task_s_prompt_too(scene: Scene, export: Export) -> None:
    run = run_with(scene, "single_turn")
    [group] = run.claim(1)
    run.write([with_step(rollout(group, 0), prompt=TEMPLATE.replace("{prompt}", "task 0"))])
    [rollout_id] = run.values("SELECT id FROM trinity.rollout")
    with run.database.transaction() as tx:
        said = rewards.RewardEvent(rollout_id, "label", 1.0)
        rewards.record(tx, run.run.id, "human", [said])
    assert export(run, "preferences") == [{"prompt": "task 0", "completion": "1", "label": True}]


def test_imported_rows_that_a_run_paired_have_their_own_prompt(scene: Scene, export: Export) -> None:
    import_records(scene.database, "set", [trajectory(0, "right", 1.0), trajectory(0, "wrong", 0.0)])
    run = run_with(scene, OWN, data=["set"])
    assert run.pair() == 1
    assert export(run, "preferences") == [
        {"prompt": "task 0", "chosen": "right", "rejected": "wrong", "margin": 1}
    ]


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_equal_answers_to_one_task_all_come_back(scene: Scene, tmp_path: Path, suffix: str) -> None:
    scene.make_ready(1, rewards=(1.0,) * 8)
    path = tmp_path / f"out{suffix}"
    assert export_rows(scene.database, "trajectories", "run", path, lambda rows: None) == 8
    for summary, added in ((load(scene, path, "trajectories"), 8), (load(scene, path, "trajectories"), 0)):
        assert (summary.read, summary.added, summary.known) == (8, added, 8 - added)
    [group] = scene.rows(
        "SELECT g.arrived, g.reward_count, g.reward_mean FROM trinity.rollout_group g"
        " JOIN trinity.run r ON r.id = g.run_id WHERE r.name = 'again'"
    )
    assert group == (8, 8, 1.0)
    export_rows(scene.database, "trajectories", "again", tmp_path / "again.jsonl", lambda rows: None)
    export_rows(scene.database, "trajectories", "run", tmp_path / "run.jsonl", lambda rows: None)
    assert (tmp_path / "again.jsonl").read_bytes() == (tmp_path / "run.jsonl").read_bytes()


def test_pairs_and_verdicts_of_equal_answers_all_come_back(scene: Scene, tmp_path: Path) -> None:
    scene.make_ready(1, rewards=(1.0, 0.0) * 4)
    assert scene.pair() == 4
    with scene.database.transaction() as tx:
        said = [
            rewards.RewardEvent(id, "label", 1.0) for id in scene.values("SELECT id FROM trinity.rollout")
        ]
        rewards.record(tx, scene.run.id, "human", said)
    path = tmp_path / "out.jsonl"
    assert export_rows(scene.database, "preferences", "run", path, lambda rows: None) == 12
    for summary, added in ((load(scene, path, "preferences"), 12), (load(scene, path, "preferences"), 0)):
        assert (summary.read, summary.added, summary.known) == (12, added, 12 - added)
    assert (
        export_rows(scene.database, "preferences", "again", tmp_path / "again.jsonl", lambda rows: None) == 12
    )
    assert (tmp_path / "again.jsonl").read_bytes() == path.read_bytes()
