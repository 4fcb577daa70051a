"""Mistakes in configurations and around them: one line that names the thing, and nothing half-written."""

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import pytest
import yaml

from tests.acceptance.command import MODEL, Ended, Store, new_store, reversals
from tests.support.postgres import execute, on_database

GROUP_SIZE, MAX_ATTEMPTS = 8, 3
LONG, UNKNOWN = "0" * 20, "abc"

GRPO: dict[str, Any] = {"taskset": "reverse", "algorithm": "grpo", "trainer": {"steps": 3}}
SFT: dict[str, Any] = {"data": ["answers"], "algorithm": "sft"}

REWARDS = """
def fussy(response, task):
    if response.startswith("0"):
        raise ValueError("no zeros, please")
    return float("nan") if response.startswith("1") else float(response == task["answer"])
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
    "no pairs": Case("has no preferences", SFT | {"name": "no-pairs", "algorithm": "dpo"}, (), "train"),
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


@pytest.fixture(scope="module")
def store(server: str, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with new_store(server, template, tmp_path_factory.mktemp("bad")) as store:
        store.import_rows("reverse", "tasks", reversals(2))
        demonstrations = [{"prompt": t["prompt"], "completion": t["answer"]} for t in reversals(1)]
        store.import_rows("answers", "demonstrations", demonstrations)
        (store.folder / "rewards.py").write_text(REWARDS)
        (store.folder / "engine.py").write_text(ENGINE)
        (store.folder / "broken.py").write_text("1 / 0")
        taken = store.config("taken", **GRPO)
        assert store.run("process", taken, "--drain").code == 0
        execute(store.url, ROLLOUT)  # without one, the name would be free for another configuration
        yield store


@pytest.fixture(scope="module")
def places(
    server: str, template: str, store: Store, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, str]]:
    """What stands in braces in the cases."""
    with new_store(server, template, tmp_path_factory.mktemp("newer")) as newer:
        execute(newer.url, "UPDATE trinity.schema_version SET version_num = '9999'")
        yield {"{folder}": str(store.folder), "{newer}": newer.url, "{bare}": on_database(server, "postgres")}


@pytest.fixture(scope="module")
def endings(store: Store, places: dict[str, str]) -> dict[str, Ended]:
    """How every case ended. They run side by side, since none of them may change anything."""
    with ThreadPoolExecutor(4) as pool:
        ended = pool.map(lambda item: _run(store, places, *item), enumerate(CASES.values()))
        return dict(zip(CASES, ended, strict=True))


@pytest.fixture(scope="module")
def troubled(store: Store) -> Ended:
    """A run with prompts that its model cannot take, and a reward function that often fails."""
    hard = [{"prompt": prompt, "answer": "0"} for prompt in (LONG, UNKNOWN)]
    store.import_rows("hard", "tasks", hard + reversals(1))
    config = store.config(
        "troubled",
        taskset="hard",
        algorithm="grpo",
        explorer={
            "group_size": GROUP_SIZE,
            "concurrency": 4 * GROUP_SIZE,
            "tasks": "sequential",
            "max_new_tokens": 4,
        },
        processors={
            "max_attempts": MAX_ATTEMPTS,
            "score": [f"{store.folder / 'rewards.py'}:fussy"],
        },
        trainer={"steps": 3, "batch_size": 2, "learning_rate": 1e-3},
    )
    return store.run("run", config)


@pytest.mark.parametrize("case", CASES)
def test_a_mistake_gets_one_line(case: str, endings: dict[str, Ended], places: dict[str, str]) -> None:
    ended = endings[case]
    assert (ended.code, ended.stdout) == (1, ""), ended
    (line,) = ended.error_lines
    assert line.startswith("error: ")
    assert _filled(CASES[case].says, places) in line


def test_a_mistake_leaves_nothing_half_written(endings: dict[str, Ended], store: Store) -> None:
    runs = store.rows(
        """
        SELECT r.name, r.kind::text, count(e.id) AS rows
        FROM run r LEFT JOIN experience e ON e.run_id = r.id
        WHERE r.name <> 'troubled' GROUP BY r.id ORDER BY r.name
        """
    )
    # The run without pairs waits for some; it has adopted all there is.
    assert runs == [
        {"name": "answers", "kind": "data", "rows": 5},
        {"name": "no-pairs", "kind": "train", "rows": 5},
        {"name": "taken", "kind": "train", "rows": 0},
    ]
    assert len(endings) == len(CASES)


def test_trouble_with_rows_does_not_end_a_run(troubled: Ended, store: Store) -> None:
    assert troubled.code == 0, troubled.stderr
    assert troubled.error_lines == []
    states = store.rows("SELECT step, state::text FROM batch_view WHERE run = 'troubled' ORDER BY step")
    assert states == [{"step": step, "state": "committed"} for step in (1, 2, 3)]


@pytest.mark.usefixtures("troubled")
def test_prompts_the_model_cannot_take_fail_with_the_reason(store: Store) -> None:
    failed = store.rows(
        """
        SELECT t.payload->>'prompt' AS prompt, o.error, count(*) AS members
        FROM rollout o JOIN rollout_group g ON g.id = o.group_id JOIN task t ON t.id = g.task_id
        WHERE o.state = 'failed' GROUP BY 1, 2
        """
    )
    errors = {row["prompt"]: row["error"] for row in failed}
    assert errors.keys() == {LONG, UNKNOWN}
    assert errors[LONG] == "A prompt of 21 tokens does not fit: this model accepts 1 to 15."
    assert errors[UNKNOWN].startswith("The tokenizer cannot encode 'abc='")
    assert all(row["members"] % GROUP_SIZE == 0 for row in failed)


@pytest.mark.usefixtures("troubled")
def test_groups_without_a_member_are_dropped_whole(store: Store) -> None:
    groups = store.rows(
        """
        SELECT g.state::text, g.arrived, g.failed, d.stage, d.reason, d.detail
        FROM rollout_group g JOIN task t ON t.id = g.task_id LEFT JOIN "drop" d ON d.group_id = g.id
        WHERE t.payload->>'prompt' = ANY(%(prompts)s) AND g.state <> 'complete'
        """,
        prompts=[LONG, UNKNOWN],
    )
    assert len(groups) >= 2
    for group in groups:
        assert (group["state"], group["arrived"], group["failed"]) == ("dropped", 0, GROUP_SIZE)
        assert (group["stage"], group["reason"]) == ("group", "group_too_small")
        assert group["detail"] == {"members": 0, "needed": 2, "scored": 0, "solved": 0}


@pytest.mark.usefixtures("troubled")
def test_rows_that_cannot_be_scored_are_dropped_with_the_error(store: Store) -> None:
    dropped = store.rows(
        """
        SELECT x.response, e.state::text, d.detail->>'error' AS error, array_agg(p.error) AS errors,
               count(DISTINCT p.attempt) AS attempts
        FROM "drop" d
        JOIN experience e ON e.id = d.experience_id
        JOIN experience_text x ON x.experience_id = e.id
        JOIN processing p ON p.experience_id = e.id AND p.processor = 'score' AND p.outcome = 'failed'
        WHERE d.reason = 'score_failed'
        GROUP BY d.id, e.id, x.response
        """
    )
    says = {
        "0": r"raised ValueError: no zeros, please \(.*, line \d+, in \w+\)$",
        "1": "returned nan, not a finite number$",
    }
    assert {row["response"][0] for row in dropped} == says.keys()
    for row in dropped:
        assert (row["state"], row["attempts"]) == ("dropped", MAX_ATTEMPTS)
        assert row["errors"] == [row["error"]] * MAX_ATTEMPTS
        assert re.search(says[row["response"][0]], row["error"])


@pytest.mark.usefixtures("troubled")
def test_rows_that_cannot_be_scored_are_never_trained_on(store: Store) -> None:
    used = store.rows(
        "SELECT DISTINCT left(x.response, 1) AS first FROM batch_item i "
        "JOIN experience_text x ON x.experience_id = i.experience_id"
    )
    assert used
    assert not {row["first"] for row in used} & {"0", "1"}
    statements = 'SELECT count(*) FROM reward_event v JOIN "drop" d USING (experience_id)'
    assert store.value(statements) == 0


def _run(store: Store, places: dict[str, str], number: int, case: Case) -> Ended:
    config = store.folder / f"case-{number}.yaml"
    if isinstance(case.content, dict):
        content = {"name": f"case-{number}", "model": MODEL} | case.content
        config.write_text(_filled(yaml.safe_dump(content), places))
    elif case.content is not None:
        config.write_bytes(case.content)
    environment = {name: _filled(value, places) for name, value in case.environment.items()}
    return store.run(case.command, config, *case.options, **environment)


def _filled(text: str, places: dict[str, str]) -> str:
    for place, value in places.items():
        text = text.replace(place, value)
    return text
