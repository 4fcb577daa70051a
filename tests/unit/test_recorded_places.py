"""Which of the folders and addresses of versions in the database are read."""

import json
from pathlib import Path

import pytest

from trinity_db.errors import ConfigError, TrinityError
from trinity_db.store.policies import PolicyVersion
from trinity_db.weights.recorded_places import RecordedPlaces

OWNER = {"store": "a", "name": "run", "id": 1, "created_at": "2026-01-01T00:00:00+00:00"}


def version_in(folder: Path | str, weights: str | None = None) -> PolicyVersion:
    return PolicyVersion(3, 3, Path(folder), "digest", weights=weights)


@pytest.fixture
def places(tmp_path: Path) -> RecordedPlaces:
    return RecordedPlaces(
        tmp_path / "checkpoints", tmp_path / "model", "s3://bucket/runs/", home=tmp_path / "home"
    )


@pytest.mark.parametrize(
    ("name", "is_allowed"),
    [
        ("checkpoints/run/version-000003", True),
        ("home/weights/run-1/version-000003", True),
        ("model", True),
        ("model/below", False),
        ("other/version-000003", False),
        ("checkpoints-of-others/version-000003", False),
        ("home/../other/version-000003", False),
    ],
)
def test_a_folder_is_below_what_the_configuration_names(
    places: RecordedPlaces, tmp_path: Path, name: str, is_allowed: bool
) -> None:
    policy = version_in(f"{tmp_path}/{name}")
    assert places.allows_folder(policy) == is_allowed
    if not is_allowed:
        with pytest.raises(ConfigError, match=r"folder of version 3.*trainer\.checkpoints.*--config FILE"):
            places.check(policy)


def test_a_relative_folder_is_none_of_the_configuration(places: RecordedPlaces) -> None:
    assert not places.allows_folder(version_in("version-3"))


def test_a_shared_folder_is_allowed_by_the_mark_of_a_trainer(places: RecordedPlaces, tmp_path: Path) -> None:
    shared = tmp_path / "shared" / "run"
    shared.mkdir(parents=True)
    policy = version_in(shared / "version-000003")
    for content in ("", "[]", "{}", json.dumps(OWNER)[:-1], "[" * 9000, json.dumps(OWNER | {"more": 1})):
        (shared / "run.json").write_text(content)
        assert not places.allows_folder(policy), content
    (shared / "run.json").write_text(json.dumps(OWNER))
    assert places.allows_folder(policy)


def test_links_of_the_own_folders_are_followed(places: RecordedPlaces, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    (tmp_path / "checkpoints").symlink_to(disk)
    assert places.allows_folder(version_in(disk / "run" / "version-000003"))
    assert places.allows_folder(version_in(tmp_path / "checkpoints" / "run" / "version-000003"))


@pytest.mark.parametrize(
    ("address", "is_allowed"),
    [
        ("s3://bucket/runs/run-1/version-000003-1", True),
        ("s3://bucket/runs-of-others/version-000003-1", False),
        ("s3://bucket/runs/../version-000003-1", False),
        ("s3://bucket/runs/%2e%2e/others/version-000003-1", False),
        ("s3://bucket/runs/.%2E/others/version-000003-1", False),
        ("s3://bucket/runs/run\\..\\..\\others/version-000003-1", False),
        ("s3://bucket/runs/./version-000003-1", False),
        ("s3://bucket/runs//version-000003-1", False),
        ("s3://other/runs/run-1/version-000003-1", False),
    ],
)
def test_an_address_is_below_the_own_object_store(
    places: RecordedPlaces, address: str, is_allowed: bool
) -> None:
    policy = version_in("/elsewhere/version-000003", address)
    if is_allowed:
        places.check(policy)
        return
    with pytest.raises(TrinityError, match=r"below trainer\.weights .* is s3://bucket/runs/"):
        places.check(policy)
    with pytest.raises(ConfigError, match=r"which is not set"):
        RecordedPlaces().check(policy)
