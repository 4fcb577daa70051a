"""Where a trainer starts: the run's first model, or the latest checkpoint whose files are whole."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from trinity_db.config import ModelConfig
from trinity_db.database import Database, Transaction
from trinity_db.errors import ConfigError, TrinityError
from trinity_db.models import build_scratch, check_source, folder_digest
from trinity_db.store import batches, instances, policies, runs, setbacks, workers
from trinity_db.trainer.checkpoints import checkpoint
from trinity_db.trainer.checkpoints.folder import Folder, Publication, claim, names

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Beginning:
    """The run and worker that a trainer starts as, and where the files are."""

    database: Database
    run: runs.Run
    worker_id: int
    default: Path
    """The folder of checkpoints that the configuration names."""
    folder: Folder
    """The run's own one: the default, or one beside it."""

    def found(self, policy: policies.PolicyVersion) -> Path | None:
        """Where a version is whole: where the store says, or in a folder that moved with the store."""
        moved = (parent / policy.checkpoint.name for parent in (self.folder.path, self.default))
        places = dict.fromkeys([policy.checkpoint, *moved])
        return next((place for place in places if folder_digest.verify(place, policy.checkpoint_hash)), None)


def own_folder(database: Database, run: runs.Run, worker_id: int, default: Path) -> Beginning:
    """Find the run's own folder of checkpoints, which no other run, and no other store, writes to.

    Raises:
        ConfigError: the default folder and the one beside it have other owners. Nothing is changed then.
        TrinityError: it cannot be written, or is missing although versions are in it.
    """
    with database.transaction() as tx:
        instance = instances.identify(tx)
        published = policies.with_checkpoint(tx, run.id)
    if any(policy.checkpoint.parent == default for policy in published):
        _check_is_there(default)
    folder = claim(default, {"store": str(instance.id)} | run.identity)
    return Beginning(database, run, worker_id, default, folder)


def clear_leftovers(begin: Beginning) -> list[int]:
    """Remove what crashes left in the run's own folder: nothing that a version names.

    Checkpoints of versions that the server has lost are set aside; returns the numbers of these versions.

    Raises:
        LeaseLost: another trainer has this one's place, and what no version names may be its own.
    """
    with begin.database.transaction() as tx:
        workers.hold_place(tx, begin.worker_id)
        newest = policies.latest_version(tx, begin.run.id)
        published = {policy.checkpoint.name for policy in policies.with_checkpoint(tx, begin.run.id)}
    lost = begin.folder.keep_later(-1 if newest is None else newest)
    begin.folder.clear_leftovers(published)
    return lost


def publish_first_version(begin: Beginning, model: ModelConfig, seed: int) -> None:
    """Make the starting model policy version 0, unless that was done before.

    Raises:
        ConfigError: there is no such model.
        TrinityError: it cannot be written, or another run's was pruned meanwhile. Nothing is published then.
        LeaseLost: another trainer has this one's place.
    """
    with begin.database.transaction() as tx:
        if policies.latest_version(tx, begin.run.id) is not None:
            return
        source = _starting_model(tx, model)
    if source is None:
        scratch = model.scratch
        assert scratch is not None
        folder = begin.folder.version_folder(0)
        found = checkpoint.place(folder, lambda aside: build_scratch(scratch, seed, aside))
    else:
        folder, recorded = source
        found = _digest(folder, recorded, model)
    with begin.database.transaction() as tx:
        workers.hold_place(tx, begin.worker_id)
        if model.run is not None:
            other = runs.find(tx, model.run)
            if not policies.hold_checkpoint(tx, other.id, folder):
                raise _pruned(model.run)
        policies.publish(tx, begin.run.id, policies.PolicyVersion(0, 0, folder, found))


@dataclass(frozen=True)
class Weights:
    """What a learner has learned from, as its trainer heard it acknowledged."""

    steps: int
    rows: Mapping[int, int]
    """How many rows each step had that this process made."""


@dataclass(frozen=True)
class Allowed:
    """What a person allowed for one start."""

    from_start: bool = False
    """Go on from the starting model where there are checkpoints and none that the store knows is whole."""
    from_version: int | None = None
    """Go on from the checkpoint of this version, which the server has lost."""


