"""Hosts on one machine: each has a network, a host name, and a /tmp and /dev/shm of its own.

Processes keep their ids, so that a test can kill them. What hosts share is said: the project, and the folders
that are named when the host boots.
"""

import ctypes
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from tests.others.hosts.network import DEVICE, PREFIX, Line, Network
from tests.support.waiting import wait_until

CLONE_NEWNET = 0x40000000
PROGRAMS = {"ip": "iproute2", "unshare": "util-linux", "nsenter": "util-linux", "cc": "gcc"}
PROJECT = Path(__file__).resolve().parents[3]

# $1 is the host's name, $2 an empty folder for its /tmp; the rest is what it shares with other hosts.
# It lives until its input ends, which the death of the tests' process does too.
BOOT = """
set -e
name=$1; new=$2; shift 2
mount --make-rprivate /
mount -t tmpfs tmpfs "$new"
for seen; do
    case $seen in /tmp/*) mkdir -p "$new${seen#/tmp}"; mount --bind "$seen" "$new${seen#/tmp}";; esac
done
mount --move "$new" /tmp
chmod 1777 /tmp
mount -t tmpfs tmpfs /dev/shm
hostname "$name"
ip link set lo up
echo up
exec cat
"""

Result = TypeVar("Result")


def what_is_missing() -> str | None:
    """Why hosts cannot boot here; None if they can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "only root on Linux can make hosts of namespaces"
    for program, package in PROGRAMS.items():
        if shutil.which(program) is None:
            return f"no {program} found; install Debian's package {package}"
    if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        return "no /dev/net/tun: the kernel has no TUN devices, or they are not let in here"
    tried = subprocess.run(["unshare", "--net", "--mount", "--uts", "true"], capture_output=True, text=True)
    return tried.stderr.strip() if tried.returncode else None


@dataclass(frozen=True)
class Clock:
    """The time of day of processes on a host, which a test may set."""

    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        """Of the processes that have it."""
        return {"LD_PRELOAD": str(self._library), "HOST_CLOCK": str(self._file)}

    def make(self) -> None:
        """A clock that is right."""
        source = Path(__file__).with_name("clock.c")
        subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", self._library, source], check=True)
        self.set(0)

    def set(self, ahead_seconds: int) -> None:
        """Set it so much ahead, or behind, at once."""
        with self._file.open("r+b" if self._file.exists() else "wb") as file:
            file.write(struct.pack("q", ahead_seconds))

    @property
    def _library(self) -> Path:
        return self.folder / "clock.so"

    @property
    def _file(self) -> Path:
        return self.folder / "clock"


class Host:
    """A host from its boot until it dies."""

    def __init__(self, name: str, number: int, network: Network, shared: Sequence[Path] = ()) -> None:
        self.name = name
        self.address = f"{PREFIX}{number}"
        self._number, self._network = number, network
        self._tmp = tempfile.mkdtemp(prefix="trinity-db-host-")
        seen = (PROJECT, Path(sys.prefix), *shared)
        self._holder = subprocess.Popen(
            ["unshare", "--net", "--mount", "--uts", "sh", "-c", BOOT, "boot", name, self._tmp, *seen],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == b"up\n", f"{name} does not boot"
        self._network_name = os.readlink(f"/proc/{self._holder.pid}/ns/net")
        self.line: Line = self.inside(lambda: network.connect(number))
        for words in (f"address add {self.address}/24 dev {DEVICE}", f"link set {DEVICE} up"):
            subprocess.run([*self.leads_to, "ip", *words.split()], check=True)

    @property
    def leads_to(self) -> tuple[str, ...]:
        """What to put before a command, so that it runs on this host."""
        return ("nsenter", f"--target={self._holder.pid}", "--net", "--mount", "--uts", "--")

    def inside(self, call: Callable[[], Result]) -> Result:
        """What a call comes to in this host's network, with the tests' own files."""
        results: list[Result] = []

        def enter() -> None:
            with open(f"/proc/{self._holder.pid}/ns/net") as namespace:
                libc = ctypes.CDLL(None, use_errno=True)
                assert libc.setns(namespace.fileno(), CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
            results.append(call())

        thread = threading.Thread(target=enter)  # a network namespace belongs to a thread
        thread.start()
        thread.join()
        (result,) = results
        return result

    def die(self) -> None:
        """Lose power: not one packet leaves it any more, and all its processes are gone."""
        self.line.cut()
        wait_until(self._is_dark, f"all processes of {self.name} end")
        with self._holder:
            pass  # wait for it, and close its pipes
        self._network.disconnect(self._number)
        os.rmdir(self._tmp)

    def _is_dark(self) -> bool:
        """Kill all that still runs; whether there was nothing."""
        processes = self._processes()
        for process in processes:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        return not processes

    def _processes(self) -> list[int]:
        """All that run in its network."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if os.readlink(process / "ns" / "net") == self._network_name:
                    found.append(int(process.name))
        return found
