"""A run over a mixture: experts are recorded with each row, replayed by the trainer, and archived."""

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from tests.acceptance.command import Store, new_store, reversals
from tests.others.families.tiny import save
from trinity_db.postgres.connection import Database
from trinity_db.store import payloads

pytestmark = pytest.mark.slow

STEPS, GROUPS, SIZE = 2, 2, 4
LAYERS, EXPERTS, CHOSEN = 4, 4, 2
ROWS = "SELECT experience_id AS id, codec, archive_row IS NOT NULL AS is_archived FROM payload ORDER BY 1"
DIFFERS = "SELECT step, value FROM metric WHERE name = 'sampling/routing_differs' ORDER BY step"


def config(store: Store, model: Path) -> Path:
    return store.config(
        "mixture",
        model={"path": str(model)},
        taskset="reverse",
        algorithm="grpo",
        trainer={"steps": STEPS, "batch_size": GROUPS, "learning_rate": 3e-3},
        explorer={"group_size": SIZE, "concurrency": 8, "max_new_tokens": 4, "record_routing": True},
        processors={"score": ["position_match"], "archive": {}},
    )


def test_a_run_replays_the_experts_that_its_engine_chose(
    server: str, template: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save("qwen3_moe", tmp_path / "model")
    with new_store(server, template, tmp_path) as store:
        store.import_rows("reverse", "tasks", reversals(2))
        ended = store.run("run", config(store, tmp_path / "model"))
        assert ended.code == 0, ended.stderr
        differs = store.rows(DIFFERS)
        assert [row["step"] for row in differs] == list(range(1, STEPS + 1))
        assert differs[0]["value"] < 0.02  # the same weights, in the same numbers
        rows = store.rows(ROWS)
        assert {(row["codec"], row["is_archived"]) for row in rows} == {("compact-1", True)}
        monkeypatch.setenv("TRINITY_DB_HOME", str(store.home))
        with closing(Database(store.url)) as database:
            found = payloads.read(database, [row["id"] for row in rows])
        assert len(found) >= STEPS * GROUPS * SIZE
        for payload in found.values():
            assert payload.routing is not None
            assert payload.routing.shape == (payload.num_tokens - 1, LAYERS, CHOSEN)
            pairs = np.sort(payload.routing.astype(np.int64))
            assert int(pairs.max()) < EXPERTS
            assert (pairs[..., 0] < pairs[..., 1]).all()
