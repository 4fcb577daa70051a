"""The trainer in this process: where it starts, and how it ends when another trainer has taken its place."""

import json
import shutil
import weakref
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
import transformers

from tests.support.bench import TINY, Bench, settings
from tests.support.recipes import recipe
from tests.support.rows import Scene
from trinity_db.config.shared import ModelConfig
from trinity_db.data.copies.model import export_model
from trinity_db.errors import ConfigError, LeaseLost, TrinityError
from trinity_db.models import folder_digest, load_model, load_tokenizer
from trinity_db.models.adapter_folder import base_folder, is_adapter
from trinity_db.models.chat.prompts import ChatRenderer
from trinity_db.postgres.connection import Database
from trinity_db.store import batches, policies
from trinity_db.trainer.checkpoints import cadence, checkpoint
from trinity_db.trainer.checkpoints.folder import OWNER_FILE, Folder, Publication, claim
from trinity_db.trainer.checkpoints.recovery import Allowed
from trinity_db.trainer.config import LoraConfig
from trinity_db.trainer.learner.gathered_columns import Batch
from trinity_db.trainer.learner.learner import Learner, NonFiniteLoss
from trinity_db.trainer.learner.value_head import ValueHead, load_head
from trinity_db.trainer.loop import lead_follow
from trinity_db.trainer.rows.encode import encode_adopted

pytestmark = pytest.mark.usefixtures("written_at_once")

VERSIONS = """
SELECT version, step, checkpoint IS NOT NULL FROM trinity.policy_version WHERE run_id = %s ORDER BY version
"""
REFUSED = "SELECT value FROM trinity.metric WHERE run_id = %s AND name = 'refused/batches'"
EVALUATED = "SELECT step FROM trinity.metric WHERE run_id = %s AND name = 'eval/loss' ORDER BY id"
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


def test_a_trainer_that_goes_back_frees_its_learner_and_evaluates_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.run = bench.open("held out", holdout=0.5)
    trainer = bench.trainer(publish_every=1)
    trainer.start()
    assert trainer.work()
    before, lead = weakref.ref(trainer._learner), lead_follow.lead
    is_free: list[bool] = []

    def forgotten(*_: object) -> None:
        raise batches.SetBack

    def led(*arguments: Any) -> lead_follow.Leader:
        is_free.append(before() is None)
        monkeypatch.undo()
        return lead(*arguments)

    monkeypatch.setattr(policies, "publish", forgotten)
    monkeypatch.setattr(lead_follow, "lead", led)
    assert trainer.work()
    assert is_free == [True], "memory never holds two learners"
    assert trainer.work()
    assert bench.rows(EVALUATED) == [(0,), (0,)]


