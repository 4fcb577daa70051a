"""A run of the installed command over tasks, with imported demonstrations beside its rollout groups."""

from collections.abc import Iterator

import pytest

from tests.acceptance.command import Ended, Store, new_store, reversals
from tests.support.postgres import by_login

pytestmark = pytest.mark.slow

STEPS, GROUPS, EXPERTS = 6, 2, 5
PARTS = {"apart": {"sampler": {"name": "uniform", "where": "reward_std > 0"}}, "rest": {}}
USES = """
SELECT e.state::text, e.use_count, count(*) AS rows FROM experience e JOIN run r ON r.id = e.run_id
WHERE r.name = 'mixed' AND e.source_id IS NOT NULL GROUP BY 1, 2 ORDER BY 2
"""
KINDS = """
SELECT b.step, b.state::text, b.size, count(DISTINCT e.group_id) AS groups,
       count(*) FILTER (WHERE e.source_id IS NOT NULL) AS experts
FROM batch b JOIN batch_item i ON i.batch_id = b.id JOIN experience e ON e.id = i.experience_id
GROUP BY b.id ORDER BY b.step
"""


@pytest.fixture(scope="module")
def store(server: str, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with new_store(server, template, tmp_path_factory.mktemp("mix")) as store:
        tasks = reversals(2)
        answers = [{"prompt": task["prompt"], "completion": task["answer"]} for task in tasks[:12]]
        store.import_rows("reverse", "tasks", tasks)
        store.import_rows("answers", "demonstrations", answers)
        yield store


@pytest.fixture(scope="module")
def ended(store: Store) -> Ended:
    """The run, which is over."""
    config = store.config(
        "mixed",
        taskset="reverse",
        data=["answers"],
        algorithm={"name": "chord", "expert_rows": EXPERTS, "mu": 0.5},
        sampler={"name": "mix", "parts": PARTS, "experts": {"answers": 1}},
        trainer={"steps": STEPS, "batch_size": GROUPS, "learning_rate": 3e-3},
        explorer={"group_size": 4, "concurrency": 16, "max_new_tokens": 4},
        processors={"score": ["position_match"]},
    )
    return store.run("run", config)


def test_a_run_takes_demonstrations_beside_its_groups_in_each_step(ended: Ended, store: Store) -> None:
    assert ended.code == 0, ended.stderr
    assert ended.error_lines == []
    assert store.rows(KINDS) == [
        {"step": step, "state": "committed", "size": GROUPS, "groups": GROUPS, "experts": EXPERTS}
        for step in range(1, STEPS + 1)
    ]
    # 30 uses of twelve rows, which are never used up.
    assert store.rows(USES) == [
        {"state": "ready", "use_count": 2, "rows": 6},
        {"state": "ready", "use_count": 3, "rows": 6},
    ]


def test_each_of_its_draws_can_be_run_again_by_command(ended: Ended, store: Store) -> None:
    newest = store.value("SELECT max(id) AS id FROM batch")
    checked = store.run("replay", str(newest), "--check", TRINITY_DB_READ_URL=by_login(store.url))
    assert checked.code == 0, checked.stderr
    assert "draws the same" in checked.stdout
    assert store.value("SELECT sampler FROM batch ORDER BY id DESC LIMIT 1") == "mix"
