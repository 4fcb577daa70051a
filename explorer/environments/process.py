"""Environments in separate processes, optionally with another Python interpreter.

A process serves one attempt at a time and is then reused. If an attempt is abandoned during a call, its
process is killed, including all child processes.
"""

import json
import logging
import os
import signal
import subprocess
import threading
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from weakref import finalize

import trinity_db
from trinity_db.explorer.attempt.tools import Tool
from trinity_db.explorer.environments import child
from trinity_db.explorer.environments.methods import Run
from trinity_db.explorer.http.command import variables

logger = logging.getLogger(__name__)

END_SECONDS = 5.0  # to wait for a killed process


class EnvironmentRaised(Exception):
    """An error raised by an environment in its process, with file and line."""


class EnvironmentEnded(Exception):
    """The process of an environment exited or was killed."""


class Processes:
    """A pool of processes for one kind of environment. Idle processes wait for the next attempt.

    Args:
        python: the Python interpreter.
    """

    def __init__(self, python: str, name: str, options: Mapping[str, Any]) -> None:
        self._python = python
        self._of = {"name": name, "options": options}
        self._idle: list[Process] = []
        self._lock = threading.Lock()

    def check(self) -> list[str]:
        """Return the public methods of the class.

        Raises:
            EnvironmentRaised: if the class does not exist, rejects the options, or is not an environment.
            OSError: if the interpreter does not exist.
        """
        process = Process(self._python)
        try:
            methods: list[str] = process.ask("check", **self._of)
            return methods
        finally:
            process.kill()

    def take(self) -> "Process":
        """Return an idle or new process for one attempt."""
        with self._lock:
            while self._idle:
                if (process := self._idle.pop()).is_alive:
                    return process
        return Process(self._python)

    def give_back(self, process: "Process") -> None:
        """Return a process to the pool."""
        with self._lock:
            self._idle.append(process)

    def make(self, process: "Process") -> list[str]:
        """Create an instance of the class in the process, and return its public methods."""
        methods: list[str] = process.ask("make", **self._of)
        return methods


class Process:
    """One process. Its methods block.

    Raises:
        OSError: if the interpreter does not exist.
    """

    def __init__(self, python: str) -> None:
        folder = str(Path(trinity_db.__file__).parent)
        # -P: files next to child.py must not shadow modules. A new session lets us kill child processes too.
        self._popen = subprocess.Popen(
            [python, "-P", child.__file__, folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            encoding="utf-8",
            env=variables(),
            start_new_session=True,
        )
        self.kill = finalize(self, _kill, self._popen)
        """Kills the process and its children. Also runs when this process exits."""

    @property
    def is_alive(self) -> bool:
        return self._popen.poll() is None

    def ask(self, handler: str, **arguments: Any) -> Any:
        """Send a request to the process and return its result.

        Raises:
            EnvironmentRaised: if the environment raises an error.
            EnvironmentEnded: if the process has exited.
            TypeError: if an argument cannot be encoded as JSON.
        """
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        question = json.dumps({"do": handler, **arguments})
        line = ""
        with suppress(OSError, ValueError):  # the process may have exited just now
            self._popen.stdin.write(question + "\n")
            self._popen.stdin.flush()
            line = self._popen.stdout.readline()
        if not line.endswith("\n"):
            status = self._popen.wait()
            self.kill()  # its child processes
            raise EnvironmentEnded(f"its process ended with {_described(status)}")
        answer = json.loads(line)
        if "error" in answer:
            raise EnvironmentRaised(answer["error"])
        return answer["result"]


class InChild:
    """Hosts an environment in a separate process."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._process: Process | None = None

    def start(self) -> list[str]:
        self._process = self._processes.take()
        return self._processes.make(self._process)

    def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        return self._ask("call", method=method, args=args, kwargs=kwargs)

    def tools(self, run: Run) -> dict[str, Tool]:
        def use(name: str) -> Callable[..., Awaitable[str]]:
            async def used(**arguments: Any) -> str:
                result: str = await run(lambda: self._ask("use", name=name, arguments=arguments))
                return result

            return used

        return {tool["name"]: Tool(function=use(tool["name"]), **tool) for tool in self._ask("tools")}

    def reward(self) -> Any:
        return self._ask("reward")

    def close(self) -> None:
        if self._process is None or not self._process.is_alive:
            return
        self._process.ask("close")
        self._processes.give_back(self._process)

    def interrupt(self) -> None:
        if self._process is not None:
            self._process.kill()

    def _ask(self, handler: str, **arguments: Any) -> Any:
        assert self._process is not None
        return self._process.ask(handler, **arguments)


def _kill(process: "subprocess.Popen[str]") -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    try:
        process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        # It hangs in the kernel, such as on an unresponsive disk. A thread may be reading from its pipes.
        logger.warning(
            "process %d is still alive %g s after SIGKILL and is abandoned", process.pid, END_SECONDS
        )
        return
    for pipe in (process.stdin, process.stdout):
        with suppress(OSError, ValueError):  # unwritten data is lost anyway
            if pipe is not None:
                pipe.close()


def _described(status: int) -> str:
    return f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"
