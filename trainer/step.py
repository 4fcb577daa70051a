"""The learner: model, optimizer and step counter, and what one optimizer step does with a batch.

It owns everything a checkpoint holds. It reads payloads and gives metrics back; drawing batches,
committing and publishing is the service's work, and the loss is the algorithm's.
Shapes: B sequences of a micro-batch, T its longest one, K columns in which any of them trains,
V the vocabulary.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trinity_db.arrays import Payload
from trinity_db.errors import TrinityError
from trinity_db.models import default_device, load_model
from trinity_db.trainer.algorithms import Rows, Shares, Totals, create
from trinity_db.trainer.config import AlgorithmConfig, TrainerConfig


class NonFiniteLoss(TrinityError):
    """A step's loss or gradient is infinite or not a number; the weights were left as they were."""


class Abandoned(Exception):
    """A step or an evaluation was given up between two micro-batches; the learner is as it was before."""


@dataclass(frozen=True)
class Batch:
    """What one optimizer step learns from. Pairs stand as chosen, rejected, chosen, rejected, ..."""

    payloads: Sequence[Payload]
    """Each trains at least one token."""
    advantages: NDArray[np.floating[Any]] | None = None
    """[number of payloads] For algorithms that take advantages."""


class Learner:
    """A policy and the means to improve it.

    Args:
        model: folder of the model to start or to go on from.
        total_steps: optimizer steps of the whole run, for the learning rate's schedule.
        reference: folder of the frozen starting model, for algorithms that need one; None: `model`.
        temperature: of the sampled tokens, so that ratios compare like with like.
        should_stop: asked between two micro-batches; true gives up what is being computed.
    """

    def __init__(
        self,
        config: TrainerConfig,
        algorithm: AlgorithmConfig,
        model: Path,
        *,
        total_steps: int,
        reference: Path | None = None,
        temperature: float = 1.0,
        device: str | None = None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self.config = config
        self.algorithm = create(algorithm)
        self.device = device or default_device()
        # Evaluation mode throughout: dropout would make the ratio of unchanged weights differ from 1.
        self.model = load_model(model, self.device)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay
        )
        self.steps_done = 0
        self._total_steps = total_steps
        self._temperature = temperature
        self._should_stop = should_stop
        self._reference: Any = None
        if self.algorithm.needs_reference:
            self._reference = load_model(reference or model, self.device).requires_grad_(False)

    def step(self, batch: Batch) -> dict[str, float]:
        """One optimizer step.

        Returns:
            the algorithm's metrics, `grad_norm` before clipping, and `learning_rate`.

        Raises:
            NonFiniteLoss: the weights and the step counter are unchanged.
            Abandoned: the same, and the gradients are cleared.
        """
        self.optimizer.zero_grad()
        parts = []
        try:
            for shares in self._shares(batch):
                torch.autograd.backward(shares["loss"])
                parts.append({name: share.detach() for name, share in shares.items()})
        except Abandoned:
            self.optimizer.zero_grad()
            raise
        metrics = _added(parts)
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.max_grad_norm)
        metrics["grad_norm"] = norm.item()
        if not (math.isfinite(metrics["loss"]) and math.isfinite(metrics["grad_norm"])):
            raise NonFiniteLoss(
                f"Step {self.steps_done + 1}: the loss is {metrics['loss']} and its gradient's norm "
                f"{metrics['grad_norm']}; lower trainer.learning_rate or look at the batch's rows."
            )
        metrics["learning_rate"] = learning_rate(self.config, self.steps_done, self._total_steps)
        for group in self.optimizer.param_groups:
            group["lr"] = metrics["learning_rate"]
        self.optimizer.step()
        self.steps_done += 1
        return metrics

    @torch.no_grad()
    def evaluate(self, batch: Batch) -> dict[str, float]:
        """The algorithm's metrics on rows that are not learned from.

        Raises:
            Abandoned: there is no result.
        """
        return _added(list(self._shares(batch)))

    def state_dict(self) -> dict[str, Any]:
        """Everything but the weights that the next step depends on."""
        return {
            "steps_done": self.steps_done,
            "optimizer": self.optimizer.state_dict(),
            "rng": torch.get_rng_state(),
            "cuda_rng": torch.cuda.get_rng_state_all(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken; the weights come from the checkpoint's model."""
        self.steps_done = state["steps_done"]
        self.optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["rng"])
        torch.cuda.set_rng_state_all(state["cuda_rng"][: torch.cuda.device_count()])

    def _shares(self, batch: Batch) -> Iterator[Shares]:
        """The algorithm's shares, micro-batch by micro-batch, until it is time to stop."""
        width = self.algorithm.sequences_per_item
        items = np.arange(len(batch.payloads)).reshape(-1, width)
        totals = Totals(tokens=sum(_num_predicted(p) for p in batch.payloads), items=len(items))
        lengths = np.array([payload.num_tokens for payload in batch.payloads])
        # Sequences of like length share a micro-batch, which keeps padding low; the longest come first.
        items = items[np.argsort(-lengths[items].max(axis=1), kind="stable")]
        per_pass = max(1, self.config.micro_batch_size // width)
        for start in range(0, len(items), per_pass):
            if start and self._should_stop():
                raise Abandoned
            chosen = items[start : start + per_pass].ravel().tolist()
            payloads = [batch.payloads[i] for i in chosen]
            advantages = None if batch.advantages is None else batch.advantages[chosen]
            yield self.algorithm.shares(self._rows(payloads, advantages), totals)

    def _rows(self, payloads: Sequence[Payload], advantages: NDArray[np.floating[Any]] | None) -> Rows:
        tokens, mask, behaviour = (array.to(self.device) for array in _right_padded(payloads))
        columns = mask.any(dim=0).nonzero()[:, 0]
        targets = tokens[:, 1:][:, columns]
        logits = self._logits(self.model, tokens, columns)
        logprobs = _logprobs(logits, targets)
        reference = None
        if self._reference is not None:
            with torch.no_grad():
                reference = _logprobs(self._logits(self._reference, tokens, columns), targets)
        return Rows(
            mask=mask[:, columns],
            logprobs=logprobs,
            entropy=_entropy(logits.detach()),
            correct=logits.detach().argmax(dim=-1) == targets,
            behaviour=behaviour[:, columns],
            reference=reference,
            advantages=None if advantages is None else torch.from_numpy(advantages).float().to(self.device),
        )

    def _logits(self, model: Any, tokens: Tensor, columns: Tensor) -> Tensor:
        """[B, K, V] Only for the columns that train: logits are the largest array of a step.

        There is no attention mask, since padding stands on the right and attention looks left.
        """
        logits: Tensor = model(input_ids=tokens, logits_to_keep=columns, use_cache=False).logits.float()
        return logits if self._temperature == 1.0 else logits / self._temperature


def learning_rate(config: TrainerConfig, step: int, total_steps: int) -> float:
    """The learning rate of a step, counted from 0: a linear warm-up, then the schedule down to zero."""
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    progress = min(1.0, (step - config.warmup_steps) / max(1, total_steps - config.warmup_steps))
    factor = {
        "constant": 1.0,
        "linear": 1.0 - progress,
        "cosine": 0.5 * (1.0 + math.cos(math.pi * progress)),
    }[config.schedule]
    return config.learning_rate * factor


def _num_predicted(payload: Payload) -> int:
    """Trained tokens that have a token before them to be predicted from: all but a first one."""
    return int(np.count_nonzero(payload.action_mask[1:]))


def _right_padded(payloads: Sequence[Payload]) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens [B, T]; mask and behaviour log-probabilities [B, T-1], column t for token t + 1."""
    shape = (len(payloads), max(payload.num_tokens for payload in payloads))
    tokens, mask = np.zeros(shape, np.int64), np.zeros(shape, np.bool_)
    behaviour = np.zeros(shape, np.float32)
    for row, payload in enumerate(payloads):
        tokens[row, : payload.num_tokens] = payload.token_ids
        mask[row, : payload.num_tokens] = payload.action_mask
        if payload.logprobs is not None:
            behaviour[row, : payload.num_tokens][payload.action_mask] = payload.logprobs
    return torch.from_numpy(tokens), torch.from_numpy(mask[:, 1:]), torch.from_numpy(behaviour[:, 1:])


def _logprobs(logits: Tensor, targets: Tensor) -> Tensor:
    """[B, K] Log-probabilities of the targets, without a normalised copy of the logits [B, K, V]."""
    return logits.gather(-1, targets[..., None])[..., 0] - logits.logsumexp(dim=-1)


def _entropy(logits: Tensor) -> Tensor:
    """[B, K] logsumexp(z) - Σ softmax(z)·z, row by row, so that one row's copies exist at a time."""
    return torch.stack([row.logsumexp(-1) - (row.softmax(-1) * row).sum(-1) for row in logits])


def _added(parts: Sequence[Shares]) -> dict[str, float]:
    names = list(parts[0])
    table = torch.stack([torch.stack([part[name] for name in names]) for part in parts])
    return dict(zip(names, table.sum(dim=0).tolist(), strict=True))
