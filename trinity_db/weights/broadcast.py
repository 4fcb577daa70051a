"""Versions that the trainer sends to several explorers at once: a faster way to the same files.

gloo does it, in a process of its own at either end (`gloo_process.py`). If a peer sends what gloo does not
expect, it ends its process, and where a machine is lost, torch may wait for ever. Neither must happen to a
trainer or an explorer. An explorer that does not get a version uses its files, as without a broadcast.
"""

import errno
import json
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from trinity_db.errors import ConfigError, TrinityError
from trinity_db.models.adapter_folder import is_adapter

logger = logging.getLogger(__name__)

PROGRAM = "trinity_db.weights.gloo_process"
KEPT = 3  # versions that are sent; older ones are in the files
AGAIN_SECONDS = 5.0  # after the process that sends was lost
PORT_SECONDS = 10.0  # for the trainer before to give the port up, if it was killed
LOOK_SECONDS = 0.1
BACKLOG = 1000  # explorers that ask at a time
NOT_ITS_OWN = ("TRINITY_DB_", "PG", "AWS_")  # how variables begin with what the processes need not know


class Lost(TrinityError):
    """A version did not come by broadcast. Its files are where they always are."""


class Broadcasts:
    """Sends the versions of this trainer to the explorers that ask for them. It works beside the trainer.

    Args:
        address: of this machine, as the explorers reach it; host or host:port. No port: the system chooses.

    Raises:
        ConfigError: it is no address of this machine, or the port is taken.
    """

    def __init__(self, address: str) -> None:
        self._listening = _listening(address)
        host, port = parsed(address)[0], self._listening.getsockname()[1]
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        """Where explorers ask."""
        self._folders: dict[str, str] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._offering = threading.Lock()
        threading.Thread(target=self._run, name="broadcast", daemon=True).start()

    def offer(self, folder: Path, digest: str) -> None:
        """Send this version to those that ask for it, beside the ones before.

        An adapter is not sent: it is small, and its base is found beside it.
        """
        if is_adapter(folder):
            return
        with self._offering:
            self._folders = dict([*self._folders.items(), (digest, str(folder.absolute()))][-KEPT:])
            self._say()

    def _run(self) -> None:
        """Keep a process that sends, and log what it says."""
        descriptor = self._listening.fileno()
        while True:
            with _started([str(descriptor)], [descriptor]) as process:
                assert process.stdin is not None
                assert process.stdout is not None
                os.set_blocking(process.stdin.fileno(), False)  # no trainer waits for it
                with self._offering:
                    self._process = process
                    self._say()
                for line in process.stdout:
                    _log(json.loads(line))
                with self._offering:
                    self._process = None
            code = process.returncode
            logger.warning("the process that broadcasts versions ended with code %d: starting another", code)
            time.sleep(AGAIN_SECONDS)

    def _say(self) -> None:
        """Let the process know which versions there are. One that hangs does not read, and is replaced."""
        if self._process is not None and not _write(self._process, self._folders):
            self._process.kill()


class Receiver:
    """Has versions sent to this machine, one at a time."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._receiving = threading.Lock()

    def receive(self, address: str, digest: str, folder: Path) -> None:
        """Have the trainer send a version, and write its files to an empty folder.

        Args:
            digest: what the trainer knows the version by. The caller holds the files to it.

        Raises:
            Lost: it did not come.
        """
        with self._receiving:
            error = self._received(address, digest, folder)
        if error is not None:
            raise Lost(f"The broadcast from {address} failed: {error}.")

    def close(self) -> None:
        """End the process. The next version would start another one."""
        if (process := self._process) is not None:
            process.kill()
            with self._receiving:
                self._forget(process)

    def _received(self, address: str, digest: str, folder: Path) -> str | None:
        """Why it did not come, or None."""
        if self._process is None:
            self._process = _started([], [])
        process = self._process
        assert process.stdout is not None
        asked = {"address": address, "digest": digest, "folder": str(folder.absolute())}
        line = process.stdout.readline() if _write(process, asked) else b""
        if line:
            error: str | None = json.loads(line)["error"]
            return error
        self._forget(process)
        return f"its process ended with code {process.returncode}"

    def _forget(self, process: "subprocess.Popen[bytes]") -> None:
        """Take leave of a process that has ended, or was killed."""
        if self._process is process:
            self._process = None
            process.communicate()


def check(address: str) -> None:
    """Find out whether a trainer can broadcast here, before its run has a name.

    Raises:
        ConfigError: as `Broadcasts`.
    """
    _listening(address).close()


def parsed(address: str) -> tuple[str, int]:
    """Host and port; 0: none is named.

    Raises:
        ConfigError: it is no address that others can ask.
    """
    try:
        found = urlsplit(f"//{address}")
        host, port = found.hostname, found.port or 0
    except ValueError:
        host, port = None, 0
    if not host or host in ("0.0.0.0", "::") or found.path or found.username:
        raise ConfigError(
            f"trainer.broadcast: {address!r:.100} is no address of one machine, as 10.0.0.1 and "
            "10.0.0.1:29400 are."
        )
    return host, port


def _listening(address: str) -> socket.socket:
    """A socket at an address of this machine.

    Raises:
        ConfigError: as `Broadcasts`.
    """
    host, port = parsed(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    deadline = time.monotonic() + PORT_SECONDS
    while True:
        try:
            return socket.create_server((host, port), family=family, backlog=BACKLOG)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() > deadline:
                raise ConfigError(f"trainer.broadcast: {address}: {error.strerror or error}.") from error
        time.sleep(LOOK_SECONDS)


def _started(arguments: Sequence[str], descriptors: Sequence[int]) -> "subprocess.Popen[bytes]":
    """A process that ends when this one does, since its stdin does."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(NOT_ITS_OWN)}
    return subprocess.Popen(
        [sys.executable, "-m", PROGRAM, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # stacks of torch; what matters is said in a line of ours
        bufsize=0,  # what a process that hangs has not read is not flushed to it later
        env=kept,
        pass_fds=descriptors,
        start_new_session=True,  # a Ctrl-C is for the role
    )


def _write(process: "subprocess.Popen[bytes]", what: dict[str, Any]) -> bool:
    """Whether the process is there to read it, or has room to read it later."""
    assert process.stdin is not None
    content = f"{json.dumps(what)}\n".encode()
    try:
        return process.stdin.write(content) == len(content)
    except OSError:
        return False


def _log(told: dict[str, Any]) -> None:
    """Say what became of a version."""
    if "error" in told:
        logger.warning("%(version)s was not broadcast to %(explorers)d explorers: %(error)s", told)
    else:
        megabytes = told["bytes"] / 1e6
        what = "%s: %.1f MB broadcast to %d explorers in %.1f s"
        logger.info(what, told["version"], megabytes, told["explorers"], told["seconds"])
