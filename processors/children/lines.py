"""How a child process answers: a line of JSON on standard input, a line of JSON on standard output."""

import json
import os
import resource
import signal
from collections.abc import Callable
from typing import Any

# Beyond its limit of time. The pool kills a process at the limit. If the pool is gone, the kernel ends the
# process so much later.
GRACE_SECONDS = 5.0


def answer_lines(answer: Callable[[Any], Any]) -> None:
    """Say that the process is ready, then answer each request until standard input ends.

    A request is {"seconds": …, "asked": …}. If a request takes much longer than its seconds, the kernel ends
    the process, also when Python would not: the signal has no handler.
    """
    requests = os.fdopen(os.dup(0), encoding="utf-8")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a library prints is no answer
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    answers.write("\n")
    answers.flush()
    for line in requests:
        request = json.loads(line)
        signal.setitimer(signal.ITIMER_REAL, request["seconds"] + GRACE_SECONDS)
        try:
            said = {"answer": answer(request["asked"])}
        except MemoryError:
            said = {"error": "it took more memory than it may"}
        except RecursionError:
            said = {"error": "it is nested too deeply"}
        except Exception as error:  # of a library, about a text that a model wrote
            said = {"error": " ".join(f"{type(error).__name__}: {error}".split())[:500]}
        signal.setitimer(signal.ITIMER_REAL, 0)
        answers.write(json.dumps(said) + "\n")
        answers.flush()
