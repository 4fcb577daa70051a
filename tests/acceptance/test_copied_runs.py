"""A real run, copied by the command to a server of another major version in the middle of its training."""

import json
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.acceptance.command import Ended, Store, new_store, reversals, reversing

pytestmark = pytest.mark.slow

STEPS = 24  # so many that the run is still on its way when it is interrupted, on a busy machine too
RUN = reversing(STEPS, 2)
COMMITTED = "SELECT array_agg(step ORDER BY step) FROM batch WHERE state = 'committed'"
VERSIONS = "SELECT array_agg(version ORDER BY version) FROM policy_version"


class Copied(NamedTuple):
    """What the commands said, and the copy's store."""

    store: Store
    exported: Ended
    imported: Ended
    again: Ended
    steps: list[int]
    versions: list[int]


@pytest.fixture(scope="module")
def original(server: str, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A run that was interrupted."""
    with new_store(server, template, tmp_path_factory.mktemp("original")) as store:
        store.import_rows("reverse", "tasks", reversals(2))
        process = store.start("run", store.config("copied", **RUN))
        for reached in (
            "version >= 0",
            "version >= 1",
            "version >= 2",
        ):  # each in time, on a busy machine too
            store.wait_for(f"SELECT count(*) > 0 FROM policy_version WHERE {reached}", process)
        process.signal(signal.SIGINT)
        process.wait()
        yield store


@pytest.fixture(scope="module")
def copied(
    original: Store, server15: str, template15: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Copied]:
    """The copy, on another server, as it is before anything trains it."""
    folder = tmp_path_factory.mktemp("folder") / "copy"
    exported = original.run("export", "copied", "--as", "run", folder, "--checkpoints", "--json")
    steps, versions = original.value(COMMITTED), original.value(VERSIONS)
    with new_store(server15, template15, tmp_path_factory.mktemp("copy")) as store:
        store.import_rows("other", "tasks", reversals(1))
        imported = store.run("import", folder, "--as", "run")
        again = store.run("import", folder, "--as", "run")
        shutil.rmtree(folder)
        yield Copied(store, exported, imported, again, steps, versions)


def test_the_commands_say_what_they_copied(copied: Copied) -> None:
    assert (copied.exported.code, copied.exported.error_lines) == (0, [])
    said = json.loads(copied.exported.stdout)
    assert len(said["checkpoints"]) >= 2
    assert said["rows"]["run"] == 1
    assert (copied.imported.code, copied.imported.error_lines) == (0, [])
    rows = sum(said["rows"].values())
    assert copied.imported.stdout.startswith(f"run 'copied': {rows:,} rows of ")
    assert copied.again.code == 1
    assert copied.again.error_lines == [
        "error: A run or taskset 'copied' already exists; name the copy with --name."
    ]


def test_the_copy_has_the_steps_and_versions(copied: Copied) -> None:
    assert copied.store.value(COMMITTED) == copied.steps
    assert copied.store.value(VERSIONS) == copied.versions


def test_the_copy_goes_on_training_without_the_original(original: Store, copied: Copied) -> None:
    shutil.rmtree(original.home)
    process = copied.store.start("run", copied.store.config("copied", **RUN))
    ended = process.wait(timeout=300)
    assert ended.code == 0, ended.stderr
    assert copied.store.value(COMMITTED) == list(range(1, STEPS + 1))
    assert copied.store.value(VERSIONS)[: len(copied.versions)] == copied.versions
    # No step was made from the start again: all go on from the newest version of the copy.
    assert copied.store.value("SELECT count(*) FROM policy_version WHERE version = 0") == 1
    newest = max(copied.versions)
    assert (
        copied.store.value(
            "SELECT min(policy_version) FROM batch WHERE step > %(step)s", step=max(copied.steps)
        )
        >= newest
    )
    own = copied.store.value("SELECT checkpoint FROM policy_version ORDER BY version DESC LIMIT 1")
    assert Path(own).is_relative_to(copied.store.home / "checkpoints")


def test_draws_of_the_original_are_not_checked_on_another_server(copied: Copied) -> None:
    first, last = copied.store.value("SELECT array[min(id), max(id)] FROM batch")
    refused = copied.store.run("replay", str(first), "--check")
    assert refused.code == 1
    assert "its run is a copy, drawn from on another server" in refused.error_lines[0]
    assert copied.store.run("replay", str(first), "--to", copied.store.folder / "batch.jsonl").code == 0
    assert copied.store.run("replay", str(last), "--check").code == 0
