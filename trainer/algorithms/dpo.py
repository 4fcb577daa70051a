"""DPO: log-sigmoid of the difference of implicit rewards, mean over pairs."""

from dataclasses import dataclass

from trinity_db.trainer.algorithms.losses import dpo_loss, dpo_rewards
from trinity_db.trainer.algorithms.rows import Rows, Shares, Totals
from trinity_db.trainer.config import DpoConfig


@dataclass(frozen=True)
class Dpo:
    """Rows hold pairs: chosen, rejected, chosen, rejected, ..."""

    config: DpoConfig
    sequences_per_item: int = 2
    needs_reference: bool = True

    def shares(self, rows: Rows, totals: Totals) -> Shares:
        assert rows.reference is not None
        rewards = dpo_rewards(rows.logprobs, rows.reference, rows.mask, self.config.beta)
        chosen, rejected = rewards[0::2], rewards[1::2]
        margins = (chosen - rejected).detach()
        per_pair = {
            "loss": dpo_loss(chosen, rejected),
            "rewards/chosen": chosen.detach(),
            "rewards/rejected": rejected.detach(),
            "rewards/margins": margins,
            "rewards/accuracies": (margins > 0).float(),
        }
        return {name: values.sum() / totals.items for name, values in per_pair.items()}
