"""Environments in processes of their own, also of another interpreter: started, asked, used again, killed.

A process serves one attempt at a time, and then the next one. It is killed, with all that it started, when an
attempt is given up in the middle of a call.
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
from trinity_db.explorer.environments import child
from trinity_db.explorer.environments.methods import Run
from trinity_db.explorer.recording.command import variables
from trinity_db.explorer.tools import Tool

logger = logging.getLogger(__name__)

END_SECONDS = 5.0  # for a process that was killed


class EnvironmentRaised(Exception):
    """What an environment raised in its process, with file and line."""


class EnvironmentEnded(Exception):
    """The process of an environment has ended by itself, or was killed."""


class Processes:
    """The processes of one kind of environment. Those that are idle wait for the next attempt.

    Args:
        python: the interpreter.
    """

    def __init__(self, python: str, name: str, options: Mapping[str, Any]) -> None:
        self._python = python
        self._of = {"name": name, "options": options}
        self._idle: list[Process] = []
        self._lock = threading.Lock()

    def check(self) -> list[str]:
        """The public methods of the class.

        Raises:
            EnvironmentRaised: there is no such class, it takes other options, or it is no environment.
            OSError: there is no such interpreter.
        """
        process = Process(self._python)
        try:
            methods: list[str] = process.ask("check", **self._of)
            return methods
        finally:
            process.kill()

    def take(self) -> "Process":
        """A process for one attempt."""
        with self._lock:
            while self._idle:
                if (process := self._idle.pop()).is_alive:
                    return process
        return Process(self._python)

    def give_back(self, process: "Process") -> None:
        """Keep a process for another attempt."""
        with self._lock:
            self._idle.append(process)

    def make(self, process: "Process") -> list[str]:
        """Make an instance of the class; its public methods."""
        methods: list[str] = process.ask("make", **self._of)
        return methods


class Process:
    """One process. Its methods block.

    Raises:
        OSError: there is no such interpreter.
    """

    def __init__(self, python: str) -> None:
        folder = str(Path(trinity_db.__file__).parent)
        # -P: the folder of child.py shadows no module. A session: what it starts can be killed with it.
        self._popen = subprocess.Popen(
            [python, "-P", child.__file__, folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            encoding="utf-8",
            env=variables(),
            start_new_session=True,
        )
        self.kill = finalize(self, _kill, self._popen)
        """Ends it, and what it started. Also done when this process ends."""

    @property
    def is_alive(self) -> bool:
        return self._popen.poll() is None

    def ask(self, what: str, **given: Any) -> Any:
        """The answer to a question.

        Raises:
            EnvironmentRaised: the environment's own error.
            EnvironmentEnded: the process has ended.
            TypeError: what is given cannot be written as JSON.
        """
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        question = json.dumps({"do": what, **given})
        line = ""
        with suppress(OSError, ValueError):  # it has ended, or was killed in this moment
            self._popen.stdin.write(question + "\n")
            self._popen.stdin.flush()
            line = self._popen.stdout.readline()
        if not line.endswith("\n"):
            status = self._popen.wait()
            self.kill()  # what it started
            raise EnvironmentEnded(f"its process ended with {_described(status)}")
        answer = json.loads(line)
        if "error" in answer:
            raise EnvironmentRaised(answer["error"])
        return answer["result"]


class InChild:
    """An environment in a process of its own, as a host."""

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
                said: str = await run(lambda: self._ask("use", name=name, arguments=arguments))
                return said

            return used

        return {one["name"]: Tool(function=use(one["name"]), **one) for one in self._ask("tools")}

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

    def _ask(self, what: str, **given: Any) -> Any:
        assert self._process is not None
        return self._process.ask(what, **given)


def _kill(process: "subprocess.Popen[str]") -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    try:
        process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        # It waits in the kernel, as for a disk that does not answer. A thread may read from its pipes.
        logger.warning(
            "process %d goes on %g s after it was killed: it is left alone", process.pid, END_SECONDS
        )
        return
    for pipe in (process.stdin, process.stdout):
        with suppress(OSError, ValueError):  # what was not written cannot be written any more
            if pipe is not None:
                pipe.close()


def _described(status: int) -> str:
    return f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"
