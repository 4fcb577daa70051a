"""Runs a command for as long as another process lives. It imports nothing of the project, so it starts fast.

    python guardian.py PID FOLDER COMMAND ...

The guardian leads a process group of its own, so a Ctrl-C in a terminal does not reach the command. When the
process PID dies, also by SIGKILL, or when the guardian gets SIGTERM, it asks the command to end. After that,
and also when the command ends by itself, it deletes the folder and kills the whole group, because a server's
own children may be left. Its output is the server's log, and it keeps that from growing without end.
"""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress

LOOK_SECONDS = 0.2
PR_SET_PDEATHSIG = 1  # of Linux
END_SECONDS = 5.0  # for a server to free shared memory
LOG_BYTES = 64 * 2**20  # of the log, which a server that complains about each request would fill a disk with
KEPT_BYTES = 2**20  # of a log that grew longer: its end


def guard(owner: int, folder: str, command: Sequence[str]) -> None:
    """Run the command, delete the folder, and end the group that this process leads."""
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=_end_with_parent)
    # A process whose parent dies gets another parent.
    while process.poll() is None and not asked and os.getppid() == owner:
        time.sleep(LOOK_SECONDS)
        shorten(sys.stdout.fileno(), LOG_BYTES, KEPT_BYTES)
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(END_SECONDS)
    else:
        print(f"The process ended with code {process.returncode}.", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    os.killpg(0, signal.SIGKILL)


def shorten(log: int, most: int, kept: int) -> None:
    """Leave the end of a log that is longer than `most` bytes. Its writers append, so they go on behind it.

    Lines that the server writes in this moment may be lost.
    """
    with suppress(OSError):
        if os.fstat(log).st_size > most:  # that of a pipe is 0
            with open(f"/dev/fd/{log}", "rb") as file:
                file.seek(-kept, os.SEEK_END)
                end = file.read()
            os.ftruncate(log, 0)
            os.write(log, end.partition(b"\n")[2])


def _end_with_parent() -> None:
    """Let the command get SIGTERM if the guardian is killed. Only Linux can do that."""
    with suppress(AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


if __name__ == "__main__":
    guard(int(sys.argv[1]), sys.argv[2], sys.argv[3:])
