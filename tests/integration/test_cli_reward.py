"""`trinity-db reward`: one line that changes a reward, or a file that changes many, wholly or not at all."""

import json
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import closing
from getpass import getuser
from pathlib import Path

import pytest

from tests.support.command_line import CommandLine
from tests.support.rows import WAIT_SECONDS, Scene, in_a_thread, wait_until_blocked
from trinity_db.api import rewards as recording
from trinity_db.postgres.connection import Database, connect

Say = Callable[..., tuple[int | str | None, str]]

EVENTS = (
    "SELECT rollout_id, name, source, value, weight, created_by FROM trinity.reward_event"
    " WHERE source <> 'score' ORDER BY id"
)


@pytest.fixture
def say(
    scene: Scene, shared_database: Database, command_line: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> Say:
    """Runs the command on the scene's store, with a ready group of two rows; its exit code and its output."""
    scene.make_ready(1, rewards=(1.0, 0.0))
    monkeypatch.setenv("TRINITY_DB_URL", shared_database.url)

    def say(*arguments: object) -> tuple[int | str | None, str]:
        done = command_line("reward", *map(str, arguments))
        return done.code, done.stdout or done.stderr

    return say


@pytest.fixture
def ids(say: Say, scene: Scene) -> list[int]:
    return scene.values("SELECT id FROM trinity.experience ORDER BY id")


def rewards(scene: Scene) -> list[float | None]:
    return scene.values("SELECT reward FROM trinity.experience ORDER BY id")


def test_a_reward_is_added_and_what_it_changed_is_shown(scene: Scene, say: Say, ids: list[int]) -> None:
    code, printed = say(ids[1], "0.5")
    assert code == 0
    assert printed.splitlines()[-1].split() == [str(ids[1]), "0.0", "0.5", "0.75"]
    [event] = scene.rows(EVENTS)
    assert event[1:] == ("human", "human", 0.5, 1.0, getuser())
    assert rewards(scene) == [1.0, 0.5]


def test_a_reward_may_be_negative_and_another_s(scene: Scene, say: Say, ids: list[int]) -> None:
    options = ("--name", "style", "--source", "robot", "--by", "r2", "--weight", "2", "--json")
    code, printed = say(ids[0], "-1.5", *options)
    assert code == 0
    change = {"experience": ids[0], "before": 1.0, "after": -2.0, "group_mean": -1.0}
    assert json.loads(printed) == [change]
    assert scene.rows(EVENTS)[0][1:] == ("style", "robot", -1.5, 2.0, "r2")


def test_a_file_is_recorded_as_a_whole(scene: Scene, say: Say, ids: list[int], tmp_path: Path) -> None:
    file = tmp_path / "said.jsonl"
    lines = [
        {"experience": ids[0], "value": 3},
        {"experience": ids[1], "value": 0.25, "name": "style", "source": "robot", "by": None, "weight": 4},
        {"experience": ids[0], "value": -1},
    ]
    file.write_text("\n".join(map(json.dumps, lines)))
    code, printed = say("--from", file, "--by", "ann", "--json")
    assert code == 0
    assert [tuple(change.values()) for change in json.loads(printed)] == [
        (ids[0], 1.0, 0.0, 0.5),
        (ids[1], 0.0, 1.0, 0.5),
    ]
    said = [event[1:] for event in scene.rows(EVENTS)]
    assert said == [
        ("human", "human", 3.0, 1.0, "ann"),
        ("style", "robot", 0.25, 4.0, None),
        ("human", "human", -1.0, 1.0, "ann"),
    ]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "is not JSON"),
        ("[1, 2]", "is not a JSON object"),
        ('{"experience": 1}', "'value' is missing"),
        ('{"value": 1}', "'experience' is missing"),
        ('{"experience": 1, "value": "high"}', "'value' must be a number, not text"),
        ('{"experience": 1, "value": NaN}', "is not JSON: NaN is not a number"),
        ('{"experience": 1, "value": 1e999}', "is not JSON: 1e999 is too large"),
        ('{"experience": 1, "value": 1e99, "weight": 1e99}', "'value' times 'weight' exceeds 1e+100"),
        ('{"experience": true, "value": 1}', "'experience' must be the id of an experience, a whole number"),
        ('{"experience": 1, "valeu": 1}', "unknown key 'valeu'; known: experience, value, name"),
        ('{"experience": 1, "value": 1, "name": ""}', "'name' is empty"),
        ('{"experience": 1, "value": 1, "by": "a\\u0000"}', "must be printable text in one line"),
    ],
)
def test_a_bad_line_is_named_and_nothing_is_recorded(
    scene: Scene, say: Say, ids: list[int], tmp_path: Path, line: str, says: str
) -> None:
    file = tmp_path / "said.jsonl"
    file.write_text(f'{{"experience": {ids[0]}, "value": 3}}\n\n{line}\n')
    code, _ = say("--from", file)
    assert isinstance(code, str)
    assert code.startswith(f"error: {file}, line 3: ")
    assert says in code
    assert code.endswith("; nothing was recorded.")
    assert scene.rows(EVENTS) == []


