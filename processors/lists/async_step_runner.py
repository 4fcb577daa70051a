"""Calls an asynchronous step for rows: within its limits, with retries, and once for equal rows."""

import asyncio
import json
import logging
import random
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from trinity_db.config.user_functions import describe_error
from trinity_db.processors.lists.judge import Row, raised, with_result
from trinity_db.processors.lists.limits import Gate
from trinity_db.processors.lists.results import Reading
from trinity_db.processors.lists.step import Answer, NotAnswered, Step

logger = logging.getLogger(__name__)

LONGEST_PAUSE = 30.0  # seconds before a retry
FIRST_PAUSE = 1.0


class AsyncStepRunner:
    """Runs a step of a list in an event loop."""

    def __init__(self, step: Step, reading: Reading) -> None:
        assert step.limits is not None, f"{step.name} is not asynchronous"
        self._step = step
        self._limits = step.limits
        self._reading = reading
        self._places = asyncio.Semaphore(step.limits.in_flight)
        self._gate = Gate(step.limits)
        self._answers: OrderedDict[str, asyncio.Task[Any]] = OrderedDict()

    async def run(self, row: Row) -> Row:
        """Return the row with the step's result, or unchanged if the row does not await the step.

        Any error of the step fails the row.
        """
        if not row.awaits(self._step):
            return row
        try:
            result = await self._answer(row.columns)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return raised(self._step, row, error)  # the step cancelled its own coroutine
        except Exception as error:  # user code may raise anything; the row records the error
            return raised(self._step, row, error)
        return with_result(self._step, self._reading, row, result)

    async def _answer(self, columns: Mapping[str, Any]) -> Any:
        key = self._key(columns)
        if key is None:
            return await self._try_again(columns)
        is_known = key in self._answers
        if not is_known:
            self._answers[key] = asyncio.create_task(self._try_again(columns))
            while len(self._answers) > self._limits.cache:
                self._answers.popitem(last=False)
        self._answers.move_to_end(key)
        try:
            answer = await self._answers[key]
            return _beside(answer, cached=True) if is_known else answer
        except BaseException:
            self._answers.pop(key, None)  # errors are not cached
            raise

    def _key(self, columns: Mapping[str, Any]) -> str | None:
        """Return the content that the step reads, as a cache key; None if it is not cacheable, such as
        arrays."""
        if not self._limits.cache:
            return None
        try:
            return json.dumps({name: columns[name] for name in self._step.columns}, sort_keys=True)
        except TypeError:
            return None

    async def _try_again(self, columns: Mapping[str, Any]) -> Any:
        remaining = self._limits.seconds
        problems: list[str] = []
        for tried in range(self._limits.retries + 1):
            if tried:
                pause = min(FIRST_PAUSE * 2.0 ** (tried - 1), LONGEST_PAUSE)
                await asyncio.sleep(pause * random.uniform(0.75, 1.25))
            async with self._places:
                await self._gate.enter()
                begun = time.monotonic()
                try:
                    answer = await self._call(columns, remaining)
                    return _beside(answer, failed_tries=problems) if problems else answer
                except _TooLong:
                    raise
                except Exception as error:  # user code may raise anything
                    problem = error
                    problems.append(describe_error(error))
                remaining -= time.monotonic() - begun
            if isinstance(problem, NotAnswered):
                self._heed(problem)
                if problem.is_final:
                    break
        raise problem

    def _heed(self, problem: NotAnswered) -> None:
        self._gate.spend(problem.tokens)
        if problem.after and self._gate.close(problem.after):
            logger.warning("%s: %s; retrying in %.0f s", self._step.name, problem, problem.after)

    async def _call(self, columns: Mapping[str, Any], seconds: float) -> Any:
        try:
            async with asyncio.timeout(seconds) as limit:
                result = await self._step(columns)
        except TimeoutError as error:
            if not limit.expired():
                raise
            where = error.__cause__.__traceback__ if error.__cause__ else None
            raise _TooLong(f"it took more than {self._limits.seconds:g} s").with_traceback(where) from None
        except SystemExit as error:  # would end the loop
            raise RuntimeError("it raised SystemExit").with_traceback(error.__traceback__) from error
        if isinstance(result, Answer):
            self._gate.spend(int(result.tokens))
        return result


def _beside(answer: Any, **known: Any) -> Any:
    """Add details to an answer. Other results cannot have details."""
    if isinstance(answer, Answer):
        return replace(answer, detail={**(answer.detail or {}), **known})
    return answer


class _TooLong(TimeoutError):
    """The time limit of the row has passed."""
