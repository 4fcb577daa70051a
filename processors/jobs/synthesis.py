"""Makes tasks and responses from settled groups with the steps of the list `synthesis`.

The leases of groups last as long as the processor's heartbeat. Results are written in the transaction that
ends the lease: a processor that is killed earlier has made nothing, and another one repeats the work.
"""

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from trinity_db.data import dataset
from trinity_db.errors import TrinityError
from trinity_db.postgres.connection import Database, Transaction
from trinity_db.processors.lists.async_judging import Flow
from trinity_db.processors.lists.judge import Row, judge
from trinity_db.processors.lists.lists import LISTS, columns_of
from trinity_db.processors.lists.step import Step
from trinity_db.processors.lists.synthesis_results import Made
from trinity_db.schema.states import Outcome
from trinity_db.store import processing, runs, synthesis
from trinity_db.store.processing import StepVerdict
from trinity_db.store.synthesis import Origin, SourceGroup, SynthesisFailure
from trinity_db.worker.service import LEASE_SECONDS

if TYPE_CHECKING:
    from trinity_db.processors.config import MadeConfig

logger = logging.getLogger(__name__)

PROCESSOR = "synthesis"
SIZE = 16  # groups leased at a time if no step waits for a server
FAILURES_IN_A_ROW = 64  # groups, after which the steps or their server are considered broken

Ended = tuple[SourceGroup, StepVerdict]


