"""A policy version on its way to an explorer, by each transport: bytes and seconds.

Weights are random, in bfloat16; between two versions AdamW makes a step at a learning rate of 1e-6 from
float32 weights, with random gradients. A version by a shared folder costs one reading, which checks its
digest. By an object store it is uploaded and fetched, whole or as a delta on the version before, which the
explorer has. The server is moto on the same machine: nothing of a network is in the seconds. A broadcast goes
to two explorers that ask together, after their processes have loaded torch; both write to the same disk.
"""

import os
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from benchmarks.context import Context
from benchmarks.measure import OURS, Result, figure
from tests.object_store import new_object_store
from trinity_db.models import folder_digest
from trinity_db.models.weights_file import WeightsFile
from trinity_db.trainer.checkpoints.patience import Patience
from trinity_db.trainer.checkpoints.uploads import Uploads, Versions
from trinity_db.weights import cache, manifest
from trinity_db.weights.broadcast import Broadcasts, Receiver
from trinity_db.weights.bucket import Bucket

MEASURE = "weights"
SIZES: Mapping[str, int] = {"50 M": 50_000_000, "0.5 B": 500_000_000}
LEARNING_RATE = 1e-6
WAYS = ("shared folder", "object store, whole", "object store, delta", "broadcast to two")
IDENTITY = {"store": "benchmark", "run": 1}


def run(context: Context) -> list[Result]:
    """50 M parameters, and with `--full` half a billion."""
    found = []
    for name in list(SIZES)[: None if context.full else 1]:
        with TemporaryDirectory(prefix="trinity-db-bench-weights-", dir=context.scratch) as scratch:
            found += _measured(context, name, Path(scratch))
    return found


def _measured(context: Context, name: str, scratch: Path) -> list[Result]:
    values: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    trainer, explorers = Broadcasts("127.0.0.1"), [Receiver(), Receiver()]
    with new_object_store() as server:
        os.environ.update(server.environment, TRINITY_DB_HOME=str(scratch / "home"))
        uploads = Uploads(server.address, IDENTITY, "run", Patience(lambda: False)).versions
        folders = _versions(scratch / "checkpoints", SIZES[name], context.repetitions + 1)
        for number, (folder, digest) in enumerate(folders):
            delta = _by_store(uploads, number, folder, digest, is_whole=number == 0)
            whole = _by_store(uploads, number, folder, digest, is_whole=True)
            trainer.offer(folder, digest)
            sent = _by_broadcast(trainer, explorers, number, digest)
            if number == 0:  # nothing to compare it with, and processes that start
                continue
            begun = time.perf_counter()
            assert folder_digest.verify(folder, digest)
            seconds = time.perf_counter() - begun
            size = sum(path.stat().st_size for path in folder.iterdir()) / 1e6
            found_by = ({"fetch": seconds, "bytes": size}, whole, delta, sent | {"bytes": size})
            for way, one in zip(WAYS, found_by, strict=True):
                values[way].append(one)
                context.say(f"{name}, {way}: {one}")
    for explorer in explorers:
        explorer.close()
    return [
        figure(MEASURE, OURS, f"{name}, {way}: {variant}", unit, [one[what] for one in found])
        for way, found in values.items()
        for what, variant, unit in (
            ("bytes", "a version", "MB"),
            ("upload", "upload it", "s"),
            ("fetch", "have it checked on the explorer's disk", "s"),
        )
        if what in found[0]
    ]


def _versions(place: Path, size: int, count: int) -> list[tuple[Path, str]]:
    """Folders of versions, each a step of AdamW after the one before, and their digests."""
    generator = torch.Generator().manual_seed(0)
    weights = torch.nn.Parameter(torch.randn(size, generator=generator) * 0.02)
    optimizer = torch.optim.AdamW([weights], lr=LEARNING_RATE, weight_decay=0.0)
    found = []
    for number in range(count):
        folder = place / f"version-{number:06d}"
        folder.mkdir(parents=True)
        file = WeightsFile({"weights": weights.detach().to(torch.bfloat16)})
        found.append((folder, folder_digest.complete(folder, {Path("model.safetensors"): file})))
        weights.grad = torch.randn(size, generator=generator)
        optimizer.step()
    return found


def _by_store(
    uploads: Versions, number: int, folder: Path, digest: str, *, is_whole: bool
) -> dict[str, float]:
    """Upload a version and fetch it, as an explorer does that has the version before."""
    begun = time.perf_counter()
    address = uploads.upload(number, folder, digest, whole=is_whole)
    uploaded = time.perf_counter()
    cache.fetch(address, digest)
    fetched = time.perf_counter()
    url, _, name = address.rpartition("/")
    size = manifest.read(Bucket(url), name).stored / 1e6
    return {"upload": uploaded - begun, "fetch": fetched - uploaded, "bytes": size}


def _by_broadcast(
    trainer: Broadcasts, explorers: list[Receiver], number: int, digest: str
) -> dict[str, float]:
    """Send a version to explorers of so many machines, until all have checked it."""

    def received(one: int) -> None:
        cache.receive(explorers[one], trainer.address, f"machine {one}", number, digest)

    begun = time.perf_counter()
    with ThreadPoolExecutor() as pool:
        for _ in pool.map(received, range(len(explorers))):
            pass
    return {"fetch": time.perf_counter() - begun}
