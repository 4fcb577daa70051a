"""Every version of a finished run in 16 bits can be evaluated, and exported, by the installed command."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.command import Store, new_store, reversals, reversing
from trinity_db.models import folder_digest
from trinity_db.weights import packed

pytestmark = pytest.mark.slow

STEPS = 6
VERSIONS = (
    "SELECT version, checkpoint, checkpoint_hash FROM policy_version WHERE version > 0 ORDER BY version"
)


@pytest.fixture(scope="module")
def store(server: str, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with new_store(server, template, tmp_path_factory.mktemp("older")) as store:
        store.import_rows("reverse", "tasks", reversals(2))
        store.import_rows("test", "tasks", reversals(1))
        run = reversing(STEPS, batch_size=2, keep_checkpoints=2)
        run["trainer"] |= {"publish_dtype": "bfloat16", "learning_rate": 1e-5}
        ended = store.run("run", store.config("run", **run))
        assert ended.code == 0, ended.stderr
        yield store


def deltas(store: Store) -> list[int]:
    rows = store.rows(VERSIONS)
    return [row["version"] for row in rows if packed.is_packed(Path(row["checkpoint"]))]


def test_all_versions_stay_and_the_older_ones_are_deltas(store: Store) -> None:
    rows = store.rows(VERSIONS)
    assert [row["version"] for row in rows] == list(range(1, STEPS + 1))
    assert all(row["checkpoint"] is not None for row in rows)
    found = deltas(store)
    assert 1 in found
    assert not {STEPS - 1, STEPS} & set(found)


def test_each_version_is_evaluated(store: Store) -> None:
    options = [part for version in range(1, STEPS + 1) for part in ("--version", str(version))]
    ended = store.run("evaluate", "run", "--taskset", "test", *options, "--samples", "1", "--json")
    assert ended.code == 0, ended.stderr
    rows = json.loads(ended.stdout)["evaluations"]
    assert [(row["version"], row["waiting"]) for row in rows] == [(one, 0) for one in range(1, STEPS + 1)]
    sampled = """
        SELECT count(*) FROM rollout_group g JOIN evaluation v ON v.id = g.evaluation_id
        WHERE (g.version_min, g.version_max) IS DISTINCT FROM (v.version, v.version)
    """
    assert store.value(sampled) == 0


def test_an_older_version_is_exported(store: Store) -> None:
    ended = store.run("export", "run", "--as", "model", store.folder / "model", "--version", "1")
    assert ended.code == 0, ended.stderr
    assert (store.folder / "model" / "model.safetensors").stat().st_size > 0


def test_a_copy_has_the_versions_that_are_whole(store: Store) -> None:
    ended = store.run("export", "run", "--as", "run", store.folder / "copy", "--checkpoints")
    assert ended.code == 0, ended.stderr
    copied = {int(path.name[8:14]) for path in (store.folder / "copy" / "checkpoints").glob("version-*")}
    assert copied == set(range(STEPS + 1)) - set(deltas(store))


def test_a_damaged_delta_says_which_versions_are_lost(store: Store) -> None:
    last = max(deltas(store))
    [row] = [row for row in store.rows(VERSIONS) if row["version"] == last]
    assert not folder_digest.verify(Path(row["checkpoint"]), row["checkpoint_hash"])
    files = packed.delta_folder(Path(row["checkpoint"])) / packed.FILES
    largest = max((path for path in files.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[len(content) // 2] ^= 1
    largest.write_bytes(content)
    for path in (store.home / "weights").rglob("version-*"):
        if path.is_dir() and path.parent.name == "run":
            path.rename(path.with_name(f"old-{path.name}"))
    ended = store.run("export", "run", "--as", "model", store.folder / "lost", "--version", str(last))
    assert ended.code == 1
    assert f"version-{last:06d}.delta is damaged; it is needed for " in ended.stderr
    assert f"version-{last:06d}, so restore it from a copy" in ended.stderr
