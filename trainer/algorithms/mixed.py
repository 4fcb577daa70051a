"""Mixed: rollout groups learned from by reward, and beside them what an expert wrote, imitated.

L = (1 - mu)·L_policy + mu·L_expert: the whole of `policy_gradient.py` over the live rows, which knows of
no expert, and `supervised.py` over the expert rows, at the rollouts' temperature too. Each is normalised by
its own counts of the whole step: neither how many rows of a kind there are nor how they fall into
micro-batches changes their shares. Source: CHORD, arXiv 2508.11408. Trinity-RFT's `mix` and `mix_chord` are
so where a step is one micro-batch; of several they take means, which they weigh by rows. Divergence and
entropy stand beside the sum there, not in its first part.
"""

import math
from typing import Any

from torch import Tensor

from trinity_db.trainer.algorithms.interface import Columns, Shares, Totals
from trinity_db.trainer.algorithms.policy_gradient import PolicyGradient
from trinity_db.trainer.algorithms.supervised import Supervised
from trinity_db.trainer.recipes import MixConfig, SupervisedConfig


class Mixed(PolicyGradient):
    """Rows of rollout groups, and expert rows, which `is_expert` tells apart."""

    def __init__(self, config: MixConfig) -> None:
        super().__init__(config)
        self._mix = config
        self._expert = Supervised(SupervisedConfig(loss=config.expert_loss, aggregation=config.aggregation))
        self._steps_done = 0

    @property
    def needs(self) -> dict[str, str]:
        return self._expert.needs | super().needs | {"is_expert": "expert_loss"}

    def prepare(self, rows: Columns) -> tuple[Columns, dict[str, float]]:
        """The live rows as they are prepared by themselves, and the expert rows as they are."""
        is_live = ~rows["is_expert"]
        live, metrics = super().prepare({name: values[is_live] for name, values in rows.items()})
        return {name: _beside(rows.get(name), values, is_live) for name, values in live.items()}, metrics

    def shares(self, rows: Columns, totals: Totals) -> Shares:
        is_expert = rows["is_expert"][:, None]
        live, expert = _by_kind(totals)
        policy = super().shares({**rows, "mask": rows["mask"] & ~is_expert}, live)
        imitation = self._expert.shares({**rows, "mask": rows["mask"] & is_expert}, expert)
        mu = self._mu()
        loss = (1 - mu) * policy["loss"] + mu * imitation["loss"]
        return policy | {f"expert/{name}": share for name, share in imitation.items()} | {"loss": loss}

    def learned(self, metrics: dict[str, float], totals: Totals) -> dict[str, float]:
        """After a step: the next one's mu follows from how many there were; metrics of this one's."""
        used = self._mu()
        self._steps_done += 1
        live, _ = _by_kind(totals)
        return super().learned(metrics, live) | {"mu": used}

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
    """The expert rows' share of the loss at a step, counted from 1: a line up to mu, half a cosine down.

    Args:
        valley: what it falls to within `decay_steps` after the warm-up, for good; None: it stays at mu.

    Source: CHORD-µ, arXiv 2508.11408; the form of warm-up and decay, Trinity-RFT.
    """
    if step < warmup_steps:
        return mu * step / warmup_steps
    if valley is None:
        return mu
    progress = min(1.0, (step - warmup_steps) / decay_steps)
    return valley + (mu - valley) * 0.5 * (1 + math.cos(math.pi * progress))


def _beside(before: Tensor | None, live: Tensor, is_live: Tensor) -> Tensor:
    """[N, ...] The live rows' values in their places; in the others what stood there, or 0."""
    shape = (len(is_live), *live.shape[1:])
    stood = before is not None and before.shape == shape
    values = before.clone() if before is not None and stood else live.new_zeros(shape)
    values[is_live] = live.to(values.dtype)
    return values


def _by_kind(totals: Totals) -> tuple[Totals, Totals]:
    """The counts of the live rows, and those of the expert rows."""
    expert = Totals(totals.expert_tokens, totals.expert_sequences, totals.expert_sequences)
    live = Totals(
        totals.tokens - expert.tokens, totals.sequences - expert.sequences, totals.items - expert.items
    )
    return live, expert
