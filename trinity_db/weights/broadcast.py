"""Broadcast of versions from the trainer to several explorers: a faster way to the same files.

It uses gloo, in a separate process at either end (`gloo_process.py`): gloo aborts its process on unexpected
data, and torch may wait forever for a lost machine. Neither must happen to a trainer or an explorer. An
explorer that does not receive a version reads its files, as without broadcasts.
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
KEPT = 3  # versions offered; older ones are read from files
AGAIN_SECONDS = 5.0  # restart delay of the sending process
PORT_SECONDS = 10.0  # for a killed predecessor to release the port
LOOK_SECONDS = 0.1
BACKLOG = 1000  # explorers that connect at the same time
NOT_ITS_OWN = ("TRINITY_DB_", "PG", "AWS_")  # prefixes of variables that are withheld from the processes


class Lost(TrinityError):
    """A version was not received by broadcast; its files are still available."""


class Broadcasts:
    """Sends this trainer's versions to the explorers that request them, in the background.

    Args:
        address: this machine's address as the explorers reach it; host or host:port. Without a port the
            system chooses one.

    Raises:
        ConfigError: if it is not an address of this machine, or the port is in use.
    """

    def __init__(self, address: str) -> None:
        self._listening = _listening(address)
        host, port = parsed(address)[0], self._listening.getsockname()[1]
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        """Address that explorers connect to."""
        self._folders: dict[str, str] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._offering = threading.Lock()
        threading.Thread(target=self._run, name="broadcast", daemon=True).start()

    def offer(self, folder: Path, digest: str) -> None:
        """Offer this version in addition to earlier ones.

        An adapter is not sent: it is small, and its base is found next to it.
        """
        if is_adapter(folder):
            return
        with self._offering:
            self._folders = dict([*self._folders.items(), (digest, str(folder.absolute()))][-KEPT:])
            self._say()

    def _run(self) -> None:
        """Keep a sending process running and log its reports."""
        descriptor = self._listening.fileno()
        while True:
            with _started([str(descriptor)], [descriptor]) as process:
                assert process.stdin is not None
                assert process.stdout is not None
                os.set_blocking(process.stdin.fileno(), False)  # must not block the trainer
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
        """Send the list of offered versions to the process, and replace it if it hangs."""
        if self._process is not None and not _write(self._process, self._folders):
            self._process.kill()


class Receiver:
    """Receives versions on this machine, one at a time."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._receiving = threading.Lock()

    def receive(self, address: str, digest: str, folder: Path) -> None:
        """Request a version from the trainer and write its files to an empty folder.

        Args:
            digest: the version's digest. The caller checks the files against it.

        Raises:
            Lost: if it was not received.
        """
        with self._receiving:
            error = self._received(address, digest, folder)
        if error is not None:
            raise Lost(f"The broadcast from {address} failed: {error}.")

    def close(self) -> None:
        """End the process. The next version starts another one."""
        if (process := self._process) is not None:
            process.kill()
            with self._receiving:
                self._forget(process)

    def _received(self, address: str, digest: str, folder: Path) -> str | None:
        """Receive a version; return why it failed, or None."""
        if self._process is None:
            self._process = _started([], [])
        process = self._process
        assert process.stdout is not None
        request = {"address": address, "digest": digest, "folder": str(folder.absolute())}
        line = process.stdout.readline() if _write(process, request) else b""
        if line:
            error: str | None = json.loads(line)["error"]
            return error
        self._forget(process)
        return f"its process ended with code {process.returncode}"

    def _forget(self, process: "subprocess.Popen[bytes]") -> None:
        """Reap a process that has exited or was killed."""
        if self._process is process:
            self._process = None
            process.communicate()


def check(address: str) -> None:
    """Check that a trainer can broadcast at this address, before its run is created.

    Raises:
        ConfigError: as `Broadcasts`.
    """
    _listening(address).close()


def parsed(address: str) -> tuple[str, int]:
    """Parse host and port; port 0 if none is given.

    Raises:
        ConfigError: if others cannot connect to such an address.
    """
    try:
        parts = urlsplit(f"//{address}")
        host, port = parts.hostname, parts.port or 0
    except ValueError:
        host, port = None, 0
    if not host or host in ("0.0.0.0", "::") or parts.path or parts.username:
        raise ConfigError(
            f"trainer.broadcast: {address!r:.100} is not the address of one machine, such as 10.0.0.1 or "
            "10.0.0.1:29400."
        )
    return host, port


def _listening(address: str) -> socket.socket:
    """Open a listening socket at an address of this machine.

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
    """Start a process that exits with this one, when its stdin closes."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(NOT_ITS_OWN)}
    return subprocess.Popen(
        [sys.executable, "-m", PROGRAM, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # stack traces of torch; the cause is reported in one line
        bufsize=0,  # nothing is left to flush when a process hangs
        env=environment,
        pass_fds=descriptors,
        start_new_session=True,  # Ctrl-C is for the role
    )


def _write(process: "subprocess.Popen[bytes]", message: dict[str, Any]) -> bool:
    """Write a message; return False if the process has exited or its pipe is full."""
    assert process.stdin is not None
    content = f"{json.dumps(message)}\n".encode()
    try:
        return process.stdin.write(content) == len(content)
    except OSError:
        return False


def _log(outcome: dict[str, Any]) -> None:
    """Log the outcome of a version's broadcast."""
    if "error" in outcome:
        logger.warning("%(version)s was not broadcast to %(explorers)d explorers: %(error)s", outcome)
    else:
        megabytes = outcome["bytes"] / 1e6
        line = "%s: %.1f MB broadcast to %d explorers in %.1f s"
        logger.info(line, outcome["version"], megabytes, outcome["explorers"], outcome["seconds"])
