"""The learner: policy, optimizer and step counter, and what one optimizer step does with a batch.

The learner owns everything that a checkpoint holds. It reads payloads and returns metrics. The service draws
batches, commits and publishes; the algorithm computes the loss; the policy asks the models.

A step has two phases. First `gathered_columns.py` gathers the columns of the whole batch and prepares them
without gradient. Then the learner trains on them, one micro-batch after the other. Where several ranks train
together (`distribution/ranks.py`), each goes through its own micro-batches; the results are summed, so that
all ranks make the same step.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from trinity_db.arrays import Payload
from trinity_db.errors import TrinityError
from trinity_db.models.canary import Canary
from trinity_db.trainer.algorithms.compositions import create
from trinity_db.trainer.algorithms.interface import Columns, Shares
from trinity_db.trainer.config import AlgorithmConfig, TrainerConfig
from trinity_db.trainer.distribution.ranks import ALONE, Ranks, split_by_cost
from trinity_db.trainer.distribution.sharding import (
    clip,
    sharded_state,
    sum_gradients,
    whole_tensors,
)
from trinity_db.trainer.learner.gathered_columns import Batch, gather_columns
from trinity_db.trainer.learner.policy import Policy
from trinity_db.trainer.parts.totals import Totals


class NonFiniteLoss(TrinityError):
    """A step's loss or gradient is infinite or not a number. The learner has not changed the weights."""


class Abandoned(Exception):
    """The learner stopped between two micro-batches. Its state is that of before the step or evaluation."""


