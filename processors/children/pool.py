"""Child processes that answer requests, each within a limit of time, and are killed beyond it."""

import json
import os
import selectors
import signal
import subprocess
import sys
import time
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

Asked = TypeVar("Asked")

START_SECONDS = 120.0  # for the imports of a child, on a busy machine
# What children know of the environment: no passwords, which code there might read out of memory.
ENVIRONMENT = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL")


def python(module: str) -> list[str]:
    """The command of a child that is a module, as trinity_db.processors.children.mathematics."""
    return [sys.executable, "-P", "-m", module]


class Pool:
    """Children of one kind. They are started when they are first asked, and again after each that was killed.

    Args:
        command: that starts one.
        size: how many answer at the same time.
        seconds: for one answer.
    """

    def __init__(self, command: Sequence[str], size: int, seconds: float) -> None:
        self._command = command
        self._seconds = seconds
        self._idle: list[_Child] = []
        self._size = size
        self._finalizer = weakref.finalize(self, _kill_all, self._idle)

    def ask(self, requests: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        """The answer to each request with its place, as they come; an exception where there is none.

        If the iteration ends early, the children that are still at work are killed.
        """
        waiting = deque(enumerate(requests))
        busy: dict[_Child, int] = {}
        try:
            while waiting or busy:
                while waiting and len(busy) < self._size:
                    place, asked = waiting.popleft()
                    child = self._idle.pop() if self._idle else _Child(self._command)
                    busy[child] = place
                    child.send(asked, self._seconds)
                for child in _ready(busy):
                    answer = child.answer()
                    place = busy.pop(child)
                    if child.is_alive:
                        self._idle.append(child)
                    yield place, answer
        finally:
            _kill_all(busy)


class _Child:
    """One process, at one request at a time."""

    def __init__(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            command,
            env={name: os.environ[name] for name in ENVIRONMENT if name in os.environ},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # a Ctrl-C is for the processor, which finishes what is in hand
            bufsize=0,
        )
        self._received = b""
        self._request = b""
        self._seconds = 0.0
        self._is_ready = False
        self.deadline = time.monotonic() + START_SECONDS
        self.is_alive = True

    def fileno(self) -> int:
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def send(self, asked: Any, seconds: float) -> None:
        """Ask, now or as soon as the process has started."""
        self._seconds = seconds
        self._request = json.dumps({"seconds": seconds, "asked": asked}).encode() + b"\n"
        if self._is_ready:
            self._write()

    def receive(self) -> bool:
        """Read what came; whether the request is answered, or never will be."""
        chunk = os.read(self.fileno(), 1 << 20)
        if not chunk:
            self.kill()
            return True
        self._received += chunk
        if not self._is_ready and self._received.startswith(b"\n"):
            self._is_ready, self._received = True, self._received[1:]
            self._write()
        return self._received.endswith(b"\n")

    def answer(self) -> Any:
        """What it said; an exception if it said what went wrong, took too long, or ended."""
        if not self._received.endswith(b"\n"):
            was_alive = self.is_alive
            self.kill()
            if was_alive:
                return TimeoutError(f"it took more than {self._seconds:g} s")
            return ChildProcessError(f"its process ended with {self._process.returncode}")
        line, self._received = self._received, b""
        said = json.loads(line)
        return RuntimeError(said["error"]) if "error" in said else said["answer"]

    def kill(self) -> None:
        """End it, with all that it started."""
        if self.is_alive:
            self.is_alive = False
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                assert pipe is not None
                pipe.close()

    def _write(self) -> None:
        self.deadline = time.monotonic() + self._seconds
        assert self._process.stdin is not None
        unsent = memoryview(self._request)
        try:
            while unsent:
                unsent = unsent[self._process.stdin.write(unsent) :]
        except BrokenPipeError:
            pass  # it ended between two requests: its output says so


def _ready(busy: dict[_Child, int]) -> list[_Child]:
    """The children that have answered, have ended, or are too late; it waits for the first."""
    with selectors.DefaultSelector() as selector:
        for child in busy:
            selector.register(child, selectors.EVENT_READ)
        while True:
            next_deadline = min(child.deadline for child in busy)
            came = [key.fileobj for key, _ in selector.select(max(next_deadline - time.monotonic(), 0.0))]
            now = time.monotonic()
            done = [child for child in busy if (child in came and child.receive()) or child.deadline <= now]
            if done:
                return done


def _kill_all(children: Any) -> None:
    for child in list(children):
        child.kill()
