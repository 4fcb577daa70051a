"""Does pieces of work at once, in threads that a process does not wait for when it ends.

Those of ThreadPoolExecutor are waited for: an explorer that was told to stop would fetch the rest of a file.
"""

import threading
from collections.abc import Callable, Sequence


def do(work: Callable[[int], None], numbers: Sequence[int], at_a_time: int) -> None:
    """Do a piece of work for each number. The first error is raised, and ends the others that wait."""
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
        for _ in range(min(at_a_time, len(numbers)))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
