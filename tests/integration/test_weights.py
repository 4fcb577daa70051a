"""Versions in an object store, on a real server: put, fetched, broken, mended and deleted."""

import json
import os
import re
import resource
import shutil
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.command_line import CommandLine
from tests.support.explorers import Explorers, publish, stored
from tests.support.object_store import ObjectStore, new_object_store, on_each_server
from tests.support.rows import Scene
from tests.support.waiting import wait_until
from trinity_db.config.base import home
from trinity_db.errors import ConfigError, TrinityError
from trinity_db.explorer.attempt.policy import Policy
from trinity_db.explorer.loop import staging
from trinity_db.explorer.service import Explorer
from trinity_db.models import folder_digest
from trinity_db.models.adapter_folder import Base, base_folder
from trinity_db.store import instances, policies
from trinity_db.trainer.checkpoints import retrying_bucket, run_files, run_objects, uploads
from trinity_db.trainer.checkpoints.retrying_bucket import Patience
from trinity_db.trainer.checkpoints.uploads import Uploads, Versions
from trinity_db.weights import cache, fetching, manifest
from trinity_db.weights.bucket import Bucket, Refused, Unreachable
from trinity_db.weights.recorded_places import RecordedPlaces

WORDS = 2_000_000  # of weights in bfloat16: small files have no deltas
IDENTITY: dict[str, Any] = {"store": "one", "run": 1}


@pytest.fixture
def versions(tmp_path: Path) -> Path:
    """Folders of versions 0 to 12, each a small step from the one before; the tokenizer stays the same."""
    folder, chance = tmp_path / "checkpoints", np.random.default_rng(0)
    weights = chance.integers(0, 2**16, WORDS, dtype="<u2")
    for number in range(13):
        place = folder / f"version-{number:06d}"
        (place / "sub folder").mkdir(parents=True)
        (place / "model.safetensors").write_bytes(weights.tobytes())
        (place / "canary.json").write_text(json.dumps(number))
        (place / "sub folder" / "tokenizer.json").write_bytes(bytes(3_000_000))
        (place / "empty").touch()
        weights = weights + (chance.random(WORDS) < 0.01).astype("<u2")
    return folder


def uploaded(to: Versions, versions: Path, *numbers: int) -> list[tuple[str, str]]:
    """Addresses and digests of versions that are uploaded one after the other."""
    digests = {one: folder_digest.digest(versions / f"version-{one:06d}") for one in numbers}
    return [
        (to.upload(one, versions / f"version-{one:06d}", digest), digest) for one, digest in digests.items()
    ]


def uploaded_to(folder: Path, versions: Path) -> tuple[str, str]:
    """The same of version 0, in a folder in place of a bucket."""
    to = Uploads(f"file://{folder}", IDENTITY, "run", Patience(lambda: False)).versions
    (found,) = uploaded(to, versions, 0)
    return found


def opened(objects: ObjectStore, **identity: Any) -> Versions:
    return Uploads(objects.address, IDENTITY | identity, "run", Patience(lambda: False)).versions


def read(address: str) -> manifest.Manifest:
    url, _, name = address.rpartition("/")
    return manifest.read(Bucket(url), name)


def cached() -> list[int]:
    """Versions that this machine has."""
    return sorted(int(path.name[8:14]) for path in home().glob("weights/*/version-*"))


@on_each_server
def test_what_is_fetched_is_what_was_uploaded(objects: ObjectStore, versions: Path) -> None:
    to = opened(objects)
    for address, digest in uploaded(to, versions, 0, 1, 2):
        assert folder_digest.digest(cache.fetch(address, digest)) == digest


def test_a_small_step_is_uploaded_as_a_small_part(objects: ObjectStore, versions: Path) -> None:
    (whole, _), (delta, _) = uploaded(opened(objects), versions, 0, 1)
    assert read(whole).stored > 2 * WORDS + 3_000_000
    assert read(delta).stored < 0.05 * 2 * WORDS
    assert {file.path: file.encoding for file in read(delta).files} == {
        "model.safetensors": "gap16-zstd",
        "canary.json": "whole",
        "sub folder/tokenizer.json": "same",
        "empty": "same",
    }


