"""GRPO: group advantages, PPO's clipped ratio against the stored behaviour policy, token mean."""

from dataclasses import dataclass

from trinity_db.trainer.algorithms.losses import (
    approximate_kl,
    is_clipped,
    log_ratio,
    masked_share,
    ppo_clip_loss,
)
from trinity_db.trainer.algorithms.rows import Rows, Shares, Totals
from trinity_db.trainer.config import GrpoConfig


@dataclass(frozen=True)
class Grpo:
    """Advantages come with the rows: `group_advantages` of the rewards as they are at the draw."""

    config: GrpoConfig
    sequences_per_item: int = 1
    needs_reference: bool = False

    def shares(self, rows: Rows, totals: Totals) -> Shares:
        assert rows.behaviour is not None
        assert rows.advantages is not None
        clip = (self.config.clip_low, self.config.clip_high)
        advantages = rows.advantages[:, None]
        log_ratios = log_ratio(rows.logprobs, rows.behaviour)
        ratio = log_ratios.exp()
        per_token = {
            "loss": ppo_clip_loss(ratio, advantages, *clip),
            "approx_kl": approximate_kl(log_ratios.detach()),
            "clip_ratio": is_clipped(ratio, advantages, *clip).float(),
            "ratio_mean": ratio.detach(),
            "entropy": rows.entropy,
        }
        return {name: masked_share(values, rows.mask, totals.tokens) for name, values in per_token.items()}
