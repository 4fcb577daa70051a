"""Versions that the server has lost, for example in a failure: notes about them, and a start from one."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trinity_db.errors import ConfigError
from trinity_db.store import batches, lost_commits, policies, runs
from trinity_db.trainer.checkpoints.folder import Publication
from trinity_db.trainer.checkpoints.run_files import FROM_START, RunFiles, from_version

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Weights:
    """The steps in a learner's weights. The server had acknowledged all of them."""

    steps: int
    """Number of the last step."""
    rows: Mapping[int, int]
    """Number of rows of each step that this process has computed, by step."""


def find_setback(
    files: RunFiles, mark: batches.Mark, lost: Sequence[int], weights: Weights | None
) -> lost_commits.Setback | None:
    """Return the setback shown by the notes in the folder and the learner's weights, or None."""
    steps = [known.step for known in files.folder.publications() if known.version in lost]
    last_step = max([mark.step, *steps, weights.steps if weights else 0])
    if not lost and last_step == mark.step:
        return None
    num_rows = None
    if weights:
        num_rows = sum(rows for step, rows in weights.rows.items() if mark.step < step <= weights.steps)
    first, last = (lost[0], lost[-1]) if lost else (None, None)
    return lost_commits.Setback(mark.version, mark.step, last_step, num_rows, first, last)


def adopt(
    files: RunFiles, lost_version: int, setback: lost_commits.Setback | None, mark: batches.Mark
) -> policies.PolicyVersion:
    """Continue from a checkpoint that the server has lost, and record it as a new version.

    The store still lacks the batches of its steps.
    """
    files_found = files.folder.lost_checkpoint(lost_version)
    with files.database.transaction() as tx:
        base = lost_commits.base_of(tx, files.run.id, lost_version)
        newest = policies.latest_version(tx, files.run.id)
    if files_found is None or (base is None and setback is None):
        raise ConfigError(
            f"{from_version(lost_version)}: {files.folder.path} has no whole checkpoint of a lost version of "
            "that number; leave it out, or name another."
        )
    known, weights, resumed = files_found
    lost = setback.last_version if setback else None
    version = max(newest or 0, lost or 0) + 1
    assert known.resume_hash is not None, "a lost checkpoint is one whose hash was noted"
    policy = files.copied(
        policies.PolicyVersion(
            version, known.step, weights, known.hash, policies.Checkpoint(resumed, known.resume_hash)
        ),
    )
    with files.database.transaction() as tx:
        # The weights contain no step computed after the loss. So all batches since then are reopened.
        reopened = batches.reopen(tx, files.run.id, files.worker_id, mark.version if base is None else base)
        if setback:
            lost_commits.record(tx, files.run.id, files.worker_id, setback, version)
        lost_commits.adopt(tx, files.run.id, lost_version, policy)
        runs.announce(tx, files.run.id)
    files.folder.acknowledge(Publication(version, known.step, known.hash, known.resume_hash))
    logger.warning(
        "resuming from the lost version %d as version %d, step %d; rows of steps that the server has lost "
        "count as not trained and are drawn again, and so are those of %d batches that were reopened",
        *(lost_version, version, known.step, reopened),
    )
    return policy


def offer(files: RunFiles, setback: lost_commits.Setback) -> str:
    """Return the end of a message: how to continue from the newest checkpoint that the server has lost."""
    newest = _newest_kept(files, setback)
    if newest is None:
        return ""
    return (
        f"; checkpoints that it lost are kept as *.later in {files.folder.path}; to resume from the newest "
        f"instead, start once with {from_version(newest)}"
    )


def refusal_to_start_over(
    files: RunFiles, damaged: Sequence[policies.PolicyVersion], setback: lost_commits.Setback | None
) -> str:
    """Return why the trainer does not restart from the starting model on its own, and what to do."""
    damage = f"none of its checkpoints is whole ({versions_in_words(damaged)})" if damaged else ""
    forgot = f"the server has lost {setback}" if setback else ""
    newest = _newest_kept(files, setback) if setback else None
    remedies = ["restore one of them"] if damaged else []
    remedies += [f"resume from one that the server has lost with {from_version(newest)}"] if newest else []
    remedies.append(f"train again from the starting model with {FROM_START}")
    reasons = " and ".join(reason for reason in (damage, forgot) if reason)
    return f"Run '{files.run.name}': {reasons}; {', or '.join(remedies)}."


def _newest_kept(files: RunFiles, setback: lost_commits.Setback) -> int | None:
    """Return the newest lost version whose checkpoint is kept as *.later."""
    versions = range(setback.last_version or -1, (setback.first_version or 0) - 1, -1)
    return next((version for version in versions if files.folder.lost_checkpoint(version)), None)


def versions_in_words(damaged: Sequence[policies.PolicyVersion]) -> str:
    newest, oldest = damaged[0].version, damaged[-1].version
    return f"version {newest}" if newest == oldest else f"versions {oldest} to {newest}"
