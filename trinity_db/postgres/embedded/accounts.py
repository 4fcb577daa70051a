"""The user that the server runs as: PostgreSQL refuses to run as root, so root needs another one."""

import logging
import os
import pwd
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Account:
    """The user that server processes run as if we are root."""

    uid: int
    gid: int


def server_account(data: Path) -> Account | None:
    """Return the server's user. None: our own. For root: the data's owner, or `nobody` if that is root."""
    if os.geteuid() != 0:
        return None
    owner = data.stat() if data.exists() else None
    if owner and owner.st_uid != 0:
        return Account(owner.st_uid, owner.st_gid)
    nobody = pwd.getpwnam("nobody")
    return Account(nobody.pw_uid, nobody.pw_gid)


def as_account(account: Account | None) -> dict[str, Any]:
    """Return the arguments of subprocess that run a process as this account, without other groups."""
    return {"user": account.uid, "group": account.gid, "extra_groups": []} if account else {}


def let_through(paths: Iterable[Path], account: Account) -> None:
    """Let the account reach the paths, by adding only search permission to parent folders that lack it."""
    opened = []
    for folder in sorted({parent for path in paths for parent in path.parents}):
        status = folder.stat()
        if status.st_uid != account.uid and not status.st_mode & stat.S_IXOTH:
            folder.chmod(stat.S_IMODE(status.st_mode) | stat.S_IXOTH)
            opened.append(str(folder))
    if opened:
        logger.warning("Made searchable (o+x), as the database cannot run as root: %s", ", ".join(opened))


def hand_over(folder: Path, account: Account) -> None:
    """Give a folder of root, created just now or copied from elsewhere, to the account."""
    if folder.lstat().st_uid == 0:
        for path in (*folder.rglob("*"), folder):
            os.chown(path, account.uid, account.gid, follow_symlinks=False)
