"""Policy gradient: a loss for each trained token, weighted by advantages, with optional further terms.

The loss is a sum of terms: the policy loss times the correction's weights, plus a coefficient times the
divergence from the reference, plus a coefficient times the loss of the values, minus a coefficient times the
entropy. Each term is a sum over trained tokens, divided by a count of the whole step.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trinity_db.errors import ConfigError
from trinity_db.trainer.algorithms.interface import Algorithm, Columns, Shares
from trinity_db.trainer.recipes.parts.advantages import returns_to_go, whiten
from trinity_db.trainer.recipes.parts.aggregation import seq_mean_token_mean, token_mean
from trinity_db.trainer.recipes.parts.columns import Origin, names_of
from trinity_db.trainer.recipes.parts.corrections import (
    engine_difference,
    importance_metrics,
    interpolated_proximal,
    sampling_difference,
)
from trinity_db.trainer.recipes.parts.kinds import needs, part
from trinity_db.trainer.recipes.parts.kl import adapted_coefficient, penalised_rewards
from trinity_db.trainer.recipes.parts.policy_losses import log_ratio
from trinity_db.trainer.recipes.parts.totals import Totals
from trinity_db.trainer.recipes.parts.values import token_rewards, value_loss, value_metrics
from trinity_db.trainer.recipes.recipes import PolicyGradientConfig


class PolicyGradient(Algorithm):
    """Learns from rows of rollout groups, weighted by their advantages."""

    def __init__(self, config: PolicyGradientConfig) -> None:
        self._config = config
        self._advantage = part("advantage", config.advantage)
        self._loss = part("policy loss", config.loss)
        self._correction = part("correction", config.correction) if config.correction else None
        self._kl = part("kl", config.kl) if config.kl else None
        self._value = part("value", config.value) if config.value else None
        self._distillation = part("distillation", config.distillation) if config.distillation else None
        self._mean = part("aggregation", config.aggregation)
        self._coefficient = config.kl.coefficient if config.kl else 0.0
        reads_proximal = self._correction is not None and "proximal" in self._correction.columns
        self._old = "proximal" if reads_proximal else "behaviour"
        self._interpolates = reads_proximal and getattr(config.correction, "proximal", None) == "interpolated"
        self._penalises = config.kl is not None and config.kl.applies_to == "reward"
        self._reads_start = self._correction is not None or "proximal" in self._loss.columns
        if self._value and not self._advantage.properties.rewards_themselves:
            raise ConfigError(
                f"algorithm.value: the value is the baseline of a reward, and {self._advantage} another; "
                "set advantage: reward, or mark your own with having(rewards_themselves=True)"
            )

    @property
    def needs(self) -> dict[str, str]:
        readers = needs([self._loss, self._correction, self._kl, self._distillation])
        if self._penalises:
            readers |= {
                name: str(self._kl) for name in ("rewards", "groups", "old", *self._advantage.columns)
            }
        if self._value:
            # Values replace the advantages that the draw recorded.
            readers |= {name: str(self._value) for name in ("rewards", "values")}
            readers.pop("advantages", None)
        if "old" in readers:
            readers.setdefault(self._old, readers.pop("old"))
        if self._correction:
            # Every correction reads the policy at the start of the step, as `proximal` or as `logprobs`.
            readers |= {"proximal": str(self._correction)}
        if self._interpolates:
            readers |= {name: str(self._correction) for name in ("behaviour", "staleness")}
        if self._config.entropy_coefficient:
            readers["entropy"] = "entropy_coefficient"
        return {name: reader for name, reader in readers.items() if name not in names_of(Origin.FORWARD)}

    @property
    def compares_start(self) -> bool:
        if self._correction is None:
            return False
        early = self._penalises or (self._distillation is not None and self._config.whiten)
        return not self._correction.properties.row_by_row or (self._old == "proximal" and early)

    @property
    def compares(self) -> frozenset[str]:
        return names_of(Origin.ATTEMPT).intersection(self._advantage.columns)

    def advantages(self, columns: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
        """[n] The advantages that the draw records.

        A step uses them unchanged, with two exceptions: if there are values, or if the divergence is
        subtracted from the reward, `prepare` recomputes advantages from the policy at the start of the step.
        """
        values: NDArray[np.float64] = self._advantage(columns)
        return values

    def prepare(self, rows: Columns) -> tuple[Columns, dict[str, float]]:
        """Add `old`, the correction's weights, and the advantages that this step uses.

        Advantages are computed in float64, and get the dtype of the loss at the end.
        """
        rows, metrics = dict(rows), {}
        if "greedy" in self.compares:  # greedy rows have weight 0: they only serve as the baseline of others
            rows["mask"] = rows["mask"] & (rows["weight"] > 0)[:, None]
        start = rows.get("proximal")
        self._add_old(rows)
        if self._penalises:
            metrics["kl"] = self._penalise(rows)
        if self._value:
            metrics |= self._estimate_advantages(rows)
        if start is not None or self._old != "proximal":
            self._distil(rows)
        if self._config.whiten:
            rows["advantages"] = _whitened(rows["advantages"], rows["mask"])
        if self._correction and start is not None:
            rows["correction"] = self._correction(rows | {"logprobs": start})
        if "advantages" in rows:
            dtype = rows["old_values"].dtype if self._value else torch.float32
            rows["advantages"] = rows["advantages"].to(dtype)
        return rows, metrics

    def shares(self, rows: Columns, totals: Totals) -> Shares:
        if self._reads_start and "proximal" not in rows:
            rows = self._with_start(rows)
        mask = rows["mask"]
        terms = self._loss(rows)
        values, shares = terms["loss"], _distances(rows, totals)
        if "behaviour" in rows:
            shares |= sampling_difference(rows["logprobs"], rows["behaviour"], mask, totals)
        if totals.same_version_tokens:
            same = rows["same_version"] & mask
            shares |= engine_difference(rows["logprobs"], rows["behaviour"], same, totals)
        if "correction" in rows:
            values = values * rows["correction"]
            shares |= importance_metrics(rows["correction"], mask, totals)
        weight = rows["weight"][:, None]
        loss = shares["policy_loss"] = self._mean(_aggregation_inputs(values * weight, mask, totals))
        if self._kl and not self._penalises:
            estimates = self._kl(rows)
            shares["kl"] = seq_mean_token_mean(estimates, mask, totals)
            loss = loss + self._coefficient * self._mean(
                _aggregation_inputs(estimates * weight, mask, totals)
            )
        if self._config.value:
            shares |= self._value_shares(rows, totals)
            loss = loss + self._config.value.coefficient * shares["value_loss"]
        if coefficient := self._config.entropy_coefficient:
            loss = loss - coefficient * self._mean(
                _aggregation_inputs(rows["entropy"] * weight, mask, totals)
            )
        if self._distillation and "teacher" in rows and "old" in rows:
            shares["teacher_kl"] = token_mean(rows["old"] - rows["teacher"], mask, totals)
        if "clip_ratio" in terms:
            shares |= _clip_ratios(terms["clip_ratio"], rows["advantages"], mask, totals)
        if "unmasked_ratio" in terms:
            shares["unmasked_ratio"] = token_mean(terms["unmasked_ratio"], mask, totals)
        return shares | {"loss": loss, "entropy": token_mean(rows["entropy"], mask, totals)}

    def after_step(self, metrics: dict[str, float], totals: Totals) -> dict[str, float]:
        """Adapt the divergence's coefficient for the next step. Return the coefficient that this step
        used."""
        kl = self._config.kl
        if kl is None or kl.target is None or "kl" not in metrics:
            return {}
        used = self._coefficient
        self._coefficient = adapted_coefficient(
            used, metrics["kl"], target=kl.target, horizon=kl.horizon, sequences=totals.sequences
        )
        return {"kl_coefficient": used}

    def state_dict(self) -> dict[str, Any]:
        return {"kl_coefficient": self._coefficient}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self._config.kl is not None and self._config.kl.target is not None:
            self._coefficient = state["kl_coefficient"]

    def _with_start(self, rows: Columns) -> Columns:
        """Add the columns that `prepare` omitted without `proximal`. The weights are those of the start of
        the step."""
        start = rows["logprobs"].detach()
        rows = {**rows, "proximal": start}
        self._add_old(rows)
        if self._old == "proximal":
            self._distil(rows)
        if self._correction:
            rows["correction"] = self._correction(rows | {"logprobs": start})
        return rows

    def _add_old(self, rows: dict[str, Tensor]) -> None:
        """Add the policy that ratios are relative to, if its log-probabilities are there."""
        if self._interpolates and "proximal" in rows:
            rows["proximal"] = interpolated_proximal(rows["proximal"], rows["behaviour"], rows["staleness"])
        if self._old in rows:
            rows["old"] = rows[self._old]

    def _distil(self, rows: dict[str, Tensor]) -> None:
        """Add the advantages from a teacher, if there is one."""
        if self._distillation:
            assert self._config.distillation is not None
            from_teacher = self._config.distillation.coefficient * self._distillation(rows)
            rows["advantages"] = rows["advantages"] + from_teacher

    def _penalise(self, rows: dict[str, Tensor]) -> float:
        """Subtract the divergence at the start of the step from the rewards. Return its mean over
        sequences."""
        assert self._kl is not None
        mask = rows["mask"]
        estimates = self._kl(rows | {"logprobs": rows["old"]})
        if self._value:
            rows["penalties"] = self._coefficient * estimates
        elif self._advantage.properties.rewards_themselves:
            rows["advantages"] = _returns(rows["rewards"], self._coefficient * estimates, mask)
        else:
            attempts = rows["rollouts"] if self._advantage.properties.last_rewards else None
            rewards = penalised_rewards(
                rows["rewards"], estimates, mask, coefficient=self._coefficient, attempts=attempts
            )
            compared = {name: rows[name].cpu().numpy() for name in ("groups", *self.compares)}
            advantages = self.advantages(compared | {"rewards": rewards.cpu().numpy()})
            rows["advantages"] = torch.from_numpy(advantages).to(mask.device)[:, None]
        lengths = mask.sum(dim=1)
        sequences = int((lengths > 0).sum())
        return seq_mean_token_mean(estimates, mask, Totals(int(lengths.sum()), sequences, sequences)).item()

    def _estimate_advantages(self, rows: dict[str, Tensor]) -> dict[str, float]:
        """Add the advantage and return of each token, from the values at the step's start."""
        assert self._value is not None
        # On the CPU, because the estimate runs over the tokens one by one; in float64 for accuracy.
        device = rows["mask"].device
        mask, values, rewards = (rows[name].cpu() for name in ("mask", "values", "rewards"))
        penalties = rows.pop("penalties", torch.zeros(mask.shape)).cpu()
        earned = token_rewards(rewards, penalties.double(), mask)
        advantages = self._value({"token_rewards": earned, "values": values.double(), "mask": mask})
        returns = advantages + values
        rows["old_values"] = rows.pop("values")
        rows |= {"advantages": advantages.to(device), "returns": returns.to(rows["old_values"])}
        return value_metrics(values.double(), returns, mask)

    def _value_shares(self, rows: Columns, totals: Totals) -> Shares:
        """Return the loss of the values, before its coefficient, and the share of clipped tokens."""
        assert self._config.value is not None
        columns = (rows[name] for name in ("values", "old_values", "returns", "mask"))
        terms = value_loss(*columns, clip_range=self._config.value.clip_range)
        losses = terms["loss"] * rows["weight"][:, None]
        return {
            "value_loss": self._mean(_aggregation_inputs(losses, rows["mask"], totals)),
            "value_clip_ratio": token_mean(terms["clip_ratio"], rows["mask"], totals),
        }


