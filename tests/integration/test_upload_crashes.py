"""A trainer that is killed in an upload: what it announced before can be fetched, and the rest goes."""

import json
import multiprocessing
import os
import signal
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trinity_db.models import folder_digest
from trinity_db.trainer.checkpoints.retrying_bucket import Patience
from trinity_db.trainer.checkpoints.uploads import Uploads
from trinity_db.weights import cache, manifest
from trinity_db.weights.bucket import Bucket
from trinity_db.weights.manifest import OWNER_FILE

IDENTITY = {"store": "one", "run": 1}
KEPT = 2  # versions
WORDS = 600_000  # of weights in bfloat16: small files have no deltas
CHANGES = ("put", "create", "delete")  # requests that change what is there


def folder_of(versions: Path, number: int) -> Path:
    return versions / f"version-{number:06d}"


def opened(bucket: Path) -> Uploads:
    return Uploads(f"file://{bucket}", IDENTITY, "run", Patience(lambda: False))


def work(bucket: Path, versions: Path, announced: Path, numbers: range) -> None:
    """As a trainer: upload each version, announce it, then delete what is not kept."""
    to, kept = opened(bucket).versions, json.loads(announced.read_text() or "[]")
    for number in numbers:
        folder = folder_of(versions, number)
        digest = folder_digest.digest(folder)
        kept = [*kept, [to.upload(number, folder, digest), digest]][-KEPT:]
        aside = announced.with_suffix(".new")
        aside.write_text(json.dumps(kept))
        aside.replace(announced)
        to.sweep([address for address, _ in kept])


def work_until_killed(at: int, is_after: bool, *arguments: Any) -> None:
    """The same, killed before or after a change of the bucket, counted from 0."""
    changes = count()

    def deadly(change: Callable[..., Any]) -> Callable[..., Any]:
        def made(self: Bucket, *given: Any) -> Any:
            is_the_one = next(changes) == at
            if is_the_one and not is_after:
                os.kill(os.getpid(), signal.SIGKILL)
            result = change(self, *given)
            if is_the_one:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return made

    for name in CHANGES:
        setattr(Bucket, name, deadly(getattr(Bucket, name)))
    work(*arguments)


@pytest.mark.parametrize("is_after", [False, True], ids=["before", "after"])
def test_a_trainer_that_is_killed_at_any_change_of_its_objects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_after: bool
) -> None:
    monkeypatch.setenv("TRINITY_DB_HOME", str(tmp_path / "home"))
    versions, chance = tmp_path / "versions", np.random.default_rng(0)
    weights = chance.integers(0, 2**16, WORDS, dtype="<u2")
    for number in range(5):
        folder_of(versions, number).mkdir(parents=True)
        (folder_of(versions, number) / "model.safetensors").write_bytes(weights.tobytes())
        (folder_of(versions, number) / "config.json").write_text("{}")
        weights = weights + (chance.random(WORDS) < 0.01).astype("<u2")
    process = multiprocessing.get_context("forkserver")
    process.set_forkserver_preload([__name__])
    longest = 0
    for at in count():
        bucket, announced = tmp_path / f"bucket-{at}", tmp_path / f"announced-{at}"
        bucket.mkdir()
        announced.touch()
        arguments = (bucket, versions, announced)
        child = process.Process(target=work_until_killed, args=(at, is_after, *arguments, range(4)))
        child.start()
        child.join()
        if child.exitcode == 0:
            break  # all changes had their turn
        assert child.exitcode == -signal.SIGKILL
        for address, digest in json.loads(announced.read_text() or "[]"):
            assert folder_digest.digest(cache.fetch(address, digest)) == digest
        work(*arguments, range(4, 5))
        needed = set[str]()
        for address, _ in json.loads(announced.read_text()):
            url, _, name = address.rpartition("/")
            chain = manifest.chain(Bucket(url), name)
            longest = max(longest, len(chain))
            needed.update(chain)
        found = {name.split("/")[0] for name in Bucket(url).names()}
        assert found == {OWNER_FILE, *needed}, f"change {at}: all else has gone"
    assert at > 4 * 2, "each version has two objects at least"
    assert longest > 1, "some that are kept lie on others"