def test_a_machine_that_comes_late_fetches_the_chain(objects: ObjectStore, versions: Path) -> None:
    *_, (address, digest) = uploaded(opened(objects), versions, *range(6))
    assert folder_digest.digest(cache.fetch(address, digest)) == digest
    assert cached() == [5], "those that it lies on are not versions of this machine"


def test_every_tenth_version_is_whole(objects: ObjectStore, versions: Path) -> None:
    found = uploaded(opened(objects), versions, *range(13))
    assert [number for number, (address, _) in enumerate(found) if read(address).base is None] == [0, 10]


def test_the_first_version_of_a_process_is_whole(objects: ObjectStore, versions: Path) -> None:
    uploaded(opened(objects), versions, 0, 1)
    ((address, _),) = uploaded(opened(objects), versions, 2)
    assert read(address).base is None


def test_a_machine_keeps_the_newest_versions_and_version_0(objects: ObjectStore, versions: Path) -> None:
    for address, digest in uploaded(opened(objects), versions, *range(6)):
        cache.fetch(address, digest)
    assert cached() == [0, 3, 4, 5]


def test_files_of_a_fetch_that_was_killed_go(objects: ObjectStore, versions: Path) -> None:
    ((address, digest),) = uploaded(opened(objects), versions, 0)
    place = cache.fetch(address, digest)
    (place.parent / "version-000001-00000000.aaaaaaaa.tmp").mkdir()
    cache.fetch(address, digest)
    assert [path.name for path in place.parent.glob("*.tmp")] == []


def test_a_version_that_is_damaged_here_is_fetched_again(objects: ObjectStore, versions: Path) -> None:
    first, second = uploaded(opened(objects), versions, 0, 1)
    for address, digest in (first, second):  # it is the base of the second one too
        (cache.fetch(*first) / "model.safetensors").write_bytes(bytes(2 * WORDS))
        assert folder_digest.digest(cache.fetch(address, digest)) == digest


@pytest.mark.parametrize("damage", ["missing", "changed", "cut", "manifest"])
def test_a_broken_chain_is_never_loaded(objects: ObjectStore, versions: Path, damage: str) -> None:
    *_, (middle, _), (address, digest) = uploaded(opened(objects), versions, 0, 1, 2)
    url, _, name = middle.rpartition("/")
    bucket, weights = Bucket(url), f"{name}/files/model.safetensors.00000"
    content = bytearray(bucket.get(weights))
    content[len(content) // 2] ^= 1
    match damage:
        case "missing":
            bucket.delete([weights])
        case "changed":
            bucket.put(weights, bytes(content))
        case "cut":
            bucket.put(weights, bytes(content[:-1]))
        case "manifest":
            bucket.put(f"{name}/manifest.json", b'{"format": "trinity-db weights 1", "files": [{}]}')
    with pytest.raises(manifest.BrokenUpload):
        cache.fetch(address, digest)
    assert cached() == []
    assert list(home().glob("weights/*/*.tmp")) == []


def test_a_disk_that_is_full_is_said_in_a_line_that_stays_the_same(
    objects: ObjectStore, versions: Path
) -> None:
    first, second = uploaded(opened(objects), versions, 0, 1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def said(address: str, digest: str) -> str:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, hard))
        try:
            with pytest.raises(
                TrinityError, match=r"weights/run-\w+ cannot be written: .* Free space"
            ) as raised:
                cache.fetch(address, digest)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert "\n" not in str(raised.value)
        return str(raised.value)

    said(*first)
    cache.fetch(*first)
    assert said(*second) == said(*second), "an explorer says it once"
    assert list(home().glob("weights/*/*.tmp")) == []
    assert folder_digest.digest(cache.fetch(*second)) == second[1]


def test_a_machine_that_finds_nothing_of_the_run_does_not_call_it_broken(
    objects: ObjectStore, versions: Path, tmp_path: Path
) -> None:
    """As without the mount of a folder. The trainer would upload one version after the other again."""
    folder = tmp_path / "objects"
    address, digest = uploaded_to(folder, versions)
    folder.rename(tmp_path / "elsewhere")
    with pytest.raises(Refused, match="this machine finds nothing of the run there; mount the folder"):
        cache.fetch(address, digest)


