"""The process at one end of a broadcast of a version's files, by gloo. `broadcast` starts it, and says why.

The sender keeps a TCPStore of torch, which receivers ask for a version by its digest. Those that ask within
a moment become one group of gloo, for this one version. So one that joins or leaves later is in another
group. Keys of the store:

    asked                how many asks there were
    ask/7                the digest that the seventh is for
    answer/7             JSON: its group, its rank there, their number and the files; or null: it is not here
    group/3/             what gloo notes to connect the third group

Bytes go from one process to another, and JSON; nothing is unpickled. If a process of a group ends or hangs,
the others get an error.
"""

import json
import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from trinity_db.weights.broadcast import parsed
from trinity_db.weights.manifest import checked_path

CHUNK_BYTES = 1 << 25  # of a file in one message
CHUNK_TIMEOUT = timedelta(seconds=10)  # for a message to reach all, and to connect; then the group is lost
ANSWER_TIMEOUT = timedelta(seconds=30)  # for the sender to begin: it may send another version first
CONNECT_TIMEOUT = timedelta(seconds=10)
HANG_SECONDS = 45  # above the others; torch knows no limit where the other machine has lost its power
ASK_SECONDS = 1.0  # between a receiver's two writes that are one ask
LOOK_SECONDS = 0.05  # between two looks for asks
GATHER_SECONDS = (0.25, 1.0)  # after the last ask, and after the first: explorers hear of a version together
AT_ONCE = 1000  # receivers in a group


class Sender:
    """Sends versions to those that ask for them.

    Args:
        listening: a socket, for the TCPStore.
    """

    def __init__(self, listening: socket.socket) -> None:
        self._host, port = listening.getsockname()[:2]
        self._store = dist.TCPStore(  # type: ignore[attr-defined]
            self._host,
            port,
            is_master=True,
            timeout=CONNECT_TIMEOUT,
            wait_for_workers=False,
            master_listen_fd=listening.detach(),  # else it would listen on all addresses of this machine
        )
        self.folders: dict[str, Path] = {}
        """By digest."""
        self._answered = 0
        self._groups = 0

    def serve(self) -> None:
        """Answer asks for ever."""
        while True:
            time.sleep(LOOK_SECONDS)
            if self._store.add("asked", 0) != self._answered:
                for digest, numbers in self._asked().items():
                    self._send(digest, numbers)

    def _asked(self) -> dict[str, list[int]]:
        """The asks that come together now, by the digest that they are for."""
        begun = last = time.monotonic()
        asked = self._answered
        while (now := time.monotonic()) - last < GATHER_SECONDS[0] and now - begun < GATHER_SECONDS[1]:
            if (found := self._store.add("asked", 0)) != asked:
                asked, last = found, now
            time.sleep(LOOK_SECONDS)
        asked = min(asked, self._answered + AT_ONCE)
        by_digest: dict[str, list[int]] = {}
        for number in range(self._answered + 1, asked + 1):
            try:
                self._store.wait([f"ask/{number}"], timedelta(seconds=ASK_SECONDS))
            except dist.DistError:  # it ended between its two writes
                continue
            digest = self._store.get(f"ask/{number}").decode(errors="replace")
            by_digest.setdefault(digest, []).append(number)
            self._store.delete_key(f"ask/{number}")
        self._answered = asked
        return by_digest

    def _send(self, digest: str, numbers: Sequence[int]) -> None:
        """Send a version to those that asked for it. If that fails, they use its files."""
        folder, begun = self.folders.get(digest), time.monotonic()
        files = {} if folder is None else _files(folder)
        self._groups += 1
        name, size = f"group/{self._groups}", len(numbers) + 1
        for rank, number in enumerate(numbers, 1):
            answer = {"group": name, "rank": rank, "size": size, "files": files} if files else None
            self._store.set(f"answer/{number}", json.dumps(answer))
        if folder is None or not files:
            return
        told: dict[str, Any] = {"version": folder.name, "explorers": len(numbers)}
        try:
            group = Group(self._store, name, 0, size, self._host)
            for path, length in files.items():
                with (folder / path).open("rb") as file:
                    for count in _chunks(length):
                        chunk = torch.empty(count, dtype=torch.uint8)
                        file.readinto(chunk.numpy().data)
                        group.exchange(chunk)
            group.wait_for_all()
        except (OSError, RuntimeError) as error:
            _tell(told | {"error": _line(error)})
        else:
            _tell(told | {"bytes": sum(files.values()), "seconds": time.monotonic() - begun})


