"""The run's own folder of checkpoints: whose it is, and what may be changed in it."""

import json
import logging
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from trinity_db.errors import ConfigError, TrinityError
from trinity_db.models.folder_digest import digest
from trinity_db.trainer.checkpoints.checkpoint import STATE_FILE
from trinity_db.trainer.checkpoints.folder import (
    OWNER_FILE,
    PUBLISHED_FILE,
    Folder,
    Publication,
    claim,
    clear,
)

ONE: dict[str, Any] = {"store": "one", "name": "run"}
OTHER: dict[str, Any] = {"store": "other", "name": "run"}


@pytest.fixture
def own(tmp_path: Path) -> Folder:
    return claim(tmp_path / "run", ONE)


def version(folder: Path, number: int, suffix: str = "") -> Path:
    """A version's folder with the files of a checkpoint in it."""
    path = folder / f"version-{number:06d}{suffix}"
    path.mkdir(parents=True)
    (path / "model.safetensors").touch()
    (path / STATE_FILE).touch()
    return path


def test_a_folder_belongs_to_who_has_it_first(tmp_path: Path) -> None:
    for _ in range(2):
        assert claim(tmp_path / "run", ONE).path == tmp_path / "run"
    assert [path.name for path in (tmp_path / "run").iterdir()] == [OWNER_FILE]
    assert json.loads((tmp_path / "run" / OWNER_FILE).read_bytes()) == ONE


def test_another_store_gets_a_folder_of_its_own_beside_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = claim(tmp_path / "run", ONE)
    kept = version(first.path, 3)
    others = [claim(tmp_path / "run", OTHER) for _ in range(2)]
    assert others[0] == others[1]
    assert others[0].path.parent == tmp_path
    assert others[0].path.name.startswith("run-")
    assert str(others[0].path) in caplog.text
    others[0].set_lost_aside(9)
    others[0].clear_leftovers([])
    others[0].delete(3, kept)
    others[0].set_aside(3, kept)
    assert kept.is_dir()


def test_versions_in_a_folder_that_names_no_owner_belong_to_none(tmp_path: Path) -> None:
    kept = version(tmp_path / "run", 0)
    assert claim(tmp_path / "run", ONE).path != tmp_path / "run"
    assert [path.name for path in (tmp_path / "run").iterdir()] == [kept.name]


@pytest.mark.parametrize("name", ["checkpoint-500", "checkpoint-best", "checkpoint-000001"])
def test_the_checkpoints_of_another_trainer_are_left_alone(tmp_path: Path, name: str) -> None:
    kept = tmp_path / "run" / name
    kept.mkdir(parents=True)
    (kept / "model.safetensors").touch()
    own = claim(tmp_path / "run", ONE)
    assert own.path != tmp_path / "run"
    assert own.set_lost_aside(-1) == []
    own.clear_leftovers([])
    assert clear(own.path, ONE)
    assert [path.name for path in (tmp_path / "run").iterdir()] == [name]


def test_what_another_trainer_writes_in_a_runs_folder_is_left_alone(own: Folder) -> None:
    names = ["checkpoint-120000", "checkpoint-500", "checkpoint-best", "version-2"]
    for name in names:
        (own.path / name).mkdir()
    version(own.path, 0)
    assert own.set_lost_aside(0) == [], "a version is lost, and not a step"
    assert sorted(path.name for path in own.path.glob("*-*")) == [*names[:3], "version-000000", "version-2"]
    version(own.path, 3, ".damaged-2")
    (own.path / "checkpoint-120000").rmdir()
    assert clear(own.path, ONE)
    assert sorted(path.name for path in own.path.iterdir()) == names[1:]


def test_where_both_folders_have_other_owners_nothing_is_written(tmp_path: Path) -> None:
    claim(tmp_path / "run", OTHER)
    second = claim(tmp_path / "run", ONE)
    (second.path / OWNER_FILE).write_text("another run")
    with pytest.raises(
        ConfigError, match=r"have other owners; name another folder with trainer\.checkpoints"
    ):
        claim(tmp_path / "run", ONE)