def test_a_process_that_ends_does_not_wait_for_objects(
    objects: ObjectStore, versions: Path, tmp_path: Path
) -> None:
    """As an explorer that is told to stop while it fetches a model that takes minutes."""
    folder = tmp_path / "objects"
    address, digest = uploaded_to(folder, versions)
    (weights,) = folder.rglob("model.safetensors.00000")
    weights.unlink()
    os.mkfifo(weights)  # that gives no answer
    begun = f"any(Path({str(home())!r}).glob('weights/*/*.tmp/model.safetensors'))"
    script = (
        "import threading\nfrom pathlib import Path\nfrom trinity_db.weights import cache\n"
        f"fetch = threading.Thread(target=cache.fetch, args=({address!r}, {digest!r}), daemon=True)\n"
        f"fetch.start()\nwhile not {begun}: assert fetch.is_alive()\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


@pytest.mark.parametrize("path", ["/etc/passwd", "../../outside", "a/../../outside", ""])
def test_a_manifest_names_no_file_outside_of_its_version(path: str, objects: ObjectStore) -> None:
    refused(objects, written({"path": path, "encoding": "whole", "stored": 1}))


def written(*files: Mapping[str, Any], **changed: Any) -> bytes:
    return json.dumps({"format": manifest.FORMAT, "digest": "digest", "files": files, **changed}).encode()


def refused(objects: ObjectStore, content: bytes) -> None:
    bucket = Bucket(f"{objects.address}/run-1")
    bucket.put("version-000001-00000000/manifest.json", content)
    with pytest.raises(manifest.BrokenUpload, match="is not a manifest"):
        cache.fetch(f"{bucket.url}/version-000001-00000000", "digest")


FILE = {"path": "model.safetensors", "encoding": "whole"}


@pytest.mark.parametrize(
    "content",
    [
        b"[" * 100_000,
        b'{"digest": ' * 100_000,
        b"\xff\xfe",
        written(FILE | {"stored": 1.5}),
        written(FILE | {"stored": "1"}),
        written(FILE | {"stored": True}),
        written(FILE | {"stored": -1}),
        written(FILE | {"stored": 10**12, "part": 1}),
        written(FILE | {"stored": 10**30, "part": 1}),
        written(FILE | {"stored": 2**40, "part": 2**40}),
        written(FILE | {"part": 0}),
        written(FILE | {"encoding": "pickle"}),
        written(FILE | {"encoding": "same"}),
        written(FILE | {"path": 3}),
        written(FILE, base="../../etc"),
        written(FILE, base=[]),
        written(digest=None),
        written(files="model.safetensors"),
        written(format="trinity-db weights 2"),
        written(hook="os.system"),
        b"null",
    ],
    ids=lambda content: content[-60:].decode(errors="replace"),
)
def test_a_manifest_that_no_trainer_wrote_is_refused_with_little_memory(
    content: bytes, objects: ObjectStore
) -> None:
    tracemalloc.start()
    try:
        refused(objects, content)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("base", [1, 2])
def test_adapters_that_name_one_another_are_refused(base: int, objects: ObjectStore) -> None:
    bucket = Bucket(f"{objects.address}/run-1")
    names = [f"version-{number:06d}-00000000" for number in (1, 2)]
    for name, other in zip(names, (names[base - 1], names[0]), strict=True):
        bucket.put(f"{name}/manifest.json", written(FILE | {"stored": 1}, adapter_on=other))
    with pytest.raises(manifest.BrokenUpload, match="is an adapter on another adapter"):
        cache.fetch(f"{bucket.url}/{names[0]}", "digest")


@on_each_server
def test_an_object_that_is_too_large_is_not_read(
    objects: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest, "MAX_BYTES", 100)
    bucket = Bucket(f"{objects.address}/run-1")
    bucket.put("version-000001-00000000/manifest.json", b" " * 101)
    with pytest.raises(manifest.BrokenUpload, match="has 101 bytes; at most 100 are read"):
        manifest.read(bucket, "version-000001-00000000")


@on_each_server
def test_a_version_that_is_kept_keeps_those_that_it_lies_on(objects: ObjectStore, versions: Path) -> None:
    to = opened(objects)
    found = uploaded(to, versions, *range(13))
    to.sweep([found[12][0], found[9][0]])
    assert objects.versions() == [*range(13)]
    to.sweep([found[12][0]])
    assert objects.versions() == [10, 11, 12]
    assert folder_digest.digest(cache.fetch(*found[12])) == found[12][1]


def test_what_a_crash_left_goes_at_the_next_start(objects: ObjectStore, versions: Path) -> None:
    (kept, _), _ = uploaded(opened(objects), versions, 0, 1)
    half = Bucket(f"{kept.rpartition('/')[0]}")
    half.put("version-000002-12345678/files/model.safetensors.00000", b"half")
    opened(objects).sweep([kept])
    assert {name.split("/")[1] for name in objects.names()} == {"run.json", kept.rpartition("/")[2]}


def test_objects_of_others_stay(objects: ObjectStore, versions: Path) -> None:
    to = opened(objects)
    other = opened(objects, store="a copy")
    ((theirs, digest),) = uploaded(other, versions, 1)
    Bucket(objects.address).put("notes.txt", b"a person's")
    to.sweep([])
    # A trainer that took over: this one knew nothing of its versions when it last asked.
    uploaded(opened(objects), versions, 2)
    to.sweep([])
    assert folder_digest.digest(cache.fetch(theirs, digest)) == digest
    assert objects.versions() == [1, 2]
    assert "notes.txt" in objects.names()


def test_an_adapter_brings_the_model_that_it_lies_on(objects: ObjectStore, versions: Path) -> None:
    to, first = opened(objects), versions / "version-000000"
    base = Base(first, folder_digest.digest(first))
    to.begin(to.upload(0, first, base.digest))
    adapter = versions / "version-000013"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text("{}")
    (adapter / "base.json").write_text(base.content)
    address, digest = to.upload(13, adapter, folder_digest.digest(adapter)), folder_digest.digest(adapter)
    shutil.rmtree(first)
    found = cache.fetch(address, digest)
    assert folder_digest.digest(base_folder(found)) == base.digest
    to.sweep([address])
    assert objects.versions() == [0, 13]


def test_an_object_store_that_comes_back_gets_the_version(
    objects: ObjectStore, versions: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(retrying_bucket, "PAUSE_SECONDS", 0.1)
    to, found = opened(objects), list[tuple[str, str]]()
    objects.go_away()
    thread = threading.Thread(target=lambda: found.extend(uploaded(to, versions, 0)))
    thread.start()
    wait_until(lambda: "Retrying" in caplog.text, "the first failure")
    objects.come_back()
    thread.join()
    assert folder_digest.digest(cache.fetch(*found[0])) == found[0][1]


@on_each_server
def test_an_object_store_that_stays_away_ends_the_upload(
    objects: ObjectStore, versions: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retrying_bucket, "AWAY_SECONDS", 0.0)
    monkeypatch.setattr(retrying_bucket, "PAUSE_SECONDS", 0.0)
    to = opened(objects)
    objects.go_away()
    with pytest.raises(TrinityError, match=r"the object store fails: .* start again") as raised:
        uploaded(to, versions, 0)
    assert "\n" not in str(raised.value)
    assert list(versions.glob("*.tmp")) == []
    with pytest.raises(Unreachable):
        cache.fetch(f"{objects.address}/run-1/version-000000-00000000", "digest")


@pytest.fixture
def refusing(objects: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    """A server that accepts no login. It lets one request pass, which makes the bucket."""
    with new_object_store(INITIAL_NO_AUTH_ACTION_COUNT="1") as found:
        for name, value in found.environment.items():
            monkeypatch.setenv(name, value)
        yield found
        for name, value in objects.environment.items():
            monkeypatch.setenv(name, value)


def test_credentials_that_are_refused_are_named_at_once(refusing: ObjectStore) -> None:
    with pytest.raises(ConfigError, match=r"^trainer.weights: .* refuses it") as raised:
        uploads.check(refusing.address)
    assert "\n" not in str(raised.value)
    with pytest.raises(Refused):
        cache.fetch(f"{refusing.address}/run-1/version-000000-00000000", "digest")


@pytest.mark.parametrize(
    ("address", "complaint"),
    [
        ("s3://no-such-bucket/versions", "there is no such bucket"),
        ("s3://me:secret@weights/versions", "the address holds a password or a key"),
        ("/shared/folder", "is not the address of an object store"),
        ("foo://weights", "foo://weights"),
    ],
)
def test_a_wrong_address_is_found_before_the_run_has_a_name(
    objects: ObjectStore,
    scene: Scene,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command_line: CommandLine,
    address: str,
    complaint: str,
) -> None:
    monkeypatch.setenv("TRINITY_DB_URL", scene.database.url)
    config = tmp_path / "run.yaml"
    config.write_text(
        "name: elsewhere\nmodel: {scratch: {}}\ntaskset: tasks\nalgorithm: grpo\n"
        f"trainer: {{steps: 1, weights: '{address}'}}\n"
    )
    done = command_line("train", str(config))
    assert complaint in done.complaint
    assert "secret" not in done.complaint
    assert stored(scene, "SELECT count(*) FROM trinity.run WHERE name = 'elsewhere'") == [(0,)]


async def answers(task: Any, policy: Policy) -> None:
    await policy.sample([1, 2])


@pytest.fixture
def apart(scene: Scene, explorer: Explorers, objects: ObjectStore, versions: Path) -> run_files.RunFiles:
    """The trainer's files, of a run whose version 0 is in the object store and in no folder seen here."""
    with scene.database.transaction() as tx:
        identity = {"store": str(instances.identify(tx).id)} | scene.run.identity
    explorer.places = RecordedPlaces(weights=objects.address)
    to = Uploads(objects.address, identity, scene.run.name, Patience(lambda: False))
    files = run_files.own_folder(scene.database, scene.run, scene.trainer, versions.with_name("trainer"))
    files = replace(files, uploads=to)
    announce(scene, files, versions, 0)
    return files


def announce(scene: Scene, files: run_files.RunFiles, versions: Path, number: int) -> policies.PolicyVersion:
    """Upload a version, let the store say so, and move its folder to where only the trainer looks."""
    folder = versions / f"version-{number:06d}"
    assert files.uploads is not None
    address = files.uploads.versions.upload(number, folder, folder_digest.digest(folder))
    publish(scene, number, folder)
    policy = policies.PolicyVersion(number, number, folder, folder_digest.digest(folder), weights=address)
    with scene.database.transaction() as tx:
        policies.record_weights(tx, scene.run.id, policy)
    shutil.copytree(folder, files.folder.path / folder.name)
    for path in folder.rglob("*"):
        if path.is_file():
            path.write_bytes(b"of another run")
    return policy


def worked(explorer: Explorer, until: Callable[[], object], what: str) -> None:
    """Let an explorer work until something is so."""

    def look() -> bool:
        explorer.work()
        return bool(until())

    wait_until(look, what)


def make_room(scene: Scene) -> None:
    """Let explorers claim again, as after a step of the trainer."""
    with scene.database.transaction() as tx:
        for table in ("experience_text", "payload", "experience", "rollout", "rollout_group"):
            tx.execute(f"DELETE FROM trinity.{table}".encode())


def used(scene: Scene) -> set[int]:
    """Versions that explorers sampled with, of the groups that are there."""
    return {row[0] for row in stored(scene, "SELECT DISTINCT version_max FROM trinity.rollout")}


def of_worker(scene: Scene, role: Explorer, column: str) -> Any:
    ((found,),) = stored(scene, f"SELECT {column} FROM trinity.worker WHERE id = {role.worker_id}")
    return found


def test_an_explorer_that_does_not_see_the_folder_samples_with_what_it_fetched(
    scene: Scene, explorer: Explorers, apart: run_files.RunFiles, versions: Path
) -> None:
    role = explorer(answers)
    worked(role, lambda: used(scene) == {0}, "it samples")
    assert of_worker(scene, role, "staged_version") == 0
    announce(scene, apart, versions, 1)
    make_room(scene)
    worked(role, lambda: of_worker(scene, role, "staged_version") == 1, "it has the next version")
    make_room(scene)
    worked(role, lambda: used(scene) == {1}, "it samples with the next version")


@pytest.mark.parametrize(
    ("own", "error", "complaint"),
    [(None, ConfigError, r"trainer\.weights .*not set"), ("s3://other/versions", None, "is s3://other")],
)
def test_an_explorer_asks_no_bucket_that_its_configuration_does_not_name(
    scene: Scene,
    explorer: Explorers,
    apart: run_files.RunFiles,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    own: str | None,
    error: type[TrinityError] | None,
    complaint: str,
) -> None:
    asked = list[str]()
    monkeypatch.setattr(cache, "fetch", lambda address, digest: asked.append(address))
    explorer.places = RecordedPlaces(weights=own)
    role = explorer(answers)
    if error is None:
        worked(role, lambda: re.search(complaint, caplog.text), "it waits for the trainer's upload")
    else:
        with pytest.raises(error, match=complaint):
            worked(role, lambda: False, "it ends")
    assert asked == []


def test_an_explorer_goes_on_while_the_object_store_is_away(
    scene: Scene,
    explorer: Explorers,
    apart: run_files.RunFiles,
    versions: Path,
    objects: ObjectStore,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(staging, "AGAIN_SECONDS", 0.1)
    role = explorer(answers)
    worked(role, lambda: used(scene) == {0}, "it samples")
    announce(scene, apart, versions, 1)
    objects.go_away()
    worked(role, lambda: "version 1 cannot be fetched yet" in caplog.text, "it finds nothing")
    make_room(scene)
    worked(role, lambda: used(scene) == {0}, "it samples on")
    objects.come_back()
    worked(role, lambda: of_worker(scene, role, "staged_version") == 1, "it has the next version")
    make_room(scene)
    worked(role, lambda: used(scene) == {1}, "it samples with the next version")
    assert caplog.text.count("version 1 cannot be fetched yet") == 1


def test_the_trainer_uploads_again_what_an_explorer_found_broken(
    scene: Scene,
    explorer: Explorers,
    apart: run_files.RunFiles,
    versions: Path,
    monkeypatch: pytest.MonkeyPatch,
    objects: ObjectStore,
) -> None:
    monkeypatch.setattr(staging, "AGAIN_SECONDS", 0.1)
    address = announce(scene, apart, versions, 1).weights
    assert address is not None
    url, _, name = address.rpartition("/")
    Bucket(url).delete([f"{name}/files/model.safetensors.00000"])
    role = explorer(answers)
    worked(role, lambda: of_worker(scene, role, "broken_weights") == address, "it says what is broken")
    run_objects.upload_broken(apart)
    now = "SELECT weights FROM trinity.policy_version WHERE version = 1"
    ((mended,),) = stored(scene, now)
    assert mended != address
    worked(role, lambda: used(scene) == {1}, "it samples with what was uploaded again")
    assert of_worker(scene, role, "broken_weights") is None
    run_objects.upload_broken(apart)
    assert stored(scene, now) == [(mended,)]
    run_objects.sweep(apart)
    assert not any(name in one for one in objects.names())


def test_objects_that_are_whole_are_not_uploaded_again(
    scene: Scene,
    explorer: Explorers,
    apart: run_files.RunFiles,
    versions: Path,
    monkeypatch: pytest.MonkeyPatch,
    objects: ObjectStore,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(staging, "AGAIN_SECONDS", 0.1)
    address = announce(scene, apart, versions, 1).weights
    right, tries = fetching.make, list[Path]()

    def damaging(folder: Path, *arguments: Any) -> None:
        """As a disk that changes what is written to it."""
        right(folder, *arguments)
        tries.append(folder)
        (folder / "canary.json").write_bytes(b"damaged")

    with monkeypatch.context() as here:
        here.setattr(fetching, "make", damaging)
        role = explorer(answers)
        worked(role, lambda: of_worker(scene, role, "broken_weights") == address, "it finds damage")
        worked(role, lambda: len(tries) > 6, "it tries again")
    before = objects.names()
    for _ in range(3):
        run_objects.upload_broken(apart)
    assert objects.names() == before
    assert stored(scene, "SELECT weights FROM trinity.policy_version WHERE version = 1") == [(address,)]
    assert caplog.text.count("they are intact") == 1
    assert caplog.text.count("version 1 cannot be fetched yet") == 1
    assert not list(apart.folder.path.glob("*.tmp*"))
    worked(role, lambda: used(scene) == {1}, "it samples once its disk is mended")


def test_two_versions_that_cannot_be_fetched_are_each_tried_with_a_pause(
    scene: Scene,
    explorer: Explorers,
    apart: run_files.RunFiles,
    versions: Path,
    objects: ObjectStore,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    announce(scene, apart, versions, 1)
    scene.evaluate(1, version=0)
    fetched, tries = cache.fetch, list[str]()

    def counted(*arguments: Any) -> Path:
        tries.append(arguments[0])
        return fetched(*arguments)

    monkeypatch.setattr(cache, "fetch", counted)
    for name in objects.names():
        if name.endswith("model.safetensors.00000"):
            Bucket(objects.address).delete([name])
    role = explorer(answers)
    worked(role, lambda: len(set(tries)) == 2, "it tries both")
    begun = time.monotonic()
    worked(role, lambda: time.monotonic() - begun > staging.AGAIN_SECONDS / 2, "less than one pause")
    assert len(tries) == 2
    assert caplog.text.count("cannot be fetched yet") == 2


def test_an_explorer_that_is_refused_and_has_no_version_ends(
    explorer: Explorers, apart: run_files.RunFiles, refusing: ObjectStore
) -> None:
    role = explorer(answers)
    with pytest.raises(Refused, match="the object store refuses it"):
        worked(role, lambda: False, "its end")


def test_an_evaluation_waits_for_its_version(
    scene: Scene, explorer: Explorers, apart: run_files.RunFiles, versions: Path
) -> None:
    announce(scene, apart, versions, 1)
    evaluation = scene.evaluate(1, version=0)
    role = explorer(answers, only=[evaluation])
    worked(role, role.is_done, "it is evaluated")
    assert used(scene) == {0}


def test_a_deleted_run_takes_its_objects_along(
    scene: Scene,
    apart: run_files.RunFiles,
    objects: ObjectStore,
    monkeypatch: pytest.MonkeyPatch,
    command_line: CommandLine,
) -> None:
    monkeypatch.setenv("TRINITY_DB_URL", scene.database.url)
    Bucket(objects.address).put("run-00000000/run.json", b"of another one")
    with scene.database.transaction() as tx:
        tx.execute("UPDATE trinity.worker SET stopped_at = now() WHERE stopped_at IS NULL")
    assert command_line("delete", scene.run.name, "--yes").code == 0
    assert objects.names() == ["run-00000000/run.json"]


def test_a_run_stays_while_its_object_store_is_away(
    scene: Scene,
    apart: run_files.RunFiles,
    objects: ObjectStore,
    monkeypatch: pytest.MonkeyPatch,
    command_line: CommandLine,
) -> None:
    monkeypatch.setenv("TRINITY_DB_URL", scene.database.url)
    with scene.database.transaction() as tx:
        tx.execute("UPDATE trinity.worker SET stopped_at = now() WHERE stopped_at IS NULL")
    objects.go_away()
    refused = command_line("delete", scene.run.name, "--yes")
    said = str(refused.code)
    assert f"error: '{scene.run.name}' is kept, because its objects would remain: s3://" in said
    assert said.endswith("Retry when the store answers.")
    assert apart.folder.path.is_dir()
    assert stored(scene, "SELECT count(*) FROM trinity.policy_version WHERE weights IS NOT NULL") == [(1,)]
    assert stored(scene, "SELECT deleting_at FROM trinity.run") == [(None,)]
    objects.come_back()
    assert command_line("delete", scene.run.name, "--yes").code == 0
    assert objects.names() == []


def test_a_run_whose_bucket_is_gone_can_be_deleted(
    scene: Scene,
    apart: run_files.RunFiles,
    objects: ObjectStore,
    monkeypatch: pytest.MonkeyPatch,
    command_line: CommandLine,
) -> None:
    monkeypatch.setenv("TRINITY_DB_URL", scene.database.url)
    with scene.database.transaction() as tx:
        tx.execute("UPDATE trinity.worker SET stopped_at = now() WHERE stopped_at IS NULL")
        tx.execute(
            "UPDATE trinity.policy_version SET weights = replace(weights, 's3://weights/', 's3://gone-0/')"
        )
    assert command_line("delete", scene.run.name, "--yes").code == 0
