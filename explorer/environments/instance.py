"""One environment of one attempt: started, called and closed in a dedicated thread.

An environment may therefore block without stopping other attempts. All its calls come from the same thread,
as some libraries require, such as those of databases and browsers.
"""

import asyncio
import inspect
import logging
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, Protocol

from trinity_db.config.user_functions import describe_error, in_thread
from trinity_db.explorer.attempt.tools import Tool
from trinity_db.explorer.environments.environment import NotStarted
from trinity_db.explorer.environments.methods import Run, methods_of, reward_of, tools_from

logger = logging.getLogger(__name__)

CLOSE_SECONDS = 5.0  # how long an attempt waits for closing; a slower environment is abandoned


class Host(Protocol):
    """The place where an environment runs. The methods block, and are called in the instance's thread."""

    def start(self) -> list[str]:
        """Create the environment and return the names of its public methods."""

    def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Return the method's result, or an awaitable of it."""

    def tools(self, run: Run) -> dict[str, Tool] | Awaitable[dict[str, Tool]]:
        """Return the tools for the policy; `run` calls a function in the instance's thread."""

    def reward(self) -> Any:
        """Return the reward that a tool environment reports for the attempt, or an awaitable of it."""

    def close(self) -> Any:
        """Free the environment's resources; returns None or an awaitable."""

    def interrupt(self) -> None:
        """Interrupt the current call, if possible. Called from another thread; may take seconds."""


class InProcess:
    """Hosts an environment in the explorer's process. A call that hangs cannot be interrupted."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._environment: Any = None

    def start(self) -> list[str]:
        self._environment = self._make()
        return methods_of(type(self._environment))

    def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        return getattr(self._environment, method)(*args, **kwargs)

    def tools(self, run: Run) -> dict[str, Tool] | Awaitable[dict[str, Tool]]:
        return tools_from(self._environment, run)

    def reward(self) -> Any:
        return reward_of(self._environment)

    def close(self) -> Any:
        return self._environment.close() if hasattr(self._environment, "close") else None

    def interrupt(self) -> None:
        """Do nothing: Python cannot kill threads."""


class Instance:
    """An environment as used by its attempt.

    Args:
        name: name of the environment in messages.
        seconds: timeout of one call, including the start; None: no limit.
    """

    def __init__(self, host: Host, name: str, seconds: float | None) -> None:
        self.name = name
        self.methods: list[str] = []
        self._host = host
        self._seconds = seconds
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._latest: Future[Any] | None = None
        """The latest call."""
        self._has_started = False
        # A daemon thread, so that a stopping explorer does not wait for an environment that hangs.
        threading.Thread(target=self._serve, name=f"environment {name}", daemon=True).start()

    async def start(self) -> None:
        """Create the environment.

        Raises:
            NotStarted: if it raises an error.
        """
        try:
            await self._limited(self._start, "start")
        except Exception as error:  # user code
            raise NotStarted(describe_error(error)) from error

    async def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method and return its result.

        Raises:
            TimeoutError: if the call times out.
            Exception: any error of the method.
        """
        return await self._limited(lambda: self._host.call(method, *args, **kwargs), method)

    async def tools(self) -> dict[str, Tool]:
        """Return the tools for the policy, by name.

        Raises:
            ConfigError: if a method cannot be offered to a model.
        """
        tools: dict[str, Tool] = await self._limited(
            lambda: self._host.tools(lambda function: self._limited(function, "a tool")), "its tools"
        )
        return tools

    async def reward(self) -> Any:
        """Return the reward that the environment reports for the attempt; None: no reward."""
        return await self._limited(self._host.reward, "get_reward")

    async def close(self) -> None:
        """Free the environment's resources after the current call. Errors are logged."""
        if self._latest is not None and not self._latest.done():
            await asyncio.to_thread(self._host.interrupt)
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._in_thread(self._close)
        except Exception as error:  # user code
            await asyncio.to_thread(self._host.interrupt)
            logger.warning("%s could not be closed: %s", self.name, describe_error(error))
        finally:
            self._calls.put(None)

    def _start(self) -> None:
        self.methods = self._host.start()
        self._has_started = True

    def _close(self) -> Any:
        return self._host.close() if self._has_started else self._host.interrupt()

    async def _limited(self, function: Callable[[], Any], action: str) -> Any:
        try:
            async with asyncio.timeout(self._seconds) as limit:
                return await self._in_thread(function)
        except TimeoutError:
            if not limit.expired():  # raised by the environment itself
                raise
            raise TimeoutError(f"{self.name}: {action} took longer than {self._seconds:g} s") from None

    async def _in_thread(self, function: Callable[[], Any]) -> Any:
        future: Future[Any] = Future()
        self._latest = future
        self._calls.put((future, function))
        result = await asyncio.wrap_future(future)
        return await result if inspect.isawaitable(result) else result

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            future, function = call
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(in_thread(function))
            except BaseException as error:  # ends the attempt, not the thread
                future.set_exception(error)
