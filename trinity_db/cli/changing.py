"""Another configuration for an existing run: which keys may change, and what is said about the others."""

import logging
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from trinity_db.configuration import RunConfig
from trinity_db.database import Transaction
from trinity_db.errors import ConfigError
from trinity_db.processors.lists import LISTS
from trinity_db.service import LEASE_SECONDS
from trinity_db.settings import Change, Kept, rule
from trinity_db.store import runs, settings

logger = logging.getLogger(__name__)

MENTIONED = 3  # reasons in one message


def change(
    tx: Transaction,
    run: runs.Run,
    config: RunConfig,
    differences: Sequence[runs.Difference],
    *,
    asked_for: bool,
) -> None:
    """Give a run another configuration: a new one before it has rows or steps, later where its keys allow it.

    Raises:
        ConfigError: workers of the run are alive, a change must be asked for with --change, or a key may not
            change. Nothing is changed then.
    """
    use = settings.use(tx, run.id)
    if use.has_rows or use.is_trained:
        _check(run, differences, use, asked_for)
    settings.hold(tx, run, LEASE_SECONDS)
    if settings.use(tx, run.id) != use:
        raise ConfigError(f"Run '{run.name}' has gone on meanwhile: start again.")
    if use.has_rows or use.is_trained:
        settings.change(tx, run, config.stored(), config.algorithm.draws)
        logger.warning("run '%s' goes on with another configuration: %s", run.name, _all(differences))
    else:
        failed = settings.begin_again(tx, run, config.stored(), config.algorithm.draws)
        logger.warning(
            "run '%s' has no rows yet and begins again with another configuration: %s%s",
            run.name,
            _all(differences),
            f" ({failed} failed attempts are deleted)" if failed else "",
        )


def _check(run: runs.Run, differences: Sequence[runs.Difference], use: settings.Use, asked_for: bool) -> None:
    """Make sure that these keys may have another value now.

    Raises:
        ConfigError: a key may not change, or steps were made and --change was not given.
    """
    rules = {difference.key: _rule(difference) for difference in differences}
    kept = {
        key: mark.because
        for key, mark in rules.items()
        if isinstance(mark, Kept) and not (mark.once_trained and not use.is_trained)
    }
    if not kept and (asked_for or not use.is_trained):
        return
    said = [f"{runs.in_use(run, differences)}."]
    if free := [key for key in rules if key not in kept]:
        said.append(f"{', '.join(free)} may change for what follows, with --change.")
    said += [f"{key} may not change: {because}." for key, because in list(kept.items())[:MENTIONED]]
    back = [
        shlex.quote(f"{one.key}={one.before}") for one in differences if one.key in kept and _is_plain(one)
    ]
    if kept and len(back) == len(kept) <= MENTIONED:
        said.append(f"To go on as the run began: {' '.join(f'--set {one}' for one in back)}.")
    raise ConfigError(f"{' '.join(said)} For a new run choose another name with --set name=...")


def _is_plain(difference: runs.Difference) -> bool:
    """Whether --set gives the key the value that the run has: numbers and texts, and no part of a mapping."""
    return all(isinstance(value, int | float | str) for value in (difference.before, difference.after))


def _rule(difference: runs.Difference) -> Change | Kept:
    """Whether a key may change. For the list processors.score it depends on its steps."""
    if difference.key == "processors.score" and _teachers(difference.before) != _teachers(difference.after):
        return Kept("the stored scores are its teacher's")
    return rule(RunConfig, difference.key)


def _teachers(steps: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [step for step in steps if LISTS["score"].says(step["name"]) is not None]


def _all(differences: Sequence[runs.Difference]) -> str:
    return "; ".join(map(str, differences))
