"""Reward model: the mean over pairs of the preference's negative log-likelihood under the rewards of both
rows."""

from torch import Tensor
from torch.nn.functional import logsigmoid

from trinity_db.trainer.algorithms.interface import Algorithm, Columns, Shares
from trinity_db.trainer.recipes.parts.totals import Totals
from trinity_db.trainer.recipes.recipes import RewardModelConfig


class RewardModel(Algorithm):
    """Learns a number r for each response. Rows are in the order chosen, rejected, chosen, rejected, ...

    -log σ(r_chosen - r_rejected - margin) + c (r_chosen + r_rejected)², where c is `center_coefficient`.

    Source: InstructGPT, arXiv 2203.02155 equation 1; the margin of Llama 2, arXiv 2307.09288 equation 2; the
    centering of arXiv 2312.09244 section 3.
    """

    width = 2
    reads_ends = True

    def __init__(self, config: RewardModelConfig) -> None:
        self._margin = config.margin
        self._center = config.center_coefficient

    @property
    def needs(self) -> dict[str, str]:
        return {"margins": "the margin of a reward model"} if self._margin else {}

    def shares(self, rows: Columns, totals: Totals) -> Shares:
        chosen, rejected = rows["values"][:, 0].reshape(-1, 2).unbind(dim=1)
        differences = chosen - rejected
        losses = -logsigmoid(differences - self._margins(rows)) + self._center * (chosen + rejected) ** 2
        per_pair = {
            "loss": losses,
            "rewards/chosen": chosen.detach(),
            "rewards/rejected": rejected.detach(),
            "rewards/margins": differences.detach(),
            "rewards/accuracies": (differences > 0).to(losses).detach(),
        }
        return {name: values.sum() / totals.items for name, values in per_pair.items()}

    def _margins(self, rows: Columns) -> Tensor | float:
        return self._margin * rows["margins"][::2] if self._margin else 0.0
