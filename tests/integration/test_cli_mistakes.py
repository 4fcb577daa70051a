"""Mistakes in configurations and around them: one line that names the thing, and nothing half-written."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest
import yaml

import trinity_db
from tests.support.command_line import CommandLine
from tests.support.postgres import execute, new_database, on_database

MODEL = {
    "scratch": {"alphabet": "01234=", "hidden_size": 16, "layers": 1, "heads": 2, "context": 16},
    "prompt_template": "{prompt}=",
}
GRPO: dict[str, Any] = {"taskset": "reverse", "algorithm": "grpo", "trainer": {"steps": 3}}
SFT: dict[str, Any] = {"data": ["answers"], "algorithm": "sft"}

REWARDS = """
def fussy(response, task):
    return 0.0
"""

ENGINE = """
class Mine:
    def __init__(self, *, size: int = 1) -> None:
        self.size = size
"""


class Case(NamedTuple):
    """A command that cannot do its work."""

    says: str
    """Part of the line it ends with. `{folder}` stands for the store's folder."""
    content: dict[str, Any] | bytes | None = None
    """The configuration's keys, or the whole file; None: there is no file."""
    options: tuple[str, ...] = ()
    command: str = "run"
    environment: dict[str, str] = {}  # noqa: RUF012, it is not changed


def rewarded(function: str, **options: Any) -> dict[str, Any]:
    """A configuration with a reward function."""
    return GRPO | {"processors": {"score": [{"name": function, **options}]}}


ROLLOUT = """
INSERT INTO trinity.rollout_group (run_id, task_id, expected, arrived)
SELECT r.id, min(t.id), 4, 1 FROM trinity.run r, trinity.task t WHERE r.name = 'taken' GROUP BY r.id;
INSERT INTO trinity.rollout (run_id, group_id, ordinal, attempt, state)
SELECT run_id, id, 0, 1, 'finished' FROM trinity.rollout_group
"""

RUNS = """
SELECT r.name, count(e.id)
FROM trinity.run r LEFT JOIN trinity.experience e ON e.run_id = r.id
GROUP BY r.name
"""

CASES = {
    "unknown key": Case(
        "unknown key 'trainer.learning_rte'; did you mean 'learning_rate'?",
        GRPO | {"trainer": {"steps": 3, "learning_rte": 1}},
    ),
    "unknown key of an algorithm": Case(
        "did you mean 'clip_high'?", GRPO | {"algorithm": {"name": "grpo", "clip_hihg": 0.3}}
    ),
    "wrong type": Case("trainer.steps: Input should be a valid int", GRPO | {"trainer": {"steps": "many"}}),
    "unknown algorithm": Case("algorithm: there is no 'gpro'; did you mean ", GRPO | {"algorithm": "gpro"}),
    "no steps": Case("trains until trainer.steps: set it", GRPO | {"trainer": {}}),
    "no taskset": Case("name its tasks under taskset", {"algorithm": "grpo", "trainer": {"steps": 3}}),
    "no data": Case("name them under data", {"algorithm": "sft"}),
    "no model": Case("give exactly one of path, run and scratch", GRPO | {"model": {}}),
    "no file": Case("no such configuration file"),
    "empty file": Case("must hold keys and values", b""),
    "not YAML": Case("is not YAML", b"name: [1"),
    "not UTF-8": Case("cannot be read", b"name: \xff"),
    "override of an unknown key": Case(
        "unknown key 'trainer.stepz'; did you mean 'steps'?", GRPO, ("--set", "trainer.stepz=3")
    ),
    "override without a value": Case("write it as key.path=value", GRPO, ("--set", "trainer.steps")),
    "no model folder": Case("nowhere: no such model folder", GRPO | {"model": {"path": "nowhere"}}),
    "no model in the folder": Case("is not a model folder", GRPO | {"model": {"path": "{folder}"}}),
    "no model for a role": Case("no such model folder", GRPO | {"model": {"path": "nowhere"}}, (), "train"),
    "unknown run as model": Case("There is no run 'teacher'", GRPO | {"model": {"run": "teacher"}}),
    "unknown taskset": Case("There is no taskset 'revers'", GRPO | {"taskset": "revers"}),
    "unknown data set": Case(
        "There is no data set or run 'anwsers'; did you mean 'answers'?",
        SFT | {"data": ["answers", "anwsers"]},
    ),
    "a run without rows as data": Case("run 'taken' has no rollouts", SFT | {"data": ["answers", "taken"]}),
    "name of a data set": Case("'answers' is the name of an imported data set", SFT | {"name": "answers"}),
    "name in use": Case(
        "The run name 'taken' is in use with another configuration (seed was 0, is 1). seed may not change: ",
        GRPO | {"name": "taken", "seed": 1},
    ),
    "exploring offline": Case("nothing to explore", SFT, (), "explore"),
    "more disk than there is": Case(
        "the run needs ",
        GRPO | {"trainer": {"steps": 2_000_000_000, "keep_checkpoints": 1_000_000_000}},
    ),
    "unknown workflow": Case(
        "no workflow 'singleturn'; did you mean 'single_turn'?",
        GRPO | {"explorer": {"workflow": "singleturn"}},
    ),
    "no file of a workflow": Case(
        "there is no file nowhere.py", GRPO | {"explorer": {"workflow": "nowhere.py:f"}}, (), "explore"
    ),
    "workflow that is no coroutine": Case(
        "is not a coroutine function; define it with: async def",
        GRPO | {"explorer": {"workflow": "{folder}/rewards.py:fussy"}},
    ),
    "unknown engine": Case(
        "explorer.engine: there is no engine 'vlm'", GRPO | {"explorer": {"engine": "vlm"}}
    ),
    "engine that is not installed": Case(
        "install it with: trinity-db engine install vllm",
        GRPO | {"explorer": {"engine": "vllm"}},
    ),
    "unknown option of an engine": Case(
        "unknown key 'sise'; did you mean 'size'?",
        GRPO | {"explorer": {"engine": {"name": "{folder}/engine.py:Mine", "sise": 3}}},
    ),
    "unknown score step": Case(
        "processors.score: There is no score step 'exact_mach'; did you mean 'exact_match'?",
        rewarded("exact_mach"),
    ),
    "no file of rewards": Case("there is no file nowhere.py", rewarded("nowhere.py:f"), (), "process"),
    "no function in the file": Case("has no function 'missing'", rewarded("{folder}/rewards.py:missing")),
    "file of rewards that fails": Case("ZeroDivisionError", rewarded("{folder}/broken.py:f")),
    "unknown option of a reward": Case(
        "unknown key 'x'; known: name, limits, weight", rewarded("exact_match", x=1)
    ),
    "unreachable database": Case(
        "No database answers at postgresql://me:***@127.0.0.1:1/x",
        GRPO,
        environment={"TRINITY_DB_URL": "postgresql://me:secret@127.0.0.1:1/x"},
    ),
    "address that is none": Case(
        "TRINITY_DB_URL is not a PostgreSQL address", GRPO, environment={"TRINITY_DB_URL": "postgresql//x"}
    ),
    "database without schema": Case(
        "no trinity-db schema yet; run: trinity-db db init", GRPO, environment={"TRINITY_DB_URL": "{bare}"}
    ),
    "database of a newer schema": Case(
        "schema is 9999, newer than this trinity-db", GRPO, environment={"TRINITY_DB_URL": "{newer}"}
    ),
}


