"""Does work in threads that a process does not wait for when it ends.

`do` does several pieces at once. `apart` does one, while the thread that asked for it hears signals.

A process waits for the threads of ThreadPoolExecutor: an explorer that was told to stop would fetch the rest
of a file.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from typing import TypeVar

Result = TypeVar("Result")

AT_A_TIME = 4  # requests, with an object of 32 MB in memory each
LOOK_SECONDS = 0.5  # between two looks while a request is on its way


def do(work: Callable[[int], None], numbers: Sequence[int]) -> None:
    """Do a piece of work for each number, `AT_A_TIME` of them at once.

    The first error is raised, and no other piece is begun after it.
    """
    waiting, errors, one_takes = iter(numbers), list[BaseException](), threading.Lock()

    def go_on() -> None:
        while not errors:
            with one_takes:
                number = next(waiting, None)
            if number is None:
                return
            try:
                work(number)
            except BaseException as error:  # raised in the thread that waits
                errors.append(error)

    threads = [
        threading.Thread(target=go_on, name="object", daemon=True)
        for _ in range(min(AT_A_TIME, len(numbers)))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def apart(work: Callable[[], Result], look: Callable[[], None]) -> Result:
    """Do work in a thread of its own, so that this one hears signals meanwhile.

    Args:
        look: is called before, and every LOOK_SECONDS. If it raises an error, the work is left to itself.
    """
    done = Future[Result]()

    def finish() -> None:
        try:
            done.set_result(work())
        except BaseException as error:  # raised in the thread that waits
            done.set_exception(error)

    look()
    threading.Thread(target=finish, name="request", daemon=True).start()
    while not wait([done], timeout=LOOK_SECONDS).done:
        look()
    return done.result()
