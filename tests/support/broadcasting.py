"""The process at one end of a broadcast, with small messages and little patience. It may end in the middle.

`broadcast.PROGRAM` names it in tests. At the second message a sender does what EVENT says, and a receiver
what the name of its folder ends with: it gets this signal, or expects a smaller message (`misfit`).

    python -m tests.support.broadcasting trainer DIGEST FOLDER      does nothing else, and prints its address
"""

import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch

from trinity_db.weights import broadcast, gloo_process

EVENT = "BROADCAST_EVENT"
CHUNK_BYTES = 1 << 20
PATIENCE_SECONDS = 2.0  # for a message
GATHER_SECONDS = (1.0, 5.0)  # so that those that ask together do on a busy machine too

_exchange, _receive = gloo_process.Group.exchange, gloo_process.receive
_event, _exchanged = "", 0


def exchange(group: gloo_process.Group, chunk: torch.Tensor) -> None:
    global _exchanged
    _exchanged += 1
    if _exchanged == 2 and _event == "misfit":
        chunk = chunk[:10]
    elif _exchanged == 2 and _event.startswith("SIG"):
        os.kill(os.getpid(), getattr(signal, _event))
    _exchange(group, chunk)


def receive(address: str, digest: str, folder: Path) -> None:
    global _event
    _event = folder.name.rpartition("-")[2]
    _receive(address, digest, folder)


def main(*arguments: str) -> None:
    """Be one end."""
    global _event
    if arguments[:1] == ("trainer",):
        broadcast.PROGRAM = "tests.support.broadcasting"
        trainer = broadcast.Broadcasts("127.0.0.1")
        trainer.offer(Path(arguments[2]), arguments[1])
        print(trainer.address, flush=True)
        time.sleep(600)
    gloo_process.CHUNK_BYTES, gloo_process.GATHER_SECONDS = CHUNK_BYTES, GATHER_SECONDS
    gloo_process.CHUNK_TIMEOUT = timedelta(seconds=PATIENCE_SECONDS)
    gloo_process.Group.exchange = exchange  # type: ignore[assignment,method-assign]
    gloo_process.receive = receive
    _event = os.environ.get(EVENT, "") if arguments else ""
    gloo_process.main(*arguments)


if __name__ == "__main__":
    main(*sys.argv[1:])
