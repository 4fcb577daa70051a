"""Training on imported rows, with no explorer and no processor: undisturbed, and with all that can happen.

Each life has a database of its own, copied from the one with the imports, so that the ids are the same in
all of them, and with the ids the order of the rows. All lives of an algorithm must end the same.
"""

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest

from tests.acceptance.command import Ended, Process, Store, new_store, reversals
from tests.support.disk import fill, small_disk
from tests.support.waiting import wait_until

# The lives take a minute or two together, and each of their waits is bounded.
pytestmark = pytest.mark.timeout(300, func_only=True)

EPOCHS, BATCH_SIZE = 2, 20
TRAINER: dict[str, Any] = {
    "epochs": EPOCHS,
    "batch_size": BATCH_SIZE,
    "micro_batch_size": 1,  # steps that last, so that one can be met in the middle
    "learning_rate": 3e-3,
    "schedule": "cosine",
    "publish_every": 3,
    "eval_every": 4,
}
MEASURE = {"sft": "eval/loss", "dpo": "eval/rewards/margins"}

# Moments of a trainer's life. What is leased is being learned from.
IN_STEP = "SELECT count(*) > 0 FROM batch WHERE state = 'leased' AND step >= %(step)s"
UNPUBLISHED = """
SELECT count(*) FILTER (WHERE state = 'committed' AND step >= %(step)s AND included_version IS NULL) > 0
   AND count(*) FILTER (WHERE state = 'leased') = 0
FROM batch
"""
AT_WORK = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
  AND state = 'active' AND wait_event_type IS DISTINCT FROM 'Client'
"""
CUT_CONNECTIONS = """
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()
"""

# How often each row (sft) or pair (dpo) that is not held out was used in each epoch.
USES = {
    "sft": """
        SELECT e.id, b.epoch, count(*) AS uses, e.use_count, e.state::text
        FROM experience e
        JOIN batch_item i ON i.experience_id = e.id
        JOIN batch b ON b.id = i.batch_id AND b.state = 'committed'
        GROUP BY e.id, b.epoch
    """,
    "dpo": """
        SELECT p.id, b.epoch, count(*) AS uses, p.use_count, p.state::text
        FROM preference p
        JOIN batch_item i ON i.preference_id = p.id AND i.experience_id = p.chosen_id
        JOIN batch_item j ON j.batch_id = i.batch_id AND j.ordinal = i.ordinal + 1
                         AND j.preference_id = p.id AND j.experience_id = p.rejected_id
        JOIN batch b ON b.id = i.batch_id AND b.state = 'committed'
        GROUP BY p.id, b.epoch
    """,
}
# Ids of what the run has, by whether it is held out.
ADOPTED = {
    "sft": "SELECT id FROM experience WHERE source_id IS NOT NULL AND held_out = %(held_out)s ORDER BY id",
    "dpo": "SELECT p.id FROM preference p JOIN run r ON r.id = p.run_id AND r.kind = 'train' "
    "WHERE p.held_out = %(held_out)s ORDER BY p.id",
}
HISTORY = """
SELECT b.step, i.ordinal, i.experience_id, i.preference_id
FROM batch b JOIN batch_item i ON i.batch_id = b.id
WHERE b.state = 'committed' ORDER BY b.step, i.ordinal
"""


class Life(NamedTuple):
    """A run that is over, the only one of its store, and its trainers in the order of their ends."""

    store: Store
    algorithm: str
    trainers: list[Ended]


def live_undisturbed(store: Store, config: Path) -> list[Ended]:
    return [store.run("train", config)]


def live_killed(store: Store, config: Path) -> list[Ended]:
    """Three times: in a step, between commit and publication, and in a step of the second epoch."""
    trainers = []
    for moment, step in ((IN_STEP, 2), (UNPUBLISHED, 5), (IN_STEP, 8)):
        process = store.start("train", config)
        freeze(store, process, moment, step=step)
        trainers.append(process.kill())
    return [*trainers, store.run("train", config)]


def live_stopped(store: Store, config: Path) -> list[Ended]:
    """By a signal, in a step."""
    process = store.start("train", config)
    freeze(store, process, IN_STEP, step=3)
    process.signal(signal.SIGTERM)
    process.signal(signal.SIGCONT)
    return [process.wait(), store.run("train", config)]


def live_overtaken(store: Store, config: Path) -> list[Ended]:
    """It stands still in a step, long enough for another to do all the work, and does not know."""
    process = store.start("train", config)
    freeze(store, process, IN_STEP, step=5)
    store.value(CUT_CONNECTIONS)
    second = store.run("train", config)
    process.signal(signal.SIGCONT)
    return [second, process.wait()]


FATES: dict[str, Callable[[Store, Path], list[Ended]]] = {
    "undisturbed": live_undisturbed,
    "killed": live_killed,
    "stopped": live_stopped,
    "overtaken": live_overtaken,
}
Lives = Mapping[tuple[str, str], Life]
LIVES = (
    *(("sft", fate) for fate in FATES),
    *(("dpo", fate) for fate in ("undisturbed", "killed")),
)
"""Algorithm, and what happened on the way."""


@pytest.fixture(scope="module")
def imports(server: str, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The name of a database with the data sets."""
    with new_store(server, template, tmp_path_factory.mktemp("imports")) as store:
        tasks = reversals(3)
        store.import_rows(
            "sft-data", "demonstrations", [{"prompt": t["prompt"], "completion": t["answer"]} for t in tasks]
        )
        store.import_rows(
            "dpo-data",
            "preferences",
            [
                {"prompt": t["prompt"], "chosen": t["answer"] + "0", "rejected": t["answer"] + "4"}
                for t in tasks
            ],
        )
        yield urlsplit(store.url).path.strip("/")


