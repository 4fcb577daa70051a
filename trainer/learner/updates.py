"""Several updates on one batch: the rows of each, undoing them, and their metrics.

A step of the run is one drawn batch, regardless of the number of updates. The columns that rows are compared
by, such as advantages and the policy at the start of the step, are computed before the first update, and then
fixed.
"""

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from trinity_db.trainer.algorithms.interface import Columns
from trinity_db.trainer.config import TrainerConfig

AT_THE_START = "sampling/"
"""Prefix of metrics that compare the policy at the start of a step with the policy that sampled."""
OF_EACH_UPDATE = ("approx_kl", "clip_ratio")
"""Metrics also reported for each update, because they grow from the first to the last."""


def rows_of_updates(
    rows: Columns, trained: Sequence[int], width: int, config: TrainerConfig, step: int
) -> list[list[int]]:
    """Return the rows of each update of a step, in order.

    Each pass over the batch divides its items into `minibatches` parts of about the same number. Their order
    depends only on the numbers of step and pass, so that every rank, and a repeated step, divides them alike.
    Imported rows in a batch of rollout groups are divided separately, so that each part has its share of
    both. A part without items is skipped.

    Args:
        trained: Rows to train on. Each `width` consecutive rows are an item, and stay together.
        step: Steps done so far.
    """
    if config.minibatches == 1 or not trained:
        return [list(trained)] * config.updates_per_batch
    items = np.array(trained, np.int64).reshape(-1, width)
    experts = (
        rows["is_expert"].cpu().numpy() if "is_expert" in rows else np.zeros(len(rows["mask"]), np.bool_)
    )
    is_expert = experts[items[:, 0]]
    updates = []
    for number in range(config.updates_per_batch):
        order = np.random.default_rng([step, number]).permutation(len(items))
        kinds = [order[~is_expert[order]], order[is_expert[order]]]
        parts = zip(*(np.array_split(kind, config.minibatches) for kind in kinds), strict=True)
        updates += [items[np.sort(np.concatenate(part))].flatten().tolist() for part in parts]
    return [update for update in updates if update]


class Undo:
    """Copies the weights and the optimizer's state, so that a failed step can be undone.

    Each rank copies its own part into main memory: with AdamW 12 bytes per trained parameter in float32. A
    step with one update needs no copy, because it can fail only before its update.
    """

    def __init__(self, parameters: Iterable[Tensor], optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self._weights = [(parameter, _copy(parameter)) for parameter in parameters]
        self._states = [
            (optimizer.state, {parameter: _copied(state) for parameter, state in optimizer.state.items()})
            for optimizer in optimizers
        ]
        self._groups = [
            (group, _copied({name: value for name, value in group.items() if name != "params"}))
            for optimizer in optimizers
            for group in optimizer.param_groups
        ]

    @torch.no_grad()
    def restore(self) -> None:
        """Restore weights and state exactly."""
        for parameter, weights in self._weights:
            _local(parameter).copy_(weights)
        for states, before in self._states:
            for parameter in list(states):
                if parameter in before:
                    _restore(states[parameter], before[parameter])
                else:
                    del states[parameter]
        for group, values in self._groups:
            _restore(group, values | {"params": group["params"]})


def metrics_of(updates: Sequence[dict[str, float]]) -> dict[str, float]:
    """Return the metrics of a step from those of its updates.

    Most are means over the updates. Metrics about the start of the step are the first update's; /min and /max
    are the minimum and the maximum. With several updates, some are also reported for each.
    """
    if len(updates) == 1:
        return updates[0]
    metrics: dict[str, float] = {}
    for name in dict.fromkeys(name for update in updates for name in update):
        values = [update[name] for update in updates if name in update]
        if name.startswith(AT_THE_START):
            metrics |= {name: updates[0][name]} if name in updates[0] else {}
        elif name.endswith("/min"):
            metrics[name] = min(values)
        elif name.endswith("/max"):
            metrics[name] = max(values)
        else:
            metrics[name] = sum(values) / len(values)
    return metrics | {
        f"{name}/update_{number}": update[name]
        for name in OF_EACH_UPDATE
        for number, update in enumerate(updates, 1)
        if name in update
    }


def _restore(values: dict[str, Any], before: Mapping[str, Any]) -> None:
    for name in list(values):
        if name not in before:
            del values[name]
        elif isinstance(values[name], Tensor) and values[name] is not before[name]:
            _local(values[name]).copy_(before[name])
        else:
            values[name] = before[name]


def _copied(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _copy(value) for name, value in values.items()}


def _copy(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return deepcopy(value)
    return _local(value).detach().to("cpu", copy=True)


def _local(tensor: Tensor) -> Tensor:
    """Return this rank's part of a sharded tensor, or the tensor itself. Both are views of it."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
