"""What `trinity-db batches` lists, and what `trinity-db replay` writes: exactly what the trainer saw."""

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.support.command_line import CommandLine, Done
from tests.support.postgres import execute, new_database
from tests.support.rows import Scene, import_records, preference, rollout, with_step
from trinity_db.arrays.codec import Payload
from trinity_db.postgres.connection import Database
from trinity_db.schema.states import WorkerRole
from trinity_db.store import batches, groups
from trinity_db.store.metrics import record_metrics

Say = Callable[..., str]


@pytest.fixture
def call(command_line: CommandLine, monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    """Runs a command line on the database at a URL."""

    def call(url: str, *arguments: str) -> Done:
        monkeypatch.setenv("TRINITY_DB_URL", url)
        return command_line(*arguments)

    return call


@pytest.fixture
def output(call: CommandLine) -> Say:
    """What a command that succeeds prints."""

    def output(url: str, *arguments: str) -> str:
        return call(url, *arguments).output

    return output


@pytest.fixture
def complaint(call: CommandLine) -> Say:
    """The one line with which a command fails."""

    def complaint(url: str, *arguments: str) -> str:
        return call(url, *arguments).complaint

    return complaint


AWKWARD = np.array([-0.1, -1 / 3, -1e-38, -16.00000191, 0.0, -123456.7], np.float32)
"""Log-probabilities that a careless decimal would not bring back."""


@pytest.fixture(scope="module")
def url(server: str, template: str) -> Iterator[str]:
    """Batches 1 (reopened), 2 (in version 1) and 3 (leased) of the run `first`; 4, of pairs, of another."""
    with new_database(server, template) as url, closing(Database(url)) as database:
        scene = Scene.open(database, "first")
        [group] = scene.claim(1)
        scene.write([written(group, member) for member in group.members])
        scene.process()
        scene.make_ready(1)
        train(scene, loss=0.25)
        scene.reopen(version=0)
        train(scene, loss=0.125)
        scene.publish(1, step=1)
        scene.draw(step=2, size=1)
        import_records(database, "set", [preference(0)])
        other = Scene.open(database, "second", data=["set"], seed=5)
        other.encode()
        other.draw_pairs(step=1, size=1)
        yield url


def written(group: groups.ClaimedGroup, member: int) -> groups.Rollout:
    """The rollout of a member, with numbers that are hard to write down."""
    mask = np.array([False, *[True] * len(AWKWARD)])
    arrays = Payload(
        np.arange(mask.size, dtype=np.int32), mask, AWKWARD - np.float32(member), np.zeros(6, np.int32)
    )
    return with_step(rollout(group, member, str(member / 3), (0, 0)), payload=arrays)


def train(scene: Scene, loss: float) -> None:
    """The first step, with its metrics."""
    batch = scene.draw(step=1, size=1)
    assert batch is not None
    with scene.database.transaction() as tx:
        assert batches.commit(tx, batch, scene.trainer, max_uses=1)
        record_metrics(tx, scene.run.id, WorkerRole.TRAIN, 1, {"loss": loss, "other": 9.0})


def trained_on(url: str, batch_id: int) -> list[batches.Row]:
    """What the trainer reads."""
    with closing(Database(url)) as database:
        return batches.read(database, batch_id)


def test_batches_lists_the_newest_first_with_their_numbers(url: str, output: Say) -> None:
    found = json.loads(output(url, "batches", "first", "--json"))
    named = [
        "id",
        "step",
        "state",
        "policy_version",
        "included_version",
        "rows",
        "staleness_mean",
        "staleness_max",
        "loss",
    ]
    assert [[batch[name] for name in named] for batch in found] == [
        [3, 2, "leased", 1, None, 2, 1.0, 1, None],
        [2, 1, "committed", 0, 1, 2, 0.0, 0, 0.125],
        [1, 1, "reopened", 0, None, 2, 0.0, 0, 0.25],
    ]
    assert [batch["reward_mean"] for batch in found] == [0.5, 1 / 6, 1 / 6]
    assert [batch["committed_at"] is None for batch in found] == [True, False, False]


def test_batches_shows_a_table_of_as_many_as_are_asked_for(url: str, output: Say) -> None:
    header, _, newest, second = output(url, "batches", "first", "--last", "2").splitlines()
    names = "id step state setting sampler version included rows reward staleness max loss drawn committed"
    assert header.split() == names.split()
    assert newest.split()[:9] == ["3", "2", "leased", "1", "fifo", "1", "2", "0.500", "1.000"]
    assert second.split()[:7] == ["2", "1", "committed", "1", "fifo", "0", "1"]
    assert second.split()[7:12] == ["2", "0.167", "0.000", "0", "0.125"]


def test_batches_of_a_run_without_any_says_so(url: str, output: Say) -> None:
    assert output(url, "batches", "set") == "Run 'set' has not drawn a batch yet.\n"


def test_batches_of_a_run_that_is_not_there_names_its_neighbour(url: str, complaint: Say) -> None:
    assert complaint(url, "batches", "frist") == "There is no run 'frist'; did you mean 'first'?"


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_a_replay_holds_exactly_what_the_trainer_read(
    url: str, output: Say, tmp_path: Path, suffix: str
) -> None:
    file = tmp_path / f"batch{suffix}"
    output(url, "replay", "2", "--to", str(file))
    rows: list[dict[str, Any]]
    if suffix == ".jsonl":
        rows = [json.loads(line) for line in file.read_text().splitlines()]
    else:
        table = pq.read_table(file)
        assert str(table.schema.field("logprobs").type) == "list<element: float>"
        rows = table.to_pylist()
    read = trained_on(url, 2)
    assert len(rows) == len(read) == 2
    for row, seen in zip(rows, read, strict=True):
        for name in ("token_ids", "action_mask", "logprobs", "versions"):
            wanted = getattr(seen.payload, name)
            np.testing.assert_array_equal(np.array(row.pop(name), wanted.dtype), wanted, strict=True)
        assert row.pop("temperatures") is None
        assert row == {name: value for name, value in vars(seen).items() if name != "payload"}
    assert [row["advantage"] for row in rows] == [-1 / 6, 1 / 6]
    assert [row["reward"] for row in rows] == [0.0, 1 / 3]
    assert [path.name for path in tmp_path.iterdir()] == [file.name], "it appears whole"


def test_a_replay_of_pairs_has_chosen_and_rejected_in_turn(url: str, output: Say, tmp_path: Path) -> None:
    file = tmp_path / "pairs.parquet"
    output(url, "replay", "4", "--to", str(file), "--check")
    rows = pq.read_table(file).to_pylist()
    assert [(row["ordinal"], row["preference_id"]) for row in rows] == [(0, 2), (1, 2)]
    assert [row["logprobs"] for row in rows] == [None, None]


def test_the_summary_says_which_weights_the_step_began_with(url: str, output: Say, tmp_path: Path) -> None:
    file = tmp_path / "batch.jsonl"
    summary = json.loads(output(url, "replay", "3", "--to", str(file), "--check", "--json"))
    assert summary.pop("snapshot")
    assert summary == {
        "batch": 3,
        "run": "first",
        "run_id": 1,
        "step": 2,
        "state": "leased",
        "policy_version": 1,
        "versions_ahead": 0,
        "checkpoint": "version-1",
        "checkpoint_step": 1,
        "epoch": 0,
        "setting": 1,
        "sampler": "fifo",
        "parameters": {"max_uses": 1},
        "seed": 0,
        "size": 1,
        "max_staleness": None,
        "rows": 2,
        "has_pairs": False,
        "file": str(file),
        "same": True,
        "difference": None,
    }


def test_a_replay_is_told_in_two_lines(url: str, output: Say, tmp_path: Path) -> None:
    file = tmp_path / "batch.jsonl"
    assert output(url, "replay", "3", "--to", str(file)) == (
        f"Batch 3 of 'first', step 2: 2 rows in {file}\n"
        "It was drawn at version 1, which includes the steps up to 1: version-1\n"
    )


def test_a_draw_that_holds_is_said_to(url: str, output: Say) -> None:
    assert output(url, "replay", "1", "--check") == "Batch 1 of 'first' draws the same 2 rows.\n"


def draw_once(url: str) -> None:
    """Batch 1, of a run of its own."""
    with closing(Database(url)) as database:
        scene = Scene.open(database)
        scene.make_ready(1)
        scene.draw(step=1, size=1)


def test_a_draw_that_differs_fails_with_the_first_difference(
    database_url: str, call: CommandLine, tmp_path: Path
) -> None:
    draw_once(database_url)
    execute(database_url, "UPDATE trinity.batch_item SET reward = 2 WHERE ordinal = 1")
    file = tmp_path / "batch.jsonl"
    wrong = "row 1: the batch has experience 2 (reward 2.0, staleness 0), "
    wrong += "the draw gives experience 2 (reward 0.0, staleness 0)"
    done = call(database_url, "replay", "1", "--check", "--to", str(file), "--json")
    assert done.complaint == f"Batch 1 does not draw the same rows again: {wrong}."
    summary = json.loads(done.stdout)
    assert (summary["same"], summary["difference"]) == (False, wrong)
    assert len(file.read_text().splitlines()) == 2, "it holds what the trainer saw, tampered with or not"


def test_a_batch_whose_arrays_are_gone_is_not_written(
    database_url: str, complaint: Say, tmp_path: Path
) -> None:
    draw_once(database_url)
    execute(database_url, "DELETE FROM trinity.payload")
    file = tmp_path / "batch.jsonl"
    line = complaint(database_url, "replay", "1", "--to", str(file))
    assert line == "The arrays of batch 1 are gone: 2 of its rows cannot be read any more."
    assert not file.exists()


def test_a_batch_that_is_not_there_names_the_command_that_lists_them(url: str, complaint: Say) -> None:
    assert complaint(url, "replay", "99", "--check") == (
        "There is no batch 99; trinity-db batches RUN lists those of a run."
    )


def test_a_file_of_an_unknown_type_is_refused(url: str, complaint: Say, tmp_path: Path) -> None:
    file = tmp_path / "batch.csv"
    assert complaint(url, "replay", "1", "--to", str(file)) == (
        f"{file}: unknown file type; use one of .jsonl, .parquet."
    )


def test_a_replay_wants_to_know_what_for(url: str, call: CommandLine) -> None:
    done = call(url, "replay", "1")
    assert done.code == 2
    assert "give --to FILE, --check, or both" in done.stderr
