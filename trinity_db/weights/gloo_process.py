"""Process at one end of a broadcast of a version's files with gloo; `broadcast` starts it and explains why.

The sender runs a TCPStore of torch, through which receivers request a version by its digest. Requests that
arrive within a moment form one gloo group for this version, so a receiver that joins or leaves later is in
another group. Keys of the store:

    asked                number of requests
    ask/7                digest that the seventh request is for
    answer/7             JSON: group, rank, group size and files; or null: the version is not offered
    group/3/             gloo's keys to connect the third group

Processes exchange bytes and JSON; nothing is unpickled. If a process of a group exits or hangs, the others
get an error.
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

CHUNK_BYTES = 1 << 25  # bytes of a file per message
CHUNK_TIMEOUT = timedelta(
    seconds=10
)  # for connecting, and for a message to reach all; then the group is lost
ANSWER_TIMEOUT = timedelta(seconds=30)  # for the sender to start: it may send another version first
CONNECT_TIMEOUT = timedelta(seconds=10)
HANG_SECONDS = 45  # above the others; torch has no timeout if the other machine loses power
ASK_SECONDS = 1.0  # between the two writes of a receiver's request
LOOK_SECONDS = 0.05  # poll interval for requests
GATHER_SECONDS = (0.25, 1.0)  # after the last request, and after the first: explorers ask together
AT_ONCE = 1000  # receivers in a group


class Sender:
    """Sends versions to the explorers that request them.

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
            master_listen_fd=listening.detach(),  # without it, it would listen on all interfaces
        )
        self.folders: dict[str, Path] = {}
        """Offered folders, by digest."""
        self._answered = 0
        self._groups = 0

    def serve(self) -> None:
        """Answer requests until the process is killed."""
        while True:
            time.sleep(LOOK_SECONDS)
            if self._store.add("asked", 0) != self._answered:
                for digest, numbers in self._collect_requests().items():
                    self._send(digest, numbers)

    def _collect_requests(self) -> dict[str, list[int]]:
        """Collect concurrent requests, by digest."""
        begun = last = time.monotonic()
        count = self._answered
        while (now := time.monotonic()) - last < GATHER_SECONDS[0] and now - begun < GATHER_SECONDS[1]:
            if (newest := self._store.add("asked", 0)) != count:
                count, last = newest, now
            time.sleep(LOOK_SECONDS)
        count = min(count, self._answered + AT_ONCE)
        by_digest: dict[str, list[int]] = {}
        for number in range(self._answered + 1, count + 1):
            try:
                self._store.wait([f"ask/{number}"], timedelta(seconds=ASK_SECONDS))
            except dist.DistError:  # the receiver exited between its two writes
                continue
            digest = self._store.get(f"ask/{number}").decode(errors="replace")
            by_digest.setdefault(digest, []).append(number)
            self._store.delete_key(f"ask/{number}")
        self._answered = count
        return by_digest

    def _send(self, digest: str, numbers: Sequence[int]) -> None:
        """Send a version to the explorers that requested it. If that fails, they use its files."""
        folder, begun = self.folders.get(digest), time.monotonic()
        files = {} if folder is None else _files(folder)
        self._groups += 1
        name, size = f"group/{self._groups}", len(numbers) + 1
        for rank, number in enumerate(numbers, 1):
            answer = {"group": name, "rank": rank, "size": size, "files": files} if files else None
            self._store.set(f"answer/{number}", json.dumps(answer))
        if folder is None or not files:
            return
        outcome: dict[str, Any] = {"version": folder.name, "explorers": len(numbers)}
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
            _tell(outcome | {"error": _line(error)})
        else:
            _tell(outcome | {"bytes": sum(files.values()), "seconds": time.monotonic() - begun})


class Group:
    """This process's membership in a group. Rank 0 sends, the others receive.

    Args:
        host: the address at which others reach this process. By default gloo resolves the host name, often to
            an unreachable address.

    Raises:
        RuntimeError: if another process is lost; also raised by the methods.
    """

    def __init__(self, store: Any, name: str, rank: int, size: int, host: str) -> None:
        options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._timeout = CHUNK_TIMEOUT
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=host)]
        own = dist.PrefixStore(f"{name}/", store)  # type: ignore[attr-defined]
        self._group: Any = dist.ProcessGroupGloo(own, rank, size, options)

    def exchange(self, chunk: torch.Tensor) -> None:
        """Broadcast rank 0's chunk into this one."""
        options = dist.BroadcastOptions()
        options.rootRank = 0
        self._group.broadcast([chunk], options).wait()

    def wait_for_all(self) -> None:
        """Wait until all processes have everything: leaving earlier would cut off data in flight."""
        self._group.barrier().wait()


def receive(address: str, digest: str, folder: Path) -> None:
    """Request a version from the sender and write its files to an empty folder.

    Raises:
        OSError, RuntimeError, ValueError: if it was not received.
    """
    _still_alive()
    host, port = parsed(address)
    # The TCPStore retries for half a minute; a plain connection fails at once if no sender listens.
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
    """Restart the alarm after which the system kills this process."""
    signal.alarm(HANG_SECONDS)


def _files(folder: Path) -> dict[str, int]:
    """Return the sizes of a folder's files by relative path; empty if the folder is gone or being deleted."""
    try:
        paths = sorted(path for path in folder.rglob("*") if path.is_file())
        return {path.relative_to(folder).as_posix(): path.stat().st_size for path in paths}
    except OSError:
        return {}


def _chunks(length: int) -> Iterator[int]:
    """Yield the message sizes for a file."""
    for start in range(0, length, CHUNK_BYTES):
        yield min(CHUNK_BYTES, length - start)


def _own_address(host: str, port: int) -> str:
    """Return this machine's address on the route to another one. Sends nothing."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as way:
        way.connect((host, port))
        return str(way.getsockname()[0])


def _line(error: Exception) -> str:
    """Return an error's message without torch's source location at its start and advice at its end."""
    return re.sub(r"^\[.*?\] ", "", str(error)).partition("\n")[0].partition(". ")[0][:300]


def _tell(message: dict[str, Any]) -> None:
    print(json.dumps(message), flush=True)


def _send_for_ever(descriptor: int) -> None:
    sender = Sender(socket.socket(fileno=descriptor))
    threading.Thread(target=sender.serve, daemon=True).start()
    for line in sys.stdin:
        sender.folders = {digest: Path(folder) for digest, folder in json.loads(line).items()}


def _receive_for_ever() -> None:
    for line in sys.stdin:
        request = json.loads(line)
        try:
            receive(request["address"], request["digest"], Path(request["folder"]))
        except Exception as error:  # the other process decides what follows
            signal.alarm(0)
            _tell({"error": _line(error)})
        else:
            _tell({"error": None})


def main(descriptor: str | None = None) -> None:
    """Run as the sender, given a listening socket's descriptor, or as a receiver, until stdin closes."""
    if descriptor is not None:
        _send_for_ever(int(descriptor))
    else:
        _receive_for_ever()
    os._exit(0)  # running gloo threads would abort a normal shutdown


if __name__ == "__main__":
    main(*sys.argv[1:])
