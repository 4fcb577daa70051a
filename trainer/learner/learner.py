"""The learner: policy, optimizer and step counter, and the computation of one step.

The learner owns the content of a checkpoint. It reads payloads and returns metrics. The service draws
batches, commits and publishes; the algorithm computes the loss; the policy calls the models.

A step has two phases. First `gathered_columns.py` gathers the columns of the whole batch and prepares them
without gradient. Then the learner trains on them, in one or several updates of the weights (`updates.py`),
each over a sequence of micro-batches. If several ranks train together (`distribution/ranks.py`), each
processes its own micro-batches; the results are summed, so that all ranks make the same step.
"""

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trinity_db.arrays.codec import Payload
from trinity_db.errors import TrinityError
from trinity_db.models.canary import Canary
from trinity_db.models.weights_file import WeightsFile
from trinity_db.trainer.algorithms.compositions import create
from trinity_db.trainer.algorithms.interface import Columns, Shares
from trinity_db.trainer.config import AlgorithmConfig, TrainerConfig
from trinity_db.trainer.distribution.ranks import ALONE, Ranks
from trinity_db.trainer.distribution.sharding import (
    clip,
    sharded_state,
    sum_gradients,
)
from trinity_db.trainer.learner.gathered_columns import Batch, gather_columns
from trinity_db.trainer.learner.loss_scale import LossScale
from trinity_db.trainer.learner.memory import rows_have_to_fit
from trinity_db.trainer.learner.micro_batches import Abandoned, MicroBatch, micro_batches
from trinity_db.trainer.learner.optimizer import Optimizer
from trinity_db.trainer.learner.policy import Policy
from trinity_db.trainer.learner.shares import combined
from trinity_db.trainer.learner.updates import Undo, metrics_of, rows_of_updates
from trinity_db.trainer.recipes.parts.totals import count

logger = logging.getLogger(__name__)


class NonFiniteLoss(TrinityError):
    """A loss or gradient of a step is infinite or NaN. The weights are unchanged."""