def test_of_two_stores_that_claim_a_folder_at_once_one_gets_it(tmp_path: Path) -> None:
    owners = [{"store": str(number)} for number in range(8)]
    barrier = threading.Barrier(len(owners))
    found: dict[str, Path] = {}

    def take(owner: dict[str, str]) -> None:
        barrier.wait()
        found[owner["store"]] = claim(tmp_path / "run", owner).path

    threads = [threading.Thread(target=take, args=[owner]) for owner in owners]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found.values())) == len(owners)
    assert all(
        json.loads((path / OWNER_FILE).read_bytes()) == {"store": name} for name, path in found.items()
    )


def test_a_folder_in_the_way_is_gone_around(own: Folder) -> None:
    names = []
    for _ in range(3):
        folder = own.version_folder(7)
        names.append(folder.name)
        folder.mkdir()
    assert names == ["version-000007", "version-000007-2", "version-000007-3"]


def test_nothing_is_written_to_a_folder_that_was_given_to_another(own: Folder) -> None:
    (own.path / OWNER_FILE).write_text(json.dumps(OTHER))
    kept = version(own.path, 1)
    with pytest.raises(TrinityError, match=r"no longer names this run in its run\.json"):
        own.version_folder(2)
    with pytest.raises(TrinityError, match="no longer names this run"):
        own.clear_leftovers([])
    own.delete(1, kept)
    assert kept.is_dir()


def test_what_crashes_left_is_removed_and_nothing_else(own: Folder) -> None:
    published = ["version-000000", "version-000002-2"]
    kept = [*published, "version-000001.damaged", "version-12", "version-000003.tmp", "notes"]
    leftovers = ["version-000001", "version-000002", "version-000003", "version-000003-2.0a1b2c3d.tmp"]
    for name in [*kept, *leftovers]:
        (own.path / name).mkdir()
        (own.path / name / "model.safetensors").touch()
    assert own.set_lost_aside(2) == []
    own.clear_leftovers(published)
    assert sorted(path.name for path in own.path.iterdir()) == sorted([*kept, OWNER_FILE])


def publish(own: Folder, number: int) -> Publication:
    """A version with files, which the store knew."""
    publication = Publication(number, 10 * number, digest(version(own.path, number)))
    own.acknowledge(publication)
    return publication


def test_checkpoints_that_the_store_has_forgotten_are_set_aside(own: Folder) -> None:
    for number in range(1, 5):
        publish(own, number)
    for _ in range(2):  # the second time they are set aside already
        assert own.set_lost_aside(2) == [3, 4]
        own.clear_leftovers(["version-000001", "version-000002"])
        names = [path.name for path in sorted(own.path.glob("version-*"))]
        assert names == ["version-000001", "version-000002", "version-000003.later", "version-000004.later"]
    assert own.lost_checkpoint(2) is None
    assert own.lost_checkpoint(4) is None, "its weights alone were recorded"
    assert own.set_lost_aside(4) == [], "they are on the record by now"


def test_a_lost_version_has_its_checkpoint_beside_it(own: Folder) -> None:
    publications = [publish(own, number) for number in (1, 2)]
    for number in (1, 2):
        place = own.checkpoint_folder(number)
        (place / "part-00000").mkdir(parents=True)
        (place / "part-00000" / STATE_FILE).touch()
    recorded = digest(own.path / "checkpoint-000002" / "part-00000")
    own.acknowledge_checkpoint(2, recorded)
    assert own.set_lost_aside(1) == [2]
    own.clear_leftovers(["version-000001"])
    places = [own.path / f"{kind}-000002.later" for kind in ("version", "checkpoint")]
    assert own.lost_checkpoint(2) == (replace(publications[1], resume_hash=recorded), *places)
    assert not (own.path / "checkpoint-000001").exists(), "the store names none"
    (places[1] / "part-00000" / STATE_FILE).unlink()
    assert own.lost_checkpoint(2) is None


def test_nothing_goes_on_from_a_lost_version_that_is_weights_alone(own: Folder) -> None:
    path = version(own.path, 1)
    (path / STATE_FILE).unlink()
    own.acknowledge(Publication(1, 10, digest(path)))
    assert own.set_lost_aside(0) == [1]
    assert own.lost_checkpoint(1) is None


