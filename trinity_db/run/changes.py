"""Changes the configuration of an existing run: which keys may change, and the errors for the others."""

import logging
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from trinity_db.config.base import Change, Kept, rule
from trinity_db.errors import ConfigError
from trinity_db.postgres.connection import Transaction
from trinity_db.processors.config import TEACHER
from trinity_db.run.configuration import RunConfig
from trinity_db.store import runs, settings
from trinity_db.worker.service import LEASE_SECONDS

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
    """Change a run's configuration: any key before it has rows or steps, later only keys that allow it.

    Raises:
        ConfigError: if workers of the run are alive, the change needs --change, or a key may not change. Then
            nothing is changed.
    """
    use = settings.use(tx, run.id)
    if use.has_rows or use.is_trained:
        _check(run, differences, use, asked_for)
    settings.hold(tx, run, LEASE_SECONDS)
    if settings.use(tx, run.id) != use:
        raise ConfigError(f"Run '{run.name}' changed in the meantime: repeat the command.")
    if use.has_rows or use.is_trained:
        settings.change(tx, run, config.stored(), config.algorithm.draws)
        logger.warning("run '%s' continues with a changed configuration: %s", run.name, _all(differences))
    else:
        failed = settings.begin_again(tx, run, config.stored(), config.algorithm.draws)
        logger.warning(
            "run '%s' has no rows yet and starts over with a changed configuration: %s%s",
            run.name,
            _all(differences),
            f" ({failed} failed attempts are deleted)" if failed else "",
        )


def _check(run: runs.Run, differences: Sequence[runs.Difference], use: settings.Use, asked_for: bool) -> None:
    """Check that these keys may change now.

    Raises:
        ConfigError: if a key may not change, or the run has trained and --change is missing.
    """
    rules = {difference.key: _rule(difference) for difference in differences}
    fixed = {
        key: mark.because
        for key, mark in rules.items()
        if isinstance(mark, Kept) and not (mark.once_trained and not use.is_trained)
    }
    if not fixed and (asked_for or not use.is_trained):
        return
    sentences = [f"{runs.in_use(run, differences)}."]
    if free := [key for key in rules if key not in fixed]:
        sentences.append(f"{', '.join(free)} may change for later steps, with --change.")
    sentences += [f"{key} may not change: {because}." for key, because in list(fixed.items())[:MENTIONED]]
    back = [
        shlex.quote(f"{difference.key}={difference.before}")
        for difference in differences
        if difference.key in fixed and _is_plain(difference)
    ]
    if fixed and len(back) == len(fixed) <= MENTIONED:
        sentences.append(
            f"To continue with the run's values: {' '.join(f'--set {setting}' for setting in back)}."
        )
    raise ConfigError(f"{' '.join(sentences)} For a new run, choose another name with --set name=...")


def _is_plain(difference: runs.Difference) -> bool:
    """Whether --set can restore the key's value: a number or a text outside of mappings."""
    return all(isinstance(value, int | float | str) for value in (difference.before, difference.after))


def _rule(difference: runs.Difference) -> Change | Kept:
    """Rule for changing a key. For the list processors.score it depends on its steps."""
    if difference.key == "processors.score" and _teachers(difference.before) != _teachers(difference.after):
        return Kept("the stored scores are its teacher's")
    return rule(RunConfig, difference.key)


def _teachers(steps: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [step for step in steps if step["name"] == TEACHER]


def _all(differences: Sequence[runs.Difference]) -> str:
    return "; ".join(map(str, differences))
