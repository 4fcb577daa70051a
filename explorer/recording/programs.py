"""Programs as processes: each in a process group of its own, none outlives its attempt or its explorer."""

import asyncio
import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

TAIL_LINES = 20  # of what a program writes, which are kept
LINE_BYTES = 64 * 1024  # of a line, which are kept: its end
DRAIN_SECONDS = 1.0  # for the rest of the output, once a program has ended

# Waits for a word before it becomes the program. If the explorer dies before it says the word, it ends.
GATE = 'read -r word && exec "$@" </dev/null'


@dataclass(frozen=True)
class Ended:
    """How a program ended."""

    status: int
    """The exit status; below 0 the signal that killed it."""
    output: Sequence[str]
    """The last lines of its standard output."""
    errors: Sequence[str]
    """The last lines of its standard error."""


class Programs:
    """Runs programs, and has a guard process kill them if this one is killed."""

    def __init__(self) -> None:
        self._guard: subprocess.Popen[bytes] | None = None
        self._groups: set[int] = set()

    async def run(self, command: Sequence[str], environment: Mapping[str, str]) -> Ended:
        """Run a program to its end. Then all that is left of its group is killed, also after a cancellation.

        Raises:
            OSError: it cannot be started.
        """
        process = await asyncio.create_subprocess_exec(
            *("/bin/sh", "-c", GATE, "sh", *command),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=dict(environment),
            start_new_session=True,
        )
        self._remember(process.pid)
        try:
            assert process.stdin is not None
            process.stdin.write(b"go\n")
            return await _watch(process)
        finally:
            _kill(process.pid)
            self._forget(process.pid)
            await process.wait()

    def close(self) -> None:
        """End the guard."""
        if self._guard is not None:
            with suppress(BrokenPipeError):
                self._guard.communicate()
            self._guard = None

    def _remember(self, group: int) -> None:
        self._groups.add(group)
        if self._guard is None or self._guard.poll() is not None:
            self._guard = subprocess.Popen(
                [sys.executable, "-I", "-S", str(Path(__file__).parent / "guard.py")],
                stdin=subprocess.PIPE,
                start_new_session=True,
            )
            self._tell(*(f"+ {one}" for one in self._groups))
        else:
            self._tell(f"+ {group}")

    def _forget(self, group: int) -> None:
        self._groups.discard(group)
        self._tell(f"- {group}")

    def _tell(self, *lines: str) -> None:
        if self._guard is not None and self._guard.stdin is not None:
            with suppress(BrokenPipeError):  # the next program makes another guard
                self._guard.stdin.write("".join(f"{line}\n" for line in lines).encode())
                self._guard.stdin.flush()


def _kill(group: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


async def _watch(process: asyncio.subprocess.Process) -> Ended:
    assert process.stdout is not None
    assert process.stderr is not None
    output: deque[str] = deque(maxlen=TAIL_LINES)
    errors: deque[str] = deque(maxlen=TAIL_LINES)
    readers = [
        asyncio.create_task(_tail(process.stdout, output)),
        asyncio.create_task(_tail(process.stderr, errors)),
    ]
    try:
        status = await process.wait()
        _kill(process.pid)  # its children may hold the pipes open
        await asyncio.wait(readers, timeout=DRAIN_SECONDS)
    finally:
        for reader in readers:
            reader.cancel()
    return Ended(status, [*output], [*errors])


async def _tail(stream: asyncio.StreamReader, lines: deque[str]) -> None:
    """Keep the last lines that are not empty, each by its end."""
    rest = b""
    while chunk := await stream.read(LINE_BYTES):
        *whole, rest = (rest + chunk).split(b"\n")
        rest = rest[-LINE_BYTES:]
        lines.extend(_text(line) for line in whole[-TAIL_LINES:] if line.strip())
    if rest.strip():
        lines.append(_text(rest))


def _text(line: bytes) -> str:
    return line[-LINE_BYTES:].decode(errors="replace").rstrip()
