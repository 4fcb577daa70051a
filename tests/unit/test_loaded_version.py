"""An explorer's engine loads a version that the trainer converts to a delta meanwhile."""

import asyncio
import shutil
from pathlib import Path
from typing import Any, cast

import pytest

from trinity_db.explorer.engines.engine import Engine
from trinity_db.explorer.loop.loading import LoadedVersion
from trinity_db.models import folder_digest
from trinity_db.store.policies import PolicyVersion
from trinity_db.weights import packed
from trinity_db.weights.recorded_places import RecordedPlaces


class Converting:
    """An engine whose first load fails, since the folder has become a delta."""

    def __init__(self, digest: str) -> None:
        self.digest = digest
        self.folders: list[Path] = []

    async def load(self, folder: Path, version: int) -> None:
        self.folders.append(folder)
        if len(self.folders) == 1:
            base = folder.with_name("version-000002")
            assert packed.write(folder, base, self.digest, packed.delta_folder(folder))
            shutil.rmtree(folder)
        (folder / "weights").read_bytes()


@pytest.fixture
def policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PolicyVersion:
    monkeypatch.setenv("TRINITY_DB_HOME", str(tmp_path))
    for number in (1, 2):
        folder = tmp_path / "run" / f"version-{number:06d}"
        folder.mkdir(parents=True)
        (folder / "weights").write_bytes(bytes(10_000) + bytes([number, 0]))
    folder = tmp_path / "run" / "version-000001"
    return PolicyVersion(1, 1, folder, folder_digest.digest(folder))


async def nothing() -> None:
    pass


def loaded(engine: Any) -> LoadedVersion:
    return LoadedVersion(cast(Engine, engine), RecordedPlaces(), nothing)


def test_a_folder_that_becomes_a_delta_while_it_is_loaded_is_loaded_again(policy: PolicyVersion) -> None:
    engine = Converting(policy.checkpoint_hash)
    version = loaded(engine)
    assert asyncio.run(version.try_to_load(policy)) is None
    assert version.number == 1
    assert engine.folders[0] == policy.checkpoint
    assert folder_digest.verify(engine.folders[1], policy.checkpoint_hash)


def test_a_folder_that_is_deleted_while_it_is_loaded_is_not_loaded_again(policy: PolicyVersion) -> None:
    class Deleting(Converting):
        async def load(self, folder: Path, version: int) -> None:
            self.folders.append(folder)
            shutil.rmtree(folder)
            (folder / "weights").read_bytes()

    engine = Deleting(policy.checkpoint_hash)
    assert isinstance(asyncio.run(loaded(engine).try_to_load(policy)), FileNotFoundError)
    assert len(engine.folders) == 1
