"""The archiver: moves payloads of rows that are done with out of Postgres into Lance.

A run has one at a time; it holds its lease for as long as its worker lives. Each move is: read the
bytes, append them to Lance in one go, flush and read back, then let go of them in Postgres, in a transaction
that finds out whether the lease is still held. Kill it at any point: each payload can be read, in one place.
No transaction is open while Lance works.
"""

import logging
import math
import time
from collections.abc import Callable, Sequence

from trinity_db.archive import Writer
from trinity_db.database import Database
from trinity_db.errors import DatabaseUnavailable, TrinityError
from trinity_db.processors.config import ArchiveConfig
from trinity_db.service import LEASE_SECONDS
from trinity_db.store import payloads, runs

logger = logging.getLogger(__name__)

MAX_ROWS = 16_384  # in one append
MAX_BYTES = 32 << 20  # in one append, which uses some four times as much memory
# The largest share of time that goes into looking in vain: each look passes rows that stay ready for long.
LOOKING_SHARE = 0.05
PAUSE_SECONDS = 60.0  # after Lance refused; a person who has to make room needs longer


class Archiver:
    """Archives the payloads of one run, when no other process does."""

    def __init__(
        self, database: Database, run: runs.Run, config: ArchiveConfig, stopping: Callable[[], bool]
    ) -> None:
        self._database = database
        self._run = run
        self._config = config
        self._stopping = stopping
        self._writer: tuple[payloads.Lease, Writer] | None = None
        self._floor = 0
        """No row below it has anything to archive, except rows that came late. `finish` looks for those."""
        self._look_at = -math.inf

    def work(self, worker_id: int) -> bool:
        """Archive once if it is worth an append. If Lance refuses, log it, and try again later."""
        if time.monotonic() < self._look_at:
            return False
        try:
            return self._round(worker_id, self._config.min_rows)
        except TrinityError as error:
            self._let_go()
            if isinstance(error, DatabaseUnavailable):
                raise
            logger.warning("archive: %s; every payload is where it was", error)
            self._look_at = time.monotonic() + PAUSE_SECONDS
            return False

    def finish(self, worker_id: int) -> bool:
        """Archive all that is left; False while more comes. If another process is the archiver, it finishes.

        Raises:
            TrinityError: the archive cannot be used; what is not archived stays in Postgres.
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
        """Move payloads if there are at least so many, or if they fill one append."""
        started = time.monotonic()
        with self._database.transaction() as tx:
            chosen = payloads.archivable(tx, self._run.id, self._floor, MAX_ROWS, MAX_BYTES)
        worth_it = chosen.is_full or len(chosen.ids) >= at_least
        if not worth_it or not (held := self._writer or self._take_lease(worker_id)):
            now = time.monotonic()
            self._look_at = now + (now - started) / LOOKING_SHARE
            return False
        self._move(*held, chosen.ids)
        return True

    def _take_lease(self, worker_id: int) -> tuple[payloads.Lease, Writer] | None:
        """Become the archiver, and clear away what an earlier one left. None while another process is it."""
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
        if not rows:  # they were pruned just now
            return
        archive_rows = writer.append(rows)
        with self._database.transaction() as tx:
            payloads.move(tx, lease, archive_rows, sum(len(row.data) for row in rows))
        with self._database.transaction() as tx:
            self._floor = payloads.archive_floor(tx, self._run.id, self._floor)
        if writer.has_many_files():
            self._tend(lease, writer)

    def _tend(self, lease: payloads.Lease, writer: Writer) -> None:
        """Remove orphans, merge small files. Only between moves: what is being moved looks like an orphan."""
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
            logger.warning("archive: removed %d copies that a killed or replaced worker left", len(orphans))

    def _let_go(self) -> None:
        """Forget the open table: the next archiver, this process too, looks first what is there."""
        self._writer = None
