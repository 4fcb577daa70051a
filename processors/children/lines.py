"""Protocol of a child process: one line of JSON on standard input, one on standard output."""

import json
import os
import resource
import signal
from collections.abc import Callable
from typing import Any

# Beyond the time limit. The pool kills a process at the limit; if the pool is gone, the kernel ends the
# process after this delay.
GRACE_SECONDS = 5.0


def answer_lines(answer: Callable[[Any], Any]) -> None:
    """Report that the process is ready, then answer each request until standard input is closed.

    A request is {"seconds": …, "asked": …}. If it takes much longer than its seconds, the kernel ends the
    process even if Python is stuck, because the signal has no handler.
    """
    requests = os.fdopen(os.dup(0), encoding="utf-8")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # output of libraries is not an answer
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    answers.write("\n")
    answers.flush()
    for line in requests:
        request = json.loads(line)
        signal.setitimer(signal.ITIMER_REAL, request["seconds"] + GRACE_SECONDS)
        try:
            answered = {"answer": answer(request["asked"])}
        except MemoryError:
            answered = {"error": "it exceeded its memory limit"}
        except RecursionError:
            answered = {"error": "it is nested too deeply"}
        except Exception as error:  # raised by a library on a model's text
            answered = {"error": " ".join(f"{type(error).__name__}: {error}".split())[:500]}
        signal.setitimer(signal.ITIMER_REAL, 0)
        answers.write(json.dumps(answered) + "\n")
        answers.flush()
