"""Several explorers of a run, with a trainer and without: who starts them, and what they share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.command import Store, new_store, reversals, reversing

COUNTED = "SELECT state::text, count(*) AS groups FROM rollout_group GROUP BY state"


@pytest.fixture
def store(server: str, template: str, tmp_path: Path) -> Iterator[Store]:
    with new_store(server, template, tmp_path) as store:
        store.import_rows("reverse", "tasks", reversals(2))
        yield store


@pytest.mark.timeout(300)
def test_explorers_without_a_trainer_gather_as_many_groups_as_they_are_told(store: Store) -> None:
    # Groups that are too small or all alike would be dropped, and the trainer would wait for others.
    content = reversing(steps=2, batch_size=3) | {"max_staleness": None}
    content["processors"] = {"clean": [], "score": ["position_match"], "group": {"min_size": 1}}
    config = store.config("alone", **content)
    explorers = [store.start("explore", config, "--groups", "6") for _ in range(2)]
    for explorer in explorers:
        ended = explorer.wait()
        assert ended.code == 0, ended.stderr
    assert store.rows(COUNTED) == [{"state": "complete", "groups": 6}]
    assert store.rows("SELECT version, step FROM policy_version") == [{"version": 0, "step": 0}]

    again = store.run("explore", config, "--groups", "6")
    assert (again.code, store.value("SELECT count(*) FROM rollout_group")) == (0, 6)
    assert store.run("process", config, "--drain").code == 0
    ended = store.run("train", config)
    assert ended.code == 0, ended.stderr
    assert store.rows(COUNTED) == [{"state": "trained", "groups": 6}]


def test_more_groups_than_the_staleness_limit_lets_wait_are_refused(store: Store) -> None:
    config = store.config("limited", **reversing(steps=2, batch_size=3))
    ended = store.run("explore", config, "--groups", "7")
    assert ended.code == 1
    assert ended.error_lines[-1].startswith(
        "error: --groups 7: with max_staleness 1 explorers start 6 groups ahead"
    )
    assert store.rows("SELECT name FROM run") == []


@pytest.mark.timeout(300)
def test_a_run_starts_as_many_explorers_as_it_is_told(store: Store) -> None:
    content = reversing(steps=4, batch_size=4) | {"explorers": 2, "max_staleness": 0}
    ended = store.run("run", store.config("two", **content))
    assert ended.code == 0, ended.stderr
    assert store.value("SELECT count(*) FROM worker WHERE role = 'explore'") == 2
    assert all("explore worker" in store.log("two", name) for name in ("explore", "explore-2"))
    assert store.value("SELECT max(issued) - min(issued) FROM task_stat") == 0, "they share one pass"