@pytest.fixture(scope="module")
def lives(server: str, imports: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lives]:
    def live(store: Store, algorithm: str, fate: str) -> Life:
        return Life(store, algorithm, FATES[fate](store, configure(store, algorithm)))

    with ExitStack() as stack:
        stores = [
            stack.enter_context(new_store(server, imports, tmp_path_factory.mktemp("-".join(life))))
            for life in LIVES
        ]
        # No more at once than cores: a step that waits for one takes long.
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            lived = pool.map(live, stores, *zip(*LIVES, strict=True))
            yield dict(zip(LIVES, lived, strict=True))


@pytest.fixture(params=LIVES, ids="-".join)
def life(request: pytest.FixtureRequest, lives: Lives) -> Life:
    return lives[request.param]


def test_a_run_ends_after_its_epochs(life: Life) -> None:
    [*_, ended] = [trainer for trainer in life.trainers if trainer.code == 0]
    assert ended.error_lines == []
    assert life.store.value("SELECT state::text FROM run WHERE kind = 'train'") == "finished"
    assert not [trainer.stderr for trainer in life.trainers if "Traceback" in trainer.stderr]


def test_only_trainers_were_there(life: Life) -> None:
    roles = life.store.rows("SELECT role::text FROM worker")
    assert [row["role"] for row in roles] == ["train"] * len(life.trainers)


def test_every_row_is_used_once_an_epoch(life: Life) -> None:
    assert_used_once_an_epoch(life.store, life.algorithm)


