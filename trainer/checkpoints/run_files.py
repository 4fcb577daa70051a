"""Folders of a run's checkpoints: claims them for the run, removes leftovers, and finds complete files."""

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from trinity_db.errors import TrinityError
from trinity_db.models import folder_digest
from trinity_db.postgres.connection import Database, Transaction
from trinity_db.store import instances, policies, runs, workers
from trinity_db.trainer.checkpoints import writing
from trinity_db.trainer.checkpoints.folder import Folder, claim
from trinity_db.trainer.checkpoints.retrying_bucket import Patience
from trinity_db.trainer.checkpoints.uploads import Uploads

logger = logging.getLogger(__name__)

FROM_START = "--from-start (in Python: from_start=True)"
"""How to allow a start from the starting model, on the command line and in `store.trainer`."""


def from_version(version: int) -> str:
    """Return how to continue from a lost version, on the command line and in `store.trainer`."""
    return f"--from-version {version} (in Python: from_version={version})"


@dataclass(frozen=True)
class RunFiles:
    """A run, the trainer's worker row, and the folders of the run's checkpoints."""

    database: Database
    run: runs.Run
    worker_id: int
    default: Path
    """Folder of checkpoints in the configuration."""
    folder: Folder
    """The run's own folder: the default one, or the one next to it."""
    uploads: Uploads | None = None
    """The run's objects; None: versions and checkpoints are only in the folder."""
    patience: Patience = field(default_factory=lambda: Patience(lambda: False))
    """Retries for requests to the object store."""

    def locate(self, policy: policies.PolicyVersion) -> Path | None:
        """Return the folder with a version's complete weights, or None.

        It is the recorded one, or, if the store was moved, a folder of the same name in this run's folders.
        """
        return self._whole(policy.checkpoint, policy.checkpoint_hash, folder_digest.verify)

    def locate_checkpoint(self, policy: policies.PolicyVersion) -> Path | None:
        """Return the folder with a version's complete checkpoint, found like in `locate`, or None."""
        resumed = policy.resumed
        if resumed is None:
            return None
        return self._whole(resumed.folder, resumed.hash, folder_digest.verify_checkpoint)

    def locate_all(self, policy: policies.PolicyVersion) -> policies.PolicyVersion | Path:
        """Return a version with the folders of its complete weights and checkpoint.

        If one is damaged or missing, return its recorded folder.
        """
        weights = self.locate(policy)
        if weights is None:
            return policy.checkpoint
        resumed = policy.resumed
        if resumed is None:
            return replace(policy, checkpoint=weights)
        if (resumed.folder, resumed.hash) == (policy.checkpoint, policy.checkpoint_hash):  # one for both
            return replace(policy, checkpoint=weights, resumed=replace(resumed, folder=weights))
        folder = self.locate_checkpoint(policy)
        if folder is None:
            return resumed.folder
        return replace(policy, checkpoint=weights, resumed=replace(resumed, folder=folder))

    def copied(self, policy: policies.PolicyVersion) -> policies.PolicyVersion:
        """Copy a version and its checkpoint into the run's own folder. Return it with its new folders."""
        weights, resumed = self.folder.version_folder(policy.version), policy.resumed
        writing.copy(
            policy.checkpoint, lambda copy: folder_digest.verify(copy, policy.checkpoint_hash), weights
        )
        if resumed is not None and resumed.folder == policy.checkpoint:
            resumed = replace(resumed, folder=weights)
        elif resumed is not None:
            folder, digest = self.folder.checkpoint_folder(policy.version), resumed.hash
            writing.copy(resumed.folder, lambda copy: folder_digest.verify_checkpoint(copy, digest), folder)
            resumed = replace(resumed, folder=folder)
        return replace(policy, checkpoint=weights, resumed=resumed)

    def shared(self, tx: Transaction) -> set[str]:
        """Return the names of folders in the run's own folder used by other runs, which started from those
        weights.

        A starting run locks the version's row. So call this after the transaction's change to that row.
        """
        return self.folder.names_among(policies.folders_of_others(tx, self.run.id))

    def _whole(self, recorded: Path, expected: str, verify: Callable[[Path, str], bool]) -> Path | None:
        moved = (parent / recorded.name for parent in (self.folder.path, self.default))
        places = dict.fromkeys([recorded, *moved])
        return next((folder for folder in places if verify(folder, expected)), None)


def own_folder(
    database: Database,
    run: runs.Run,
    worker_id: int,
    default: Path,
    weights: str | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> RunFiles:
    """Find or create the run's own folder of checkpoints. No other run and no other store writes to it.

    Args:
        weights: Object store for versions and checkpoints; None: no uploads.
        should_stop: Whether to give up requests to the object store.

    Raises:
        ConfigError: if the default folder and the one next to it have other owners. Then nothing is changed.
        TrinityError: if the folder is not writable, or is missing although it contains versions; or see
            `Uploads`.
    """
    with database.transaction() as tx:
        instance = instances.identify(tx)
        published = policies.with_checkpoint(tx, run.id)
    if any(policy.checkpoint.parent == default for policy in published) and not is_elsewhere(published):
        check_is_there(default)
    identity = {"store": str(instance.id)} | run.identity
    folder = claim(default, identity)
    patience = Patience(should_stop)
    uploads = None if weights is None else Uploads(weights, identity, run.name, patience)
    return RunFiles(database, run, worker_id, default, folder, uploads, patience)


def clear_leftovers(files: RunFiles) -> list[int]:
    """Remove leftovers of crashes from the run's own folder. Files of recorded versions stay.

    Files of versions that the server has lost are set aside. Return the numbers of these versions.

    Raises:
        LeaseLost: if another trainer has taken over. Unrecorded files may be that trainer's.
    """
    with files.database.transaction() as tx:
        workers.hold_place(tx, files.worker_id)
        newest = policies.latest_version(tx, files.run.id)
        recorded = policies.with_checkpoint(tx, files.run.id)
        shared = files.shared(tx)
    published = {folder.name for policy in recorded for folder in policy.folders} | shared
    lost = files.folder.set_lost_aside(-1 if newest is None else newest)
    files.folder.clear_leftovers(published)
    return lost


def addresses(versions: Sequence[policies.PolicyVersion]) -> list[str]:
    """Return the addresses of the versions' checkpoints in an object store."""
    return [policy.resumed.address for policy in versions if policy.resumed and policy.resumed.address]


def is_elsewhere(recorded: Sequence[policies.PolicyVersion]) -> bool:
    """Whether a trainer may continue without the folder, because an object store has a checkpoint."""
    return bool(addresses(recorded))


def check_is_there(checkpoints: Path) -> None:
    """Raise an error if the folder is missing: probably a disk is not mounted."""
    if not os.path.isdir(checkpoints):  # Path.is_dir raises without permission to read the path
        raise TrinityError(
            f"The folder of checkpoints {checkpoints} is missing: mount or restore it. "
            f"To train again without them, create it and use {FROM_START}."
        )
