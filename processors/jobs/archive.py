"""The archiver: moves payloads of finished rows from Postgres to Lance.

Each run has at most one archiver at a time, which holds its lease while its worker is alive. A move reads the
bytes, appends them to Lance, flushes and reads them back, then deletes them in Postgres, in a transaction
that checks the lease. If the process is killed at any point, each payload remains readable in one place. No
transaction is open while Lance works.
"""

import logging
import math
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec

from trinity_db.arrays.archive import Writer
from trinity_db.errors import DatabaseUnavailable, MissingExtra, TrinityError
from trinity_db.postgres.connection import Database
from trinity_db.processors.config import ArchiveConfig
from trinity_db.store import payloads, runs
from trinity_db.worker.service import LEASE_SECONDS

logger = logging.getLogger(__name__)

MAX_ROWS = 16_384  # in one append
MAX_BYTES = 32 << 20  # in one append, which uses about four times as much memory
# Maximum share of time spent on searches that find nothing: each scans rows that stay ready for a long time.
LOOKING_SHARE = 0.05
PAUSE_SECONDS = 60.0  # after an error of Lance; freeing disk space takes a person longer


class Archiver:
    """Archives the payloads of one run, unless another process does."""

    def __init__(
        self, database: Database, run: runs.Run, config: ArchiveConfig, stopping: Callable[[], bool]
    ) -> None:
        """Create the archiver.

        Raises:
            MissingExtra: if lancedb is not installed.
        """
        if find_spec("lancedb") is None:
            raise MissingExtra("lance", "lancedb")
        self._database = database
        self._run = run
        self._config = config
        self._stopping = stopping
        self._writer: tuple[payloads.Lease, Writer] | None = None
        self._floor = 0
        """Rows below it have nothing to archive, except late rows, which `finish` looks for."""
        self._look_at = -math.inf

    def work(self, worker_id: int) -> bool:
        """Archive once if there is enough for an append. If Lance fails, log the error and retry later."""
        if time.monotonic() < self._look_at:
            return False
        try:
            return self._round(worker_id, self._config.min_rows)
        except TrinityError as error:
            self._let_go()
            if isinstance(error, DatabaseUnavailable):
                raise
            logger.warning("archive: %s; all payloads are unchanged", error)
            self._look_at = time.monotonic() + PAUSE_SECONDS
            return False

    def finish(self, worker_id: int) -> bool:
        """Archive everything that is left; return False while more may come. True if another process
        is the archiver, which then finishes.

        Raises:
            TrinityError: if the archive cannot be used; the rest stays in Postgres.
        """
        self._floor = 0
        try:
            while not self._stopping() and self._round(worker_id, at_least=1):
                pass
            if self._writer is not None and not self._stopping():
                self._tend(*self._writer)
        except TrinityError:
            self._let_go()
            raise
        if self._writer is None:
            return True
        with self._database.transaction() as tx:
            return not payloads.archivable(tx, self._run.id, self._floor, 1, MAX_BYTES).ids

    def _round(self, worker_id: int, at_least: int) -> bool:
        """Move payloads if there are at least `at_least`, or if they fill one append."""
        started = time.monotonic()
        with self._database.transaction() as tx:
            chosen = payloads.archivable(tx, self._run.id, self._floor, MAX_ROWS, MAX_BYTES)
        worth_it = chosen.is_full or len(chosen.ids) >= at_least
        if not worth_it or not (writer := self._writer or self._take_lease(worker_id)):
            now = time.monotonic()
            self._look_at = now + (now - started) / LOOKING_SHARE
            return False
        self._move(*writer, chosen.ids)
        return True

    def _take_lease(self, worker_id: int) -> tuple[payloads.Lease, Writer] | None:
        """Become the archiver and clean up after the previous one. None while another process is the
        archiver."""
        with self._database.transaction() as tx:
            lease = payloads.claim_archive(tx, self._run.id, worker_id, LEASE_SECONDS)
        if lease is None:
            return None
        writer = Writer(lease.table, must_exist=lease.has_rows)
        self._tend(lease, writer)
        self._floor, self._writer = 0, (lease, writer)
        return self._writer

    def _move(self, lease: payloads.Lease, writer: Writer, ids: Sequence[int]) -> None:
        with self._database.transaction() as tx:
            rows = payloads.to_archive(tx, ids)
        if not rows:  # they have just been pruned
            return
        archive_rows = writer.append(rows)
        with self._database.transaction() as tx:
            payloads.move(tx, lease, archive_rows, sum(len(row.data) for row in rows))
        with self._database.transaction() as tx:
            self._floor = payloads.archive_floor(tx, self._run.id, self._floor)
        if writer.has_many_files():
            self._tend(lease, writer)

    def _tend(self, lease: payloads.Lease, writer: Writer) -> None:
        """Remove orphans and merge small files. Only between moves, because a payload in a move looks like an
        orphan."""
        with self._database.transaction() as tx:
            num_archived = payloads.num_archived(tx, lease)
        if writer.count() != num_archived:
            self._sweep(lease, writer)
        if writer.has_many_files():
            writer.merge_files()

    def _sweep(self, lease: payloads.Lease, writer: Writer) -> None:
        orphans: list[int] = []
        for archive_rows in writer.archive_rows():
            with self._database.transaction() as tx:
                orphans += payloads.orphans(tx, lease, archive_rows)
        writer.remove(orphans)
        if orphans:
            logger.warning("archive: removed %d copies left by a killed or replaced worker", len(orphans))

    def _let_go(self) -> None:
        """Close the open table: the next archiver, also in this process, first checks its content."""
        self._writer = None
