"""A trainer as a user writes it: a plain loop over `store.trainer`. own_trainer.py RUN"""

import signal
import sys
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import torch
import transformers

import trinity_db
from trinity_db.errors import DatabaseUnavailable, NotFound

CHECKPOINT_EVERY = 3  # steps
Result = TypeVar("Result")
stop = threading.Event()


def patiently(call: Callable[[], Result]) -> Result:
    """Wait for a server that starts, and for explorers to create the run."""
    while True:
        try:
            return call()
        except (DatabaseUnavailable, NotFound):
            stop.wait(0.2)


def loss_of(model: Any, row: Any) -> Any:
    """PPO's clipped loss, the mean over the row's trained tokens."""
    ids, trained = torch.tensor(row.token_ids, dtype=torch.long), torch.tensor(row.action_mask)[1:]
    logprobs = model(ids[None]).logits[0, :-1].log_softmax(-1)[trained]
    ratio = (logprobs.gather(-1, ids[1:][trained][:, None])[:, 0] - torch.tensor(row.logprobs)).exp()
    return -torch.min(ratio * row.advantage, ratio.clamp(0.8, 1.2) * row.advantage).mean()


def train(trainer: trinity_db.Trainer) -> None:
    """Train until the process is asked to stop."""
    start = trainer.resume_folder or trainer.model_folder
    model = transformers.AutoModelForCausalLM.from_pretrained(start, dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(start)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    while not stop.is_set() and not trainer.has_ended:
        if (batch := trainer.draw(wait=1)) is None:
            continue
        for row in batch:
            (loss_of(model, row) * row.weight / len(batch)).backward()
        optimizer.step()
        optimizer.zero_grad()
        batch.commit()
        save = trainer.publish if batch.step % CHECKPOINT_EVERY else trainer.checkpoint
        with save() as folder:
            model.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
    if not trainer.is_saved:
        with trainer.checkpoint() as folder:
            model.save_pretrained(folder)
            tokenizer.save_pretrained(folder)


signal.signal(signal.SIGTERM, lambda number, frame: stop.set())
try:
    with patiently(lambda: trinity_db.connect(read_only=False)) as store:
        patiently(lambda: store.run(sys.argv[1]))
        with store.trainer(sys.argv[1]) as trainer:
            train(trainer)
except trinity_db.LeaseLost as error:
    sys.exit(f"error: {error}")
