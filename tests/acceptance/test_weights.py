"""An explorer on a machine that does not see the trainer's folder fetches versions from an object store."""

import re
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests.acceptance.command import WITHOUT, Ended, Store, new_store, reversals
from tests.support.object_store import ObjectStore, new_object_store

RUN, STEPS = "apart", 14
MODEL: dict[str, Any] = {
    # Large enough for deltas, which small files do not have.
    "scratch": {"alphabet": "01234=", "hidden_size": 256, "layers": 2, "heads": 4, "context": 16},
    "prompt_template": "{prompt}=",
}


@pytest.fixture(scope="module")
def objects(server: str) -> Iterator[ObjectStore]:
    with new_object_store() as found:
        yield found


@pytest.fixture(scope="module")
def store(server: str, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with new_store(server, template, tmp_path_factory.mktemp("apart")) as store:
        store.import_rows("reverse", "tasks", reversals(2))
        yield store


@pytest.fixture(scope="module")
def ended(store: Store, objects: ObjectStore) -> dict[str, Ended]:
    """How the roles of a run end whose explorer has a home of its own and finds the trainer's empty."""
    store.home.mkdir(exist_ok=True)
    if subprocess.run([*WITHOUT, str(store.home), "true"], capture_output=True).returncode:
        pytest.skip("a folder is hidden by a mount in a namespace, which this login may not make")
    config = store.config(
        RUN,
        model=MODEL,
        taskset="reverse",
        max_staleness=1,
        algorithm="grpo",
        explorer={"group_size": 4, "concurrency": 16, "max_new_tokens": 4},
        processors={"score": ["position_match"]},
        trainer={
            "steps": STEPS,
            "batch_size": 4,
            "learning_rate": 1e-5,
            "publish_dtype": "bfloat16",
            "weights": objects.address,
        },
    )
    processes = {
        "explore": store.start_elsewhere("explore", config, **objects.environment),
        "train": store.start("train", config, **objects.environment),
        "process": store.start("process", config),
    }
    return {role: process.wait() for role, process in processes.items()}


def test_every_role_ends_with_the_run(ended: dict[str, Ended]) -> None:
    for role, one in ended.items():
        assert (role, one.code, one.error_lines) == (role, 0, [])


def test_the_explorer_used_versions_that_it_fetched(ended: dict[str, Ended], store: Store) -> None:
    used = store.rows("SELECT DISTINCT version_max AS version FROM rollout ORDER BY 1")
    assert max(row["version"] for row in used) >= STEPS - 2, "at most one is published before the last draw"
    # Of those that were published in quick succession it may have passed over some.
    fetched = re.findall(r"version (\d+): fetched", ended["explore"].stderr)
    assert {str(row["version"]) for row in used} <= set(fetched)
    staged = store.value("SELECT staged_version FROM worker WHERE role = 'explore'")
    assert staged in map(int, fetched[-2:]), "the run may end before the last one is recorded"
    assert not (store.home / "weights").exists(), "the trainer's machine fetches nothing"


def test_most_versions_are_uploaded_as_what_changed(ended: dict[str, Ended]) -> None:
    uploads = re.findall(
        r"version (\d+): ([\d.]+) MB uploaded in [\d.]+ s( as a delta)?", ended["train"].stderr
    )
    sizes = {int(version): (float(size), bool(delta)) for version, size, delta in uploads}
    assert sorted(sizes) == list(range(STEPS + 1))
    assert [version for version, (_, is_delta) in sizes.items() if not is_delta] == [0, 1, 11]
    assert all(size < 0.3 * sizes[1][0] for size, is_delta in sizes.values() if is_delta)


@pytest.mark.usefixtures("ended")
def test_objects_are_those_of_kept_versions_and_of_what_they_lie_on(
    store: Store, objects: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in objects.environment.items():
        monkeypatch.setenv(name, value)
    kept, resumable = (
        {
            row["version"]
            for row in store.rows(f"SELECT version FROM policy_version WHERE {named} IS NOT NULL")
        }
        for named in ("weights", "resume_from")
    )
    assert kept == {0, 12, 13, 14} | resumable
    # The run ends before what was kept for the upload of the last checkpoint can go.
    assert len(resumable) <= 3 + 2, "the newest, the newest in the object store, and the one on its way there"
    assert {*kept, 11} <= set(objects.versions())


@pytest.mark.usefixtures("ended")
def test_the_explorers_machine_keeps_few_versions(store: Store) -> None:
    found = [path.name[:14] for path in (store.folder / "elsewhere" / "weights").glob("*/version-*")]
    assert "version-000000" in found
    assert len(found) <= 4