def test_one_rank_that_is_to_share_weights_says_that_it_does_not(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = bench.trainer(sharding="full")
    trainer.start()
    assert "trainer.sharding: full has no effect with one rank, and neither has offload" in caplog.messages


def test_rows_are_not_given_tokens_by_a_trainer_that_was_replaced(bench: Bench) -> None:
    trainer = bench.trainer()
    trainer.start()
    tokenizer = load_tokenizer(bench.checkpoints / "version-000000")
    bench.forget_tokens()
    bench.replace(trainer)
    with pytest.raises(LeaseLost):
        encode_adopted(
            trainer.database, bench.run.id, trainer.worker_id, ChatRenderer(tokenizer), 9, 64, lambda: False
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


def test_a_run_that_started_from_another_keeps_its_model_when_the_other_goes_back(bench: Bench) -> None:
    crashed = bench.trainer(checkpoint_every=2, publish_every=1)
    crashed.start()
    for _ in range(4):
        assert crashed.work()
    first, bench.run = bench.run, bench.open("another")
    checkpoints, bench.checkpoints = bench.checkpoints, bench.checkpoints.with_name("another")
    bench.trainer(model=ModelConfig(run=first.name)).start()
    [(place,)] = bench.rows("SELECT checkpoint FROM trinity.policy_version WHERE run_id = %s")
    bench.run, bench.checkpoints = first, checkpoints
    bench.trainer(checkpoint_every=2, publish_every=1).start()
    assert bench.rows(
        "SELECT version FROM trinity.policy_version WHERE run_id = %s AND withdrawn_at > '-infinity'"
    )
    assert Path(place).is_dir()


def follow(bench: Bench, number: int) -> Path:
    """Start a second run from the first one's latest checkpoint. Return that model, a version."""
    first, bench.run = bench.run, bench.open("another")
    checkpoints, bench.checkpoints = bench.checkpoints, bench.checkpoints.with_name("another")
    bench.trainer(model=ModelConfig(run=first.name)).start()
    [(place,)] = bench.rows("SELECT checkpoint FROM trinity.policy_version WHERE run_id = %s")
    assert place == str(checkpoints / f"version-{number:06d}")
    bench.run, bench.checkpoints = first, checkpoints
    return Path(place)


def test_a_model_stays_whose_checkpoint_was_pruned_and_whose_version_is_withdrawn(bench: Bench) -> None:
    trainer = bench.trainer(publish_every=1, keep=2)
    trainer.start()
    assert trainer.work()
    trainer.release()
    model = follow(bench, 1)
    digest = folder_digest.digest(model)
    trainer = bench.trainer(publish_every=1, keep=2)
    trainer.start()
    for _ in range(3):
        assert trainer.work()
    trainer.release()
    assert bench.saved() == ["checkpoint-000003", "checkpoint-000004"]
    for place in bench.checkpoints.glob("checkpoint-*"):
        (place / "tensors.safetensors").unlink()
    for _ in range(2):  # at the second start no version of the run names it
        bench.trainer(publish_every=1, keep=2, allowed=Allowed(from_start=True)).start()
        assert bench.rows(VERSIONS)[1:] == [(number, number, False) for number in range(1, 5)]
        assert folder_digest.digest(model) == digest


def test_a_model_stays_whose_checkpoint_is_damaged(bench: Bench) -> None:
    trainer = bench.trainer(publish_every=1)
    trainer.start()
    for _ in range(2):
        assert trainer.work()
    trainer.release()
    model = follow(bench, 2)
    digest = folder_digest.digest(model)
    (bench.checkpoints / "checkpoint-000002" / "tensors.safetensors").unlink()
    for _ in range(2):  # at the second start no version of the run names it
        bench.trainer(publish_every=1).start()
        assert folder_digest.digest(model) == digest
        assert bench.saved() == ["checkpoint-000001", "checkpoint-000002.damaged"]
    assert bench.rows(VERSIONS)[-1] == (2, 2, False)


def test_a_checkpoint_whose_trainer_crashed_before_the_note_is_noted_at_the_next_start(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(folder: Folder, version: int, resume_hash: str) -> None:
        raise MemoryError

    trainer = bench.trainer(publish_every=1)
    trainer.start()
    assert trainer.work()
    monkeypatch.setattr(Folder, "acknowledge_checkpoint", crash)
    with pytest.raises(MemoryError):
        trainer.release()
    monkeypatch.undo()
    bench.trainer().start()
    [(recorded,)] = bench.rows(
        "SELECT resume_hash FROM trinity.policy_version WHERE run_id = %s AND version = 1"
    )
    own = claim(bench.checkpoints, json.loads((bench.checkpoints / OWNER_FILE).read_bytes()))
    [noted] = own.publications()
    assert noted.resume_hash == recorded
    assert own.set_lost_aside(0) == [1]
    places = [bench.checkpoints / f"{kind}-000001.later" for kind in ("version", "checkpoint")]
    assert own.lost_checkpoint(1) == (noted, *places)


def test_a_version_that_could_not_be_noted_is_noted_after_the_step(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = bench.trainer(micro_batch_size=1, publish_every=1)
    trainer.start()
    assert trainer.work()
    acknowledge = Folder.acknowledge
    failed: list[Publication] = []

    def fail_once(folder: Folder, publication: Publication) -> None:
        if not failed:
            failed.append(publication)
            raise MemoryError
        acknowledge(folder, publication)

    monkeypatch.setattr(Folder, "acknowledge", fail_once)
    assert trainer.work()
    [noted] = Folder(bench.checkpoints, "").publications()
    assert failed == [replace(noted, resume_hash=None)]


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
        "UPDATE trinity.policy_version SET checkpoint = replace(checkpoint, %s, %s),"
        " resume_from = replace(resume_from, %s, %s) WHERE run_id = %s",
        *(2 * (str(bench.checkpoints.parent), "/where/it/was")),
        bench.run.id,
    )
    bench.trainer().start()
    assert bench.rows(VERSIONS) == [(0, 0, True), (1, 2, True)]
    [places] = bench.rows(
        "SELECT checkpoint, resume_from FROM trinity.policy_version WHERE run_id = %s AND version = 1"
    )
    assert places == tuple(str(bench.checkpoints / name) for name in ("version-000001", "checkpoint-000001"))


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


MERGED = ["model.safetensors", "adapter/adapter_model.safetensors"]
COMMITTED = "SELECT id FROM trinity.batch WHERE run_id = %s AND state = 'committed' ORDER BY step"


@pytest.mark.parametrize(
    ("steps", "publish", "files"),
    [
        (1, "merged", MERGED),
        (3, "merged", MERGED),
        (3, "adapter", ["adapter_model.safetensors", "adapter_config.json", "base.json"]),
    ],
    ids=["before the first checkpoint", "after it", "published as an adapter"],
)
def test_an_adapter_survives_a_crash_as_if_there_had_been_none(
    bench: Bench, tmp_path: Path, steps: int, publish: Literal["adapter", "merged"], files: list[str]
) -> None:
    lora = LoraConfig(rank=2, alpha=4)
    crashed, second = bench.trainer(lora=lora, publish=publish), bench.trainer(lora=lora, publish=publish)
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
    start = bench.checkpoints / "version-000000"
    steady = Learner(settings(lora=lora, publish=publish), recipe("sft"), start, total_steps=8)
    for (batch,) in bench.rows(COMMITTED):
        rows = batches.read(second.database, batch)
        steady.step(Batch([row.payload for row in rows]))
    (tmp_path / "steady").mkdir()
    folder_digest.complete(tmp_path / "steady", steady.policy.save(tmp_path / "steady"))
    assert steady.steps_done == 8
    newest = bench.checkpoints / bench.folders()[-1]
    for file in files:
        assert (newest / file).read_bytes() == (tmp_path / "steady" / file).read_bytes()


def test_an_adapter_does_not_go_on_without_the_model_that_it_is_laid_on(bench: Bench) -> None:
    trainer = bench.trainer(lora=LoraConfig())
    trainer.start()
    assert trainer.work()
    trainer.release()
    shutil.rmtree(bench.checkpoints / "version-000000")
    with pytest.raises(ConfigError, match="its starting model has changed or is gone"):
        bench.trainer(lora=LoraConfig()).start()


def published_adapter(bench: Bench) -> Path:
    """The folder of a version of the bench's run that is an adapter."""
    trainer = bench.trainer(lora=LoraConfig(rank=2), publish="adapter")
    trainer.start()
    assert trainer.work()
    trainer.release()
    folder = bench.checkpoints / "version-000001"
    assert is_adapter(folder)
    return folder


def test_a_run_that_starts_from_an_adapter_has_the_whole_model_in_a_folder_of_its_own(bench: Bench) -> None:
    """So the other run may be deleted, with the base of the adapter."""
    adapter = published_adapter(bench)
    expected = load_model(adapter, "cpu").state_dict()
    first, bench.run = bench.run, bench.open("another")
    bench.checkpoints = bench.checkpoints.with_name("another")
    bench.trainer(model=ModelConfig(run=first.name)).start()
    shutil.rmtree(adapter.parent)
    found = load_model(bench.checkpoints / "version-000000", "cpu").state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], weight) for name, weight in expected.items())
    trainer = bench.trainer(model=ModelConfig(run=first.name), lora=LoraConfig(rank=2), publish="adapter")
    trainer.start()
    assert trainer.work()
    trainer.release()
    assert base_folder(bench.checkpoints / "version-000001") == bench.checkpoints / "version-000000"


