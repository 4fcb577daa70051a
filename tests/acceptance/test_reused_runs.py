"""Runs of the installed command that learn from the rollouts of an earlier run, without an export."""

from collections.abc import Iterator

import pytest

from tests.acceptance.command import Ended, Store, new_store, reversals

pytestmark = pytest.mark.slow

STEPS, GROUPS, SIZE = 3, 2, 4


@pytest.fixture(scope="module")
def store(server: str, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A store with a run over tasks, which is over."""
    with new_store(server, template, tmp_path_factory.mktemp("reused")) as store:
        store.import_rows("reverse", "tasks", reversals(2))
        config = store.config(
            "first",
            taskset="reverse",
            algorithm="grpo",
            trainer={"steps": STEPS, "batch_size": GROUPS, "learning_rate": 3e-3},
            explorer={"group_size": SIZE, "max_new_tokens": 4, "temperature": 0.9},
            processors={"score": ["position_match"]},
        )
        ended = store.run("run", config)
        assert ended.code == 0, ended.stderr
        yield store


@pytest.fixture(scope="module")
def ended(store: Store) -> Ended:
    """An offline run on the groups of the first, which is over."""
    config = store.config(
        "second",
        model={"run": "first"},
        data=["first"],
        algorithm={"name": "grpo", "correction": "truncated_importance_sampling"},
        trainer={"epochs": 2, "batch_size": GROUPS, "learning_rate": 1e-3},
    )
    return store.run("run", config)


def test_each_group_of_the_first_run_is_learned_from_in_each_epoch(ended: Ended, store: Store) -> None:
    assert ended.code == 0, ended.stderr
    assert ended.error_lines == []
    groups = store.rows(
        """
        SELECT g.source_id, g.use_count,
               count(e.id) = (SELECT count(*) FROM adoptable_rows(g.source_id)) AS is_whole
        FROM rollout_group g JOIN run r ON r.id = g.run_id
        JOIN experience e ON e.group_id = g.id AND e.run_id = r.id
        WHERE r.name = 'second' GROUP BY g.id ORDER BY g.source_id
        """
    )
    assert len(groups) >= STEPS * GROUPS
    assert {(row["use_count"], row["is_whole"]) for row in groups} == {(2, True)}
    origin = store.rows("SELECT DISTINCT source_run FROM lineage(1000, 'second')")
    assert origin == [{"source_run": "first"}]
    checked = store.run("replay", str(store.value("SELECT max(id) AS id FROM batch")), "--check")
    assert checked.code == 0, checked.stderr


def test_what_does_not_fit_is_said_in_one_line(ended: Ended, store: Store) -> None:
    offline = {"model": {"run": "first"}, "algorithm": "grpo"}
    for name, content, said in (
        ("no-data", {}, "name its tasks under taskset, or under data a run whose rollouts it learns from"),
        ("kept", {"data": ["first"], "holdout": 0.1}, "leave out holdout"),
        (
            "sampled",
            {"data": ["first"], "sampler": "uniform"},
            "in passes over all of them: leave out sampler",
        ),
        ("no-name", {"data": ["frist"]}, "There is no data set or run 'frist'; did you mean 'first'?"),
        ("of-second", {"data": ["second"]}, "run 'second' has no rollout groups to compare rewards in; "),
    ):
        complaint = store.run("run", store.config(name, **offline | content))
        assert complaint.code == 1
        (line,) = complaint.error_lines
        assert said in line
    assert store.value("SELECT count(*) AS runs FROM run") == 2