def recover(
    begin: Beginning, allowed: Allowed, lost: Sequence[int] = (), weights: Weights | None = None
) -> policies.PolicyVersion:
    """The latest version whose checkpoint is whole; every batch that it does not include is reopened.

    Later versions, whose files are damaged or missing, are withdrawn, with a warning. A checkpoint in another
    owner's folder is copied into the run's own, since the other owner may delete it. What the server has lost
    is put on the record.

    Args:
        lost: versions that the store has forgotten, whose checkpoints are set aside.
        weights: what the trainer has learned from that found out that the server has lost some of it.

    Raises:
        ConfigError: none is whole, not even the starting model, or the version that is asked for is not
            there. Nothing is changed then.
        TrinityError: the starting model alone is whole, or the folder they are in is missing altogether.
            Nothing is changed then.
        LeaseLost: another trainer has taken the place of this one meanwhile. Nothing is changed then.
    """
    with begin.database.transaction() as tx:
        found = policies.with_checkpoint(tx, begin.run.id)
        if not found:  # as in a run that was copied without its files
            raise _nothing_whole(begin)
        mark = batches.hold_trainer(tx, begin.run.id, begin.worker_id)
        wanted = allowed.from_version
        is_adopted = wanted is not None and setbacks.adopted(tx, begin.run.id, wanted)
    setback = _setback(begin, mark, lost, weights)
    if wanted is not None and not is_adopted:
        return _adopt(begin, wanted, setback, mark)
    policy, place, damaged = _newest_whole(begin, found, allowed)
    if policy.version == 0 and (damaged or lost) and not allowed.from_start:
        raise TrinityError(_ask(begin, damaged, setback))
    policy = replace(policy, checkpoint=_within_reach(begin, policy, place))
    with begin.database.transaction() as tx:
        reopened = batches.reopen(tx, begin.run.id, begin.worker_id, policy.version)
        policies.relocate(tx, begin.run.id, policy)
        if setback:
            setbacks.record(tx, begin.run.id, begin.worker_id, setback, policy.version)
        for broken in damaged:  # within: after a crash they would be leftovers of no version
            begin.folder.set_aside(broken.version, broken.checkpoint)
    if setback:
        logger.warning(
            "the server has lost %s: going on from version %d, step %d%s",
            *(setback, policy.version, policy.step, _offer(begin, setback)),
        )
    if reopened:
        logger.warning("version %d does not include %d batches: reopened", policy.version, reopened)
    return policy


def _newest_whole(
    begin: Beginning, found: Sequence[policies.PolicyVersion], allowed: Allowed
) -> tuple[policies.PolicyVersion, Path, list[policies.PolicyVersion]]:
    """The newest version that is whole, where its files are, and the later ones, which are not."""
    damaged: list[policies.PolicyVersion] = []
    for policy in found:
        place = begin.found(policy)
        if place is not None:
            return policy, place, damaged
        if policy.version > 0 and not allowed.from_start:
            _check_is_there(policy.checkpoint.parent)
        logger.warning(
            "version %d: its checkpoint at %s is damaged or missing", policy.version, policy.checkpoint
        )
        damaged.append(policy)
    raise _nothing_whole(begin)


def _nothing_whole(begin: Beginning) -> ConfigError:
    return ConfigError(
        f"Run '{begin.run.name}': no checkpoint is whole, and its starting model has changed or is gone; "
        "restore one of them."
    )


def _setback(
    begin: Beginning, mark: batches.Mark, lost: Sequence[int], weights: Weights | None
) -> setbacks.Setback | None:
    """What the server has lost, as far as files and weights tell."""
    steps = [known.step for known in begin.folder.publications() if known.version in lost]
    last_step = max([mark.step, *steps, weights.steps if weights else 0])
    if not lost and last_step == mark.step:
        return None
    num_rows = None
    if weights:
        num_rows = sum(rows for step, rows in weights.rows.items() if mark.step < step <= weights.steps)
    first, last = (lost[0], lost[-1]) if lost else (None, None)
    return setbacks.Setback(mark.version, mark.step, last_step, num_rows, first, last)


def _adopt(
    begin: Beginning, lost_version: int, setback: setbacks.Setback | None, mark: batches.Mark
) -> policies.PolicyVersion:
    """Go on from a checkpoint that the server has lost. Its steps stay unknown to the store."""
    found = begin.folder.later(lost_version)
    with begin.database.transaction() as tx:
        base = setbacks.base_of(tx, begin.run.id, lost_version)
        newest = policies.latest_version(tx, begin.run.id)
    if found is None or (base is None and setback is None):
        raise ConfigError(
            f"--from-version {lost_version}: {begin.folder.path} has no whole checkpoint of a lost version "
            "of that number; leave the option out, or name another."
        )
    known, place = found
    lost = setback.last_version if setback else None
    version = max(newest or 0, lost or 0) + 1
    target = begin.folder.version_folder(version)
    checkpoint.copy(place, known.hash, target)
    policy = policies.PolicyVersion(version, known.step, target, known.hash)
    with begin.database.transaction() as tx:
        # Back to what the store knew when it lost the version: the weights contain nothing that came after.
        reopened = batches.reopen(tx, begin.run.id, begin.worker_id, mark.version if base is None else base)
        if setback:
            setbacks.record(tx, begin.run.id, begin.worker_id, setback, version)
        setbacks.adopt(tx, begin.run.id, lost_version, policy)
        runs.announce(tx, begin.run.id)
    begin.folder.acknowledge(Publication(version, known.step, known.hash))
    logger.warning(
        "going on from the lost version %d as version %d, step %d; rows of steps that the server has lost "
        "count as not trained and are drawn again, and so are those of %d batches that were reopened",
        *(lost_version, version, known.step, reopened),
    )
    return policy


