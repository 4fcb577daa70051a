"""What explorers write that come with logins of their own: rollouts of their own workers, and no others."""

import os
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace

import pytest

from tests.support.postgres import by_login, execute
from tests.support.rows import Scene, attempt, demonstration, import_records, members, rollout
from trinity_db.errors import TrinityError
from trinity_db.postgres.connection import Database, connect
from trinity_db.postgres.logins import make_login, open_to_roles
from trinity_db.schema.states import WorkerRole
from trinity_db.store import groups, stopping, workers
from trinity_db.worker.service import LEASE_SECONDS

MINE, THEIRS, TRAINER = LOGINS = [f"{whose}_{os.getpid()}" for whose in ("mine", "theirs", "trainer")]
ROLLOUT = "INSERT INTO trinity.rollout (run_id, group_id, ordinal, attempt, state, worker_id) VALUES "
ROW = "INSERT INTO trinity.experience (run_id, group_id, rollout_id, step, state) VALUES "
COUNTS = (
    "SELECT (SELECT count(*) FROM trinity.rollout), (SELECT count(*) FROM trinity.experience),"
    " (SELECT count(*) FROM trinity.experience_text), (SELECT count(*) FROM trinity.payload)"
)

REFUSED = {
    "in another's name": ROLLOUT + "(%(run)s, %(held)s, 0, 1, 'finished', %(theirs)s)",
    "in no name": ROLLOUT + "(%(run)s, %(held)s, 0, 1, 'finished', NULL)",
    "into a group that another worker holds": ROLLOUT + "(%(run)s, %(taken)s, 0, 1, 'finished', %(mine)s)",
    "in the place of the holder, as a late one": ROLLOUT + "(%(run)s, %(taken)s, 0, 1, 'refused', %(mine)s)",
    "into a group that is complete": ROLLOUT + "(%(run)s, %(done)s, 2, 1, 'finished', %(mine)s)",
    "late, in another's name": ROLLOUT + "(%(run)s, %(done)s, 2, 1, 'refused', %(theirs)s)",
    "of another attempt": ROLLOUT + "(%(run)s, %(held)s, 0, 2, 'finished', %(mine)s)",
    "of another run": ROLLOUT + "(%(run)s + 1, %(held)s, 0, 1, 'finished', %(mine)s)",
    "a first step into another's group": ROW + "(%(run)s, %(taken)s, 1 << 40, 0, 'raw')",
    "a first step into a complete group": ROW + "(%(run)s, %(done)s, 1 << 40, 0, 'raw')",
    "a first step of another run": ROW + "(%(run)s + 1, %(held)s, 1 << 40, 0, 'dropped')",
    "a first step, later than its rollout": ROW + "(%(run)s, %(held)s, %(failed)s, 0, 'raw')",
    "a first step of another's rollout": ROW + "(%(run)s, %(held)s, %(another)s, 0, 'raw')",
    "a further step of another's rollout": ROW + "(%(run)s, %(done)s, %(another)s, 1, 'raw')",
    "a further step in another group": ROW + "(%(run)s, %(done)s, %(own)s, 1, 'raw')",
    "a further step of a failed rollout": ROW + "(%(run)s, %(held)s, %(failed)s, 1, 'raw')",
    "a dropped step of a finished rollout": ROW + "(%(run)s, %(held)s, %(own)s, 1, 'dropped')",
    "a metric of a trainer": "INSERT INTO trinity.metric (run_id, role, step, name, value)"
    " VALUES (%(run)s, 'train', 1, 'eval/loss', 0)",
    "arrays of a row that is there": "INSERT INTO trinity.payload (experience_id, codec, num_tokens, data)"
    " VALUES (%(imported)s, '', 1, '')",
}


@dataclass(frozen=True)
class Two:
    """A run with two explorers, each with a worker that came with a login of its own."""

    mine: Scene
    theirs: Scene


@pytest.fixture(scope="module")
def logins(shared_database: Database) -> Iterator[None]:
    url = shared_database.url
    with closing(connect(url)) as owner:
        open_to_roles(owner)
        for login in LOGINS:
            make_login(owner, login, "trinity_trainer" if login == TRAINER else "trinity_explorer")
    yield
    for login in LOGINS:
        execute(url, "DROP ROLE {}", login)


@pytest.fixture
def two(scene: Scene, logins: None) -> Iterator[Two]:
    with (
        closing(Database(by_login(scene.database.url, MINE))) as mine,
        closing(Database(by_login(scene.database.url, THEIRS))) as theirs,
    ):
        yield Two(_by(scene, mine), _by(scene, theirs))


def _by(scene: Scene, database: Database) -> Scene:
    scene = replace(scene, database=database)
    return replace(scene, explorer=scene.new_worker(WorkerRole.EXPLORE))


def written(group: groups.ClaimedGroup) -> list[groups.Rollout]:
    """All kinds of rollouts at once: one of three steps, one of one step, and one that failed."""
    return [
        attempt(group, 0, ["left", "right", "left"]),
        rollout(group, 1),
        rollout(group, 2, error="no answer"),
    ]


def test_an_explorer_writes_what_it_holds_and_writes_it_once(scene: Scene, two: Two) -> None:
    [group] = two.mine.claim(1, group_size=3)
    for _ in range(2):
        assert two.mine.write(written(group)) == 0
        assert scene.rows(COUNTS) == [(3, 4, 4, 4)]
    assert scene.values("SELECT worker_id FROM trinity.rollout") == [two.mine.explorer] * 3
    assert scene.rows("SELECT state, arrived, failed FROM trinity.rollout_group") == [("complete", 2, 1)]
    assert scene.values("SELECT DISTINCT state FROM trinity.experience") == ["raw"]


