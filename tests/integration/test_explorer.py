"""The explorer with workflows of one's own: what it acknowledges, refuses and gives back."""

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.echo import Echo
from tests.postgres import cluster_18, discard, start
from tests.rows import UNLIMITED, Scene, members, rollout
from trinity_db.database import Database, connect, upgrade
from trinity_db.errors import TrinityError
from trinity_db.explorer.config import ExplorerConfig
from trinity_db.explorer.service import Explorer
from trinity_db.explorer.workflow import Workflow
from trinity_db.models import folder_digest
from trinity_db.schema.states import WorkerRole
from trinity_db.store.groups import ClaimedGroup, Rollout

STOP_SECONDS = 20.0  # a stop without a database: two attempts to connect, one of them the goodbye's


@pytest.fixture
def handlers() -> Iterator[None]:
    """Gives the signals back that serving took."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(autouse=True)
def starting_model(scene: Scene, tmp_path: Path) -> Path:
    """Files of version 0, which an explorer holds to their hash."""
    folder = tmp_path / "version-0"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"weights")
    publish(scene, 0, folder)
    return folder


def publish(scene: Scene, version: int, folder: Path) -> None:
    """Let the store say that a version is in a folder as it is now."""
    with scene.database.transaction() as tx:
        tx.execute(
            "INSERT INTO trinity.policy_version (run_id, version, step, checkpoint, checkpoint_hash)"
            " VALUES (%(run)s, %(version)s, %(version)s, %(folder)s, %(digest)s)"
            " ON CONFLICT (run_id, version) DO UPDATE"
            " SET checkpoint = excluded.checkpoint, checkpoint_hash = excluded.checkpoint_hash",
            {
                "run": scene.run.id,
                "version": version,
                "folder": str(folder),
                "digest": folder_digest.digest(folder),
            },
        )


def explorer(scene: Scene, workflow: Workflow) -> Explorer:
    """At work on two groups of two at a time, as the scene's explorer."""
    config = ExplorerConfig(workflow="mine.py:workflow", group_size=2, batch_size=2)
    role = Explorer(
        scene.database, scene.run, config, workflow, Echo(), UNLIMITED, scene.selection, "{prompt}"
    )
    role.worker_id = scene.explorer
    return role


def stored(scene: Scene) -> list[tuple[Any, ...]]:
    """Member, attempt and state of every rollout, as a connection of its own sees them."""
    with closing(connect(scene.database.url)) as other:
        rows = other.execute("SELECT ordinal, attempt, state FROM trinity.rollout ORDER BY id")
        return [tuple(row.values()) for row in rows]


def test_what_a_workflow_yielded_is_durable_when_it_is_asked_for_more(scene: Scene) -> None:
    seen = []

    def workflow(engine: Any, groups: Sequence[ClaimedGroup], **options: Any) -> Iterator[list[Rollout]]:
        for group in groups:
            for one in members(group):
                yield [one]
                seen.append(len(stored(scene)))

    assert explorer(scene, workflow).work()
    assert seen == [1, 2, 3, 4]
    assert scene.values("SELECT state FROM trinity.rollout_group") == ["complete"] * 2


def test_what_came_too_late_is_durable_as_well(scene: Scene) -> None:
    seen = []

    def workflow(engine: Any, groups: Sequence[ClaimedGroup], **options: Any) -> Iterator[list[Rollout]]:
        yield [rollout(groups[0], 0)]
        scene.lose(scene.explorer)
        other = scene.new_worker(WorkerRole.EXPLORE)
        [first, second] = scene.claim(2, worker=other)
        scene.write(members(first), worker=other)
        yield [rollout(groups[0], 1), *members(groups[1])]
        seen.extend(stored(scene))
        scene.write(members(second), worker=other)

    assert explorer(scene, workflow).work()
    assert seen == [
        (0, 1, "finished"),
        (1, 2, "finished"),
        *[(1, 1, "refused"), (0, 1, "refused"), (1, 1, "refused")],
    ]
    assert scene.rows("SELECT state, arrived FROM trinity.rollout_group") == [("complete", 2)] * 2


def test_a_stop_keeps_what_ended_and_gives_back_what_did_not(scene: Scene, handlers: None) -> None:
    def workflow(
        engine: Any, groups: Sequence[ClaimedGroup], *, should_stop: Callable[[], bool], **options: Any
    ) -> Iterator[list[Rollout]]:
        yield [rollout(groups[0], 0)]
        os.kill(os.getpid(), signal.SIGTERM)
        assert should_stop()
        yield [rollout(groups[0], 1), rollout(groups[1], 1)]

    explorer(scene, workflow).serve()
    assert stored(scene) == [(0, 1, "finished"), (1, 1, "finished"), (1, 1, "finished")]
    assert scene.rows("SELECT state, worker_id FROM trinity.rollout_group ORDER BY id") == [
        ("complete", None),
        ("open", None),
    ]