class Group:
    """This process among those of a group. Rank 0 sends, the others receive.

    Args:
        host: the address of this process for the others. By itself gloo takes that of the host's name, which
            is often one that others do not reach.

    Raises:
        RuntimeError: another process was lost. So do the methods.
    """

    def __init__(self, store: Any, name: str, rank: int, size: int, host: str) -> None:
        options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._timeout = CHUNK_TIMEOUT
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=host)]
        own = dist.PrefixStore(f"{name}/", store)  # type: ignore[attr-defined]
        self._group: Any = dist.ProcessGroupGloo(own, rank, size, options)

    def exchange(self, chunk: torch.Tensor) -> None:
        """Fill the chunk with that of rank 0."""
        options = dist.BroadcastOptions()
        options.rootRank = 0
        self._group.broadcast([chunk], options).wait()

    def wait_for_all(self) -> None:
        """Wait until all have all: a process that left before would cut off what is on its way."""
        self._group.barrier().wait()


def receive(address: str, digest: str, folder: Path) -> None:
    """Have the sender send a version, and write its files to an empty folder.

    Raises:
        OSError, RuntimeError, ValueError: it did not come.
    """
    _still_alive()
    host, port = parsed(address)
    # The TCPStore tries for half a minute where this one says at once that there is none.
    socket.create_connection((host, port), CONNECT_TIMEOUT.total_seconds()).close()
    store = dist.TCPStore(host, port, timeout=CONNECT_TIMEOUT, wait_for_workers=False)  # type: ignore[attr-defined]
    number = store.add("asked", 1)
    store.set(f"ask/{number}", digest)
    store.wait([f"answer/{number}"], ANSWER_TIMEOUT)
    answer = json.loads(store.get(f"answer/{number}"))
    store.delete_key(f"answer/{number}")
    if answer is None:
        raise ValueError("the trainer does not send this version")
    files = {checked_path(path): int(length) for path, length in answer["files"].items()}
    _still_alive()
    group = Group(store, answer["group"], answer["rank"], answer["size"], _own_address(host, port))
    for path, length in files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("xb") as file:
            for count in _chunks(length):
                chunk = torch.empty(count, dtype=torch.uint8)
                group.exchange(chunk)
                file.write(chunk.numpy().data)
                _still_alive()
    group.wait_for_all()
    signal.alarm(0)


def _still_alive() -> None:
    """Let the system end this process unless it says so again."""
    signal.alarm(HANG_SECONDS)


def _files(folder: Path) -> dict[str, int]:
    """The sizes of a folder's files by their paths in it. Empty if the folder is gone or being deleted."""
    try:
        found = sorted(path for path in folder.rglob("*") if path.is_file())
        return {path.relative_to(folder).as_posix(): path.stat().st_size for path in found}
    except OSError:
        return {}


def _chunks(length: int) -> Iterator[int]:
    """The sizes of the messages of a file."""
    for start in range(0, length, CHUNK_BYTES):
        yield min(CHUNK_BYTES, length - start)


def _own_address(host: str, port: int) -> str:
    """The address of this machine on its way to another one. Nothing is sent."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as way:
        way.connect((host, port))
        return str(way.getsockname()[0])


def _line(error: Exception) -> str:
    """What an error says. Those of torch begin with a place in its source, and end with advice."""
    return re.sub(r"^\[.*?\] ", "", str(error)).partition("\n")[0].partition(". ")[0][:300]


def _tell(what: dict[str, Any]) -> None:
    print(json.dumps(what), flush=True)


def _send_for_ever(descriptor: int) -> None:
    sender = Sender(socket.socket(fileno=descriptor))
    threading.Thread(target=sender.serve, daemon=True).start()
    for line in sys.stdin:
        sender.folders = {digest: Path(folder) for digest, folder in json.loads(line).items()}


def _receive_for_ever() -> None:
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            receive(asked["address"], asked["digest"], Path(asked["folder"]))
        except Exception as error:  # the other process decides what follows
            signal.alarm(0)
            _tell({"error": _line(error)})
        else:
            _tell({"error": None})


def main(descriptor: str | None = None) -> None:
    """Be the sender, by the number of a listening socket, or a receiver, as long as stdin is open."""
    if descriptor is not None:
        _send_for_ever(int(descriptor))
    else:
        _receive_for_ever()
    os._exit(0)  # gloo's threads may still be at work, and would abort the shutdown


if __name__ == "__main__":
    main(*sys.argv[1:])