def test_what_the_store_never_knew_is_a_leftover_and_not_forgotten(own: Folder) -> None:
    publish(own, 1)
    version(own.path, 2)
    assert own.set_lost_aside(1) == []
    own.clear_leftovers(["version-000001"])
    assert [path.name for path in own.path.glob("version-*")] == ["version-000001"]


def test_checkpoints_far_beyond_what_the_store_knows_are_kept_without_a_record(own: Folder) -> None:
    for number in range(5):
        version(own.path, number)
    assert own.set_lost_aside(1) == [2, 3, 4]
    own.clear_leftovers(["version-000000", "version-000001"])
    assert own.lost_checkpoint(4) is None, "nothing says what its files were"


def test_the_record_keeps_versions_that_have_files_and_the_newest(own: Folder) -> None:
    publications = [publish(own, number) for number in range(1, 5)]
    own.delete(2, own.path / "version-000002")
    own.acknowledge(publications[3])
    assert own.publications() == [publications[0], publications[2], publications[3]]
    (own.path / PUBLISHED_FILE).write_text("no JSON")
    assert own.publications() == []


def test_a_version_that_is_not_needed_any_more_is_deleted_and_a_damaged_one_kept(own: Folder) -> None:
    own.delete(1, version(own.path, 1))
    own.set_aside(2, version(own.path, 2, "-2"))
    own.set_aside(2, version(own.path, 2, "-2"))
    assert sorted(path.name for path in own.path.glob("version-*")) == [
        "version-000002-2.damaged",
        "version-000002-2.damaged-2",
    ]


@pytest.mark.parametrize("verb", ["delete", "set_aside"])
def test_a_path_that_is_no_folder_of_that_version_is_left_alone(
    own: Folder, tmp_path: Path, verb: str, caplog: pytest.LogCaptureFixture
) -> None:
    precious = tmp_path / "precious"
    inside = version(precious, 4)
    newest = version(own.path, 9)
    (own.path / "version-000004").symlink_to(inside)
    (own.path / "link").symlink_to(precious)
    poisoned = [
        precious,
        inside,
        own.path,
        own.path.parent,
        own.path / OWNER_FILE,
        own.path / "version-000004",
        own.path / "link" / "version-000004",
        own.path / "version-000009" / ".." / ".." / "precious" / "version-000004",
        newest,  # of another version
        Path("/"),
    ]
    before = sorted(tmp_path.rglob("*"))
    for path in poisoned:
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            getattr(own, verb)(4, path)
        [line] = caplog.messages
        assert line.startswith(f"version 4: {path} is not a folder of version 4 in {own.path}, and is left")
    assert sorted(tmp_path.rglob("*")) == before


def test_a_folder_that_was_cleared_knows_no_version_of_the_next_run_of_its_name(own: Folder) -> None:
    version(own.path, 6)
    own.acknowledge(Publication(6, 6, "hash"))
    assert clear(own.path, ONE)
    assert not own.path.exists()
    assert claim(own.path, OTHER).set_lost_aside(-1) == []


def test_the_folder_of_another_run_in_this_one_is_no_version(own: Folder) -> None:
    inner = claim(own.path / "version-000009", OTHER)
    kept = version(inner.path, 1)
    assert own.set_lost_aside(3) == []
    own.clear_leftovers([])
    own.delete(9, inner.path)
    own.set_aside(9, inner.path)
    assert clear(own.path, ONE)
    assert kept.is_dir()


def test_a_folder_is_known_by_any_of_its_names(own: Folder, tmp_path: Path) -> None:
    version(own.path, 5)
    (tmp_path / "disk").symlink_to(own.path)
    own.delete(5, tmp_path / "disk" / "version-000005")
    assert not list(own.path.glob("version-*"))


def test_a_version_without_files_is_not_complained_about(
    own: Folder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    own.delete(1, own.path / "version-000001")
    own.delete(1, tmp_path / "gone" / "version-000001")
    assert not caplog.messages
