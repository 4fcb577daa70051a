"""Work in daemon threads, which do not delay the exit of the process.

`in_parallel` runs several pieces of work at once. `in_background` runs one while the calling thread handles
signals.

A process waits at exit for the threads of a ThreadPoolExecutor: a stopping explorer would fetch the rest of a
file.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

Result = TypeVar("Result")

AT_A_TIME = 4  # concurrent requests, each with an object of 32 MB in memory
LOOK_SECONDS = 0.5  # poll interval during a request


def in_parallel(work: Callable[[int], None], count: int) -> None:
    """Do a piece of work for each number below `count`, `AT_A_TIME` at once.

    The first error is raised, and no further piece starts after it.
    """
    waiting, errors, lock = iter(range(count)), list[BaseException](), threading.Lock()

    def worker() -> None:
        while not errors:
            with lock:
                number = next(waiting, None)
            if number is None:
                return
            try:
                work(number)
            except BaseException as error:  # raised in the waiting thread
                errors.append(error)

    threads = [
        threading.Thread(target=worker, name="object", daemon=True) for _ in range(min(AT_A_TIME, count))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def in_background(work: Callable[[], Result], look: Callable[[], None]) -> Result:
    """Do work in a separate thread, so that the calling one can handle signals meanwhile.

    Args:
        look: called first and every LOOK_SECONDS. If it raises an error, the work is abandoned.
    """
    done = Future[Result]()

    def finish() -> None:
        try:
            done.set_result(work())
        except BaseException as error:  # raised in the waiting thread
            done.set_exception(error)

    look()
    threading.Thread(target=finish, name="request", daemon=True).start()
    while not wait([done], timeout=LOOK_SECONDS).done:
        look()
    return done.result()
