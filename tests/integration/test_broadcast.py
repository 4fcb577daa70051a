"""Versions by broadcast, between real processes: together, late, broken off, and never taken for another."""

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from tests.support import broadcasting
from tests.support.broadcasting import CHUNK_BYTES, PATIENCE_SECONDS
from tests.support.explorers import Explorers, publish, stored
from tests.support.rows import Scene
from tests.support.waiting import wait_until
from trinity_db.config.base import home
from trinity_db.errors import ConfigError
from trinity_db.explorer.attempt.policy import Policy
from trinity_db.explorer.loop import staging
from trinity_db.explorer.service import Explorer
from trinity_db.models import folder_digest
from trinity_db.store import workers
from trinity_db.weights import broadcast, cache
from trinity_db.weights.broadcast import Broadcasts, Lost, Receiver

New = Callable[[], Receiver]


@pytest.fixture(autouse=True)
def small_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRINITY_DB_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(broadcast, "PROGRAM", broadcasting.__name__)


@pytest.fixture
def version(tmp_path: Path) -> Path:
    """A folder of a version, of several messages."""
    folder = tmp_path / "checkpoints" / "version-000001"
    (folder / "sub folder").mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(bytes(range(256)) * (5 * CHUNK_BYTES // 256) + b"rest")
    (folder / "sub folder" / "tokenizer.json").write_text("{}")
    (folder / "empty").touch()
    return folder


@pytest.fixture
def digest(version: Path) -> str:
    return folder_digest.digest(version)


@pytest.fixture
def sends(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Broadcasts]]:
    """Makes what a trainer has, and ends its process after the test."""
    made: list[Broadcasts] = []

    def new() -> Broadcasts:
        made.append(Broadcasts("127.0.0.1"))
        return made[-1]

    yield new
    monkeypatch.setattr(broadcast, "AGAIN_SECONDS", 1e6)
    for one in made:
        if one._process is not None:
            one._process.kill()


@pytest.fixture
def receiver() -> Iterator[New]:
    """Makes what an explorer has."""
    made: list[Receiver] = []

    def new() -> Receiver:
        made.append(Receiver())
        return made[-1]

    yield new
    for one in made:
        one.close()


def asked_together(new: New, address: str, digest: str, *folders: Path) -> list[Future[None]]:
    """Explorers that ask for a version at the same time, each for its folder."""
    pool = ThreadPoolExecutor(len(folders))
    receivers = [new() for _ in folders]
    for one in receivers:  # so that all have loaded torch
        with pytest.raises(Lost, match="does not send this version"):
            one.receive(address, "another", folders[0])
    for folder in folders:
        folder.mkdir()
    return [
        pool.submit(one.receive, address, digest, folder)
        for one, folder in zip(receivers, folders, strict=True)
    ]


def staged_here() -> list[Path]:
    """Versions that this machine has."""
    return list(home().glob("weights/*/version-??????-????????"))


def test_explorers_that_ask_together_get_the_files_as_one_group(
    sends: Callable[[], Broadcasts],
    receiver: New,
    version: Path,
    digest: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    trainer = sends()
    trainer.offer(version, digest)
    folders = [tmp_path / "got-1", tmp_path / "got-2", tmp_path / "got-3"]
    for done in asked_together(receiver, trainer.address, digest, *folders):
        done.result()
    assert [folder_digest.digest(folder) for folder in folders] == [digest] * 3
    wait_until(lambda: "broadcast to 3 explorers" in caplog.text, "the trainer's word")
    late = cache.receive(receiver(), trainer.address, "run", 1, digest)
    assert folder_digest.digest(late) == digest
    assert cache.receive(receiver(), "127.0.0.1:1", "run", 1, digest) == late, "this machine has it"


@pytest.mark.parametrize("event", ["SIGKILL", "SIGSTOP"])
def test_if_one_is_lost_the_others_know_soon_and_may_ask_again(
    sends: Callable[[], Broadcasts], receiver: New, version: Path, digest: str, tmp_path: Path, event: str
) -> None:
    trainer = sends()
    trainer.offer(version, digest)
    whole, lost = asked_together(
        receiver, trainer.address, digest, tmp_path / "got", tmp_path / f"got-{event}"
    )
    begun = time.monotonic()
    with pytest.raises(Lost, match="failed"):
        whole.result()
    assert time.monotonic() - begun < broadcasting.GATHER_SECONDS[1] + 4 * PATIENCE_SECONDS
    again = cache.receive(receiver(), trainer.address, "run", 1, digest)
    assert folder_digest.digest(again) == digest
    assert event == "SIGSTOP" or isinstance(lost.exception(), Lost)


@pytest.mark.parametrize("event", ["SIGKILL", "misfit"])
def test_a_process_that_sends_and_is_lost_is_replaced(
    sends: Callable[[], Broadcasts],
    receiver: New,
    version: Path,
    digest: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    event: str,
) -> None:
    monkeypatch.setattr(broadcast, "AGAIN_SECONDS", 0.0)
    if event == "SIGKILL":
        monkeypatch.setenv(broadcasting.EVENT, event)
    trainer = sends()
    trainer.offer(version, digest)
    (only,) = asked_together(receiver, trainer.address, digest, tmp_path / f"got-{event}")
    with pytest.raises(Lost):
        only.result()
    monkeypatch.delenv(broadcasting.EVENT, raising=False)
    if event == "SIGKILL":
        wait_until(lambda: "ended with code -9" in caplog.text, "its end")

    def came() -> bool:
        try:
            return folder_digest.verify(cache.receive(again, trainer.address, "run", 1, digest), digest)
        except Lost:
            return False

    again = receiver()
    wait_until(came, "the version from the next process")


def test_a_process_that_hangs_holds_up_no_trainer(
    sends: Callable[[], Broadcasts],
    version: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(broadcast, "AGAIN_SECONDS", 0.0)
    trainer = sends()
    wait_until(lambda: trainer._process is not None, "its process")
    assert trainer._process is not None
    trainer._process.send_signal(signal.SIGSTOP)
    begun = time.monotonic()
    for number in range(2000):  # as many as fill a pipe
        trainer.offer(version, str(number))
    assert time.monotonic() - begun < 5
    wait_until(lambda: "ended with code -9" in caplog.text, "its end")


def test_if_the_trainer_is_killed_nothing_is_left_of_the_version(
    receiver: New, version: Path, digest: str
) -> None:
    trainer = subprocess.Popen(
        [sys.executable, "-m", "tests.support.broadcasting", "trainer", digest, version],
        stdout=subprocess.PIPE,
        text=True,
    )
    with trainer:
        assert trainer.stdout is not None
        address = trainer.stdout.readline().strip()
        assert folder_digest.digest(cache.receive(receiver(), address, "before", 1, digest)) == digest
        trainer.kill()
    one = receiver()

    def is_refused() -> bool:
        with pytest.raises(Lost) as lost:
            cache.receive(one, address, "run", 1, digest)
        return "refused" in str(lost.value)

    wait_until(is_refused, "the end of the trainer's process")
    assert [path.parent.name for path in staged_here()] == ["before"]


def test_files_with_another_digest_are_refused(
    sends: Callable[[], Broadcasts], receiver: New, version: Path
) -> None:
    trainer = sends()
    trainer.offer(version, "0" * 64)
    with pytest.raises(Lost, match="gave other files than were published"):
        cache.receive(receiver(), trainer.address, "run", 1, "0" * 64)
    assert staged_here() == []


def test_an_adapter_comes_from_the_files(
    sends: Callable[[], Broadcasts], receiver: New, version: Path
) -> None:
    (version / "adapter_config.json").write_text("{}")
    digest, trainer = folder_digest.digest(version), sends()
    trainer.offer(version, digest)
    with pytest.raises(Lost, match="does not send this version"):
        cache.receive(receiver(), trainer.address, "run", 1, digest)


@pytest.mark.parametrize("path", ["/etc/passwd", "../../outside", "a/../../outside", ""])
def test_an_answer_names_no_file_outside_of_its_version(path: str, receiver: New, tmp_path: Path) -> None:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    store.set("answer/1", json.dumps({"group": "group/1", "rank": 1, "size": 2, "files": {path: 1}}))
    with pytest.raises(Lost, match="is not a path in a version"):
        receiver().receive(f"127.0.0.1:{store.port}", "digest", tmp_path)


@pytest.mark.parametrize(
    ("address", "complaint"),
    [
        ("0.0.0.0", "is not the address of one machine"),
        ("10.0.0.1:port", "is not the address of one machine"),
        ("192.0.2.1", "Cannot assign requested address"),
        ("no-such-host.invalid", "no-such-host.invalid"),
    ],
)
def test_a_wrong_address_is_named(address: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=f"^trainer.broadcast: .*{complaint}"):
        broadcast.check(address)


def test_only_the_address_that_is_named_is_open(
    sends: Callable[[], Broadcasts], receiver: New, tmp_path: Path
) -> None:
    trainer = sends()
    with pytest.raises(Lost, match="does not send this version"):
        receiver().receive(trainer.address, "another", tmp_path)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", int(trainer.address.rpartition(":")[2])))


async def answers(task: Any, policy: Policy) -> None:
    await policy.sample([1, 2])


def worked(explorer: Explorer, until: Callable[[], object], what: str) -> None:
    """Let an explorer work until something is so."""

    def look() -> bool:
        explorer.work()
        return bool(until())

    wait_until(look, what)


def used(scene: Scene) -> set[int]:
    """Versions that explorers sampled with."""
    return {row[0] for row in stored(scene, "SELECT DISTINCT version_max FROM trinity.rollout")}


def staged(scene: Scene, role: Explorer) -> Any:
    ((found,),) = stored(scene, f"SELECT staged_version FROM trinity.worker WHERE id = {role.worker_id}")
    return found


def announce(scene: Scene, version: Path, number: int, address: str) -> None:
    """Let the store name a version and where the trainer sends it."""
    publish(scene, number, version)
    with scene.database.transaction() as tx:
        workers.record_broadcast(tx, scene.trainer, address)
        tx.execute("UPDATE trinity.worker SET exclusive = true WHERE role = 'train'")


def test_an_explorer_samples_with_what_it_received(
    scene: Scene,
    explorer: Explorers,
    sends: Callable[[], Broadcasts],
    version: Path,
    digest: str,
) -> None:
    trainer = sends()
    trainer.offer(version.rename(version.with_name("moved")), digest)
    publish_as(scene, version, digest, trainer.address)
    role = explorer(answers)
    worked(role, lambda: used(scene) == {1}, "it samples")
    assert staged(scene, role) == 1


def publish_as(scene: Scene, folder: Path, digest: str, address: str) -> None:
    """Announce a version whose folder is seen by the trainer alone."""
    folder.mkdir()
    announce(scene, folder, 1, address)
    with scene.database.transaction() as tx:
        tx.execute("UPDATE trinity.policy_version SET checkpoint_hash = %s WHERE version = 1", [digest])


@pytest.mark.parametrize("own", [None, "127.0.0.3", "127.0.0.2:1"])
def test_an_explorer_connects_to_no_address_that_its_configuration_does_not_name(
    scene: Scene,
    explorer: Explorers,
    version: Path,
    caplog: pytest.LogCaptureFixture,
    own: str | None,
) -> None:
    with socket.create_server(("127.0.0.2", 0)) as listener:
        announce(scene, version, 1, f"127.0.0.2:{listener.getsockname()[1]}")
        explorer.places = replace(explorer.places, broadcast=own)
        worked(explorer(answers), lambda: used(scene) == {1}, "it samples with the files")
        listener.settimeout(0)
        with pytest.raises(BlockingIOError):
            listener.accept()
    assert caplog.text.count("as the address of the trainer's broadcast") == 1


def test_an_explorer_whose_trainer_is_gone_uses_the_folder(
    scene: Scene, explorer: Explorers, version: Path
) -> None:
    announce(scene, version, 1, "127.0.0.1:1")
    role = explorer(answers)
    worked(role, lambda: used(scene) == {1}, "it samples")
    assert not list(home().glob("weights/*/version-*"))


def test_an_explorer_that_gets_no_files_waits_and_tries_again(
    scene: Scene,
    explorer: Explorers,
    sends: Callable[[], Broadcasts],
    version: Path,
    digest: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(staging, "AGAIN_SECONDS", 0.1)
    trainer = sends()
    moved = version.rename(version.with_name("moved"))
    publish_as(scene, version, digest, trainer.address)
    role = explorer(answers)
    worked(role, lambda: "is not visible here" in caplog.text, "it finds no files")
    assert used(scene) == set()
    trainer.offer(moved, digest)
    worked(role, lambda: used(scene) == {1}, "it samples")
