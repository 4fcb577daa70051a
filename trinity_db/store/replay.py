"""Rerun draws: rebuild from history what a batch was drawn from, and draw again.

A draw is one statement, recorded with its snapshot (a draw of expert rows next to rollout groups is a second
statement with its own snapshot). The statements of this module reproduce it: they derive a row's state at
that time from the transactions that made rows ready, and from the batches, drops and reward events until
then. They change nothing.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from psycopg.rows import DictRow

from trinity_db.errors import NotFound, TrinityError
from trinity_db.postgres.connection import Transaction
from trinity_db.schema.queries import query
from trinity_db.store import custom_samplers, draws, stratified_allocation

_DRAWS = {
    ("fifo", False): "replay_groups",
    ("newest", False): "replay_groups",
    ("uniform", False): "replay_by_chance",
    ("prioritized", False): "replay_by_chance",
    ("epochs", False): "replay_rows",
    ("group_epochs", False): "replay_adopted_groups",
    ("epochs", True): "replay_pairs",
}
"""By sampler, and whether it drew pairs."""

SELECTS_OTHERS = (
    "the SELECT of its sampler offers other groups or weights now than it did then, so it reads what has "
    "changed since; of the columns of drawable only a priority that was set by hand does"
)


@dataclass(frozen=True)
class Recorded:
    """A batch with its recorded draw, and the weights at the start of its step."""

    batch: int
    run: str
    run_id: int
    step: int
    state: str
    policy_version: int
    versions_ahead: int
    checkpoint: Path | None
    """Folder of that version; None if it was pruned or withdrawn."""
    checkpoint_step: int
    """Last step that it includes. The steps from there to the batch's step existed only in memory."""
    epoch: int
    setting: int
    """Row of run_setting with the configuration of the step."""
    sampler: str
    seed: int
    size: int
    """Number of groups, rows or pairs."""
    max_staleness: int | None
    parameters: dict[str, Any] | None
    """Other inputs and choices of the sampler and of the draw of expert rows; None without any."""
    snapshot: str | None
    """Snapshot of the draw; None if drawn by a release that did not record it."""
    rows: int
    has_pairs: bool

    @property
    def runs_select(self) -> bool:
        """Whether the draw runs a SELECT recorded with the batch."""
        return self.parameters is not None and "choice" in self.parameters


def find(tx: Transaction, batch_id: int) -> Recorded:
    """Read the recorded draw of a batch.

    Raises:
        NotFound: if the batch does not exist, or was deleted with its run.
    """
    row = tx.execute(query("recorded_draw"), {"batch_id": batch_id}).fetchone()
    if row is None:
        raise NotFound(f"There is no batch {batch_id}; trinity-db batches RUN lists those of a run.")
    checkpoint = row.pop("checkpoint")
    return Recorded(**row, checkpoint=Path(checkpoint) if checkpoint else None)


def first_difference(tx: Transaction, recorded: Recorded) -> str | None:
    """Rerun the draw on its snapshot; returns the first difference in rows, order or numbers, or None.

    Raises:
        TrinityError: if the draw's snapshot is not recorded, or is from another server.
    """
    if recorded.snapshot is None:
        raise TrinityError(
            f"Batch {recorded.batch} cannot be drawn again here: its run is a copy, drawn from on another "
            "server; --to FILE writes its recorded rows."
        )
    values = {"batch_id": recorded.batch}
    drawn = tx.execute(query("recorded_items"), values).fetchall()
    if recorded.parameters and recorded.runs_select:
        again = _chosen_again(tx, recorded, recorded.parameters)
        if again is None:
            return SELECTS_OTHERS
    else:
        again = tx.execute(query(_DRAWS[recorded.sampler, recorded.has_pairs]), values).fetchall()
    if recorded.parameters and "experts" in recorded.parameters:
        again += _experts_again(tx, recorded, recorded.parameters)
    for index, (then, now) in enumerate(zip_longest(drawn, again)):
        if not _is_same(then, now):
            return f"row {index}: the batch has {_described(then)}, the draw gives {_described(now)}"
    return None


def _chosen_again(tx: Transaction, recorded: Recorded, parameters: Mapping[str, Any]) -> list[DictRow] | None:
    """Return the members that the batch's SELECT chooses as of the draw; None if it offers other groups.

    Raises:
        TrinityError: if the SELECT fails now.
    """
    choice = custom_samplers.Choice.recorded(parameters["choice"])
    values: dict[str, Any] = {
        "batch_id": recorded.batch,
        "run_id": recorded.run_id,
        "step": recorded.step,
        "seed": recorded.seed,
        "size": recorded.size,
        "version": recorded.policy_version,
        "versions_ahead": recorded.versions_ahead,
        "max_staleness": recorded.max_staleness,
    }
    _, _, offers = choice.offers(tx, query("drawable_then"), values)
    then, now = parameters["offered"], custom_samplers.digest(offers)
    if then["digest"] != now["digest"] or not math.isclose(then["weight"], now["weight"], rel_tol=1e-9):
        return None
    drawn = stratified_allocation.draw(choice.parts, offers, recorded.size, recorded.step, choice.fill)
    values["group_ids"] = sorted(drawn.groups)
    members = tx.execute(query("replay_members"), values).fetchall()
    for row in members:
        row["probability"] = drawn.groups[row.pop("group_id")].probability
    return members


def _experts_again(tx: Transaction, recorded: Recorded, parameters: Mapping[str, Any]) -> list[DictRow]:
    """Redraw the expert rows of a batch, using the recorded shares of data sets if there are any."""
    rows = tx.execute(query("replay_rows"), {"batch_id": recorded.batch}).fetchall()
    if shares := parameters.get("expert_shares"):
        return draws.shared(rows, shares, parameters["experts"], recorded.step)
    return rows


def _is_same(then: DictRow | None, now: DictRow | None) -> bool:
    """Compare two rows; probabilities computed from rewards may differ by the order of summation."""
    if then is None or now is None:
        return False
    was, is_now = then.get("probability"), now.get("probability")
    is_as_likely = was == is_now or (
        was is not None and is_now is not None and math.isclose(was, is_now, rel_tol=1e-9)
    )
    return is_as_likely and all(
        then[name] == value for name, value in now.items() if name not in ("probability", "data")
    )


def _described(row: DictRow | None) -> str:
    if row is None:
        return "none"
    pair = "" if row["preference_id"] is None else f" of pair {row['preference_id']}"
    staleness = "" if row["staleness"] is None else f", staleness {row['staleness']}"
    reward = "no reward" if row["reward"] is None else f"reward {row['reward']}"
    chance = "" if row.get("probability") is None else f", probability {row['probability']}"
    return f"experience {row['experience_id']}{pair} ({reward}{staleness}{chance})"
