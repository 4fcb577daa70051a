"""Start work in several processes at the same moment. Uses only the standard library."""

import multiprocessing
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from typing import Any

READY_SECONDS = 300  # limit for importing a peer and generating its rows


@dataclass(frozen=True)
class Outcome:
    """Result of one process; times are of a clock that all processes share."""

    start: float
    end: float
    value: Any


def at_once(prepare: Callable[[Any], Callable[[], Any]], arguments: Sequence[Any]) -> list[Outcome]:
    """Run `prepare` in a new process per argument, then call the returned functions at the same moment.

    Raises:
        RuntimeError: If a process failed; the message is its traceback.
    """
    context = multiprocessing.get_context("spawn")  # forked copies of a gRPC or Ray client hang
    barrier = context.Barrier(len(arguments))
    pipes, processes = [], []
    for argument in arguments:
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_run, args=(prepare, argument, barrier, sender))
        process.start()
        sender.close()
        pipes.append(receiver)
        processes.append(process)
    outcomes = [_receive(pipe) for pipe in pipes]
    for process in processes:
        process.join()
        process.close()
    if failures := [outcome for outcome in outcomes if isinstance(outcome, str)]:
        # The first failure breaks the barrier for the others.
        raise RuntimeError(next((text for text in failures if "BrokenBarrierError" not in text), failures[0]))
    return [outcome for outcome in outcomes if isinstance(outcome, Outcome)]


def elapsed(outcomes: Sequence[Outcome]) -> float:
    """Return the seconds from the first start to the last end."""
    return max(outcome.end for outcome in outcomes) - min(outcome.start for outcome in outcomes)


def _run(
    prepare: Callable[[Any], Callable[[], Any]], argument: Any, barrier: Barrier, sender: Connection
) -> None:
    try:
        work = prepare(argument)
        barrier.wait(READY_SECONDS)
        start = time.monotonic()
        value = work()
        sender.send(Outcome(start, time.monotonic(), value))
    except BaseException:
        barrier.abort()
        sender.send(traceback.format_exc())


def _receive(pipe: Connection) -> Outcome | str:
    try:
        received: Outcome | str = pipe.recv()
    except EOFError:
        return "a process ended without a result"
    finally:
        pipe.close()
    return received
