"""The learner: policy, optimizer and step counter, and what one optimizer step does with a batch.

It owns everything a checkpoint holds. It reads payloads and gives metrics back; drawing batches,
committing and publishing is the service's work, the loss is the algorithm's, and the models are the
policy's. A step has two phases: of the whole batch columns are gathered and prepared without gradient
(`columns.py`), then it is trained on micro-batch by micro-batch.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from trinity_db.errors import TrinityError
from trinity_db.trainer.algorithms import Columns, Shares, Totals, create
from trinity_db.trainer.columns import Batch, gathered
from trinity_db.trainer.config import AlgorithmConfig, TrainerConfig
from trinity_db.trainer.policy import Policy


class NonFiniteLoss(TrinityError):
    """A step's loss or gradient is infinite or not a number; the weights were left as they were."""


class Abandoned(Exception):
    """A step or an evaluation was given up between two micro-batches; the learner is as it was before."""


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
        self.policy = Policy(
            model,
            config,
            reference=(reference or model) if "reference" in self.algorithm.needs else None,
            temperature=temperature,
            device=device,
        )
        self.optimizer = torch.optim.AdamW(
            self.policy.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay, fused=True
        )
        self.steps_done = 0
        self._total_steps = total_steps
        self._should_stop = should_stop

    def step(self, batch: Batch) -> dict[str, float]:
        """One optimizer step.

        Returns:
            the algorithm's metrics, `grad_norm` before clipping, and `learning_rate`.

        Raises:
            ConfigError: the rows do not have what the algorithm reads.
            NonFiniteLoss: the weights and the step counter are unchanged.
            Abandoned: the same, and the gradients are cleared.
        """
        self.optimizer.zero_grad()
        rows, totals, metrics = self._prepared(batch)
        parts = []
        try:
            for shares in self._shares(batch, rows, totals):
                torch.autograd.backward(shares["loss"])
                parts.append({name: share.detach() for name, share in shares.items()})
        except Abandoned:
            self.optimizer.zero_grad()
            raise
        metrics |= _added(parts)
        norm = torch.nn.utils.clip_grad_norm_(self.policy.parameters(), self.config.max_grad_norm)
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
        return metrics | self.algorithm.learned(metrics, totals)

    @torch.no_grad()
    def evaluate(self, batch: Batch) -> dict[str, float]:
        """The algorithm's metrics on rows that are not learned from.

        Raises:
            Abandoned: there is no result.
        """
        rows, totals, metrics = self._prepared(batch)
        return metrics | _added(list(self._shares(batch, rows, totals)))

    def state_dict(self) -> dict[str, Any]:
        """Everything but the weights that the next step depends on."""
        return {
            "steps_done": self.steps_done,
            "optimizer": self.optimizer.state_dict(),
            "rng": torch.get_rng_state(),
            "cuda_rng": torch.cuda.get_rng_state_all(),
            "algorithm": self.algorithm.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken; the weights come from the checkpoint's model."""
        self.steps_done = state["steps_done"]
        self.optimizer.load_state_dict(state["optimizer"])
        self.algorithm.load_state_dict(state.get("algorithm", {}))  # checkpoints of 0.1 have none
        torch.set_rng_state(state["rng"])
        torch.cuda.set_rng_state_all(state["cuda_rng"][: torch.cuda.device_count()])

    def _prepared(self, batch: Batch) -> tuple[Columns, Totals, dict[str, float]]:
        """The whole step's rows as the algorithm wants them, what there is of them, and metrics."""
        rows, metrics = self.algorithm.prepare(
            gathered(batch, self.algorithm, self.policy, self._unless_stopped)
        )
        lengths = rows["mask"].sum(dim=1)
        items = (lengths.reshape(-1, self.algorithm.width) > 0).any(dim=1)
        return rows, Totals(int(lengths.sum()), int((lengths > 0).sum()), int(items.sum())), metrics

    def _shares(self, batch: Batch, rows: Columns, totals: Totals) -> Iterator[Shares]:
        """The algorithm's shares, micro-batch by micro-batch, until it is time to stop."""
        width = self.algorithm.width
        trains = rows["mask"].any(dim=1).reshape(-1, width).any(dim=1).repeat_interleave(width)
        kept = trains.nonzero()[:, 0].tolist()
        payloads = [batch.payloads[i] for i in kept]
        for places in self._unless_stopped(self.policy.forward.micro_batches(payloads, width)):
            scored = self.policy.forward(
                [payloads[place] for place in places], entropy_gradient="entropy" in self.algorithm.needs
            )
            chosen = [kept[place] for place in places]
            columns = _taken(rows, chosen, scored.mask.shape[1])
            columns |= {"logprobs": scored.logprobs, "entropy": scored.entropy, "correct": scored.correct}
            yield self.algorithm.shares(columns, totals)

    def _unless_stopped(self, micro_batches: Sequence[list[int]]) -> Iterator[list[int]]:
        for number, chosen in enumerate(micro_batches):
            if number and self._should_stop():
                raise Abandoned
            yield chosen


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


def _taken(rows: Columns, chosen: list[int], width: int) -> dict[str, torch.Tensor]:
    """A micro-batch's rows, as wide as its longest one; what is one number a row stays so."""
    tokens = rows["mask"].shape
    taken = {name: values[chosen] for name, values in rows.items()}
    return {name: one[:, :width] if rows[name].shape == tokens else one for name, one in taken.items()}


def _added(parts: Sequence[Shares]) -> dict[str, float]:
    """The shares of all micro-batches together; of what is called /min or /max the extreme."""
    if not parts:  # no row of the batch trains
        return {"loss": 0.0}
    names = list(parts[0])
    table = torch.stack([torch.stack([part[name].float() for name in names]) for part in parts])
    results = zip(names, table.sum(0).tolist(), table.amin(0).tolist(), table.amax(0).tolist(), strict=True)
    return {
        name: low if name.endswith("/min") else high if name.endswith("/max") else total
        for name, total, low, high in results
    }