class Learner:
    """A policy with its algorithm, its optimizer and its step counter.

    Args:
        model: folder of the starting model, or of the checkpoint that training continues from.
        total_steps: optimizer steps of the whole run; the learning rate's schedule needs them.
        reference: folder of the run's starting model. Algorithms compare the policy with it, and adapters
            are added to it. None: `model`.
        temperature: of the run that sampled the tokens; payloads may have others. Log-probabilities are
            computed at the temperature of each token, so that ratios compare like with like.
        should_stop: the learner calls it between two micro-batches. If it returns True, the learner raises
            `Abandoned`. Of several ranks, only the first rank's function is called.
        ranks: the processes that train this policy together.
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
        ranks: Ranks = ALONE,
    ) -> None:
        self.config = config
        self.ranks = ranks
        self.algorithm = create(algorithm)
        self.policy = Policy(
            model,
            config,
            start=reference or model,
            has_reference="reference" in self.algorithm.needs and config.reference.name != "precomputed",
            has_values="values" in self.algorithm.needs,
            temperature=temperature,
            device=device or ranks.device,
            ranks=ranks,
        )
        self.optimizer = torch.optim.AdamW(
            self.policy.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay, fused=True
        )
        self.steps_done = 0
        self.num_tokens = 0
        """Tokens of all rows so far, prompts included."""
        self._total_steps = total_steps
        self._should_stop = should_stop

    def step(self, batch: Batch) -> dict[str, float]:
        """Take one optimizer step.

        Returns:
            the algorithm's metrics, `grad_norm` before clipping, `learning_rate`, and `num_tokens` so far.

        Raises:
            ConfigError: the rows lack a column that the algorithm reads.
            NonFiniteLoss: the weights and the step counter are unchanged.
            Abandoned: the weights and the step counter are unchanged, and the gradients are cleared.
        """
        self.optimizer.zero_grad()
        rows, totals, metrics = self._prepare(batch)
        metrics |= self._backward(batch, rows, totals)
        sum_gradients(self.policy.parameters(), self.ranks)
        metrics["grad_norm"] = clip(self.policy.parameters(), self.config.max_grad_norm)
        if not (math.isfinite(metrics["loss"]) and math.isfinite(metrics["grad_norm"])):
            raise NonFiniteLoss(
                f"Step {self.steps_done + 1}: the loss is {metrics['loss']} and its gradient's norm "
                f"{metrics['grad_norm']}. Look at its rows, with trinity-db batches and replay, or lower "
                "trainer.learning_rate in a new run that starts from this one, by model: {run: NAME}, or "
                "from an earlier checkpoint of it, by model: {path: FOLDER}."
            )
        metrics["learning_rate"] = learning_rate(self.config, self.steps_done, self._total_steps)
        for group in self.optimizer.param_groups:
            group["lr"] = metrics["learning_rate"]
        self.optimizer.step()
        self.steps_done += 1
        self.policy.after_step(self.steps_done)
        self.num_tokens += sum(payload.num_tokens for payload in batch.payloads)
        metrics["num_tokens"] = float(self.num_tokens)
        return metrics | self.algorithm.after_step(metrics, totals)

    @torch.no_grad()
    def evaluate(self, batch: Batch) -> dict[str, float]:
        """Compute the algorithm's metrics on rows without learning from them.

        Raises:
            Abandoned: there is no result.
        """
        rows, totals, metrics = self._prepare(batch)
        shares = [shares for shares, counts in self._shares(batch, rows, totals) if counts]
        return metrics | self._combine(shares)

    def state_dict(self) -> dict[str, Any]:
        """All that the next step depends on, except the weights.

        Where weights are sharded, all ranks call it together, and only the first one gets whole tensors.
        """
        return {
            "steps_done": self.steps_done,
            "num_tokens": self.num_tokens,
            "optimizer": whole_tensors(self.optimizer.state_dict(), self.ranks),
            "rng": torch.get_rng_state(),
            "cuda_rng": [torch.cuda.get_rng_state()] if torch.cuda.is_available() else [],
            "algorithm": self.algorithm.state_dict(),
        }

    @contextmanager
    def ready_to_save(self) -> Iterator[tuple[dict[str, Any], Canary | None]]:
        """Within this `with`, the first rank can save the policy; the values are `state_dict` and its canary.

        All ranks enter it together.
        """
        state, canary = self.state_dict(), self.policy.canary()
        with self.policy.whole_weights():
            yield state, canary

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict`. The weights come from the checkpoint's model."""
        self.steps_done = state["steps_done"]
        self.num_tokens = state["num_tokens"]
        self.optimizer.load_state_dict(sharded_state(state["optimizer"], self.policy.parameters()))
        for group in self.optimizer.param_groups:  # the current setting, which may have changed since
            group["weight_decay"] = self.config.weight_decay
        self.algorithm.load_state_dict(state["algorithm"])
        torch.set_rng_state(state["rng"])
        if torch.cuda.is_available() and state["cuda_rng"]:
            torch.cuda.set_rng_state(state["cuda_rng"][0])

    def _prepare(self, batch: Batch) -> tuple[Columns, Totals, dict[str, float]]:
        """Return the columns of the whole step, the counts of what trains, and metrics of the columns."""
        columns = gather_columns(batch, self.algorithm, self.policy, self._micro_batches)
        rows, metrics = self.algorithm.prepare(columns)
        lengths = rows["mask"].sum(dim=1)
        items = (lengths.reshape(-1, self.algorithm.width) > 0).any(dim=1)
        expert = lengths[rows["is_expert"]] if "is_expert" in rows else lengths[:0]
        totals = Totals(
            tokens=int(lengths.sum()),
            sequences=int((lengths > 0).sum()),
            items=int(items.sum()),
            expert_tokens=int(expert.sum()),
            expert_sequences=int((expert > 0).sum()),
            same_version_tokens=int((rows["same_version"] & rows["mask"]).sum())
            if "same_version" in rows
            else 0,
        )
        return rows, totals, metrics

    def _backward(self, batch: Batch, rows: Columns, totals: Totals) -> dict[str, float]:
        """Add up the gradients of this rank's micro-batches. Return the metrics of all ranks' micro-batches.

        Raises:
            Abandoned: the gradients are cleared.
        """
        parts = []
        try:
            for shares, counts in self._shares(batch, rows, totals):
                torch.autograd.backward(shares["loss"] if counts else 0.0 * shares["loss"])
                if counts:
                    parts.append({name: share.detach() for name, share in shares.items()})
        except Abandoned:
            self.optimizer.zero_grad()
            raise
        return self._combine(parts)

    def _shares(self, batch: Batch, rows: Columns, totals: Totals) -> Iterator[tuple[Shares, bool]]:
        """Yield the algorithm's shares of each micro-batch of this rank, and whether they count."""
        width = self.algorithm.width
        trains = rows["mask"].any(dim=1).reshape(-1, width).any(dim=1).repeat_interleave(width)
        kept = trains.nonzero()[:, 0].tolist()
        payloads = [batch.payloads[i] for i in kept]
        for places, counts in self._micro_batches(payloads):
            scored = self.policy.forward(
                [payloads[place] for place in places], entropy_gradient="entropy" in self.algorithm.needs
            )
            chosen = [kept[place] for place in places]
            columns = _rows_of(rows, chosen, scored.mask.shape[1]) | scored.columns
            yield self.algorithm.shares(columns, totals), counts

    def _micro_batches(self, payloads: Sequence[Payload]) -> Iterator[tuple[list[int], bool]]:
        """Yield the indices of each micro-batch of this rank, and whether its results count.

        Every rank gets the same number of micro-batches, because sharded weights make all ranks compute
        together. A rank that runs out computes the cheapest item again, and that result does not count.

        Raises:
            Abandoned: the first rank's `should_stop` returned True.
        """
        width = self.algorithm.width
        costs = (
            np.array([payload.num_tokens for payload in payloads], np.int64).reshape(-1, width).sum(axis=1)
        )
        plans = []
        for items in split_by_cost(costs.tolist(), self.ranks.size):
            own = [item * width + member for item in items for member in range(width)]
            batches = self.policy.forward.micro_batches([payloads[i] for i in own], width)
            plans.append([[own[place] for place in places] for places in batches])
        for number in range(max(map(len, plans))):
            if number and self.ranks.broadcast(self._should_stop()):
                raise Abandoned
            mine = plans[self.ranks.rank][number : number + 1]
            cheapest = int(costs.argmin()) * width
            yield (mine[0], True) if mine else (list(range(cheapest, cheapest + width)), False)

    def _combine(self, parts: Sequence[Shares]) -> dict[str, float]:
        """Combine the shares of all micro-batches of all ranks.

        A metric whose name ends in /min or /max is their minimum or maximum. Any other is their sum.
        """
        everywhere = [part for rank in self.ranks.gather(_as_floats(parts)) for part in rank]
        if not everywhere:  # no row of the batch trains
            return {"loss": 0.0}
        columns = {name: [part[name] for part in everywhere] for name in everywhere[0]}
        return {
            name: min(values)
            if name.endswith("/min")
            else max(values)
            if name.endswith("/max")
            else sum(values)
            for name, values in columns.items()
        }


def learning_rate(config: TrainerConfig, step: int, total_steps: int) -> float:
    """The learning rate of a step, counted from 0: a linear warm-up, then the configured schedule."""
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    progress = min(1.0, (step - config.warmup_steps) / max(1, total_steps - config.warmup_steps))
    factor = {
        "constant": 1.0,
        "linear": 1.0 - progress,
        "cosine": 0.5 * (1.0 + math.cos(math.pi * progress)),
    }[config.schedule]
    return config.learning_rate * factor


def _rows_of(rows: Columns, chosen: list[int], width: int) -> dict[str, torch.Tensor]:
    """The chosen rows of all columns. Columns with a number for each token are cut to `width` tokens."""
    per_token = rows["mask"].shape
    columns = {name: values[chosen] for name, values in rows.items()}
    return {name: one[:, :width] if rows[name].shape == per_token else one for name, one in columns.items()}


def _as_floats(parts: Sequence[Shares]) -> list[dict[str, float]]:
    """Read the tensors in one transfer, because each separate read makes the CPU wait for the GPU."""
    if not parts:
        return []
    names = list(parts[0])
    table = torch.stack([torch.stack([part[name].float() for name in names]) for part in parts])
    return [dict(zip(names, row, strict=True)) for row in table.tolist()]
