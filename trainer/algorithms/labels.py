"""Labels: the mean over responses of losses of single responses, each labelled good or bad.

A response is good if its reward is above zero. KTO and related losses need no pairs.
"""

from torch import Tensor

from trinity_db.trainer.algorithms.interface import Algorithm, Columns, Shares
from trinity_db.trainer.recipes.parts.aggregation import token_mean
from trinity_db.trainer.recipes.parts.kinds import needs, part
from trinity_db.trainer.recipes.parts.totals import Totals
from trinity_db.trainer.recipes.recipes import LabelsConfig


class Labels(Algorithm):
    """Learns from single responses. Each row has a reward."""

    def __init__(self, config: LabelsConfig) -> None:
        self._loss = part("label loss", config.loss)
        self._weights = {"chosen": config.desirable_weight, "rejected": config.undesirable_weight}

    @property
    def needs(self) -> dict[str, str]:
        readers = needs([self._loss])
        columns = {"rewards": f"{self._loss}"}
        for name in ("response_reference", "divergence"):
            if name in readers:
                columns.setdefault("reference", readers[name])
        if "divergence" in readers:
            columns["mismatched"] = readers["divergence"]
        return columns

    def prepare(self, rows: Columns) -> tuple[Columns, dict[str, float]]:
        """Add `desirable` [N] and `divergence` [N].

        The divergence is max(0, mean of `mismatched`): an estimate of KL(policy ‖ reference) over the whole
        step, one number for all rows, KTO's z. TRL computes it for each micro-batch and averages over
        devices, so that the size of a micro-batch changes the result. Here it does not.
        """
        desirable = rows["rewards"] > 0
        prepared = {**rows, "desirable": desirable}
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
        sizes = {"chosen": totals.desirable_items, "rejected": totals.items - totals.desirable_items}
        sides = {"chosen": rows["desirable"], "rejected": ~rows["desirable"]}
        for side, size in sizes.items():
            if size:  # a side without rows has no mean
                shares[f"rewards/{side}"] = (rewards * sides[side]).sum() / size
                shares[f"logps/{side}"] = (logps * sides[side]).sum() / size
        if all(sizes.values()):
            shares["rewards/margins"] = shares["rewards/chosen"] - shares["rewards/rejected"]
        return shares

    def _columns(self, rows: Columns) -> dict[str, Tensor]:
        """Return the columns of a label loss: sums over trained tokens, their number, and the row's own
        columns."""
        mask = rows["mask"]
        tokens = {"response": rows["logprobs"], "response_length": mask.to(rows["logprobs"])}
        if "reference" in rows:
            tokens["response_reference"] = rows["reference"]
        sums = {name: values.masked_fill(~mask, 0.0).sum(dim=1) for name, values in tokens.items()}
        return sums | {name: rows[name] for name in ("desirable", "divergence") if name in rows}
