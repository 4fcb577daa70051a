"""Runs a command while another process lives. Imports nothing of the project, so it starts fast.

    python guardian.py PID FOLDER COMMAND ...

The guardian leads a separate process group, so a Ctrl-C in a terminal does not reach the command. When the
process PID dies, even by SIGKILL, or the guardian gets SIGTERM, it terminates the command. After that, or
when the command exits by itself, it deletes the folder and kills the whole group, including the server's
remaining children. Its output is the server's log, whose size it limits.
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
PR_SET_PDEATHSIG = 1  # Linux constant
END_SECONDS = 5.0  # for a server to free shared memory
LOG_BYTES = 64 * 2**20  # maximum log size; a server that logs every request could fill the disk
KEPT_BYTES = 2**20  # kept from the end of a log that exceeds it


def guard(owner: int, folder: str, command: Sequence[str]) -> None:
    """Run the command, then delete the folder and kill this process group."""
    signals: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: signals.append(number))
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=_end_with_parent)
    # A process whose parent dies gets a new parent.
    while process.poll() is None and not signals and os.getppid() == owner:
        time.sleep(LOOK_SECONDS)
        shorten(sys.stdout.fileno(), LOG_BYTES, KEPT_BYTES)
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(END_SECONDS)
    else:
        print(f"The process exited with code {process.returncode}.", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    os.killpg(0, signal.SIGKILL)


def shorten(log: int, most: int, kept: int) -> None:
    """Truncate a log that exceeds `most` bytes to its end. Its writers append, so they continue after it.

    Lines written at the same moment may be lost.
    """
    with suppress(OSError):
        if os.fstat(log).st_size > most:  # 0 for a pipe
            with open(f"/dev/fd/{log}", "rb") as file:
                file.seek(-kept, os.SEEK_END)
                end = file.read()
            os.ftruncate(log, 0)
            os.write(log, end.partition(b"\n")[2])


def _end_with_parent() -> None:
    """Send SIGTERM to the command if the guardian is killed. Supported by Linux only."""
    with suppress(AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


if __name__ == "__main__":
    guard(int(sys.argv[1]), sys.argv[2], sys.argv[3:])
