"""A role's command that an upgrade of the store interrupts starts itself again, with the installed code.

Python cannot replace the code of a process that runs. So the command ends in its ordinary way, and as its
last act puts a new program in its place, under the same process id: a terminal, a scheduler or a supervisor
sees one process that goes on. The new program waits until the store fits its code.
"""

import atexit
import logging
import os
import re
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from trinity_db.endings import endings
from trinity_db.errors import LeaseLost, StoreUpgraded, TrinityError

logger = logging.getLogger(__name__)

INTERRUPTED = "TRINITY_DB_INTERRUPTED"  # environment variable of a command that an upgrade interrupted
LOOK_SECONDS = 2.0  # between two looks at the store's schema
INSTALLED_SECONDS = 10.0  # for which the installed code is the same, so that no half of it is started
# Set by torchrun: without the other ranks no rank can go on, so all of them are to be started again.
BY_TORCHRUN = "TORCHELASTIC_RUN_ID"


class Again:
    """Whether a command starts again at its end. Made before what else ends at exit, so that it is last."""

    def __init__(self) -> None:
        self._is_asked = False
        atexit.register(self._start)

    def ask(self, error: Exception) -> None:
        """Start this command again at the end of the process, because of an upgrade.

        Raises:
            The error: it has another cause, or another process starts this one again.
        """
        from trinity_db.service import is_supervised

        if not _is_by_upgrade(error) or is_supervised() or BY_TORCHRUN in os.environ:
            raise error
        logger.info("this command starts again, and goes on when the store is upgraded")
        os.environ[INTERRUPTED] = "1"
        self._is_asked = True
        for number in endings():
            signal.signal(number, self._on_signal)

    def _on_signal(self, *_: Any) -> None:
        self._is_asked = False

    def _start(self) -> None:
        if not self._is_asked:
            return
        try:
            _replace_process()
        except OSError as error:  # an exception here would leave the exit code 0
            print(f"this command cannot start again: {error}", file=sys.stderr, flush=True)
            os._exit(1)


def wait_for_upgrade() -> None:
    """Wait until the store's schema is the one of this code, if an upgrade interrupted this command.

    So does a role that has a supervisor: newer code may have been installed while its run was at work. If the
    schema is newer, wait until code for it is installed, and start that.

    Raises:
        KeyboardInterrupt: the supervisor is gone.
    """
    from trinity_db.service import is_orphan, is_supervised

    if os.environ.pop(INTERRUPTED, None) is None and not is_supervised():
        return
    from trinity_db import schema
    from trinity_db.database import retry
    from trinity_db.opening import location

    told, since = None, time.monotonic()
    installed: str | None = schema.HEAD
    url = retry(location, is_orphan)
    while found := retry(lambda: _obstacle(url), is_orphan):
        if is_orphan():
            raise KeyboardInterrupt
        if str(found) != told:
            told = str(found)
            logger.warning("waiting for the store: %s", told)
        if (head := _installed()) != installed:
            installed, since = head, time.monotonic()
        if installed not in (None, schema.HEAD) and time.monotonic() - since > INSTALLED_SECONDS:
            os.environ[INTERRUPTED] = "1"
            _replace_process()
        time.sleep(LOOK_SECONDS)


def _obstacle(url: str) -> StoreUpgraded | None:
    """Why the store does not fit this code; None: it does."""
    from trinity_db import schema, upgrades

    try:
        found = upgrades.schema_version(url)
    except StoreUpgraded as error:
        return error
    return StoreUpgraded(upgrades.mismatch(found)) if found != schema.HEAD else None


def _is_by_upgrade(error: Exception) -> bool:
    """Whether an upgrade can have caused an error: it came, or the store has another schema by now.

    A process that was frozen or cut off during an upgrade hears of it by a lost lease, or by a statement
    that the new schema refuses.
    """
    import psycopg

    from trinity_db import schema, upgrades
    from trinity_db.opening import location

    if isinstance(error, StoreUpgraded):
        return True
    if not isinstance(error, LeaseLost | psycopg.Error):
        return False
    try:
        return upgrades.schema_version(location()) != schema.HEAD
    except StoreUpgraded:
        return True
    except TrinityError:
        return False


def _installed() -> str | None:
    """The schema that the installed code needs; it may have been installed after this process began.

    None: the code cannot be read, as while it is being installed.
    """
    from trinity_db import schema

    with suppress(OSError):
        text = Path(schema.__file__).read_text(encoding="utf-8")
        if found := re.search(r'^HEAD = "(\w+)"', text, re.MULTILINE):
            return found[1]
    return None


def _replace_process() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *_without_allowed_once(sys.orig_argv[1:])])


def _without_allowed_once(arguments: Sequence[str]) -> list[str]:
    """Arguments of this command but those by which a person allowed something for one start."""
    return re.sub(r"\0(--from-start|--from-version(=|\0)[^\0]*)(?=\0|$)", "", "\0".join(arguments)).split(
        "\0"
    )
