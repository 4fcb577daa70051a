"""Labels: losses of single responses that are good or bad, mean over responses.

A reward above zero is a good response's. KTO and its kin need no pairs: any verdict will do.
"""

from torch import Tensor

from trinity_db.trainer.algorithms.aggregation import token_mean
from trinity_db.trainer.algorithms.interface import Algorithm, Columns, Shares, Totals
from trinity_db.trainer.algorithms.parts import needs, part
from trinity_db.trainer.recipes import LabelsConfig


class Labels(Algorithm):
    """Rows are responses, each with a reward."""

    def __init__(self, config: LabelsConfig) -> None:
        self._loss = part("label loss", config.loss)
        self._weights = {"chosen": config.desirable_weight, "rejected": config.undesirable_weight}

    @property
    def needs(self) -> dict[str, str]:
        readers = needs([self._loss])
        asked = {"rewards": f"{self._loss}"}
        for name in ("response_reference", "divergence"):
            if name in readers:
                asked.setdefault("reference", readers[name])
        if "divergence" in readers:
            asked["mismatched"] = readers["divergence"]
        return asked

    def prepare(self, rows: Columns) -> tuple[Columns, dict[str, float]]:
        """Adds `desirable` [N] and `divergence` [N], and what each row counts in the means of its side.

        The divergence is max(0, mean of `mismatched`), an estimate of KL(policy ‖ reference) over the
        whole step, one number for all rows: KTO's z. TRL has it of each micro-batch and the mean of
        those over the devices, so that the size of a micro-batch changes the result; here it does not.
        """
        desirable, trains = rows["rewards"] > 0, rows["mask"].any(dim=1)
        prepared = {**rows, "desirable": desirable}
        for side, chosen in (("chosen", desirable & trains), ("rejected", ~desirable & trains)):
            if chosen.any():  # of a side that has no row there is no mean
                prepared[_of(side)] = chosen.to(rows["rewards"]) / chosen.sum()
        if "mismatched" not in rows:
            return prepared, {}
        divergence = rows["mismatched"].mean().clamp(min=0)
        return {**prepared, "divergence": divergence.expand(len(desirable))}, {"kl": divergence.item()}

    def shares(self, rows: Columns, totals: Totals) -> Shares:
        mask = rows["mask"]
        columns = self._columns(rows)
        weights = rows["desirable"].to(columns["response"])
        weights = self._weights["chosen"] * weights + self._weights["rejected"] * (1 - weights)
        shares = {
            "loss": (weights * self._loss(columns)).sum() / totals.items,
            "entropy": token_mean(rows["entropy"], mask, totals),
        }
        logps = columns["response"].detach()
        rewards = self._loss.options.get("beta", 1.0) * (logps - columns.get("response_reference", 0.0))
        sides = [side for side in self._weights if _of(side) in rows]
        for side in sides:
            shares[f"rewards/{side}"] = (rewards * rows[_of(side)]).sum()
            shares[f"logps/{side}"] = (logps * rows[_of(side)]).sum()
        if len(sides) == 2:
            shares["rewards/margins"] = shares["rewards/chosen"] - shares["rewards/rejected"]
        return shares

    def _columns(self, rows: Columns) -> dict[str, Tensor]:
        """What a loss can read: sums over trained tokens, how many there are, and what holds of the row."""
        mask = rows["mask"]
        tokens = {"response": rows["logprobs"], "response_length": mask.to(rows["logprobs"])}
        if "reference" in rows:
            tokens["response_reference"] = rows["reference"]
        sums = {name: values.masked_fill(~mask, 0.0).sum(dim=1) for name, values in tokens.items()}
        return sums | {name: rows[name] for name in ("desirable", "divergence") if name in rows}


def _of(side: str) -> str:
    """The column [N] of what a row counts in the mean over those that are chosen, or rejected."""
    return f"share_of_{side}"