def test_spare_members_are_written_beside_their_group(scene: Scene, two: Two) -> None:
    [group] = two.mine.claim(1, group_size=1, spare=2)
    assert two.mine.write([rollout(group, 2), attempt(group, 0, ["left", "right"])]) == 1
    assert two.mine.write([rollout(group, 1, error="cancelled")]) == 1
    assert scene.rows("SELECT state::text, finish_reason FROM trinity.rollout ORDER BY ordinal") == [
        ("refused", "spare"),
        ("refused", "spare"),
        ("finished", "stop"),
    ]
    assert scene.rows("SELECT state, arrived FROM trinity.rollout_group") == [("complete", 1)]


def test_steps_of_several_versions_are_written_with_their_rollout(scene: Scene, two: Two) -> None:
    [group] = two.mine.claim(1, group_size=1)
    one = attempt(group, 0, ["left"], version=3)
    two.mine.write([replace(one, steps=[*one.steps, *attempt(group, 0, ["right"], version=4).steps])])
    assert scene.rows("SELECT version_min, version_max FROM trinity.rollout") == [(3, 4)]


@pytest.mark.parametrize("again", ["by no worker", "by another login", "and complete"])
def test_a_late_write_is_kept_as_refused(scene: Scene, two: Two, again: str) -> None:
    [group] = two.mine.claim(1, group_size=3)
    scene.lose(two.mine.explorer)
    if again != "by no worker":
        [taken] = two.theirs.claim(1, group_size=3)
        assert (taken.id, taken.attempt) == (group.id, 2)
    if again == "and complete":
        assert two.theirs.write(members(taken)) == 0
    for _ in range(2):
        assert two.mine.write(written(group)) == 3
        mine = "FROM trinity.rollout r WHERE r.worker_id = %s"
        assert scene.values(f"SELECT r.state {mine}", two.mine.explorer) == ["refused"] * 3
        rows = f"SELECT e.state FROM trinity.experience e WHERE e.rollout_id IN (SELECT r.id {mine})"
        assert scene.values(rows, two.mine.explorer) == ["dropped"] * 4
        assert scene.value('SELECT count(*) FROM trinity."drop"') == 4


def test_another_worker_of_the_login_writes_late_beside_the_one_that_holds_the_group(
    scene: Scene, two: Two
) -> None:
    [group] = two.mine.claim(1, group_size=3)
    again = two.mine.new_worker(WorkerRole.EXPLORE)
    assert two.mine.write(written(group), worker=again) == 3
    assert scene.values("SELECT DISTINCT state FROM trinity.rollout") == ["refused"]


@pytest.fixture
def names(scene: Scene, two: Two) -> Mapping[str, int]:
    """What the statements of REFUSED name."""
    [held], [taken, done] = two.mine.claim(1, group_size=4), two.theirs.claim(2)
    two.mine.write([rollout(held, 1), rollout(held, 2, error="no answer")])
    two.theirs.write(members(done))
    import_records(scene.database, "data", [demonstration(0)])
    find = "SELECT min(id) FROM trinity.rollout WHERE worker_id = %s AND state = %s"
    return {
        "run": scene.run.id,
        "mine": two.mine.explorer,
        "theirs": two.theirs.explorer,
        "held": held.id,
        "taken": taken.id,
        "done": done.id,
        "own": scene.value(find, two.mine.explorer, "finished"),
        "failed": scene.value(find, two.mine.explorer, "failed"),
        "another": scene.value(find, two.theirs.explorer, "finished"),
        "imported": scene.value("SELECT id FROM trinity.experience WHERE rollout_id IS NULL"),
    }


@pytest.mark.parametrize("statement", REFUSED.values(), ids=REFUSED)
def test_an_explorer_writes_nothing(two: Two, names: Mapping[str, int], statement: str) -> None:
    with (
        pytest.raises(TrinityError, match="row-level security"),
        two.mine.database.transaction() as tx,
    ):
        tx.execute(statement, names)


def test_the_verb_itself_is_stopped_when_it_names_another_worker(scene: Scene, two: Two) -> None:
    [group] = two.theirs.claim(1)
    with pytest.raises(TrinityError, match="row-level security"):
        replace(two.theirs, database=two.mine.database).write(members(group))
    assert scene.rows(COUNTS) == [(0, 0, 0, 0)]
    assert two.theirs.write(members(group)) == 0


def test_an_explorer_changes_no_version_of_another_s_rollout(two: Two, names: Mapping[str, int]) -> None:
    change = "UPDATE trinity.rollout SET version_max = 9 WHERE id = %s RETURNING id"
    assert two.mine.rows(change, names["another"]) == []
    assert two.mine.rows(change, names["own"]) == [(names["own"],)]


def test_a_trainer_gives_adopted_rows_their_arrays(scene: Scene, logins: None) -> None:
    import_records(scene.database, "data", [demonstration(0)])
    adopting = scene.beside("adopting", data=["data"])
    with closing(Database(by_login(scene.database.url, TRAINER))) as database:
        replace(adopting, database=database).encode()
    assert scene.rows(COUNTS) == [(0, 2, 1, 1)]


def test_a_trainer_s_login_asks_a_run_to_stop_and_an_explorer_s_does_not(scene: Scene, two: Two) -> None:
    with pytest.raises(TrinityError, match="permission denied"), two.mine.database.transaction() as tx:
        stopping.ask(tx, scene.run, LEASE_SECONDS)
    with closing(Database(by_login(scene.database.url, TRAINER))) as database, database.transaction() as tx:
        stopping.ask(tx, scene.run, LEASE_SECONDS)
    with two.mine.database.transaction() as tx:
        assert workers.beat(tx, two.mine.explorer, LEASE_SECONDS).is_to_stop
