"""Runs programs in separate process groups; none outlives its attempt or its explorer."""

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

TAIL_LINES = 20  # last lines of a program's output, which are kept
LINE_BYTES = 64 * 1024  # kept of a line: its end
DRAIN_SECONDS = 1.0  # to read the remaining output of an exited program

MARK = "reward:"  # begins a line of standard output with a reward

# Waits for a line on stdin before the program starts; the rest is the program's. If the explorer dies before
# sending the line, the shell exits.
GATE = 'read -r word && exec "$@"'


@dataclass(frozen=True)
class Ended:
    """Exit status and output of a program."""

    status: int
    """Exit status; negative: the signal that killed it."""
    output: Sequence[str]
    """Last lines of standard output."""
    errors: Sequence[str]
    """Last lines of standard error."""
    marked: str | None = None
    """Last line of standard output that begins with `MARK`."""


class Programs:
    """Runs programs, and a guard process that kills them if this process is killed."""

    def __init__(self) -> None:
        self._guard: subprocess.Popen[bytes] | None = None
        self._groups: set[int] = set()

    async def run(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        folder: Path | None = None,
        stdin: bytes = b"",
        lines: deque[str] | None = None,
    ) -> Ended:
        """Run a program to its end or cancellation, and kill all that is left of its process group.

        Args:
            folder: its working directory; None: ours.
            stdin: its standard input.
            lines: receives the lines of standard output and error, in the order of their arrival.

        Raises:
            OSError: if it cannot be started.
        """
        process = await asyncio.create_subprocess_exec(
            *("/bin/sh", "-c", GATE, "sh", *command),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=dict(environment),
            cwd=folder,
            start_new_session=True,
        )
        self._remember(process.pid)
        try:
            assert process.stdin is not None
            process.stdin.write(b"go\n" + stdin)
            process.stdin.close()  # written in the background, as far as the program reads it
            return await _watch(process, deque(maxlen=0) if lines is None else lines)
        finally:
            _kill(process.pid)
            self._forget(process.pid)
            await process.wait()

    def close(self) -> None:
        """Stop the guard."""
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
            self._tell(*(f"+ {pgid}" for pgid in self._groups))
        else:
            self._tell(f"+ {group}")

    def _forget(self, group: int) -> None:
        self._groups.discard(group)
        self._tell(f"- {group}")

    def _tell(self, *lines: str) -> None:
        if self._guard is not None and self._guard.stdin is not None:
            with suppress(BrokenPipeError):  # the next program starts another guard
                self._guard.stdin.write("".join(f"{line}\n" for line in lines).encode())
                self._guard.stdin.flush()


def _kill(group: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


async def _watch(process: asyncio.subprocess.Process, both: deque[str]) -> Ended:
    assert process.stdout is not None
    assert process.stderr is not None
    output: deque[str] = deque(maxlen=TAIL_LINES)
    errors: deque[str] = deque(maxlen=TAIL_LINES)
    marked: deque[str] = deque(maxlen=1)
    readers = [
        asyncio.create_task(_tail(process.stdout, marked, output, both)),
        asyncio.create_task(_tail(process.stderr, deque(maxlen=0), errors, both)),
    ]
    try:
        status = await process.wait()
        _kill(process.pid)  # child processes may keep the pipes open
        await asyncio.wait(readers, timeout=DRAIN_SECONDS)
    finally:
        for reader in readers:
            reader.cancel()
    return Ended(status, [*output], [*errors], marked[0] if marked else None)


async def _tail(stream: asyncio.StreamReader, marked: deque[str], *tails: deque[str]) -> None:
    """Keep the last non-empty lines, and the last marked ones, each truncated to its end."""

    def keep(whole: Sequence[bytes]) -> None:
        for lines in tails:
            lines.extend(_text(line) for line in whole[-TAIL_LINES:] if line.strip())
        marked.extend(_text(line) for line in whole if line.startswith(MARK.encode()))

    rest = b""
    while chunk := await stream.read(LINE_BYTES):
        *whole, rest = (rest + chunk).split(b"\n")
        rest = rest[-LINE_BYTES:]
        keep(whole)
    keep([rest])


def _text(line: bytes) -> str:
    return line[-LINE_BYTES:].decode(errors="replace").rstrip()
