"""Supervised fine-tuning: negative log-likelihood of the demonstrated responses, token mean."""

from dataclasses import dataclass

from trinity_db.trainer.algorithms.losses import masked_share, sft_loss
from trinity_db.trainer.algorithms.rows import Rows, Shares, Totals
from trinity_db.trainer.config import SftConfig


@dataclass(frozen=True)
class Sft:
    config: SftConfig
    sequences_per_item: int = 1
    needs_reference: bool = False

    def shares(self, rows: Rows, totals: Totals) -> Shares:
        per_token = {
            "loss": sft_loss(rows.logprobs),
            "mean_token_accuracy": rows.correct.float(),
            "entropy": rows.entropy,
        }
        return {name: masked_share(values, rows.mask, totals.tokens) for name, values in per_token.items()}
