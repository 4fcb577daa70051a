"""A stranger's two minutes: one file with a step for each list, and a run by the installed command."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.command import Ended, Store, new_store, reversals
from trinity_db.processors.steps.rewards import exact_match

STEPS, BATCH_SIZE = 2, 4

MINE = '''
from trinity_db.processors.lists.step import step


@step(version=2)
def no_fours(response):
    """Fours are bad luck."""
    return "a four" if "4" in response else None


def brief(response: str, task: dict, *, characters: int) -> float:
    """1 for a response of at most so many characters."""
    assert task["answer"]
    return float(len(response) <= characters)
'''


@pytest.fixture(scope="module")
def store(server: str, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with new_store(server, template, tmp_path_factory.mktemp("own")) as store:
        store.import_rows("reverse", "tasks", reversals(2))
        yield store


@pytest.fixture(scope="module")
def mine(store: Store) -> Path:
    path = store.folder / "mine.py"
    path.write_text(MINE)
    return path


@pytest.fixture(scope="module")
def ended(store: Store, mine: Path) -> Ended:
    return store.run(
        "run",
        store.config(
            "own",
            taskset="reverse",
            algorithm="grpo",
            explorer={"group_size": 4, "concurrency": 16, "max_new_tokens": 4},
            processors={
                "clean": ["defaults", f"{mine}:no_fours"],
                "score": ["exact_match", {"name": f"{mine}:brief", "weight": 0.25, "characters": 2}],
            },
            trainer={"steps": STEPS, "batch_size": BATCH_SIZE, "learning_rate": 1e-3},
        ),
    )


def test_a_run_with_steps_of_the_users_own_ends_well(ended: Ended, store: Store) -> None:
    assert ended.code == 0, ended.stderr
    assert ended.error_lines == []
    assert store.value("SELECT count(*) FROM batch WHERE state = 'committed'") == STEPS


@pytest.mark.usefixtures("ended")
def test_the_clean_step_drops_what_it_says_and_nothing_else(store: Store, mine: Path) -> None:
    dropped = store.rows(
        'SELECT DISTINCT d.stage, d.step, d.reason, p.outcome::text FROM "drop" d'
        " JOIN experience e ON e.id = d.experience_id JOIN experience_text x ON x.experience_id = e.id"
        " JOIN processing p ON p.experience_id = e.id AND p.step = d.step"
        " WHERE x.response LIKE '%%4%%' AND d.stage <> 'explore'"
    )
    expected = {"stage": "clean", "step": f"{mine}:no_fours", "reason": "a four", "outcome": "dropped"}
    assert dropped == [expected]
    used = "SELECT count(*) FROM batch_item i JOIN experience_text x USING (experience_id) WHERE x.response"
    assert store.value(f"{used} LIKE '%%4%%'") == 0


@pytest.mark.usefixtures("ended")
def test_the_score_step_gives_its_number_by_its_option_and_weight(store: Store, mine: Path) -> None:
    events = store.rows(
        "SELECT v.weight, bool_and(v.value = (length(x.response) <= 2)::integer) AS is_right"
        " FROM reward_event v JOIN experience e ON e.rollout_id = v.rollout_id"
        " JOIN experience_text x ON x.experience_id = e.id WHERE v.name = %(name)s GROUP BY v.weight",
        name=f"{mine}:brief",
    )
    assert events == [{"weight": 0.25, "is_right": True}]
    wrong = store.value(
        "SELECT count(*) FROM experience e JOIN experience_text x ON x.experience_id = e.id"
        " JOIN task t ON t.id = (SELECT g.task_id FROM rollout_group g WHERE g.id = e.group_id)"
        " WHERE e.reward <> (x.response = t.payload->>'answer')::integer"
        " + 0.25 * (length(x.response) <= 2)::integer"
    )
    assert wrong == 0


@pytest.mark.usefixtures("ended")
def test_the_run_keeps_by_which_steps_it_was_processed(store: Store, mine: Path) -> None:
    lists = store.rows("SELECT processor, version, steps FROM step_list ORDER BY processor")
    names = {row["processor"]: [(step["name"], step["version"]) for step in row["steps"]] for row in lists}
    assert names == {
        "clean": [("finite_logprobs", 1), (f"{mine}:no_fours", 2)],
        "score": [("exact_match", vars(exact_match)["version"]), (f"{mine}:brief", 1)],
    }
    assert lists[1]["steps"][1]["options"] == {"characters": 2}
    shown = store.run("status", "own").stdout
    assert "a four (clean, " in shown