def test_a_stop_ends_also_while_there_is_no_database(handlers: None, starting_model: Path) -> None:
    cluster = cluster_18()
    try:
        url = start(cluster)
        upgrade(url)
        with closing(Database(url)) as database:
            scene = Scene.open(database)
            publish(scene, 0, starting_model)
            began = []

            def workflow(
                engine: Any, groups: Sequence[ClaimedGroup], **options: Any
            ) -> Iterator[list[Rollout]]:
                yield [rollout(groups[0], 0)]
                cluster.stop()
                began.append(time.monotonic())
                os.kill(os.getpid(), signal.SIGTERM)
                yield [rollout(groups[0], 1)]
                raise AssertionError("nothing was acknowledged, so it is not asked for more")

            explorer(scene, workflow).serve()
            assert time.monotonic() - began[0] < STOP_SECONDS
            cluster.ensure_running()
            assert stored(scene) == [(0, 1, "finished")]
    finally:
        discard(cluster)


def test_text_that_postgres_cannot_hold_is_kept_without_what_it_cannot(scene: Scene) -> None:
    def workflow(engine: Any, groups: Sequence[ClaimedGroup], **options: Any) -> Iterator[list[Rollout]]:
        for group in groups:
            yield [rollout(group, 0, "a\x00b"), rollout(group, 1, error="half a pair: \ud800, a NUL: \x00")]

    assert explorer(scene, workflow).work()
    assert set(scene.values("SELECT response FROM trinity.experience_text")) == {"ab"}
    assert set(scene.values("SELECT error FROM trinity.rollout WHERE state = 'failed'")) == {
        "half a pair: ?, a NUL: "
    }


def test_an_error_in_a_workflow_of_one_s_own_is_named_with_its_place(scene: Scene) -> None:
    def workflow(engine: Any, groups: Sequence[ClaimedGroup], **options: Any) -> Iterator[list[Rollout]]:
        yield members(groups[0])
        raise ValueError("my bug")

    place = (
        r"Workflow 'mine.py:workflow' raised ValueError: my bug \(.*test_explorer.py, line \d+, in workflow\)"
    )
    with pytest.raises(TrinityError, match=place):
        explorer(scene, workflow).work()
    assert len(stored(scene)) == 2


@pytest.mark.parametrize(
    ("yielded", "said"),
    [
        (lambda group: iter([rollout(group, 0)]), "yielded Rollout, not a list of rollouts"),
        (lambda group: None, "raised TypeError: 'NoneType' object is not iterable"),
    ],
)
def test_a_workflow_that_yields_something_else_is_an_error(
    scene: Scene, yielded: Callable[[ClaimedGroup], Any], said: str
) -> None:
    def workflow(engine: Any, groups: Sequence[ClaimedGroup], **options: Any) -> Any:
        return yielded(groups[0])

    with pytest.raises(TrinityError, match=said):
        explorer(scene, workflow).work()


def test_a_member_that_was_not_asked_for_is_an_error(scene: Scene) -> None:
    def twice(engine: Any, groups: Sequence[ClaimedGroup], **options: Any) -> Iterator[list[Rollout]]:
        yield [rollout(groups[0], 1)]
        yield [rollout(groups[0], 0), rollout(groups[0], 1)]

    with pytest.raises(TrinityError, match=r"Workflow 'mine.py:workflow' yielded member 1 of group \d+"):
        explorer(scene, twice).work()
    assert stored(scene) == [(1, 1, "finished")]


def test_a_workflow_that_forgets_members_is_an_error(scene: Scene) -> None:
    def forgetful(engine: Any, groups: Sequence[ClaimedGroup], **options: Any) -> Iterator[list[Rollout]]:
        yield members(groups[0])

    with pytest.raises(TrinityError, match=r"ended without 2 of the rollouts"):
        explorer(scene, forgetful).work()


def explores(engine: Any, groups: Sequence[ClaimedGroup], **options: Any) -> Iterator[list[Rollout]]:
    for group in groups:
        yield members(group)


def test_files_that_are_not_those_that_were_published_are_not_loaded(
    scene: Scene, starting_model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    role = explorer(scene, explores)
    assert role.work()
    elsewhere = tmp_path / "elsewhere"
    publish(scene, 1, starting_model)
    elsewhere.mkdir()
    (elsewhere / "model.safetensors").write_bytes(b"other weights")
    with scene.database.transaction() as tx:
        tx.execute("UPDATE trinity.policy_version SET checkpoint = %s WHERE version = 1", [str(elsewhere)])
    for _ in range(3):
        assert not role.work()
    assert caplog.text.count("version 1 cannot be used") == 1
    assert role._engine.version == 0
    publish(scene, 1, elsewhere)
    assert role.work()
    assert role._engine.version == 1


def test_another_checkpoint_under_the_number_that_is_loaded_is_loaded(
    scene: Scene, starting_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[bytes] = []

    def load(engine: Echo, path: Path, version: int) -> None:
        loaded.append((path / "model.safetensors").read_bytes())

    monkeypatch.setattr(Echo, "load", load)
    role = explorer(scene, explores)
    assert role.work()
    (starting_model / "model.safetensors").write_bytes(b"set back")
    publish(scene, 0, starting_model)
    for _ in range(2):
        assert role.work()
    assert loaded == [b"weights", b"set back"]
