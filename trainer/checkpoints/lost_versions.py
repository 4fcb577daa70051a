"""Versions that the server has lost, as after its failure: what is known of them, and a start from one."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trinity_db.errors import ConfigError
from trinity_db.store import batches, policies, runs, setbacks
from trinity_db.trainer.checkpoints.folder import Publication
from trinity_db.trainer.checkpoints.run_files import RunFiles

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Weights:
    """The steps that a learner's weights contain. The server had acknowledged all of them."""

    steps: int
    """The number of the last step."""
    rows: Mapping[int, int]
    """The number of rows of each step that this process has made, by step."""


def find_setback(
    files: RunFiles, mark: batches.Mark, lost: Sequence[int], weights: Weights | None
) -> setbacks.Setback | None:
    """The setback that the notes in the folder and the learner's weights show, or None."""
    steps = [known.step for known in files.folder.publications() if known.version in lost]
    last_step = max([mark.step, *steps, weights.steps if weights else 0])
    if not lost and last_step == mark.step:
        return None
    num_rows = None
    if weights:
        num_rows = sum(rows for step, rows in weights.rows.items() if mark.step < step <= weights.steps)
    first, last = (lost[0], lost[-1]) if lost else (None, None)
    return setbacks.Setback(mark.version, mark.step, last_step, num_rows, first, last)


def adopt(
    files: RunFiles, lost_version: int, setback: setbacks.Setback | None, mark: batches.Mark
) -> policies.PolicyVersion:
    """Continue from a checkpoint that the server has lost, and record it as a new version.

    The store still does not know the batches of its steps.
    """
    found = files.folder.lost_checkpoint(lost_version)
    with files.database.transaction() as tx:
        base = setbacks.base_of(tx, files.run.id, lost_version)
        newest = policies.latest_version(tx, files.run.id)
    if found is None or (base is None and setback is None):
        raise ConfigError(
            f"--from-version {lost_version}: {files.folder.path} has no whole checkpoint of a lost version "
            "of that number; leave the option out, or name another."
        )
    known, weights, resumed = found
    lost = setback.last_version if setback else None
    version = max(newest or 0, lost or 0) + 1
    resume_hash = known.resume_hash or known.hash
    policy = files.copied(
        policies.PolicyVersion(
            version, known.step, weights, known.hash, policies.Checkpoint(resumed, resume_hash)
        ),
    )
    with files.database.transaction() as tx:
        # The weights contain no step that was made after the loss. So all batches since then are reopened.
        reopened = batches.reopen(tx, files.run.id, files.worker_id, mark.version if base is None else base)
        if setback:
            setbacks.record(tx, files.run.id, files.worker_id, setback, version)
        setbacks.adopt(tx, files.run.id, lost_version, policy)
        runs.announce(tx, files.run.id)
    files.folder.acknowledge(Publication(version, known.step, known.hash, known.resume_hash))
    logger.warning(
        "going on from the lost version %d as version %d, step %d; rows of steps that the server has lost "
        "count as not trained and are drawn again, and so are those of %d batches that were reopened",
        *(lost_version, version, known.step, reopened),
    )
    return policy


def offer(files: RunFiles, setback: setbacks.Setback) -> str:
    """The end of a message: how to continue from the newest checkpoint that the server has lost."""
    kept = _newest_kept(files, setback)
    if kept is None:
        return ""
    return (
        f"; checkpoints that it lost are kept as *.later in {files.folder.path}; to go on from the newest "
        f"instead, start once with --from-version {kept}"
    )


def refusal_to_start_over(
    files: RunFiles, damaged: Sequence[policies.PolicyVersion], setback: setbacks.Setback | None
) -> str:
    """Why the trainer does not start again from the starting model without being told to, and what to do."""
    what = f"none of its checkpoints is whole ({versions_in_words(damaged)})" if damaged else ""
    forgot = f"the server has lost {setback}" if setback else ""
    kept = _newest_kept(files, setback) if setback else None
    remedies = ["restore one of them"] if damaged else []
    remedies += [f"go on from one that the server has lost with --from-version {kept}"] if kept else []
    remedies.append("train again from the starting model with --from-start")
    reasons = " and ".join(reason for reason in (what, forgot) if reason)
    return f"Run '{files.run.name}': {reasons}; {', or '.join(remedies)}."


def _newest_kept(files: RunFiles, setback: setbacks.Setback) -> int | None:
    """The newest lost version whose checkpoint is kept as *.later."""
    versions = range(setback.last_version or -1, (setback.first_version or 0) - 1, -1)
    return next((version for version in versions if files.folder.lost_checkpoint(version)), None)


def versions_in_words(damaged: Sequence[policies.PolicyVersion]) -> str:
    newest, oldest = damaged[0].version, damaged[-1].version
    return f"version {newest}" if newest == oldest else f"versions {oldest} to {newest}"
