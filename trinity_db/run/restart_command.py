"""Restarts a role's command, with the installed code, after an upgrade of the store interrupted it.

Python cannot replace the code of a running process. So the command ends in the ordinary way, and as its last
act replaces itself with a new program, under the same process id: a terminal, a scheduler or a supervisor
sees one continuous process. The new program waits until the store's schema fits its code.
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

from trinity_db.errors import LeaseLost, StoreUpgraded, TrinityError
from trinity_db.worker.signals import endings

logger = logging.getLogger(__name__)

INTERRUPTED = "TRINITY_DB_INTERRUPTED"  # environment variable of a command that an upgrade interrupted
LOOK_SECONDS = 2.0  # between two checks of the store's schema
INSTALLED_SECONDS = 10.0  # without a change of the installed code: no partial installation is started
# Set by torchrun: a rank cannot continue without the others, so torchrun has to restart all of them.
BY_TORCHRUN = "TORCHELASTIC_RUN_ID"


class Again:
    """Restart of a command at its end. Created before other exit handlers, so that it runs last."""

    def __init__(self) -> None:
        self._is_asked = False
        atexit.register(self._start)

    def ask(self, error: Exception) -> None:
        """Restart this command at the end of the process, because of an upgrade.

        Raises:
            Exception: `error` itself, if it has another cause, or another process restarts this one.
        """
        from trinity_db.worker.service import is_supervised

        if not _is_by_upgrade(error) or is_supervised() or BY_TORCHRUN in os.environ:
            raise error
        logger.info("this command restarts, and continues when the upgrade of the store is done")
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
        except OSError as error:  # an exception here would leave exit code 0
            print(f"this command cannot restart: {error}", file=sys.stderr, flush=True)
            os._exit(1)


def wait_for_upgrade() -> None:
    """Wait until the store's schema fits this code, if an upgrade interrupted this command.

    A supervised role waits too: newer code may have been installed while its run was active. If the schema is
    newer, wait until matching code is installed, and start that.

    Raises:
        KeyboardInterrupt: if the supervisor is gone.
    """
    from trinity_db.worker.service import is_orphan, is_supervised

    if os.environ.pop(INTERRUPTED, None) is None and not is_supervised():
        return
    from trinity_db import schema
    from trinity_db.postgres.connection import retry
    from trinity_db.postgres.opening import location

    reported, since = None, time.monotonic()
    installed: str | None = schema.HEAD
    url = retry(location, is_orphan)
    while obstacle := retry(lambda: _obstacle(url), is_orphan):
        if is_orphan():
            raise KeyboardInterrupt
        if str(obstacle) != reported:
            reported = str(obstacle)
            logger.warning("waiting for the store: %s", reported)
        if (head := _installed()) != installed:
            installed, since = head, time.monotonic()
        if installed not in (None, schema.HEAD) and time.monotonic() - since > INSTALLED_SECONDS:
            os.environ[INTERRUPTED] = "1"
            _replace_process()
        time.sleep(LOOK_SECONDS)


def _obstacle(url: str) -> StoreUpgraded | None:
    """Reason why the store does not fit this code; None if it does."""
    from trinity_db import schema
    from trinity_db.postgres import upgrades

    try:
        version = upgrades.schema_version(url)
    except StoreUpgraded as error:
        return error
    return StoreUpgraded(upgrades.mismatch(version)) if version != schema.HEAD else None


def _is_by_upgrade(error: Exception) -> bool:
    """Whether an upgrade can have caused an error: it was announced, or the store's schema has changed.

    A process that was frozen or cut off during an upgrade only sees a lost lease, or a statement that fails
    with the new schema.
    """
    import psycopg

    from trinity_db import schema
    from trinity_db.postgres import upgrades
    from trinity_db.postgres.opening import location

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
    """Schema that the installed code needs, which may have been installed after this process started.

    None if the code cannot be read, for example during installation.
    """
    from trinity_db import schema

    with suppress(OSError):
        text = Path(schema.__file__).read_text(encoding="utf-8")
        if match := re.search(r'^HEAD = "(\w+)"', text, re.MULTILINE):
            return match[1]
    return None


def _replace_process() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *_without_allowed_once(sys.orig_argv[1:])])


def _without_allowed_once(arguments: Sequence[str]) -> list[str]:
    """Arguments of this command, without options that allow something for one start only."""
    return re.sub(r"\0(--from-start|--from-version(=|\0)[^\0]*)(?=\0|$)", "", "\0".join(arguments)).split(
        "\0"
    )