def _aggregation_inputs(values: Tensor, mask: Tensor, totals: Totals) -> dict[str, Any]:
    return {"values": values, "mask": mask, "totals": totals}


def _distances(rows: Columns, totals: Totals) -> Shares:
    """How far the policy has moved from `old`. `approx_kl` estimates KL(old ‖ now).

    It is the estimator k3, the mean of r - 1 - log r, which is never negative, like in TRL's asynchronous
    GRPO and prime-rl's mismatch_kl. ppo_kl of verl and Trinity-RFT is k1, -mean(log r). TRL's former PPO had
    k2, mean((log r)²)/2.
    """
    if "old" not in rows:
        return {}
    mask = rows["mask"]
    log_ratios = log_ratio(rows["logprobs"].detach(), rows["old"], mask)
    ratios = log_ratios.exp()
    return {
        "approx_kl": token_mean(ratios - 1 - log_ratios, mask, totals),
        "ratio_mean": token_mean(ratios, mask, totals),
    }


def _clip_ratios(clipped: Tensor, advantages: Tensor, mask: Tensor, totals: Totals) -> Shares:
    """The clipped tokens as a share of all tokens: all, tokens with A < 0 (low), tokens with A > 0 (high)."""
    return {
        "clip_ratio": token_mean(clipped, mask, totals),
        "clip_ratio/low_mean": token_mean(clipped * (advantages < 0), mask, totals),
        "clip_ratio/high_mean": token_mean(clipped * (advantages > 0), mask, totals),
    }


def _returns(rewards: Tensor, penalties: Tensor, mask: Tensor) -> Tensor:
    """[B, K] The reward less the penalties from each token on; see `returns_to_go`."""
    lengths = mask.sum(dim=1).tolist()
    rows = zip(rewards.tolist(), penalties.double().cpu().numpy(), lengths, strict=True)
    return _rectangle([returns_to_go(reward, row[:length]) for reward, row, length in rows], mask)


def _whitened(advantages: Tensor, mask: Tensor) -> Tensor:
    """[B, K] from [B, 1] or [B, K], normalised over the trained tokens; see `whiten`."""
    rows = advantages.expand_as(mask).double().cpu().numpy()
    return _rectangle(
        whiten([row[trained] for row, trained in zip(rows, mask.cpu().numpy(), strict=True)]), mask
    )


def _rectangle(rows: list[NDArray[np.float64]], mask: Tensor) -> Tensor:
    """[B, K] The numbers of each row placed where its mask is True, in float64 on the mask's device."""
    values = torch.from_numpy(np.concatenate(rows)).to(mask.device)
    return values.new_zeros(mask.shape).masked_scatter(mask, values)