def test_a_run_that_starts_from_an_adapter_has_its_value_head_too(bench: Bench) -> None:
    adapter = published_adapter(bench)
    hidden_size = TINY.scratch.hidden_size if TINY.scratch else 0
    head = ValueHead(hidden_size)
    torch.nn.init.ones_(head.weight)
    head.save(adapter)
    bench.run = bench.open("another")
    bench.checkpoints = bench.checkpoints.with_name("another")
    bench.trainer(model=ModelConfig(path=adapter)).start()
    folder = bench.checkpoints / "version-000000"
    found = load_head(ValueHead, folder, load_model(folder, "cpu"))
    assert torch.equal(found.weight, head.weight)
    [(digest,)] = bench.rows("SELECT checkpoint_hash FROM trinity.policy_version WHERE run_id = %s")
    assert folder_digest.verify(folder, digest)


def test_a_copied_run_goes_on_from_an_adapter_whose_base_lies_elsewhere(bench: Bench) -> None:
    """As the trainer of an imported run, which copies the version that it goes on from, and not its base."""
    adapter = published_adapter(bench)
    elsewhere = bench.checkpoints.with_name("copies")
    bench.checkpoints.rename(elsewhere)
    bench.checkpoints.mkdir()
    (elsewhere / "run.json").rename(bench.checkpoints / "run.json")
    for version in (0, 1):
        where = str(elsewhere / f"version-00000{version}")
        bench.execute("UPDATE trinity.policy_version SET checkpoint = %s WHERE version = %s", where, version)
    where = str(elsewhere / "checkpoint-000001")
    bench.execute("UPDATE trinity.policy_version SET resume_from = %s WHERE version = 1", where)
    trainer = bench.trainer(lora=LoraConfig(rank=2), publish="adapter")
    trainer.start()
    assert bench.folders() == [adapter.name]
    assert base_folder(adapter) == elsewhere / "version-000000"
    assert trainer.work()