class Synthesizer:
    """Runs the list in one process.

    Args:
        woken: Called in another thread when a step has answered.
    """

    def __init__(
        self,
        database: Database,
        run: runs.Run,
        steps: Sequence[Step],
        config: "MadeConfig",
        max_attempts: int,
        woken: Callable[[], None],
    ) -> None:
        self.steps = steps
        self._database = database
        self._run = run
        self._config = config
        self._max_attempts = max_attempts
        slow = [step for step in steps if step.is_async]
        self._quick = [step for step in steps if not step.is_async]
        self._flow = Flow(slow, LISTS[PROCESSOR].reading, woken) if slow else None
        self._columns = columns_of(PROCESSOR, steps)
        self._sources: dict[int, SourceGroup] = {}
        """Groups that this process holds, by the ID of their synthesis."""
        self._version = 0
        self._failures_in_a_row = 0

    def start(self) -> None:
        """Record the steps.

        Raises:
            ConfigError: if the configured taskset or data set cannot receive the results.
        """
        record = [step.record() for step in self.steps]
        with self._database.transaction() as tx:
            dataset.check_names(tx, self._config.taskset, self._data)
            self._version = processing.record_steps(tx, self._run.id, PROCESSOR, record)

    def work(self, worker_id: int, stopping: Callable[[], bool]) -> bool:
        """Claim groups, run steps, write finished results; return whether there was anything to do."""
        ended = self._flow.done() if self._flow is not None else []
        self._finish(worker_id, ended)
        taken = self._take(worker_id)
        rows = [Row(group.columns, StepVerdict(group.id, group.attempt)) for group in taken]
        rows = [row for row in rows if not self._is_given_up(worker_id, row)]
        judged = list(judge(rows, self._quick, LISTS[PROCESSOR].reading, stopping))
        waiting = [row for row in judged if row.passes] if self._flow is not None else []
        if self._flow is not None:
            self._flow.take(waiting)
        ids = {row.verdict.id for row in waiting}
        self._finish(worker_id, [row for row in judged if row.verdict.id not in ids])
        return bool(ended or taken)

    def release(self, worker_id: int) -> None:
        """Store finished answers, and release the other groups."""
        if self._flow is not None:
            self._finish(worker_id, self._flow.done())
            self._flow.close()
        with self._database.transaction() as tx:
            synthesis.release(tx, worker_id, list(self._sources))
        self._sources.clear()

    def is_done(self) -> bool:
        """Whether no group is due, or the total is reached."""
        with self._database.transaction() as tx:
            return not synthesis.count_due(tx, self._run.id) or not self._room(tx)

    def _room(self, tx: Transaction) -> int:
        return max(self._config.total - synthesis.count_made(tx, self._run.id), 0)

    def _take(self, worker_id: int) -> list[SourceGroup]:
        """Lease groups, within the concurrency of the steps and the room below the cap."""
        size = SIZE if self._flow is None else self._flow.room
        if not size:
            return []
        with self._database.transaction() as tx:
            size = min(size, self._room(tx) - len(self._sources))
            if size <= 0:
                return []
            taken = synthesis.take(tx, self._run.id, worker_id, self._columns, size, LEASE_SECONDS)
            full = [group for group in taken if group.made >= self._config.per_source]
            synthesis.finish(tx, self._version, [(group, {"per_source": 1}) for group in full])
        due = [group for group in taken if group.made < self._config.per_source]
        self._sources.update({group.id: group for group in due})
        return due

    def _is_given_up(self, worker_id: int, row: Row) -> bool:
        """Whether the row was leased too often without an answer; if so, mark it as failed."""
        if row.verdict.attempt <= self._max_attempts:
            return False
        error = f"the synthesis processor ended before its answer {row.verdict.attempt - 1} times"
        verdict = StepVerdict(row.verdict.id, row.verdict.attempt, Outcome.FAILED, detail={"error": error})
        self._finish(worker_id, [Row(row.columns, verdict)])
        return True

    def _finish(self, worker_id: int, rows: Sequence[Row]) -> None:
        """Write the results of groups that are still held, and why other groups have none."""
        if not rows:
            return
        ended = [(self._sources.pop(row.verdict.id), row.verdict) for row in rows]
        made = [(self._name(source, item), item) for source, verdict in ended for item in verdict.made]
        names = sorted({name for name, _ in made})
        with self._database.transaction() as tx:
            dataset.prepare(tx, names)  # lock them before the run, in the global lock order
            held_ids = synthesis.hold(tx, self._run.id, worker_id, [source for source, _ in ended])
            still_held = [(source, verdict) for source, verdict in ended if source.id in held_ids]
            failures = [_failure(source, verdict) for source, verdict in still_held if not _passes(verdict)]
            synthesis.fail(tx, failures, self._max_attempts)
            refused = self._write(tx, [ended_group for ended_group in still_held if _passes(ended_group[1])])
            synthesis.finish(tx, self._version, refused)
            runs.announce(tx, self._run.id)
        if lost := len(ended) - len(still_held):
            logger.warning("synthesis: %d groups were taken over by another worker", lost)
        self._watch_failures(failures, bool(refused))

    def _name(self, source: SourceGroup, made: Made) -> str:
        """Return the name of the taskset or the data set that receives an item."""
        if made.is_task:
            return self._config.taskset or source.taskset
        return self._data

    @property
    def _data(self) -> str:
        return self._config.data or f"{self._run.name}-made"

    def _write(self, tx: Transaction, ended: Sequence[Ended]) -> list[tuple[SourceGroup, Counter[str]]]:
        """Write new items within the caps; return why others were refused, for each source."""
        digests = [made.digest for _, verdict in ended for made in verdict.made]
        known = synthesis.made_before(tx, self._run.id, digests)
        counts = synthesis.made_of(tx, self._run.id, [source.task_id for source, _ in ended])
        room = self._room(tx)
        result: list[tuple[SourceGroup, Counter[str]]] = []
        origins: list[Origin] = []
        for source, verdict in ended:
            refused: Counter[str] = Counter()
            for made in verdict.made:
                name = self._name(source, made)
                if made.digest in known:
                    refused["duplicate"] += 1
                elif counts[source.task_id] >= self._config.per_source:
                    refused["per_source"] += 1
                elif len(origins) >= room:
                    refused["total"] += 1
                elif (id := dataset.add(tx, name, made.record)) is None:
                    refused["duplicate"] += 1
                else:
                    known.add(made.digest)
                    counts[source.task_id] += 1
                    origin_id = {"task_id": id} if made.is_task else {"experience_id": id}
                    origins.append(Origin(source, made.step, made.digest, made.detail, **origin_id))
            result.append((source, refused))
        synthesis.write_origins(tx, self._run.id, origins)
        return result

    def _watch_failures(self, failures: Sequence[SynthesisFailure], has_ended: bool) -> None:
        """Log failures, and stop if nothing can be made.

        Raises:
            TrinityError: if FAILURES_IN_A_ROW groups failed in a row.
        """
        for failure in failures:
            logger.warning("synthesis: group %d: %s", failure.source.group_id, failure.error)
        self._failures_in_a_row = 0 if has_ended else self._failures_in_a_row + len(failures)
        if self._failures_in_a_row >= FAILURES_IN_A_ROW:
            raise TrinityError(
                f"synthesis: {FAILURES_IN_A_ROW} groups failed in a row, the last with: {failures[-1].error}"
            )


def _passes(verdict: StepVerdict) -> bool:
    """Whether all steps answered."""
    return verdict.outcome == Outcome.PASSED


def _failure(source: SourceGroup, verdict: StepVerdict) -> SynthesisFailure:
    if verdict.outcome == Outcome.FAILED:
        return SynthesisFailure(source, verdict.error or "", verdict.step)
    return SynthesisFailure(source, f"{verdict.step} dropped the row ({verdict.reason})", verdict.step)