def test_an_experience_that_is_not_there_leaves_the_file_unrecorded(
    scene: Scene, say: Say, ids: list[int], tmp_path: Path
) -> None:
    file = tmp_path / "said.jsonl"
    file.write_text(f'{{"experience": {ids[0]}, "value": 3}}\n{{"experience": 0, "value": 3}}\n')
    assert say("--from", file) == ("error: There is no experience 0.", "")
    assert rewards(scene) == [1.0, 0.0]
    file.write_text("\n")
    assert say("--from", file)[0] == f"error: {file}: is empty."
    assert "cannot be read" in str(say("--from", tmp_path / "nowhere.jsonl")[0])


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_a_reward_that_is_not_finite_is_refused(scene: Scene, say: Say, ids: list[int], value: str) -> None:
    assert say(ids[0], value)[0] == "error: 'value' is not finite"
    assert scene.rows(EVENTS) == []


@pytest.mark.parametrize(
    "arguments", [(), (1,), (1, 2, "--from", "x"), (1, "--from", "x"), (1, 2, "--wieght", 3)]
)
def test_arguments_that_say_two_things_or_nothing_are_refused(
    say: Say, arguments: tuple[object, ...]
) -> None:
    assert say(*arguments)[0] == 2


@pytest.mark.parametrize(("seconds", "code"), [(60, "0"), (0, "error: The database undid a transaction")])
def test_a_reward_that_the_database_undid_is_said_again_for_a_while(
    scene: Scene, say: Say, ids: list[int], monkeypatch: pytest.MonkeyPatch, seconds: int, code: str
) -> None:
    monkeypatch.setattr(recording, "RETRY_SECONDS", seconds)
    with closing(connect(scene.database.url)) as other:
        other.execute("SELECT id FROM trinity.rollout_group FOR NO KEY UPDATE")

        def undo() -> None:
            wait_until_blocked(scene.database, Future())
            with scene.database.transaction() as tx:
                tx.execute(
                    "SELECT pg_cancel_backend(pid) FROM pg_stat_activity"
                    " WHERE datname = current_database() AND wait_event_type = 'Lock'"
                )
            other.rollback()

        undone = in_a_thread(scene.database, undo)
        said, _ = say(ids[1], "0.5")
        undone.result(WAIT_SECONDS)
    assert str(said).startswith(code)
    assert rewards(scene) == [1.0, 0.5 if seconds else 0.0]


def test_a_role_that_waits_for_the_reward_is_woken(scene: Scene, say: Say, ids: list[int]) -> None:
    with closing(scene.database.listen(f"trinity_run_{scene.run.id}")) as ears:
        assert say(ids[0], 1)[0] == 0
        assert [news.channel for news in ears.notifies(timeout=30, stop_after=1)]


@pytest.mark.parametrize("option", ["--name", "--source", "--by"])
def test_a_word_that_is_too_long_for_an_index_is_one_line(say: Say, ids: list[int], option: str) -> None:
    word = "".join(chr(33 + number * 7 % 90) for number in range(5_000))
    code, printed = say(ids[0], "1", option, word)
    assert (code, printed) == ("error: 'name', 'source' and 'by' may have 200 bytes each", "")


def test_a_reward_beyond_the_statistics_of_a_group_is_one_line(say: Say, ids: list[int]) -> None:
    for value in ("1e308", "-1e308", "nan", "inf", "1e101"):
        code, _ = say(ids[0], value)
        assert str(code).startswith("error: 'value'")
    assert say(ids[0], "1e100")[0] == 0
    assert say(ids[1], "-1e100")[0] == 0