def _offer(begin: Beginning, setback: setbacks.Setback) -> str:
    """How to go on from the newest checkpoint that the server has lost, where there is one."""
    kept = _offered(begin, setback)
    if kept is None:
        return ""
    return (
        f"; checkpoints that it lost are kept as *.later in {begin.folder.path}; to go on from the newest "
        f"instead, start once with --from-version {kept}"
    )


def _offered(begin: Beginning, setback: setbacks.Setback) -> int | None:
    versions = range(setback.last_version or -1, (setback.first_version or 0) - 1, -1)
    return next((version for version in versions if begin.folder.later(version)), None)


def _ask(
    begin: Beginning, damaged: Sequence[policies.PolicyVersion], setback: setbacks.Setback | None
) -> str:
    """Why the run does not go on by itself from its starting model, and what to do."""
    what = f"none of its checkpoints is whole ({_versions(damaged)})" if damaged else ""
    forgot = f"the server has lost {setback}" if setback else ""
    kept = _offered(begin, setback) if setback else None
    remedies = ["restore one of them"] if damaged else []
    remedies += [f"go on from one that the server has lost with --from-version {kept}"] if kept else []
    remedies.append("train again from the starting model with --from-start")
    reasons = " and ".join(reason for reason in (what, forgot) if reason)
    return f"Run '{begin.run.name}': {reasons}; {', or '.join(remedies)}."


def first_digest(database: Database, run: runs.Run) -> str:
    """The digest of the run's starting model, as its files were when the run began."""
    with database.transaction() as tx:
        return policies.with_checkpoint(tx, run.id)[-1].checkpoint_hash


def first_model(begin: Beginning) -> Path:
    """The folder of the run's starting model, which the policy is compared with or is an adapter on.

    Raises:
        ConfigError: it has changed or is gone.
    """
    with begin.database.transaction() as tx:
        oldest = policies.with_checkpoint(tx, begin.run.id)[-1]
    place = begin.found(oldest) if oldest.version == 0 else None
    if place is None:
        raise ConfigError(
            f"Run '{begin.run.name}': its starting model has changed or is gone, and the policy is held "
            "to it, or built on it; restore it."
        )
    return place


def _within_reach(begin: Beginning, policy: policies.PolicyVersion, place: Path) -> Path:
    """Where the run reads a checkpoint from: in another owner's folder it may be deleted at any time."""
    if policy.version == 0 or names(place.parent, begin.folder.owner):
        return place
    target = begin.folder.version_folder(policy.version)
    checkpoint.copy(place, policy.checkpoint_hash, target)
    logger.info("version %d: copied from %s to %s", policy.version, place, target)
    return target


def _check_is_there(checkpoints: Path) -> None:
    """A disk that is not mounted is no reason to do all the work again."""
    if not checkpoints.is_dir():
        raise TrinityError(
            f"The folder of checkpoints {checkpoints} is missing: mount or restore it. "
            "To train again without them, create it and use --from-start."
        )


def _versions(damaged: Sequence[policies.PolicyVersion]) -> str:
    newest, oldest = damaged[0].version, damaged[-1].version
    return f"version {newest}" if newest == oldest else f"versions {oldest} to {newest}"


def _starting_model(tx: Transaction, model: ModelConfig) -> tuple[Path, str | None] | None:
    """Its folder, and the digest where another run has recorded one; None for one that is made of nothing."""
    if model.path is not None:
        check_source(model)
        return model.path.expanduser().absolute(), None
    if model.run is not None:
        other = runs.find(tx, model.run)
        policy = policies.newest(tx, other.id)
        if policy is None:
            raise ConfigError(f"model.run: run '{model.run}' has no checkpoint yet; train it first.")
        return policy.checkpoint, policy.checkpoint_hash
    return None


def _digest(folder: Path, expected: str | None, model: ModelConfig) -> str:
    """The digest of the starting model's files, which must be the one that another run recorded."""
    try:
        found = folder_digest.digest(folder)
    except FileNotFoundError as error:
        if model.run is None:
            raise
        raise _pruned(model.run) from error
    if expected not in (None, found):
        raise TrinityError(
            f"model.run: the checkpoint of '{model.run}' at {folder} is damaged, or is deleted right now "
            "as a newer version replaced it; start again."
        )
    return found


def _pruned(run_name: str) -> TrinityError:
    return TrinityError(
        f"model.run: the checkpoint of '{run_name}' was replaced by a newer version meanwhile; start again."
    )
