"""Two explorers, two processors and a trainer, disturbed in every way we know: what must hold afterwards.

Each fact is asked of the store in SQL, and of the journal that the explorers' workflow kept beside it, after
all processes have stopped. `make chaos` runs this. A failure leaves store, journal and logs in a folder.
"""

import atexit
import shutil
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.chaos.aftermath import Aftermath
from tests.chaos.crew import last_line
from tests.chaos.driver import ROUND_SECONDS
from tests.chaos.experiment import BATCH_SIZE, SETTLE_BATCHES, VARIANTS, Variant, go_through, new_store
from tests.chaos.promises import *  # noqa: F403  they are tests here too
from tests.support.pooler import Pooler
from tests.support.postgres import cluster_15, cluster_18

# The fixture takes as long as it was told to, and bounds each of its waits itself.
pytestmark = pytest.mark.timeout(300, func_only=True)


@pytest.fixture(scope="module", params=VARIANTS, ids=lambda variant: variant.name.replace(" ", "").lower())
def after(request: pytest.FixtureRequest, summaries: list[dict[str, Any]]) -> Iterator[Aftermath]:
    """The run, disturbed, left alone for a while, and stopped."""
    variant: Variant = request.param
    cluster = cluster_18() if variant.major == 18 else cluster_15()
    if cluster is None:
        pytest.skip("no PostgreSQL 15 found; install it, or name its bin folder in TRINITY_TEST_PG15_BIN")
    folder, failures = cluster.home, request.session.testsfailed
    cluster = replace(cluster, home=folder / "home")
    atexit.register(cluster.stop)
    pooler = Pooler(cluster.url(), "transaction", folder / "pooler") if variant.pooled else None
    store = new_store(cluster, folder, pooler)
    option = request.config.getoption
    try:
        after = go_through(variant, store, cluster, pooler, option("--seed"), option("--minutes"))
        summaries.append(after.summary())
        yield after
        is_well = request.session.testsfailed == failures
    except BaseException:
        is_well = False
        raise
    finally:
        store.clear_away()
        if pooler is not None:
            pooler.kill()
        cluster.stop()
        if is_well:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            print(f"What the processes said, the journal and the store are left in {folder}")


def test_every_role_was_disturbed_and_the_run_went_on(after: Aftermath) -> None:
    summary = after.summary()
    if after.seconds >= ROUND_SECONDS:  # otherwise the plan does not have everything
        assert all(summary["killed"].values()), summary
        assert all(summary["frozen"].values()), summary
        assert summary["connections_cut"] > 0, summary
        assert summary["server_restarts"] > 0, summary
        if after.driver.pooler is not None:
            assert summary["pooler_cuts"] > 0, summary
            assert summary["pooler_restarts"] > 0, summary
    assert summary["zombies"] == sum(summary["frozen"].values()), summary
    assert summary["batches_committed"] > SETTLE_BATCHES, summary
    assert summary["rollouts_acknowledged"] >= summary["batches_committed"] * BATCH_SIZE


def test_a_trainer_that_was_replaced_says_so_and_changes_nothing(after: Aftermath) -> None:
    if not after.replaced_trainers and after.seconds < ROUND_SECONDS:
        pytest.skip("in so short a time no trainer was replaced")
    assert after.replaced_trainers
    for zombie in after.replaced_trainers:
        ended = zombie.member.ended
        assert ended is not None
        assert ended.code == 1, ended
        assert last_line(ended).startswith("error: "), ended.stderr
        touched = after.store.value(
            "SELECT count(*) FROM batch WHERE worker_id = %(worker)s"
            " AND greatest(created_at, committed_at) >= to_timestamp(%(at)s)",
            worker=zombie.worker,
            at=zombie.woken_at,
        )
        assert touched == 0
