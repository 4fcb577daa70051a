"""Asynchronous judging: rows wait for servers in an event loop on a separate thread.

The processor submits rows and collects verdicts as they become available. A slow row therefore does not delay
other rows, the processor's heartbeat keeps the leases of rows in flight, and only as many rows are leased as
may be in flight.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue

from trinity_db.processors.lists.async_step_runner import AsyncStepRunner
from trinity_db.processors.lists.judge import Row
from trinity_db.processors.lists.results import Reading
from trinity_db.processors.lists.step import Step

logger = logging.getLogger(__name__)

CLOSE_SECONDS = 5.0  # for cancelled coroutines to finish
STUCK_SECONDS = 30.0  # without an iteration of the loop, before a warning is logged
TICK_SECONDS = 1.0


class Flow:
    """Runs the asynchronous steps of a list.

    Args:
        woken: Called in another thread when a row has its verdict.
    """

    def __init__(self, steps: Sequence[Step], reading: Reading, woken: Callable[[], None]) -> None:
        self._steps = steps
        self._reading = reading
        self._woken = woken
        self._size = sum(step.limits.in_flight for step in steps if step.limits is not None)
        self._rows: dict[int, Row] = {}
        self._done: SimpleQueue[Row] = SimpleQueue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._ticked = 0.0
        self._is_stuck = False

    @property
    def room(self) -> int:
        """Number of further rows that may be submitted."""
        return self._size - len(self._rows)

    @property
    def ids(self) -> list[int]:
        """IDs of the rows in flight, whose leases are needed."""
        return list(self._rows)

    def take(self, rows: Sequence[Row]) -> None:
        """Start judging rows."""
        if not rows:
            return
        if self._loop is None:
            self._start()
        assert self._loop is not None
        self._rows.update({row.verdict.id: row for row in rows})
        self._loop.call_soon_threadsafe(self._begin, rows)

    def done(self) -> list[Row]:
        """Return the rows that have their verdict, without waiting."""
        ended = []
        while True:
            try:
                row = self._done.get_nowait()
            except Empty:
                break
            self._rows.pop(row.verdict.id, None)  # missing if a lost lease led to a second submission
            ended.append(row)
        self._watch()
        return ended

    def close(self) -> None:
        """Cancel and discard unfinished work."""
        if self._loop is not None and self._thread is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(CLOSE_SECONDS)
        self._loop, self._rows, self._done = None, {}, SimpleQueue()

    def _start(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._ticked = time.monotonic()
        # A daemon thread, so that a blocking coroutine does not keep the process alive.
        self._thread = threading.Thread(target=self._run, args=(self._loop,), name="judges", daemon=True)
        self._thread.start()

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        self._runners = [AsyncStepRunner(step, self._reading) for step in self._steps]
        self._tasks: set[asyncio.Task[None]] = set()
        self._tick(loop)
        loop.run_forever()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.gather(*asyncio.all_tasks(loop), return_exceptions=True))
        for step in self._steps:
            if (close := getattr(step.call, "close", None)) is not None:
                loop.run_until_complete(close())
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()

    def _begin(self, rows: Sequence[Row]) -> None:
        for row in rows:
            task = asyncio.get_running_loop().create_task(self._judge(row, self._done))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _judge(self, row: Row, done: "SimpleQueue[Row]") -> None:
        for runner in self._runners:
            row = await runner.run(row)
        done.put(row)
        self._woken()

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        self._ticked = time.monotonic()
        loop.call_later(TICK_SECONDS, self._tick, loop)

    def _watch(self) -> None:
        """Warn once if the loop is blocked, because then no timeout works."""
        is_stuck = bool(self._rows) and time.monotonic() - self._ticked > STUCK_SECONDS
        if is_stuck and not self._is_stuck:
            names = ", ".join(step.name for step in self._steps)
            logger.warning(
                "%s: no row progressed for %d s because a call blocks; use await asyncio.to_thread(call)",
                names,
                STUCK_SECONDS,
            )
        self._is_stuck = is_stuck
