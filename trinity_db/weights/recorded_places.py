"""Checks which recorded folders and addresses of versions a process may read.

Less trusted logins write these columns: an explorer on another machine, or a person who may insert a run,
must not choose which folder is loaded here, or which bucket is read with this process's credentials. The
files must match the recorded digest in any case.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from trinity_db.config.base import home
from trinity_db.errors import ConfigError, TrinityError
from trinity_db.store.policies import PolicyVersion
from trinity_db.weights.broadcast import parsed
from trinity_db.weights.manifest import OWNER_FILE

OWNER_KEYS = {"store", "name", "id", "created_at"}
MAX_OWNER_BYTES = 10_000
PLAIN_PARTS = re.compile(r"\w[\w.-]*(/\w[\w.-]*)*", re.ASCII)
"""Path segments that are taken literally. The object store's library decodes %2e%2e and treats \\ as /."""
CONFIGURED = "this process's configuration (--config FILE, for commands that take the name of a run)"


@dataclass(frozen=True)
class RecordedPlaces:
    """Folders and addresses in the configuration of a process, and TRINITY_DB_HOME."""

    checkpoints: Path | None = None
    """`trainer.checkpoints`."""
    model: Path | None = None
    """`model.path`, a possible folder of version 0."""
    weights: str | None = None
    """`trainer.weights`."""
    broadcast: str | None = None
    """`trainer.broadcast`."""
    home: Path = field(default_factory=home)

    def check(self, policy: PolicyVersion) -> None:
        """Refuse a version if neither its folder nor its address may be read.

        Raises:
            TrinityError: as `check_folder` and `check_address`.
        """
        if policy.weights is None:
            self.check_folder(policy)
        elif not self.allows_folder(policy):
            self.check_address(policy)

    def allows_folder(self, policy: PolicyVersion) -> bool:
        """Whether this configuration or a trainer's `run.json` vouches for a version's folder."""
        folder = policy.checkpoint
        roots = [path for path in (self.checkpoints, self.home) if path is not None]
        if any(_is_below(folder, root) for root in roots) or _has_owner(folder.parent):
            return True
        return self.model is not None and _absolute(self.model).resolve() == folder.resolve()

    def check_folder(self, policy: PolicyVersion) -> None:
        """Refuse a version's folder that `allows_folder` does not allow.

        Raises:
            ConfigError: with what to configure.
        """
        if self.allows_folder(policy):
            return
        raise ConfigError(
            f"The store names {policy.checkpoint} as the folder of version {policy.version}. A folder is "
            f"loaded only if it is model.path or below trainer.checkpoints of {CONFIGURED}, below "
            f"TRINITY_DB_HOME, or next to the {OWNER_FILE} of a trainer."
        )

    def check_broadcast(self, address: str) -> None:
        """Refuse to connect to another host or port than `trainer.broadcast` names.

        Raises:
            ConfigError: with what to configure.
        """
        if self.broadcast is not None:
            host, port = parsed(self.broadcast)
            asked_host, asked_port = parsed(address)
            if asked_host == host and port in (0, asked_port):
                return
        raise ConfigError(
            f"the store names {address} as the address of the trainer's broadcast, and trainer.broadcast of "
            f"{CONFIGURED} is {self.broadcast or 'not set'}: it is not asked."
        )

    def check_address(self, policy: PolicyVersion) -> None:
        """Refuse the address of a version's objects unless it is below `trainer.weights`.

        Raises:
            ConfigError: `trainer.weights` is not set.
            TrinityError: if it is elsewhere. The trainer may upload the version there later.
        """
        if policy.weights is None or _is_under(policy.weights, self.weights):
            return
        text = (
            f"The store names {policy.weights} as the address of version {policy.version}. It is asked only "
            f"if it is below trainer.weights of {CONFIGURED}"
        )
        if self.weights is None:
            raise ConfigError(f"{text}, which is not set.")
        raise TrinityError(f"{text}, which is {self.weights}.")


def _is_below(folder: Path, root: Path) -> bool:
    """Whether a path is in a folder, as written or with links resolved."""
    if not folder.is_absolute() or ".." in folder.parts:
        return False
    root = _absolute(root)
    # As written too: the root's owner may have made a link below it, for example to a larger disk.
    return folder.is_relative_to(root) or folder.resolve().is_relative_to(root.resolve())


def _absolute(path: Path) -> Path:
    return path.expanduser().absolute()


def _has_owner(folder: Path) -> bool:
    """Whether a trainer marked this folder as a checkpoint of its run.

    Any run and store is accepted: version 0 may be another run's version, and a copied store keeps its
    versions.
    """
    try:
        with (folder / OWNER_FILE).open("rb") as file:
            owner = json.loads(file.read(MAX_OWNER_BYTES))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(owner, Mapping) and owner.keys() == OWNER_KEYS


def _is_under(address: str, prefix: str | None) -> bool:
    if prefix is None:
        return False
    beginning = f"{prefix.rstrip('/')}/"
    return address.startswith(beginning) and bool(PLAIN_PARTS.fullmatch(address, len(beginning)))