@dataclass(frozen=True)
class Place:
    """A store with a taskset, a data set and a run, and files of a user."""

    url: str
    folder: Path
    values: dict[str, str]
    """What replaces the words in braces of the cases."""

    def fill(self, text: str) -> str:
        for word, value in self.values.items():
            text = text.replace(word, value)
        return text

    def runs(self) -> dict[str, int]:
        """The number of rows of each run and data set."""
        with closing(psycopg.connect(self.url)) as connection:
            return dict(connection.execute(RUNS).fetchall())


@pytest.fixture(scope="module")
def place(server: str, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("mistakes")
    for name, text in (("rewards.py", REWARDS), ("engine.py", ENGINE), ("broken.py", "1 / 0")):
        (folder / name).write_text(text)
    taken = folder / "taken.yaml"
    taken.write_text(yaml.safe_dump({"name": "taken", "model": MODEL} | GRPO))
    with new_database(server, template) as url, new_database(server, template) as newer:
        execute(newer, "UPDATE trinity.schema_version SET version_num = '9999'")
        numbers = ["".join(digits) for length in (1, 2) for digits in product("01234", repeat=length)]
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TRINITY_DB_URL", url)
            patch.setenv("TRINITY_DB_HOME", str(folder / "home"))
            with trinity_db.connect(url, read_only=False) as store:
                store.import_tasks([{"prompt": n, "answer": n[::-1]} for n in numbers], name="reverse")
                answers = [{"prompt": n, "completion": n} for n in numbers[:5]]
                store.import_demonstrations(answers, name="answers")
            subprocess.run([sys.executable, "-m", "trinity_db", "process", taken, "--drain"], check=True)
        execute(url, ROLLOUT)  # without one, the name would be free for another configuration
        bare = on_database(server, "postgres")
        yield Place(url, folder, {"{folder}": str(folder), "{newer}": newer, "{bare}": bare})


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_mistake_gets_one_line_and_leaves_nothing_half_written(
    case: Case, place: Place, command_line: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = {"TRINITY_DB_URL": place.url, "TRINITY_DB_HOME": str(place.folder / "home")}
    for name, value in (environment | case.environment).items():
        monkeypatch.setenv(name, place.fill(value))
    config = place.folder / "case.yaml"
    config.unlink(missing_ok=True)
    if isinstance(case.content, dict):
        content = {"name": "case", "model": MODEL} | case.content
        config.write_text(place.fill(yaml.safe_dump(content)))
    elif case.content is not None:
        config.write_bytes(case.content)
    before = place.runs()
    done = command_line(case.command, str(config), *case.options)
    assert place.fill(case.says) in done.complaint
    assert done.stdout == ""
    assert place.runs() == before
