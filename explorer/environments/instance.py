"""One environment of one attempt: started, called and closed in a thread of its own.

So an environment may block, and the other attempts go on. All its calls come from the same thread, because
some libraries, as those of databases and of browsers, want that.
"""

import asyncio
import inspect
import logging
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, Protocol

from trinity_db.explorer.environments.environment import NotStarted
from trinity_db.explorer.environments.methods import Run, methods_of, reward_of, tools_from
from trinity_db.explorer.tools import Tool
from trinity_db.functions import describe_error, in_thread

logger = logging.getLogger(__name__)

CLOSE_SECONDS = 5.0  # that the end of an attempt waits for; an environment that takes longer is left behind


class Host(Protocol):
    """Where an environment lives. Its methods block, and are called in the instance's thread."""

    def start(self) -> list[str]:
        """Make the environment; the names of its public methods."""

    def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """What the method returns, or an awaitable of it."""

    def tools(self, run: Run) -> dict[str, Tool] | Awaitable[dict[str, Tool]]:
        """What the policy may call; `run` calls a function in the instance's thread."""

    def reward(self) -> Any:
        """What a tool environment says that the attempt earned, or an awaitable of it."""

    def close(self) -> Any:
        """Free what it holds: nothing, or an awaitable."""

    def interrupt(self) -> None:
        """End a call that is under way, where that is possible. From another thread; it may take seconds."""


class InProcess:
    """An environment in the explorer's process. A call that hangs cannot be ended."""

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
        """Python ends no thread."""


class Instance:
    """An environment as its attempt uses it.

    Args:
        name: what messages call it.
        seconds: longest time of one call, start included; None: no limit.
    """

    def __init__(self, host: Host, name: str, seconds: float | None) -> None:
        self.name = name
        self.methods: list[str] = []
        self._host = host
        self._seconds = seconds
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._latest: Future[Any] | None = None
        """The call that was asked for last."""
        self._has_started = False
        # A daemon, so that an explorer that stops does not wait for an environment that hangs.
        threading.Thread(target=self._serve, name=f"environment {name}", daemon=True).start()

    async def start(self) -> None:
        """Make the environment.

        Raises:
            NotStarted: with what it raised.
        """
        try:
            await self._limited(self._start, "start")
        except Exception as error:  # a user's own code
            raise NotStarted(describe_error(error)) from error

    async def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """What a method returns.

        Raises:
            TimeoutError: it took too long.
            Exception: what the method raises.
        """
        return await self._limited(lambda: self._host.call(method, *args, **kwargs), method)

    async def tools(self) -> dict[str, Tool]:
        """What the policy may call, by name.

        Raises:
            ConfigError: a method is none that a model can call.
        """
        found: dict[str, Tool] = await self._limited(
            lambda: self._host.tools(lambda function: self._limited(function, "a tool")), "its tools"
        )
        return found

    async def reward(self) -> Any:
        """What the environment says that the attempt earned; None: nothing."""
        return await self._limited(self._host.reward, "get_reward")

    async def close(self) -> None:
        """Free what the environment holds, after a call that is under way. What goes wrong is logged."""
        if self._latest is not None and not self._latest.done():
            await asyncio.to_thread(self._host.interrupt)
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._in_thread(self._close)
        except Exception as error:  # a user's own code
            await asyncio.to_thread(self._host.interrupt)
            logger.warning("%s could not be closed: %s", self.name, describe_error(error))
        finally:
            self._calls.put(None)

    def _start(self) -> None:
        self.methods = self._host.start()
        self._has_started = True

    def _close(self) -> Any:
        return self._host.close() if self._has_started else self._host.interrupt()

    async def _limited(self, function: Callable[[], Any], what: str) -> Any:
        try:
            async with asyncio.timeout(self._seconds) as limit:
                return await self._in_thread(function)
        except TimeoutError:
            if not limit.expired():  # another one, of the environment's own
                raise
            raise TimeoutError(f"{self.name}: {what} took longer than {self._seconds:g} s") from None

    async def _in_thread(self, function: Callable[[], Any]) -> Any:
        future: Future[Any] = Future()
        self._latest = future
        self._calls.put((future, function))
        result = await asyncio.wrap_future(future)
        return await result if inspect.isawaitable(result) else result

    def _serve(self) -> None:
        while (asked := self._calls.get()) is not None:
            future, function = asked
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(in_thread(function))
            except BaseException as error:  # the attempt ends by it, not the thread
                future.set_exception(error)
