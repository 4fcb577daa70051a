"""Other ranks of this machine, as processes that the first rank starts and ends.

They run the same command, with their rank in environment variables, like those of torchrun.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from types import TracebackType

import torch

from trinity_db.errors import TrinityError
from trinity_db.worker import cores
from trinity_db.worker.service import SUPERVISOR

LOOK_SECONDS = 0.2  # between checks whether they are alive
# From the loss of a rank until the first one exits. Usually a collective operation fails before that, and the
# first rank signs off and exits. It cannot within a call of NCCL, or while it waits for the ranks to meet.
HANG_SECONDS = 20.0
END_SECONDS = 20.0  # for a finished rank to exit; after that it is killed
LAST_WORDS_SECONDS = 1.0  # for a rank to print its error, if the first one ends because of it


class Followers:
    """Ranks 1 to `size` - 1. They live within this `with`, and share the threads of this process.

    Args:
        port: Port of the first rank's store, through which the ranks meet.
    """

    def __init__(self, size: int, port: int) -> None:
        threads = max(1, torch.get_num_threads() // size)
        torch.set_num_threads(threads)
        shared = {
            "WORLD_SIZE": str(size),
            "LOCAL_WORLD_SIZE": str(size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            cores.VARIABLE: str(threads),
            SUPERVISOR: str(os.getpid()),
        }
        self._processes = [
            subprocess.Popen(
                [sys.executable, "-m", "trinity_db", *sys.argv[1:]],
                stdin=subprocess.DEVNULL,
                env=os.environ | shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
                start_new_session=True,  # only the first rank receives Ctrl-C
            )
            for rank in range(1, size)
        ]
        self._ending = threading.Event()
        self._watch = threading.Thread(target=self._end_if_hung, name="followers", daemon=True)

    def __enter__(self) -> "Followers":
        self._watch.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait until they have ended; after an error only until they have printed theirs."""
        self._ending.set()
        deadline = time.monotonic() + (END_SECONDS if kind is None else LAST_WORDS_SECONDS)
        for process in self._processes:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def check(self) -> None:
        """Raise TrinityError if a rank has ended prematurely, with its number and exit status."""
        if (lost := self._lost()) is not None:
            raise TrinityError(f"{lost}. Run the same command to resume from the latest checkpoint.")

    def find_lost(self) -> None:
        """Call `check` after the connection to a rank was lost. That rank may still be ending."""
        deadline = time.monotonic() + LAST_WORDS_SECONDS
        while time.monotonic() < deadline:
            self.check()
            time.sleep(LOOK_SECONDS)

    def _lost(self) -> str | None:
        for rank, process in enumerate(self._processes, 1):
            code = process.poll()
            if code is not None and code < 0:
                return f"Rank {rank} of this training was ended by {signal.Signals(-code).name}"
            if code is not None:
                return f"Rank {rank} of this training ended with code {code}; see its message"
        return None

    def _end_if_hung(self) -> None:
        while not self._ending.wait(LOOK_SECONDS):
            if (lost := self._lost()) is not None and not self._ending.wait(HANG_SECONDS):
                print(f"error: {lost}; the first rank waited for it and ends.", file=sys.stderr, flush=True)
                for process in self._processes:
                    process.kill()
                os._exit(1)
