"""Mixed: policy gradient on live rows of rollout groups, together with imitation of expert rows.

L = (1 - mu)·L_policy + mu·L_expert. L_policy is all of `policy_gradient.py` over the live rows. L_expert is
`supervised.py` over the expert rows, at the rollouts' temperature. Each is normalised by its own counts of
the whole step, so that neither the number of rows of a kind nor the size of micro-batches changes the two
shares.

Source: CHORD, arXiv 2508.11408. Trinity-RFT's `mix` and `mix_chord` give the same if a step is one
micro-batch. With several micro-batches they average each and weight them by rows. Their divergence and
entropy are added to the sum, and are not part of L_policy.
"""

import math
from typing import Any

from torch import Tensor

from trinity_db.trainer.algorithms.interface import Columns, Shares
from trinity_db.trainer.algorithms.policy_gradient import PolicyGradient
from trinity_db.trainer.algorithms.supervised import Supervised
from trinity_db.trainer.recipes.parts.totals import Totals
from trinity_db.trainer.recipes.recipes import MixConfig, SupervisedConfig


class Mixed(PolicyGradient):
    """Learns from rows of rollout groups and from expert rows. The column `is_expert` marks the latter."""

    def __init__(self, config: MixConfig) -> None:
        super().__init__(config)
        self._mix = config
        self._expert = Supervised(SupervisedConfig(loss=config.expert_loss, aggregation=config.aggregation))
        self._steps_done = 0

    @property
    def needs(self) -> dict[str, str]:
        return self._expert.needs | super().needs | {"is_expert": "expert_loss"}

    def prepare(self, rows: Columns) -> tuple[Columns, dict[str, float]]:
        """Prepare the live rows like policy gradient. Expert rows are unchanged."""
        is_live = ~rows["is_expert"]
        live, metrics = super().prepare({name: values[is_live] for name, values in rows.items()})
        return {
            name: _with_experts(rows.get(name), values, is_live) for name, values in live.items()
        }, metrics

    def shares(self, rows: Columns, totals: Totals) -> Shares:
        is_expert = rows["is_expert"][:, None]
        live, expert = _by_kind(totals)
        policy = super().shares({**rows, "mask": rows["mask"] & ~is_expert}, live)
        imitation = self._expert.shares({**rows, "mask": rows["mask"] & is_expert}, expert)
        mu = self._mu()
        loss = (1 - mu) * policy["loss"] + mu * imitation["loss"]
        return policy | {f"expert/{name}": share for name, share in imitation.items()} | {"loss": loss}

    def after_step(self, metrics: dict[str, float], totals: Totals) -> dict[str, float]:
        """Count the step, which sets the next mu. Return the mu that this step used, and other metrics."""
        used = self._mu()
        self._steps_done += 1
        live, _ = _by_kind(totals)
        return super().after_step(metrics, live) | {"mu": used}

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"steps_done": self._steps_done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._steps_done = state["steps_done"]
        super().load_state_dict({name: value for name, value in state.items() if name != "steps_done"})

    def _mu(self) -> float:
        return scheduled_mu(
            self._steps_done + 1,
            mu=self._mix.mu,
            valley=self._mix.mu_valley,
            warmup_steps=self._mix.mu_warmup_steps,
            decay_steps=self._mix.mu_decay_steps,
        )


def scheduled_mu(
    step: int, *, mu: float, valley: float | None = None, warmup_steps: int = 0, decay_steps: int = 0
) -> float:
    """The expert rows' share of the loss at a step, counted from 1.

    It rises linearly to mu within `warmup_steps`. Then it falls along half a cosine within `decay_steps`, and
    stays constant.

    Args:
        valley: The share at the end of the fall. None: the share stays at mu.

    Sources: CHORD-µ, arXiv 2508.11408; Trinity-RFT for the form of warm-up and decay.
    """
    if step < warmup_steps:
        return mu * step / warmup_steps
    if valley is None:
        return mu
    progress = min(1.0, (step - warmup_steps) / decay_steps)
    return valley + (mu - valley) * 0.5 * (1 + math.cos(math.pi * progress))


def _with_experts(before: Tensor | None, live: Tensor, is_live: Tensor) -> Tensor:
    """[N, ...] A column with the live rows' new values. Expert rows keep their values, or get 0 in a new
    column.

    A column also counts as new if `prepare` has changed its shape.
    """
    shape = (len(is_live), *live.shape[1:])
    is_known = before is not None and before.shape == shape
    values = before.to(live.dtype, copy=True) if before is not None and is_known else live.new_zeros(shape)
    values[is_live] = live
    return values


def _by_kind(totals: Totals) -> tuple[Totals, Totals]:
    """Return the counts of the live rows, and the counts of the expert rows.

    A part of a batch may have no row of a kind. The kind's loss is then 0, over a count of 1.
    """
    tokens, sequences = totals.expert_tokens, totals.expert_sequences
    expert = Totals(max(tokens, 1), max(sequences, 1), max(sequences, 1))
    live = Totals(
        max(totals.tokens - tokens, 1),
        max(totals.sequences - sequences, 1),
        max(totals.items - sequences, 1),
        same_version_tokens=totals.same_version_tokens,
    )
    return live, expert
