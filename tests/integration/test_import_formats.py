"""Files of other programs, from the command to the rows."""

import json
from pathlib import Path

import pytest

from tests.support.command_line import CommandLine
from tests.support.rows import Scene
from tests.unit.test_import_formats import VERL, group

GROUPS = """
SELECT g.arrived, g.reward_mean, count(p.experience_id) FROM trinity.rollout_group g
JOIN trinity.run r ON r.id = g.run_id JOIN trinity.experience e ON e.group_id = g.id
LEFT JOIN trinity.payload p ON p.experience_id = e.id WHERE r.name = %s GROUP BY g.id
"""


@pytest.fixture(autouse=True)
def url(scene: Scene, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRINITY_DB_URL", scene.database.url)
    monkeypatch.setenv("TRINITY_DB_HOME", str(tmp_path / "home"))


def test_a_file_that_is_known_says_as_what_it_was_read(
    scene: Scene, tmp_path: Path, command_line: CommandLine
) -> None:
    file = tmp_path / "groups.jsonl"
    file.write_text("".join(json.dumps(one) + "\n" for one in (group(), {"tokens": [1]})))
    done = command_line("import", str(file), "--as", "traces")
    assert done.stderr == "note: read as atropos rows; --format trl uses the columns unchanged\n"
    assert done.stdout.startswith("groups: 2 traces added, 0 already known, 1 rejected\n")
    assert (
        "1 × 'masks' is not a list, as in a group of Atropos (first: line 2: {\"tokens\": [1]})"
        in done.stdout
    )
    assert scene.rows(GROUPS, "groups") == [(2, 0.25, 2)]
    again = command_line("import", str(file), "--as", "traces", "--format", "atropos", "--json")
    told = json.loads(again.output)
    assert (told["format"], told["added"], told["known"], told["rejected"]) == ("atropos", 0, 2, 1)


def test_the_columns_can_be_taken_as_they_are(
    scene: Scene, tmp_path: Path, command_line: CommandLine
) -> None:
    file = tmp_path / "verl.jsonl"
    file.write_text(json.dumps(VERL) + "\n")
    for name, options in {
        "known": [],
        "plain": ["--format", "trl"],
        "mapped": ["--map", "answer=ability"],
    }.items():
        command_line("import", str(file), "--as", "tasks", "--name", name, *options)
    answers = (
        "SELECT t.payload ->> 'answer' FROM trinity.task t JOIN trinity.taskset s ON s.id = t.taskset_id"
        " WHERE s.name = ANY(ARRAY['known', 'plain', 'mapped']) ORDER BY t.id"
    )
    assert scene.values(answers) == ["2", None, "math"]
    assert command_line("import", str(file), "--as", "tasks", "--format", "vrel").complaint == (
        "--format vrel: there is no such format; did you mean 'verl'? Your own: path/to/file.py:name."
    )


FORMATS_OF_A_USER = {
    "{'when': datetime.date(2020, 1, 1)}": "holds a date, which has no JSON form",
    "{'x': {1, 2}}": "holds a set, which has no JSON form",
    "{'x': {1: 2, 'b': 3}}": "holds an object with names that are not all text",
    "{'x': {(1, 2): 3}}": "holds an object with names that are not all text",
    "{5: 6, 'b': 7}": "holds an object with names that are not all text",
    "{'x': ('a\\0', 1)}": "holds a NUL character, which PostgreSQL text cannot",
    "{'x': 10**5000}": "holds a number of more digits than Python writes",
    "{'x': 10**5000, 'reward': 'x'}": "'reward' must be a number, not text",
    "{'reward': Fraction(1, 2)}": "'reward' must be a number, not a Fraction",
    "sys.exit(3)": "the format raised SystemExit: 3",
    "row.update(x=Broken())": "the format raised TypeError: 'NoneType' object is not a mapping",
}
"""What a user's format gives for a row → the reason why it is rejected."""


def test_what_a_users_format_gives_for_a_row_rejects_that_row_alone(
    scene: Scene, tmp_path: Path, command_line: CommandLine
) -> None:
    cases = "".join(
        f"        case {number}: more = {code}\n" for number, code in enumerate(FORMATS_OF_A_USER)
    )
    (tmp_path / "mine.py").write_text(
        "import datetime, sys\nfrom fractions import Fraction\n"
        "class Broken:\n    def __repr__(self): raise ValueError\n"
        f"def read(row):\n    more = {{}}\n    match row['n']:\n{cases}"
        "    yield {'prompt': 'p', 'response': str(row['n']), **more}\n"
    )
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps({"n": n}) + "\n" for n in range(len(FORMATS_OF_A_USER) + 1)))
    format = f"{tmp_path / 'mine.py'}:read"
    done = command_line("import", str(file), "--as", "trajectories", "--format", format, "--json")
    told = json.loads(done.output)
    assert (told["added"], told["rejected"]) == (1, len(FORMATS_OF_A_USER))
    rejected = [json.loads(line) for line in Path(told["rejects"]).read_text().splitlines()]
    for number, reason in enumerate(FORMATS_OF_A_USER.values()):
        assert rejected[number]["line"] == number + 1
        assert rejected[number]["reason"].startswith(reason)