def test_a_version_that_is_an_adapter_is_exported_as_a_whole_model(bench: Bench, tmp_path: Path) -> None:
    adapter = published_adapter(bench)
    database, name = bench.trainer().database, bench.run.name
    assert export_model(database, name, tmp_path / "model", version=None) == 1
    found = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model").state_dict()
    assert all(
        torch.equal(found[name], weight) for name, weight in load_model(adapter, "cpu").state_dict().items()
    )
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "model").get_vocab()
    with pytest.raises(ConfigError, match=r"has no files of version 7; available: 0, 1\."):
        export_model(database, name, tmp_path / "none", version=7)
    with pytest.raises(ConfigError, match="already exists"):
        export_model(database, name, tmp_path / "model", version=1)
    (adapter / "adapter_model.safetensors").write_bytes(b"damaged")
    with pytest.raises(TrinityError, match=r"Version 1: its files .* differ from the published ones"):
        export_model(database, name, tmp_path / "none", version=1)
    assert not (tmp_path / "none").exists()


def test_a_whole_version_is_exported_as_it_is_without_what_only_the_trainer_reads(
    bench: Bench, tmp_path: Path
) -> None:
    trainer = bench.trainer(lora=LoraConfig(rank=2), publish="merged")
    trainer.start()
    assert trainer.work()
    trainer.release()
    assert export_model(trainer.database, bench.run.name, tmp_path / "model", version=1) == 1
    published = bench.checkpoints / "version-000001"
    copied = {path.name for path in (tmp_path / "model").iterdir()}
    assert {path.name for path in published.iterdir()} - copied == {"adapter", "canary.json"}
    assert all((tmp_path / "model" / name).read_bytes() == (published / name).read_bytes() for name in copied)


