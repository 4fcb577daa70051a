"""The trainer in this process: where it starts, and how it ends when another trainer has taken its place."""

import shutil
from contextlib import closing
from pathlib import Path

import pytest
import torch

from tests.bench import Bench, settings
from tests.recipes import recipe
from tests.rows import Scene
from trinity_db.config import ModelConfig
from trinity_db.database import Database
from trinity_db.errors import ConfigError, LeaseLost, TrinityError
from trinity_db.models import folder_digest, load_tokenizer
from trinity_db.store import batches, policies
from trinity_db.trainer.checkpoints.recovery import Allowed
from trinity_db.trainer.config import LoraConfig
from trinity_db.trainer.learner.gathered_columns import Batch
from trinity_db.trainer.learner.learner import Learner, NonFiniteLoss
from trinity_db.trainer.rows.encode import encode_adopted

VERSIONS = """
SELECT version, step, checkpoint IS NOT NULL FROM trinity.policy_version WHERE run_id = %s ORDER BY version
"""
REFUSED = "SELECT value FROM trinity.metric WHERE run_id = %s AND name = 'refused/batches'"
BATCHES = "SELECT step, state::text FROM trinity.batch WHERE run_id = %s ORDER BY id"


@pytest.fixture
def bench(scene: Scene, tmp_path: Path) -> Bench:
    return Bench(scene, tmp_path / "checkpoints")