def test_every_step_is_committed_once_and_in_a_version(life: Life) -> None:
    num_rows = len(life.store.rows(ADOPTED[life.algorithm], held_out=False))
    batches = life.store.rows(
        "SELECT step, epoch, included_version FROM batch WHERE state = 'committed' ORDER BY step"
    )
    steps_an_epoch = -(-num_rows // BATCH_SIZE)
    assert [(row["step"], row["epoch"]) for row in batches] == [
        (step + 1, step // steps_an_epoch) for step in range(steps_an_epoch * EPOCHS)
    ]
    assert all(row["included_version"] is not None for row in batches)
    assert life.store.value("SELECT count(*) FROM batch WHERE state = 'leased'") == 0


def test_held_out_rows_are_never_drawn(life: Life) -> None:
    held_out = [row["id"] for row in life.store.rows(ADOPTED[life.algorithm], held_out=True)]
    assert held_out
    column = {"sft": "experience_id", "dpo": "preference_id"}[life.algorithm]
    drawn = f"SELECT count(*) FROM batch_item WHERE {column} = ANY(%(ids)s)"
    assert life.store.value(drawn, ids=held_out) == 0


def test_what_happened_on_the_way_changes_no_draw_and_no_bit(life: Life, lives: Lives) -> None:
    undisturbed = lives[life.algorithm, "undisturbed"].store
    assert life.store.rows(HISTORY) == undisturbed.rows(HISTORY)
    # Weights, optimizer, random state, step counter: all files of the last checkpoint.
    assert _last_checkpoint(life.store)[1] == _last_checkpoint(undisturbed)[1]


@pytest.mark.parametrize("algorithm", ["sft", "dpo"])
def test_a_killed_trainer_loses_what_it_had_not_published(lives: Lives, algorithm: str) -> None:
    *killed, last = lives[algorithm, "killed"].trainers
    assert [trainer.code for trainer in killed] == [-signal.SIGKILL] * 3
    assert last.code == 0
    lost = lives[algorithm, "killed"].store.value(
        "SELECT count(*) FROM batch WHERE state = 'reopened' AND committed_at IS NOT NULL"
    )
    assert lost >= 1


def test_a_stop_abandons_the_step_and_publishes_those_before(lives: Lives) -> None:
    store, _, trainers = lives["sft", "stopped"]
    assert [trainer.code for trainer in trainers] == [0, 0]
    (abandoned,) = store.rows("SELECT id, step, committed_at FROM batch WHERE state = 'reopened'")
    assert abandoned["committed_at"] is None
    assert f"step {abandoned['step']} was abandoned" in trainers[0].stderr
    published = "SELECT count(*) FROM policy_version WHERE step = %(step)s"
    assert store.value(published, step=abandoned["step"] - 1) == 1
    rows = "SELECT ordinal, experience_id FROM batch_item WHERE batch_id = %(id)s ORDER BY ordinal"
    again = "SELECT id FROM batch WHERE state = 'committed' AND step = %(step)s"
    repeated = store.value(again, step=abandoned["step"])
    assert store.rows(rows, id=abandoned["id"]) == store.rows(rows, id=repeated)


def test_a_trainer_that_was_overtaken_ends_with_one_line(lives: Lives) -> None:
    store, _, (second, overtaken) = lives["sft", "overtaken"]
    assert (second.code, overtaken.code) == (0, 1)
    assert len(overtaken.error_lines) == 1
    first_worker = store.value("SELECT min(id) FROM worker")
    later = "SELECT count(*) FROM batch WHERE state = 'committed' AND step >= 5 AND worker_id = %(first)s"
    assert store.value(later, first=first_worker) == 0


def test_held_out_rows_are_measured_before_during_and_after(life: Life) -> None:
    # A step that was done again after a crash was measured again, with the same result.
    measured = life.store.rows(
        "SELECT DISTINCT step, value FROM metric WHERE name = %(name)s ORDER BY step",
        name=MEASURE[life.algorithm],
    )
    last = life.store.value("SELECT max(step) FROM batch")
    assert [row["step"] for row in measured] == [*range(0, last, TRAINER["eval_every"]), last]
    before, after = measured[0]["value"], measured[-1]["value"]
    if life.algorithm == "dpo":
        assert after > before == 0
    else:
        assert after < before


def test_the_last_checkpoint_is_a_model_for_transformers(life: Life) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder, _ = _last_checkpoint(life.store)
    model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
    tokens = AutoTokenizer.from_pretrained(folder, local_files_only=True)("01=", return_tensors="pt")
    assert tokens["input_ids"].shape == (1, 3)
    assert torch.isfinite(model(**tokens).logits).all()


def test_a_full_disk_stops_the_trainer_and_loses_nothing(
    server: str, imports: str, lives: Lives, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "disk") as disk, new_store(server, imports, tmp_path) as store:
        config = configure(store, "sft", checkpoints=str(disk))
        process = store.start("train", config)
        freeze(store, process, IN_STEP, step=2)
        ballast = fill(disk)
        process.signal(signal.SIGCONT)
        ended = process.wait()
        assert ended.code == 1
        (line,) = ended.error_lines
        assert str(disk) in line
        assert "No space left on device" in line
        assert "trainer.checkpoints" in line
        assert [path.name for path in (disk / "sft").glob("version-*")] == ["version-000000"]
        states = store.rows("SELECT state::text, included_version FROM batch ORDER BY step")
        assert states == [{"state": "committed", "included_version": None}] * 2  # no third step begins
        # Either remedy: another folder, until a signal comes, and then free space.
        process = store.start("train", config, "--set", f"trainer.checkpoints={tmp_path / 'other'}")
        store.wait_for("SELECT count(*) > 1 FROM policy_version", process)
        process.signal(signal.SIGTERM)
        assert process.wait().code == 0
        ballast.unlink()
        ended = store.run("train", config)
        assert ended.code == 0, ended.stderr
        assert_used_once_an_epoch(store, "sft")
        assert _last_checkpoint(store)[1] == _last_checkpoint(lives["sft", "undisturbed"].store)[1]


def configure(store: Store, algorithm: str, **trainer: Any) -> Path:
    return store.config(
        algorithm,
        data=[f"{algorithm}-data"],
        holdout=0.2,
        algorithm=algorithm,
        trainer=TRAINER | trainer,
    )


def freeze(store: Store, process: Process, moment: str, **values: Any) -> None:
    """Stop a process so that it stands in a moment: what the statement finds true stays true."""

    def stands() -> bool:
        assert process.running, f"ended meanwhile: {process.wait()}"
        process.signal(signal.SIGSTOP)
        # First that the server has done what it was sent.
        if store.value(AT_WORK) == 0 and store.value(moment, **values):
            return True
        process.signal(signal.SIGCONT)
        return False

    # It starts without being disturbed, which takes seconds of processor time.
    store.wait_for("SELECT count(*) > 0 FROM worker WHERE pid = %(pid)s", process, pid=process.pid)
    wait_until(stands, f"{moment} {values}")


def assert_used_once_an_epoch(store: Store, algorithm: str) -> None:
    uses = store.rows(USES[algorithm])
    ids = [row["id"] for row in store.rows(ADOPTED[algorithm], held_out=False)]
    assert len(ids) > 2 * BATCH_SIZE
    assert sorted((row["id"], row["epoch"]) for row in uses) == [(i, n) for i in ids for n in range(EPOCHS)]
    assert {(row["uses"], row["use_count"], row["state"]) for row in uses} == {(1, EPOCHS, "trained")}


def _last_checkpoint(store: Store) -> tuple[Path, str]:
    """Its folder and its hash."""
    (last,) = store.rows(
        "SELECT checkpoint, checkpoint_hash FROM policy_version ORDER BY version DESC LIMIT 1"
    )
    return Path(last["checkpoint"]), last["checkpoint_hash"]