LINE = """
SELECT version, step, version = 0 OR resume_hash IS NOT NULL, withdrawn_at IS NOT NULL, skipped
FROM trinity.policy_version
WHERE run_id = %s ORDER BY version
"""


def test_versions_after_the_latest_checkpoint_are_withdrawn_and_their_steps_made_again(
    bench: Bench, tmp_path: Path
) -> None:
    crashed = bench.trainer(checkpoint_every=4)
    crashed.start()
    for _ in range(7):
        assert crashed.work()
    line = [(0, 0, True, False, 0), (1, 2, False, False, 0), (2, 4, True, False, 0)]
    assert bench.rows(LINE) == [*line, (3, 6, False, False, 0)]
    has_state = {path.parent.name for path in bench.checkpoints.rglob(checkpoint.STATE_FILE)}
    assert has_state == {"checkpoint-000002"}
    last = bench.trainer(checkpoint_every=4)
    last.start()
    assert bench.rows(LINE) == [*line, (3, 6, False, True, 0)]
    assert bench.folders() == ["version-000000", "version-000001", "version-000002"]
    assert bench.rows(BATCHES) == [(step, "committed" if step < 5 else "reopened") for step in range(1, 8)]
    while last.work() or not last.is_done():
        pass
    assert bench.rows(LINE) == [
        *line,
        (3, 6, False, True, 0),
        (4, 6, False, False, 1),
        (5, 8, True, False, 1),
    ]
    torch.manual_seed(0)
    steady = Learner(settings(), recipe("sft"), bench.checkpoints / "version-000000", total_steps=8)
    for (batch,) in bench.rows(COMMITTED):
        steady.step(Batch([row.payload for row in batches.read(last.database, batch)]))
    folder_digest.complete(tmp_path / "steady", steady.policy.save(tmp_path / "steady"))
    final, expected = bench.checkpoints / "version-000005", tmp_path / "steady"
    assert (final / "model.safetensors").read_bytes() == (expected / "model.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("seconds", "resumable"),
    [(0.0, [True, True, True]), (1e9, [True, False, True])],
    ids=["due", "not due"],
)
def test_a_stop_writes_a_checkpoint_whether_one_is_due_or_not(
    bench: Bench, seconds: float, resumable: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cadence, "interval", lambda cost: seconds)
    trainer = bench.trainer(checkpoint_every="auto")
    trainer.start()
    for _ in range(3):
        assert trainer.work()
    trainer.release()
    trainer.release()
    assert [row[:3] for row in bench.rows(LINE)] == [
        (version, step, is_one)
        for (version, step), is_one in zip([(0, 0), (1, 2), (2, 3)], resumable, strict=True)
    ]


@pytest.mark.parametrize(
    "damaged", ["version-000004/config.json", f"checkpoint-000004/{checkpoint.TENSORS_FILE}"]
)
def test_a_damaged_checkpoint_takes_the_versions_after_it_along(
    bench: Bench, damaged: str, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = bench.trainer(checkpoint_every=2, publish_every=1)
    trainer.start()
    for _ in range(6):
        assert trainer.work()
    (bench.checkpoints / damaged).unlink()
    bench.trainer(checkpoint_every=2, publish_every=1).start()
    place = (bench.checkpoints / damaged).parent
    assert f"version 4: its checkpoint at {place} is damaged or missing" in caplog.text
    assert [row[:4] for row in bench.rows(LINE)] == [
        (0, 0, True, False),
        (1, 1, False, False),
        (2, 2, True, False),
        (3, 3, False, True),
        (4, 4, True, True),
        (5, 5, False, True),
    ]
    assert bench.folders() == ["version-000000", "version-000002", "version-000004.damaged"]
    assert bench.saved() == ["checkpoint-000002", "checkpoint-000004.damaged"]
