"""Preference: the mean over pairs of losses that read the log-probabilities of both responses."""

from torch import Tensor

from trinity_db.trainer.algorithms.interface import Algorithm, Columns, Shares
from trinity_db.trainer.recipes.parts.kinds import Part, needs, part
from trinity_db.trainer.recipes.parts.totals import Totals
from trinity_db.trainer.recipes.recipes import PreferenceConfig


class Preference(Algorithm):
    """Learns from pairs. Rows are in the order chosen, rejected, chosen, rejected, ..."""

    width = 2

    def __init__(self, config: PreferenceConfig) -> None:
        self._losses = [(part("preference loss", loss), loss.weight) for loss in config.loss]

    @property
    def needs(self) -> dict[str, str]:
        readers = needs(loss for loss, _ in self._losses)
        of_reference = [reader for name, reader in readers.items() if name.endswith("_reference")]
        return {"reference": of_reference[0]} if of_reference else {}

    def prepare(self, rows: Columns) -> tuple[Columns, dict[str, float]]:
        """Clear the masks of both rows of a pair if one has no trained token.

        Nothing can be compared with it: losses that divide by its length would be NaN.
        """
        is_whole = rows["mask"].any(dim=1).reshape(-1, 2).all(dim=1).repeat_interleave(2)
        return {**rows, "mask": rows["mask"] & is_whole[:, None]}, {}

    def shares(self, rows: Columns, totals: Totals) -> Shares:
        pairs = _pair_columns(rows)
        losses = [(loss, weight, loss(pairs)) for loss, weight in self._losses]
        rewards = self._rewards({name: values.detach() for name, values in pairs.items()})
        margins = rewards["chosen"] - rewards["rejected"]
        per_pair = {
            "loss": sum(weight * values for _, weight, values in losses),
            "rewards/chosen": rewards["chosen"],
            "rewards/rejected": rewards["rejected"],
            "rewards/margins": margins,
            "rewards/accuracies": (margins > 0).to(margins),
            "logps/chosen": pairs["chosen"].detach(),
            "logps/rejected": pairs["rejected"].detach(),
        }
        for loss, _, values in losses:
            if loss.properties.metrics:
                per_pair |= loss.properties.metrics(values.detach(), loss.options)
        return {name: values.sum() / totals.items for name, values in per_pair.items()}

    def _rewards(self, pairs: Columns) -> dict[str, Tensor]:
        """The implicit rewards of a pair's responses, from the first loss, like in TRL.

        With a reference, they are beta times the log-ratios to it. Without one, they are beta times the
        log-probabilities, divided by the number of tokens if the loss does that.
        """
        loss: Part = self._losses[0][0]
        beta = loss.options.get("beta", 1.0)
        if "chosen_reference" in loss.columns:
            return {
                side: beta * (pairs[side] - pairs[f"{side}_reference"]) for side in ("chosen", "rejected")
            }
        per_token = "chosen_length" in loss.columns
        return {
            side: beta * pairs[side] / (pairs[f"{side}_length"] if per_token else 1)
            for side in ("chosen", "rejected")
        }


def _pair_columns(rows: Columns) -> dict[str, Tensor]:
    """Return the columns of pairs: sums over trained tokens, and the numbers of these tokens."""
    mask = rows["mask"]
    columns = {"": rows["logprobs"], "_length": mask.to(rows["logprobs"])}
    if "reference" in rows:
        columns["_reference"] = rows["reference"]
    sums = {name: values.masked_fill(~mask, 0.0).sum(dim=1) for name, values in columns.items()}
    return {
        f"{side}{name}": values[first::2]
        for name, values in sums.items()
        for first, side in enumerate(("chosen", "rejected"))
    }
