"""From the metric table to a sink: everything, in order, each number once, whatever happens in between."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing

import pytest

from tests.support.rows import Scene
from trinity_db.errors import TrinityError
from trinity_db.insight.sinks import follow
from trinity_db.insight.sinks.follow import Follower, mirrored
from trinity_db.postgres.connection import connect
from trinity_db.schema.states import WorkerRole
from trinity_db.store import runs
from trinity_db.store.metrics import Measurement, record_metrics

WAIT_SECONDS = 30.0


class Notebook:
    """A sink in memory, which keeps what it has when it is closed, and may be told to fail."""

    def __init__(self) -> None:
        self.measured: list[Measurement] = []
        self.refuses = 0
        self.opened = 0
        self.full = threading.Event()
        """Set when it has taken something."""

    def __str__(self) -> str:
        return "Notebook"

    @property
    def numbers(self) -> list[tuple[str, int, str, float]]:
        return [
            (one.role.value, one.step, name, value)
            for one in self.measured
            for name, value in one.values.items()
        ]

    def open(self, run: runs.Run) -> int:
        self.opened += 1
        return self.measured[-1].id if self.measured else 0

    def write(self, measured: Sequence[Measurement]) -> None:
        if self.refuses:
            self.refuses -= 1
            raise ConnectionError("no server\nanswers")
        self.measured += measured
        self.full.set()

    def close(self) -> None:
        pass


Record = Callable[..., None]


@pytest.fixture
def record(scene: Scene) -> Record:
    def record(step: int, role: WorkerRole = WorkerRole.TRAIN, **values: float) -> None:
        scene.record(step, values, role)

    return record


@pytest.fixture
def notebook() -> Notebook:
    return Notebook()


@pytest.fixture
def follower(scene: Scene, notebook: Notebook) -> Iterator[Follower]:
    with closing(Follower(scene.database, scene.run, notebook)) as follower:
        yield follower


def test_what_every_role_measures_arrives_once_and_in_order(
    follower: Follower, notebook: Notebook, record: Record
) -> None:
    record(1, loss=0.5, kl=0.1)
    record(0, WorkerRole.EXPLORE, seconds=2.0)
    assert follower.catch_up() == 3
    record(2, loss=0.25)
    assert follower.catch_up() == 1
    assert follower.catch_up() == 0
    assert notebook.numbers == [
        ("train", 1, "loss", 0.5),
        ("train", 1, "kl", 0.1),
        ("explore", 0, "seconds", 2.0),
        ("train", 2, "loss", 0.25),
    ]
    assert [len(one.values) for one in notebook.measured] == [2, 1, 1]


def test_another_run_has_metrics_of_its_own(
    scene: Scene, follower: Follower, notebook: Notebook, record: Record
) -> None:
    with scene.database.transaction() as tx:
        other = runs.open_run(tx, "other", {}, "groups")
        record_metrics(tx, other.id, WorkerRole.TRAIN, 1, {"loss": 9.0})
    record(1, loss=0.5)
    follower.catch_up()
    assert notebook.numbers == [("train", 1, "loss", 0.5)]


def test_a_position_is_where_another_follower_goes_on(
    scene: Scene, follower: Follower, notebook: Notebook, record: Record
) -> None:
    record(1, loss=0.5)
    follower.catch_up()
    record(2, loss=0.25)
    assert Follower(scene.database, scene.run, notebook).catch_up() == 1
    assert [step for _, step, _, _ in notebook.numbers] == [1, 2]


def test_what_was_held_back_arrives_although_later_ids_could_be_seen_before(
    scene: Scene, follower: Follower, notebook: Notebook, record: Record
) -> None:
    with closing(connect(scene.database.url)) as slow:
        record_metrics(slow, scene.run.id, WorkerRole.EXPLORE, 0, {"seconds": 2.0})
        record(1, loss=0.5)
        assert follower.catch_up() == 0
        slow.commit()
    assert follower.catch_up() == 2
    assert notebook.numbers == [("explore", 0, "seconds", 2.0), ("train", 1, "loss", 0.5)]


def test_an_id_whose_row_never_comes_holds_no_follower_up(
    scene: Scene, follower: Follower, notebook: Notebook, record: Record
) -> None:
    with closing(connect(scene.database.url)) as slow:
        record_metrics(slow, scene.run.id, WorkerRole.EXPLORE, 0, {"seconds": 2.0})
        record(1, loss=0.5)
        slow.rollback()
    assert follower.catch_up() == 1
    assert notebook.numbers == [("train", 1, "loss", 0.5)]


def test_a_writer_of_another_run_holds_no_follower_up(
    scene: Scene, follower: Follower, record: Record
) -> None:
    with scene.database.transaction() as tx:
        other = runs.open_run(tx, "other", {}, "groups")
    with closing(connect(scene.database.url)) as slow:
        record_metrics(slow, other.id, WorkerRole.TRAIN, 1, {"loss": 9.0})
        record(1, loss=0.5)
        assert follower.catch_up() == 1


def test_at_the_end_a_follower_waits_for_those_who_write(
    scene: Scene, follower: Follower, notebook: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(connect(scene.database.url)) as slow:
        record_metrics(slow, scene.run.id, WorkerRole.EXPLORE, 0, {"seconds": 2.0})
        monkeypatch.setattr("time.sleep", lambda seconds: slow.commit())
        assert follower.catch_up(patience=WAIT_SECONDS) == 1


def test_many_numbers_are_read_page_by_page(
    follower: Follower, notebook: Notebook, record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "PAGE", 3)
    for step in range(4):
        record(step, a=1.0, b=2.0)
    assert follower.catch_up() == 8
    assert [(step, name) for _, step, name, _ in notebook.numbers] == [
        (step, name) for step in range(4) for name in "ab"
    ]


def test_a_sink_that_fails_is_named_in_one_line_and_opened_anew(
    follower: Follower, notebook: Notebook, record: Record
) -> None:
    record(1, loss=0.5)
    notebook.refuses = 1
    with pytest.raises(TrinityError, match=r"^Notebook did not take the metrics: no server$"):
        follower.catch_up()
    assert follower.catch_up() == 1
    assert notebook.opened == 2
    assert notebook.numbers == [("train", 1, "loss", 0.5)]


def test_a_store_that_was_set_back_is_noticed(
    scene: Scene, follower: Follower, notebook: Notebook, record: Record
) -> None:
    record(1, loss=0.5)
    last = scene.value("SELECT max(id) FROM trinity.metric")
    notebook.measured.append(Measurement(last + 1, WorkerRole.TRAIN, 2, scene.run.created_at, {"loss": 0.25}))
    with pytest.raises(TrinityError, match=r"Notebook has newer metrics of run 'run' than the store"):
        follower.catch_up()


def test_a_mirror_says_once_that_a_sink_fails_and_has_everything_in_the_end(
    scene: Scene,
    notebook: Notebook,
    record: Record,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(follow, "LOOK_SECONDS", 0.01)
    notebook.refuses = 3
    with mirrored(scene.database, scene.run, [notebook]) as [mirror]:
        record(1, loss=0.5)
        assert notebook.full.wait(WAIT_SECONDS)
        record(2, loss=0.25)
    assert mirror.failure is None
    assert [step for _, step, _, _ in notebook.numbers] == [1, 2]
    assert [one.message for one in caplog.records] == [
        "Notebook did not take the metrics: no server; retrying, and no metrics are lost"
    ]


def test_a_sink_that_hangs_is_left_behind(
    scene: Scene,
    notebook: Notebook,
    record: Record,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(follow, "END_SECONDS", 0.05)
    goes_on = threading.Event()
    monkeypatch.setattr(notebook, "write", lambda measured: goes_on.wait(WAIT_SECONDS))
    record(1, loss=0.5)
    with mirrored(scene.database, scene.run, [notebook]) as [mirror]:
        pass
    assert "are incomplete" in str(mirror.failure)
    hanging = [one for one in threading.enumerate() if one.name == "metrics to Notebook"]
    goes_on.set()
    for one in hanging:
        one.join(WAIT_SECONDS)
    assert [one.message for one in caplog.records] == [
        "metrics to Notebook are incomplete; to complete them: trinity-db metrics run"
    ]