def test_a_step_that_comes_too_late_is_refused_and_counted(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    learn = Learner.step

    def overtaken(learner: Learner, batch: Batch) -> dict[str, float]:
        bench.take_over()
        return learn(learner, batch)

    trainer = bench.trainer()
    trainer.start()
    monkeypatch.setattr(Learner, "step", overtaken)
    with pytest.raises(LeaseLost, match="another has its place"):
        trainer.work()
    assert bench.rows(REFUSED) == [(1.0,)]
    assert bench.rows(BATCHES) == [(1, "reopened")]
    assert bench.rows(VERSIONS) == [(0, 0, True)]


def test_a_version_that_comes_too_late_is_refused_and_counted(bench: Bench) -> None:
    trainer = bench.trainer()
    trainer.start()
    assert trainer.work()
    bench.take_over()
    with pytest.raises(LeaseLost, match="another has its place"):
        trainer.release()
    assert bench.rows(REFUSED) == [(1.0,)]
    assert bench.rows(BATCHES) == [(1, "reopened")]
    assert bench.rows(VERSIONS) == [(0, 0, True)]


def test_a_checkpoint_of_a_trainer_that_was_replaced_is_not_in_the_way(bench: Bench) -> None:
    replaced, second = bench.trainer(), bench.trainer()
    replaced.start()
    assert replaced.work()
    second.start()
    with pytest.raises(LeaseLost):
        replaced.release()
    assert second.work()
    second.release()
    assert bench.rows(VERSIONS) == [(0, 0, True), (1, 1, True)]
    assert bench.folders() == ["version-000000", "version-000001", "version-000001-2"]
    third = bench.trainer()
    third.start()
    assert bench.folders() == ["version-000000", "version-000001-2"]


def test_a_trainer_that_wakes_up_in_its_start_leaves_its_successor_alone(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = bench.trainer(allowed=Allowed(from_start=True)), bench.trainer()
    second.start()
    assert second.work()
    second.release()
    verify = folder_digest.verify

    def frozen(folder: Path, expected: str) -> bool:
        if folder.name == "version-000001":
            bench.replace(first)
            return False
        return verify(folder, expected)

    monkeypatch.setattr(folder_digest, "verify", frozen)
    for _ in range(2):  # it is replaced while it looks at the checkpoints, and then before it starts
        with pytest.raises(LeaseLost, match="another has its place"):
            first.start()
    assert bench.folders() == ["version-000000", "version-000001"]
    assert bench.rows(VERSIONS) == [(0, 0, True), (1, 1, True)]
    assert bench.rows(BATCHES) == [(1, "committed")]


def test_rows_are_not_given_tokens_by_a_trainer_that_was_replaced(bench: Bench) -> None:
    trainer = bench.trainer()
    trainer.start()
    tokenizer = load_tokenizer(bench.checkpoints / "version-000000")
    bench.forget_tokens()
    bench.replace(trainer)
    with pytest.raises(LeaseLost):
        encode_adopted(
            trainer.database, bench.run.id, trainer.worker_id, tokenizer, "{prompt}", 64, lambda: False
        )
    assert bench.rows("SELECT DISTINCT prompt_length FROM trinity.experience WHERE run_id = %s") == [(None,)]


def test_two_stores_do_not_share_a_folder(bench: Bench, database_url: str) -> None:
    bench.trainer().start()
    before = sorted(bench.checkpoints.rglob("*"))
    with closing(Database(database_url)) as other_store:
        other = Bench(Scene.open(other_store), bench.checkpoints)
        for _ in range(2):
            trainer = other.trainer()
            trainer.start()
            assert trainer.work()
            trainer.release()
        assert other.rows(VERSIONS) == [(0, 0, True), (1, 1, True), (2, 2, True)]
        [(place,)] = other.rows(
            "SELECT checkpoint FROM trinity.policy_version WHERE run_id = %s AND version = 2"
        )
    assert Path(place).parent.parent == bench.checkpoints.parent
    assert Path(place).parent.name.startswith("checkpoints-")
    assert sorted(bench.checkpoints.rglob("*")) == before
    bench.trainer().start()


@pytest.mark.parametrize(
    "is_gone", [False, True], ids=["pruned after it was read", "pruned while it is read"]
)
def test_a_model_that_its_run_prunes_meanwhile_is_not_started_from(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, is_gone: bool
) -> None:
    trainer = bench.trainer()
    trainer.start()
    assert trainer.work()
    trainer.release()
    first, bench.run = bench.run, bench.open("another")
    checkpoints, bench.checkpoints = bench.checkpoints, bench.checkpoints.with_name("another")
    digest = folder_digest.digest

    def overtaken(folder: Path) -> str:
        written = "" if is_gone else digest(folder)
        with trainer.database.transaction() as tx:
            policies.prune(tx, first.id, keep=0)
        if is_gone:
            (checkpoints / "version-000001" / "config.json").unlink()
            raise FileNotFoundError(folder / "config.json")
        return written

    with monkeypatch.context() as patch:
        patch.setattr(folder_digest, "digest", overtaken)
        with pytest.raises(
            TrinityError, match="'imitation' was replaced by a newer version meanwhile; start"
        ):
            bench.trainer(model=ModelConfig(run=first.name)).start()
    assert bench.rows(VERSIONS) == []
    bench.trainer(model=ModelConfig(run=first.name)).start()
    assert bench.rows(VERSIONS) == [(0, 0, True)]


def test_a_damaged_checkpoint_is_kept_aside(bench: Bench) -> None:
    trainer = bench.trainer()
    trainer.start()
    for _ in range(3):
        assert trainer.work()
    (bench.checkpoints / "version-000001" / "config.json").unlink()
    bench.trainer(allowed=Allowed(from_start=True)).start()
    for _ in range(2):
        assert bench.folders() == ["version-000000", "version-000001.damaged"]
        bench.trainer().start()
    assert bench.rows(VERSIONS) == [(0, 0, True), (1, 2, False)]
    assert {state for _, state in bench.rows(BATCHES)} == {"reopened"}


def train_to_versions(bench: Bench, *versions: int) -> None:
    """Two steps a version, each version published."""
    trainer = bench.trainer(publish_every=2)
    trainer.start()
    for _ in versions:
        assert trainer.work()
        assert trainer.work()
        trainer.release()
    assert [version for version, _, _ in bench.rows(VERSIONS)] == [0, *versions]


def test_training_again_from_the_start_is_asked_for(bench: Bench) -> None:
    train_to_versions(bench, 1, 2)
    for name in ("version-000001", "version-000002"):
        (bench.checkpoints / name / "config.json").unlink()
    for _ in range(2):
        with pytest.raises(
            TrinityError,
            match=r"none of its checkpoints is whole \(versions 1 to 2\); restore .* --from-start",
        ):
            bench.trainer().start()
        assert bench.rows(VERSIONS) == [(0, 0, True), (1, 2, True), (2, 4, True)]
        assert {state for _, state in bench.rows(BATCHES)} == {"committed"}
        assert bench.folders() == ["version-000000", "version-000001", "version-000002"]
    bench.trainer(allowed=Allowed(from_start=True)).start()
    assert bench.rows(VERSIONS) == [(0, 0, True), (1, 2, False), (2, 4, False)]
    assert {state for _, state in bench.rows(BATCHES)} == {"reopened"}
    assert bench.folders() == ["version-000000", "version-000001.damaged", "version-000002.damaged"]
    bench.trainer().start()  # there is nothing to fall back from any more


def test_an_older_whole_checkpoint_is_gone_on_from_without_being_asked(bench: Bench) -> None:
    train_to_versions(bench, 1, 2)
    (bench.checkpoints / "version-000002" / "config.json").unlink()
    bench.trainer(allowed=Allowed(from_start=True)).start()
    assert bench.rows(VERSIONS) == [(0, 0, True), (1, 2, True), (2, 4, False)]
    assert bench.rows(BATCHES) == [(1, "committed"), (2, "committed"), (3, "reopened"), (4, "reopened")]


POISON = "UPDATE trinity.policy_version SET checkpoint = %s WHERE run_id = %s AND version = %s"


def test_a_path_in_the_database_deletes_and_renames_nothing_elsewhere(bench: Bench, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.tex").write_text("years of work")
    train_to_versions(bench, 1, 2)
    bench.execute(POISON, str(precious), bench.run.id, 2)
    (bench.checkpoints / "version-000002" / "config.json").unlink()  # or it is found by its hash
    trainer = bench.trainer(publish_every=1)
    trainer.start()  # falls back to version 1, as these are not the files of version 2
    assert bench.rows(VERSIONS) == [(0, 0, True), (1, 2, True), (2, 4, False)]
    bench.execute(POISON, str(precious), bench.run.id, 1)
    for _ in range(5):  # prunes version 1
        assert trainer.work()
    trainer.release()
    assert (1, 2, False) in bench.rows(VERSIONS)
    assert (precious / "thesis.tex").read_text() == "years of work"


def test_files_that_moved_with_their_folder_are_found_by_their_hash(bench: Bench) -> None:
    train_to_versions(bench, 1)
    bench.execute(
        "UPDATE trinity.policy_version SET checkpoint = replace(checkpoint, %s, %s) WHERE run_id = %s",
        *(str(bench.checkpoints.parent), "/where/it/was", bench.run.id),
    )
    bench.trainer().start()
    assert bench.rows(VERSIONS) == [(0, 0, True), (1, 2, True)]
    [place] = bench.rows("SELECT checkpoint FROM trinity.policy_version WHERE run_id = %s AND version = 1")
    assert place == (str(bench.checkpoints / "version-000001"),)


def test_a_disk_that_is_not_there_withdraws_nothing(bench: Bench) -> None:
    trainer = bench.trainer()
    trainer.start()
    assert trainer.work()
    trainer.release()
    elsewhere = bench.checkpoints.rename(bench.checkpoints.with_name("not-mounted"))
    with pytest.raises(TrinityError, match="checkpoints is missing: mount or restore it"):
        bench.trainer().start()
    assert bench.rows(VERSIONS) == [(0, 0, True), (1, 1, True)]
    elsewhere.rename(bench.checkpoints)
    bench.trainer().start()
    assert bench.rows(BATCHES) == [(1, "committed")]


def test_a_checkpoint_at_a_place_that_cannot_be_looked_at_is_missing(bench: Bench) -> None:
    trainer = bench.trainer()
    trainer.start()
    assert trainer.work()
    trainer.release()
    bench.execute(
        "UPDATE trinity.policy_version SET checkpoint = %s WHERE run_id = %s AND version = 1",
        *("/" + "x/" * 5_000, bench.run.id),
    )
    with pytest.raises(TrinityError, match="is missing: mount or restore it"):
        bench.trainer().start()
    assert bench.rows(VERSIONS) == [(0, 0, True), (1, 1, True)]


def test_nothing_is_withdrawn_where_nothing_is_whole(bench: Bench) -> None:
    trainer = bench.trainer()
    trainer.start()
    assert trainer.work()
    trainer.release()
    for name in bench.folders():
        shutil.rmtree(bench.checkpoints / name)
    with pytest.raises(ConfigError, match="no checkpoint is whole"):
        bench.trainer().start()
    assert bench.rows(VERSIONS) == [(0, 0, True), (1, 1, True)]
    assert bench.rows(BATCHES) == [(1, "committed")]


def test_what_cannot_be_written_at_the_start_leaves_no_version(bench: Bench) -> None:
    bench.checkpoints.touch()
    with pytest.raises(TrinityError, match=r"checkpoints cannot be written: File exists\. Name another"):
        bench.trainer().start()
    assert bench.rows(VERSIONS) == []
    bench.checkpoints.unlink()
    bench.trainer().start()
    assert bench.rows(VERSIONS) == [(0, 0, True)]


@pytest.mark.parametrize(("micro_batch_size", "state"), [(2, "committed"), (1, "reopened")])
def test_a_stop_finishes_a_micro_batch_and_publishes_what_is_committed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, micro_batch_size: int, state: str
) -> None:
    learn = Learner.step

    def stopped(learner: Learner, batch: Batch) -> dict[str, float]:
        trainer.stop()
        return learn(learner, batch)

    trainer = bench.trainer(micro_batch_size)
    trainer.start()
    assert trainer.work()
    monkeypatch.setattr(Learner, "step", stopped)
    assert trainer.work()
    trainer.release()
    assert bench.rows(BATCHES) == [(1, "committed"), (2, state)]
    assert bench.rows(VERSIONS) == [(0, 0, True), (1, 2 if state == "committed" else 1, True)]


SICK = """
seen = []

def sick(logprobs):
    seen.append(1)
    return -logprobs * (1.0 if len(seen) <= 2 else float("nan"))
"""


def test_the_steps_before_one_without_a_finite_loss_are_published_and_its_rows_given_back(
    bench: Bench, tmp_path: Path
) -> None:
    (tmp_path / "sick.py").write_text(SICK)
    trainer = bench.trainer(publish_every=100, loss=f"{tmp_path}/sick.py:sick")
    trainer.start()
    for _ in range(2):
        assert trainer.work()
    with pytest.raises(NonFiniteLoss, match=r"Step 3: the loss is nan .* in a new run that starts from"):
        trainer.work()
    assert bench.rows(BATCHES) == [(1, "committed"), (2, "committed"), (3, "reopened")]
    assert bench.rows(VERSIONS) == [(0, 0, True), (1, 2, True)]
    mended = bench.trainer(publish_every=100)
    mended.start()
    assert mended.work()
    assert bench.rows(BATCHES)[2:] == [(3, "reopened"), (3, "committed")]


COMMITTED = "SELECT id FROM trinity.batch WHERE run_id = %s AND state = 'committed' ORDER BY step"


@pytest.mark.parametrize("steps", [1, 3], ids=["before the first checkpoint", "after it"])
def test_an_adapter_survives_a_crash_as_if_there_had_been_none(
    bench: Bench, tmp_path: Path, steps: int
) -> None:
    lora = LoraConfig(rank=2, alpha=4)
    crashed, second = bench.trainer(lora=lora), bench.trainer(lora=lora)
    crashed.start()
    for _ in range(steps):  # the last of them is in no checkpoint
        assert crashed.work()
    torch.rand(3)  # another process has other random numbers
    second.start()
    assert ("reopened",) in bench.rows("SELECT state::text FROM trinity.batch WHERE run_id = %s")
    while second.work():
        pass
    second.release()
    torch.manual_seed(0)
    steady = Learner(settings(lora=lora), recipe("sft"), bench.checkpoints / "version-000000", total_steps=8)
    for (batch,) in bench.rows(COMMITTED):
        rows = batches.read(second.database, batch)
        steady.step(Batch([row.payload for row in rows]))
    steady.policy.save(tmp_path / "steady")
    assert steady.steps_done == 8
    newest = bench.checkpoints / bench.folders()[-1]
    for file in ("model.safetensors", "adapter/adapter_model.safetensors"):
        assert (newest / file).read_bytes() == (tmp_path / "steady" / file).read_bytes()


def test_an_adapter_does_not_go_on_without_the_model_that_it_is_laid_on(bench: Bench) -> None:
    trainer = bench.trainer(lora=LoraConfig())
    trainer.start()
    assert trainer.work()
    trainer.release()
    shutil.rmtree(bench.checkpoints / "version-000000")
    with pytest.raises(ConfigError, match="its starting model has changed or is gone"):
        bench.trainer(lora=LoraConfig()).start()
