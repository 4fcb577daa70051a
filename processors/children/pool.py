"""Child processes that answer requests within a time limit, and are killed beyond it."""

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
from typing import Any

START_SECONDS = 120.0  # for the imports of a child, on a busy machine
# Environment variables passed to children: no passwords, which code there might read from memory.
ENVIRONMENT = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL")


def python(module: str) -> list[str]:
    """Return the command of a child that runs a module, such as
    trinity_db.processors.children.mathematics."""
    return [sys.executable, "-P", "-m", module]


class Pool:
    """Children of one kind, started on the first request, and again after a kill.

    Args:
        command: Command that starts a child.
        size: Maximum number of children.
        seconds: Time limit of one answer.
    """

    def __init__(self, command: Sequence[str], size: int, seconds: float) -> None:
        self._command = command
        self._seconds = seconds
        self._idle: list[_Child] = []
        self._size = size
        self._finalizer = weakref.finalize(self, _kill_all, self._idle)

    def ask(self, requests: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        """Yield the index and answer of each request as they arrive; an exception for a request without an
        answer.

        If the iteration ends early, busy children are killed.
        """
        waiting = deque(enumerate(requests))
        busy: dict[_Child, int] = {}
        try:
            while waiting or busy:
                while waiting and len(busy) < self._size:
                    index, request = waiting.popleft()
                    child = self._idle.pop() if self._idle else _Child(self._command)
                    busy[child] = index
                    child.send(request, self._seconds)
                for child in _ready(busy):
                    answer = child.answer()
                    index = busy.pop(child)
                    if child.is_alive:
                        self._idle.append(child)
                    yield index, answer
        finally:
            _kill_all(busy)


class _Child:
    """One child process, which handles one request at a time."""

    def __init__(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            command,
            env={name: os.environ[name] for name in ENVIRONMENT if name in os.environ},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is handled by the processor, which finishes its current work
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

    def send(self, request: Any, seconds: float) -> None:
        """Send a request, now or when the process has started: bytes as they are, another value as JSON."""
        self._seconds = seconds
        if not isinstance(request, bytes):
            request = json.dumps({"seconds": seconds, "asked": request}).encode() + b"\n"
        self._request = request
        if self._is_ready:
            self._write()

    def receive(self) -> bool:
        """Read available output; return whether the request is finished, with or without an answer."""
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
        """Return the answer; an exception if the child reported an error, timed out or ended."""
        if not self._received.endswith(b"\n"):
            was_alive = self.is_alive
            self.kill()
            if was_alive:
                return TimeoutError(f"it took more than {self._seconds:g} s")
            return ChildProcessError(f"its process ended with {self._process.returncode}")
        line, self._received = self._received, b""
        message = json.loads(line)
        return RuntimeError(message["error"]) if "error" in message else message["answer"]

    def kill(self) -> None:
        """Kill the child and all its descendants."""
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
            pass  # it ended between two requests, which shows in its output


def _ready(busy: dict[_Child, int]) -> list[_Child]:
    """Wait for the first child that has answered, ended or timed out; return all such children."""
    with selectors.DefaultSelector() as selector:
        for child in busy:
            selector.register(child, selectors.EVENT_READ)
        while True:
            next_deadline = min(child.deadline for child in busy)
            ready = [key.fileobj for key, _ in selector.select(max(next_deadline - time.monotonic(), 0.0))]
            now = time.monotonic()
            done = [child for child in busy if (child in ready and child.receive()) or child.deadline <= now]
            if done:
                return done


def _kill_all(children: Any) -> None:
    for child in list(children):
        child.kill()
