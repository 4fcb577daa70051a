"""On-policy distillation by the installed command: roles as processes; and a teacher with other tokens."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.command import MODEL, Store, new_store, reversals
from trinity_db.config.shared import ScratchConfig
from trinity_db.models import build_scratch

pytestmark = pytest.mark.slow

STEPS, BATCH_SIZE = 4, 4
MODEL_SIZE = ScratchConfig.model_validate(MODEL["scratch"])


@pytest.fixture(scope="module")
def store(server: str, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with new_store(server, template, tmp_path_factory.mktemp("distillation")) as store:
        store.import_rows("reverse", "tasks", reversals(2))
        yield store


def teacher(store: Store, **changes: Any) -> Path:
    folder = store.folder / f"teacher-{len(list(store.folder.glob('teacher-*')))}"
    build_scratch(MODEL_SIZE.model_copy(update=changes), 9, folder)
    return folder


def content(path: Path) -> dict[str, Any]:
    return {
        "taskset": "reverse",
        "algorithm": "on_policy_distillation",
        "explorer": {"group_size": 2, "concurrency": 8, "max_new_tokens": 4},
        "processors": {"score": [{"name": "teacher", "path": str(path)}]},
        "trainer": {"steps": STEPS, "batch_size": BATCH_SIZE, "learning_rate": 1e-3},
    }


def test_a_run_learns_from_a_teacher_and_from_no_reward(store: Store) -> None:
    ended = store.run("run", store.config("distilled", **content(teacher(store))))
    assert ended.code == 0, ended.stderr
    assert ended.error_lines == []
    drawn = store.rows(
        "SELECT count(*) AS rows, count(s.data) AS scored, count(e.reward) AS rewarded FROM batch_item i"
        " JOIN batch b ON b.id = i.batch_id JOIN experience e ON e.id = i.experience_id"
        " LEFT JOIN score s ON s.experience_id = e.id AND s.name = 'teacher' WHERE b.state = 'committed'"
    )
    assert drawn == [{"rows": 2 * STEPS * BATCH_SIZE, "scored": 2 * STEPS * BATCH_SIZE, "rewarded": 0}]
    assert store.value("SELECT count(*) FROM metric WHERE name = 'teacher_kl' AND value > 0") == STEPS


def test_a_teacher_with_other_tokens_is_refused_before_the_run_is_created(store: Store) -> None:
    config = store.config("strange", **content(teacher(store, alphabet="012345=")))
    for command in ("run", "process"):
        ended = store.run(command, config)
        assert ended.code != 0
        [line] = ended.error_lines
        assert "has other tokens (9) than the run's model (8): '=' differs" in line
    assert store.value("SELECT count(*) FROM run WHERE name = 'strange'") == 0