class Learner:
    """A policy with its algorithm, its optimizer and its step counter.

    Args:
        model: Folder of the starting model, or of the checkpoint that training continues from.
        total_steps: Steps of the whole run, for the learning rate schedule.
        reference: Folder of the run's starting model. Algorithms compare the policy with it, and adapters are
            added to it. None: `model`.
        reference_digest: Digest of its files. None: computed if needed.
        temperature: Sampling temperature of the run; payloads may have others. Log-probabilities are computed
            at the temperature of each token, so that ratios are comparable.
        should_stop: Called between two micro-batches. If it returns True, the learner raises `Abandoned`.
            With several ranks, only the first rank's function is called.
        ranks: The processes that train this policy together.
    """

    def __init__(
        self,
        config: TrainerConfig,
        algorithm: AlgorithmConfig,
        model: Path,
        *,
        total_steps: int,
        reference: Path | None = None,
        reference_digest: str | None = None,
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
            start_digest=reference_digest,
            has_reference="reference" in self.algorithm.needs and config.reference.name != "precomputed",
            has_values="values" in self.algorithm.needs,
            says_rewards=self.algorithm.reads_ends,
            temperature=temperature,
            device=device or ranks.device,
            ranks=ranks,
        )
        self.optimizer = Optimizer(
            config, self.policy.weights, self.policy.head_weights, self.policy.embeddings
        )
        self.loss_scale = LossScale(self.policy.forward.computing.dtype)
        self.steps_done = 0
        self.num_tokens = 0
        """Tokens of all rows so far, prompts included."""
        self._total_steps = total_steps
        self._should_stop = should_stop
        self._being_written: list[WeightsFile] = []
        """Files that may still read the learner's own tensors."""

    def step(self, batch: Batch) -> dict[str, float]:
        """Learn from one batch, in one or several updates of the weights.

        Returns:
            The algorithm's metrics, `grad_norm` before clipping, `learning_rate`, and `num_tokens` so far.

        Raises:
            ConfigError: if the rows lack a column that the algorithm reads.
            NonFiniteLoss: if the loss is not finite; weights, optimizer and step counter are unchanged.
            Abandoned: if stopped; they are unchanged, and the gradients are cleared.
            TrinityError: if a micro-batch does not fit into memory.
        """
        with self._rows_have_to_fit(batch.payloads):
            metrics = self._step(self._read(batch))
        self.num_tokens += sum(payload.num_tokens for payload in batch.payloads)
        return metrics | {"num_tokens": float(self.num_tokens)}

    def _rows_have_to_fit(self, payloads: Sequence[Payload], **keys: Any) -> AbstractContextManager[None]:
        width, limit = self.algorithm.width, self.policy.forward.max_tokens
        return rows_have_to_fit(self.config, payloads, width, self.ranks.size, limit=limit, **keys)

    def _read(self, batch: Batch) -> Batch:
        """Return the batch with the trained tokens that the algorithm reads, and the expert choices to
        replay.

        Raises:
            ConfigError: if the policy cannot replay them.
        """
        if self.algorithm.reads_ends:
            return replace(batch, payloads=self.policy.ends(batch.payloads))
        return replace(batch, payloads=self.policy.routing.read(batch.payloads))

    def _step(self, batch: Batch) -> dict[str, float]:
        rows, metrics = self._prepare(batch, num_updates=self.config.updates)
        trained = self._trained(rows)
        metrics["learning_rate"] = self.optimizer.set_rate(self.steps_done, self._total_steps)
        metrics |= metrics_of(self._update(batch, rows, trained))
        self.steps_done += 1
        self.policy.after_step(self.steps_done)
        return metrics | self.algorithm.after_step(metrics, count(rows, trained, self.algorithm.width))

    @torch.no_grad()
    def evaluate(self, batch: Batch) -> dict[str, float]:
        """Compute the algorithm's metrics on rows without learning from them.

        Raises:
            Abandoned: if stopped, without a result.
            TrinityError: if a micro-batch does not fit into memory.
        """
        with self._rows_have_to_fit(batch.payloads, keys=("sharding", "offload")):
            batch = self._read(batch)
            rows, metrics = self._prepare(batch)
            results = self._shares(batch, rows, self._trained(rows))
            return metrics | combined([shares for shares, counts, _ in results if counts], self.ranks)

    def state_dict(self) -> dict[str, Any]:
        """Return everything that the next step depends on, except the weights.

        If weights are sharded, the optimizer's state has this rank's parts.
        """
        return {
            "steps_done": self.steps_done,
            "num_tokens": self.num_tokens,
            "dtype": self.policy.forward.computing.dtype,
            "optimizer": self.optimizer.state_dict(),
            "rng": torch.get_rng_state(),
            "cuda_rng": [torch.cuda.get_rng_state()] if torch.cuda.is_available() else [],
            "algorithm": self.algorithm.state_dict(),
            "loss_scale": self.loss_scale.state_dict(),
            "visible": self.policy.visible.state_dict() if self.policy.visible else None,
        }

    @contextmanager
    def ready_to_save(self) -> Iterator[Canary | None]:
        """Within this `with`, the first rank can save the policy as a version; the value is its canary.

        All ranks enter it together.
        """
        self._copy_unwritten()  # a canary may temporarily round the weights
        self.optimizer.zero_grad()  # frees memory for copies of the weights
        canary = self.policy.canary()
        with self.policy.whole_weights():
            yield canary

    def copy_before_change(self, file: WeightsFile) -> None:
        """Let a thread write a file of the learner's own tensors, in their current state.

        Before the learner changes tensors, it copies the unwritten ones.
        """
        self._being_written.append(file)

    def publish_in(self, dtype: str) -> None:
        """Round further versions to a number format. All ranks call it together."""
        self.policy.publish_in(getattr(torch, dtype))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict`. It has no weights.

        Warns if earlier steps were computed in another dtype, for example on a GPU.
        """
        before, now = state["dtype"], self.policy.forward.computing.dtype
        if before != now:
            logger.warning(
                "steps are computed in %s from now on, and were in %s: trainer.dtype: %s follows the device",
                *(now, before, self.config.dtype),
            )
        self.steps_done = state["steps_done"]
        self.num_tokens = state["num_tokens"]
        self.optimizer.load_state_dict(sharded_state(state["optimizer"], self.policy.parameters()))
        self.algorithm.load_state_dict(state["algorithm"])
        self.loss_scale.load_state_dict(state["loss_scale"])
        if self.policy.visible:
            self.policy.visible.resume(state.get("visible"))
        torch.set_rng_state(state["rng"])
        if torch.cuda.is_available() and state["cuda_rng"]:
            torch.cuda.set_rng_state(state["cuda_rng"][0])

    def _prepare(self, batch: Batch, num_updates: int = 1) -> tuple[Columns, dict[str, float]]:
        """Return the columns of the whole batch, and metrics of them.

        With one update the gradient is computed for the policy at the start of the step.
        """
        has_start = self.algorithm.compares_start or num_updates > 1
        later = () if has_start else ("proximal",)
        columns = gather_columns(batch, self.algorithm, self.policy, self._micro_batches, later)
        return self.algorithm.prepare(columns)

    def _trained(self, rows: Columns) -> list[int]:
        """Return the rows that are trained on: those of items with at least one trained token."""
        width = self.algorithm.width
        trains = rows["mask"].any(dim=1).reshape(-1, width).any(dim=1).repeat_interleave(width)
        return trains.nonzero()[:, 0].tolist()

    def _update(self, batch: Batch, rows: Columns, trained: list[int]) -> list[dict[str, float]]:
        """Make all updates of a step. Return the metrics of each.

        Raises:
            NonFiniteLoss: if one of them fails; all are undone.
            Abandoned: if stopped; all are undone, and the gradients are cleared.
        """
        updates = rows_of_updates(rows, trained, self.algorithm.width, self.config, self.steps_done)
        undo: Undo | None = None
        measured = []
        try:
            for number, chosen in enumerate(updates, 1):
                measured.append(self._gradient(batch, rows, chosen, number))
                if number == 1 and len(updates) > 1:
                    undo = Undo(self.policy.parameters(), self.optimizer.parts)
                self._copy_unwritten()
                self.optimizer.step()
                self.loss_scale.count_update()
        except (Abandoned, NonFiniteLoss):
            if undo:
                undo.restore()
            raise
        return measured

    def _copy_unwritten(self) -> None:
        for file in self._being_written:
            file.copy_unwritten()
        self._being_written.clear()

    def _gradient(self, batch: Batch, rows: Columns, chosen: list[int], number: int) -> dict[str, float]:
        """Compute the gradient of the chosen rows, the same on all ranks, and clip it. Return the metrics."""
        metrics = self._clipped(batch, rows, chosen)
        while math.isfinite(metrics["loss"]) and not math.isfinite(metrics["grad_norm"]):
            if not self.loss_scale.lower():
                break
            metrics = self._clipped(batch, rows, chosen)
        if not (math.isfinite(metrics["loss"]) and math.isfinite(metrics["grad_norm"])):
            update = f", update {number}" if self.config.updates > 1 else ""
            raise NonFiniteLoss(
                f"Step {self.steps_done + 1}{update}: the loss is {metrics['loss']} and its gradient's norm "
                f"{metrics['grad_norm']}. Look at its rows, with trinity-db batches and replay, or lower "
                "trainer.learning_rate in a new run that starts from this one, with model: {run: NAME}, or "
                "from an earlier checkpoint of it, with model: {path: FOLDER}."
            )
        return metrics

    def _clipped(self, batch: Batch, rows: Columns, chosen: list[int]) -> dict[str, float]:
        """Compute and clip the gradient with the current loss scale. It may be infinite."""
        self.optimizer.zero_grad()
        metrics = self._backward(batch, rows, chosen)
        sum_gradients(self.policy.parameters(), self.ranks)
        norm = clip(self.policy.parameters(), self.config.max_grad_norm, self.loss_scale.factor)
        return metrics | {"grad_norm": norm} | self.loss_scale.metrics()

    def _backward(self, batch: Batch, rows: Columns, chosen: list[int]) -> dict[str, float]:
        """Accumulate the gradients of this rank's micro-batches. Return the metrics of all ranks'
        micro-batches.

        Raises:
            Abandoned: if stopped; the gradients are cleared.
        """
        parts = []
        try:
            experts = self._chosen_experts([batch.payloads[i] for i in chosen])
            for shares, counts, is_last in self._shares(batch, rows, chosen, experts):
                self.policy.sum_gradients_after(is_last)
                torch.autograd.backward(shares["loss"] * (self.loss_scale.factor if counts else 0.0))
                if counts:
                    parts.append({name: share.detach() for name, share in shares.items()})
        except Abandoned:
            self.policy.forget_gradients(min(batch.payloads, key=lambda payload: payload.num_tokens))
            raise
        return combined(parts, self.ranks)

    def _chosen_experts(self, payloads: Sequence[Payload]) -> Tensor | None:
        """[E] How often each expert is chosen in an update, if a loss balances that. All ranks call it."""
        loss = self.policy.router_loss
        if loss is None or not payloads:
            return None
        loads = [
            part.counts * self.policy.forward.load([payloads[i] for i in part.rows], loss.chosen)[0].double()
            for part in self._micro_batches(payloads)
        ]
        return self.ranks.sum(torch.stack(loads).sum(0))

    def _shares(
        self, batch: Batch, rows: Columns, chosen: list[int], experts: Tensor | None = None
    ) -> Iterator[tuple[Shares, bool, bool]]:
        """Yield the algorithm's shares of each micro-batch, whether they count, and whether they are the last
        ones.

        Args:
            experts: How often each is chosen in the update. None: their load is not balanced.
        """
        loss = self.policy.router_loss if experts is not None else None
        totals = count(rows, chosen, self.algorithm.width)
        payloads = [batch.payloads[i] for i in chosen]
        for micro_batch in self._micro_batches(payloads):
            indices = micro_batch.rows
            scored = self.policy.forward(
                [payloads[index] for index in indices],
                entropy_gradient="entropy" in self.algorithm.needs,
                routed=loss.chosen if loss else None,
            )
            columns = _rows_of(rows, [chosen[index] for index in indices], scored.mask.shape[1])
            shares = self.algorithm.shares(columns | scored.columns, totals)
            if loss and experts is not None and scored.load is not None:
                shares = loss.added(shares, scored.load, experts)
            shares = self.policy.routing.added(shares, scored, payloads)
            yield shares, micro_batch.counts, micro_batch.is_last

    def _micro_batches(self, payloads: Sequence[Payload]) -> Iterator[MicroBatch]:
        """Yield each micro-batch of this rank; see `micro_batches`."""
        return micro_batches(
            payloads, self.algorithm.width, self.policy.forward, self.ranks, self._should_stop
        )


def _rows_of(rows: Columns, chosen: list[int], width: int) -> dict[str, Tensor]:
    """Return the chosen rows of all columns. Per-token columns are cut to `width` tokens."""
    per_token = rows["mask"].shape
    places = torch.tensor(chosen, device=rows["mask"].device)  # sent to a GPU once, not for each column
    columns = {name: values[places] for name, values in rows.items()}
    return {
        name: values[:, :width] if rows[name].shape == per_token else values
        for name, values in columns.items()
    }
