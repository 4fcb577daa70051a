"""The processor daemon: claims, processes and finishes rows, for each processor in turn.

It is responsible for the transitions raw → clean → scored → ready, for preference pairs, and for archiving
payloads. It reads what explorers wrote and does not communicate with explorers or the trainer. Any number of
processors can run concurrently.
"""

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise

from psycopg.rows import DictRow

from trinity_db.errors import TrinityError
from trinity_db.postgres.connection import Database
from trinity_db.processors.config import ProcessorsConfig
from trinity_db.processors.jobs.archive import Archiver
from trinity_db.processors.jobs.priorities import PROCESSOR, Prioritiser
from trinity_db.processors.jobs.retention import Remover
from trinity_db.processors.jobs.scan_position import ScanPosition, Sweep
from trinity_db.processors.jobs.synthesis import Synthesizer
from trinity_db.processors.lists.async_judging import Flow
from trinity_db.processors.lists.changed_files import ChangedFiles
from trinity_db.processors.lists.judge import Row, judge
from trinity_db.processors.lists.lists import LISTS, Steps, stages
from trinity_db.processors.lists.results import Reading
from trinity_db.processors.lists.step import Step
from trinity_db.schema.states import Outcome, WorkerRole
from trinity_db.store import evaluations, finish_groups, processing, retention, runs, workers
from trinity_db.worker.service import LEASE_SECONDS, Service

logger = logging.getLogger(__name__)

FAILURES_IN_A_ROW = 256  # rows, after which the steps, or a column missing in all tasks, are at fault


def _nothing() -> None:
    """Do nothing."""


@dataclass(frozen=True)
class Job:
    """Work that gets its turn in every round."""

    work: Callable[[], bool]
    """Does some of it, and returns whether there was any."""
    start: Callable[[], None] = _nothing
    """Called once, before any work."""
    is_done: Callable[[], bool] = lambda: True
    """Whether nothing is left of it, so that a drain can end."""
    release: Callable[[], None] = _nothing
    """Called once, after all work."""


@dataclass
class _StageState:
    """A stage in this process."""

    stage: processing.Stage
    all_steps: Sequence[Step]
    """Steps of its list."""
    steps: Sequence[Step]
    first_try: int
    """Attempt number of a row that arrives here for the first time and was never released."""
    flow: Flow | None
    """Its asynchronous steps; None if it has none. `steps` are the synchronous ones, which run first."""
    next: "_StageState | None" = None
    """The next stage, if it judges passing rows immediately, under the same lease."""
    position: ScanPosition = field(default_factory=ScanPosition)
    failures_in_a_row: int = 0

    @property
    def reading(self) -> Reading:
        """How its list interprets results."""
        return LISTS[self.stage.processor].reading


class Processors(Service):
    """All configured processors of a run in one process.

    Args:
        wait_seconds: Seconds that a complete group waits for its required reward; None: no limit.
        only: Evaluations whose rows are scored; the process ends when they have ended.
    """

    role = WorkerRole.PROCESS

    def __init__(
        self,
        database: Database,
        run: runs.Run,
        config: ProcessorsConfig,
        steps: Steps,
        drain: bool = False,
        requires_reward: str | None = None,
        wait_seconds: float | None = None,
        only: Sequence[int] | None = None,
    ) -> None:
        super().__init__(database, run)
        self._config = config
        self._only = only
        self._drain = drain
        self._rules = _rules(config, requires_reward, wait_seconds)
        self._stages = [
            self._stage(stage, steps[stage.processor], first_try)
            for first_try, stage in enumerate(stages(steps), 1)
            if only is None or stage.processor == processing.SCORE.processor
        ]
        if all(state.flow is None for state in self._stages):
            _join(self._stages)
        self._archiver: Archiver | None = None
        if config.archive is not None and only is None:
            self._archiver = Archiver(database, run, config.archive, lambda: self.stopping)
        self._jobs = [Job(partial(self._judge, state)) for state in self._stages]
        self._jobs += [Job(self._end_evaluations)] if only is not None else self._jobs_of_run(steps)
        own = [step for state in self._stages for step in state.all_steps]
        own += [step for name in ("priority", "synthesis") for step in steps[name]]
        self._changed = ChangedFiles(own)
        self._all_groups = Sweep()
        self._judged_groups: set[int] = set()
        """Groups with rows judged since groups were last settled."""

    def _jobs_of_run(self, steps: Steps) -> list[Job]:
        """Return what follows the judging of rows, in order."""
        database, run, config = self.database, self.run, self._config
        jobs = [Job(self._settle)]
        if steps[PROCESSOR]:
            prioritiser = Prioritiser(
                database, run.id, steps[PROCESSOR], config.max_attempts, lambda: self.stopping
            )
            jobs.append(Job(prioritiser.work, prioritiser.start, prioritiser.is_done))
        if steps["synthesis"]:
            jobs.append(self._synthesis(steps["synthesis"]))
        jobs.append(Job(self._end_evaluations))
        if config.pair is not None:
            jobs.append(Job(partial(self._pair, config.pair.margin)))
        if (archiver := self._archiver) is not None:
            jobs.append(Job(lambda: archiver.work(self.worker_id)))
        jobs.append(Job(partial(self._remove, Remover(database)), self._enter_retention))
        return jobs

    def _synthesis(self, steps: Sequence[Step]) -> Job:
        config = self._config
        synthesizer = Synthesizer(self.database, self.run, steps, config.made, config.max_attempts, self.wake)

        def work() -> bool:
            return synthesizer.work(self.worker_id, lambda: self.stopping)

        def release() -> None:
            synthesizer.release(self.worker_id)

        return Job(work, synthesizer.start, synthesizer.is_done, release)

    def start(self) -> None:
        """Record the steps that judge the rows; each processing record refers to this version of them."""
        for state in self._stages:
            record = [step.record() for step in state.all_steps]
            with self.database.transaction() as tx:
                version = processing.record_steps(tx, self.run.id, state.stage.processor, record)
            state.stage = replace(state.stage, version=version)
        for job in self._jobs:
            job.start()

    def work(self) -> bool:
        """Run all processors once; return whether any had something to do."""
        self._changed.say()
        # A list, so that each processor gets its turn in every round, until a signal arrives.
        moved = [not self.stopping and job.work() for job in self._jobs]
        return any(moved)

    def held(self) -> workers.Held:
        """Return the rows that asynchronous steps are judging."""
        return workers.Held([id for state in self._stages if state.flow is not None for id in state.flow.ids])

    def release(self) -> None:
        """Store finished verdicts; signing off releases the rows still in flight."""
        for state in self._stages:
            if state.flow is not None:
                self._finish(state, state.flow.done())
                state.flow.close()
        for job in self._jobs:
            job.release()

    def is_done(self) -> bool:
        """Whether the process can end: a drain when nothing is left to move, a daemon with the run."""
        if self._only is not None:
            with self.database.transaction() as tx:
                return not evaluations.are_open(tx, self.run.id, self._only)
        if self._drain:
            if self._settle_groups(None):  # includes groups that other processes have completed
                return False
            with self.database.transaction() as tx:
                is_done = not processing.count_unprocessed(tx, self.run.id, self._rules.requires_reward)
            is_done = is_done and all(job.is_done() for job in self._jobs)
        else:
            is_done = super().is_done() and (self._archiver is None or self._has_judged_last_rows())
        return is_done and (self._archiver is None or self._archiver.finish(self.worker_id))

    def _has_judged_last_rows(self) -> bool:
        """Whether no explorer and no row to judge is left, as the archive takes only judged rows.

        An explorer writes finished rollouts before it learns of the run's end. Rows may be with asynchronous
        steps or with another processor, and failed rows are retried.
        """
        with self.database.transaction() as tx:
            running = workers.running(tx, self.run.id, LEASE_SECONDS)
            if any(worker.role == WorkerRole.EXPLORE and worker.is_alive for worker in running):
                return False
            return processing.all_judged(tx, self.run.id)

    def _stage(self, stage: processing.Stage, steps: Sequence[Step], first_try: int) -> _StageState:
        slow = [step for step in steps if step.is_async]
        flow = Flow(slow, LISTS[stage.processor].reading, self.wake) if slow else None
        return _StageState(stage, steps, [step for step in steps if not step.is_async], first_try, flow)

    def _judge(self, state: _StageState) -> bool:
        """Claim rows, judge them, finish. After a signal, signing off releases unjudged rows."""
        ended = state.flow.done() if state.flow is not None else []
        self._finish(state, ended)
        size = self._config.claim_size
        if state.flow is not None:
            size = min(size, state.flow.room)
        if not size:
            return bool(ended)
        claimed = state.position.look(partial(self._claim, state.stage, size))
        if state.next is not None:
            state.next.position.advance(claimed)  # evaluations write rows for it concurrently
        rows = (Row(row, self._first_verdict(state.stage, row)) for row in claimed)
        judged = list(judge(rows, state.steps, state.reading, lambda: self.stopping))
        if state.flow is not None:
            state.flow.take([row for row in judged if row.passes])
            self._finish(state, [row for row in judged if not row.passes])
        elif state.next is not None:
            self._judge_on(state, state.next, judged)
        else:
            self._finish(state, judged)
        return bool(ended or judged)

    def _judge_on(self, state: _StageState, following: _StageState, judged: Sequence[Row]) -> None:
        """Judge passing rows with the next list too, so that each row moves only once.

        Rows that came back without a verdict are excluded: each list handles them separately, so that a row
        which kills this process is given up by the list that it breaks.
        """
        passed: dict[int, Row] = {}
        if not self.stopping:
            passed = {row.verdict.id: row for row in judged if row.passes and not row.columns["unanswered"]}
        rows = [
            replace(row, verdict=processing.StepVerdict(id, row.verdict.attempt))
            for id, row in passed.items()
        ]
        ended = list(judge(rows, following.steps, following.reading, lambda: self.stopping))
        before = processing.Passed(state.stage, [passed[row.verdict.id].verdict for row in ended])
        gone_on = {row.verdict.id for row in ended}
        others = [row for row in judged if row.verdict.id not in gone_on]
        if any(row.passes for row in others):
            following.position.hasten()
        self._finish(state, others)
        self._finish(following, ended, before)

    def _first_verdict(self, stage: processing.Stage, row: DictRow) -> processing.StepVerdict:
        given_up = processing.give_up(stage, row, self._config.max_attempts)
        return given_up or processing.StepVerdict(row["id"], row["attempt"])

    def _claim(self, stage: processing.Stage, size: int, after: int) -> list[DictRow]:
        max_attempts = self._config.max_attempts
        with self.database.transaction() as tx:
            return processing.claim(
                tx, stage, self.run.id, self.worker_id, size, max_attempts, after, self._only is not None
            )

    def _finish(
        self, state: _StageState, rows: Sequence[Row], before: processing.Passed | None = None
    ) -> None:
        if not rows:
            return
        verdicts = [row.verdict for row in rows]
        self._judged_groups.update(row.columns["group_id"] for row in rows)
        stage, max_attempts = state.stage, self._config.max_attempts
        with self.database.transaction() as tx:
            held_ids = processing.finish(
                tx, stage, self.run.id, self.worker_id, verdicts, max_attempts, before
            )
        lost = len(verdicts) - len(held_ids)
        if lost:
            logger.warning(
                "%s: %d rows were taken over by another worker; their results are discarded",
                stage.processor,
                lost,
            )
        for verdict in verdicts:
            if verdict.outcome == Outcome.FAILED:
                state.position.hasten()
            if verdict.detail and "error" in verdict.detail:
                logger.warning("%s: experience %d: %s", stage.processor, verdict.id, verdict.detail["error"])
        self._watch_failures(state, verdicts)

    def _watch_failures(self, state: _StageState, verdicts: list[processing.StepVerdict]) -> None:
        """Stop if no row can be judged. Rows that have failed before do not count.

        Raises:
            TrinityError: with the same text for the same error, so that a supervisor recognises a lasting
                error.
        """
        for verdict in verdicts:
            if verdict.outcome == Outcome.PASSED:
                state.failures_in_a_row = 0
            elif verdict.outcome == Outcome.FAILED and verdict.attempt <= state.first_try:
                state.failures_in_a_row += 1
            if state.failures_in_a_row == FAILURES_IN_A_ROW:
                error = f"{FAILURES_IN_A_ROW} rows failed in a row, the last with: {verdict.error}"
                raise TrinityError(f"{state.stage.processor}: {error}")

    def _settle(self) -> bool:
        """Settle groups of rows that were just judged; occasionally all, since other processes complete
        some."""
        if self._all_groups.is_due:
            with self._all_groups.timed():
                settled = self._settle_groups(None)
            if settled == self._config.claim_size:
                self._all_groups.hasten()  # more are left
        else:
            settled = bool(self._judged_groups) and self._settle_groups(self._judged_groups)
        self._judged_groups.clear()
        return bool(settled)

    def _settle_groups(self, group_ids: Collection[int] | None) -> int:
        with self.database.transaction() as tx:
            return finish_groups.settle_groups(
                tx, self.run.id, self._rules, self._config.claim_size, group_ids
            )

    def _end_evaluations(self) -> bool:
        with self.database.transaction() as tx:
            ended = evaluations.finish(tx, self.run.id)
        for evaluation in ended:
            logger.info("evaluated: %s", evaluations.describe(evaluation))
        return bool(ended)

    def _pair(self, margin: float) -> bool:
        with self.database.transaction() as tx:
            made = processing.pair_groups(tx, self.run.id, margin, self._config.claim_size)
        if made:
            logger.info("paired: %d preferences", made)
        return made is not None

    def _enter_retention(self) -> None:
        with self.database.transaction() as tx:
            retention.enter(tx, self.run.id)

    def _remove(self, remover: Remover) -> bool:
        remover.work()
        return False  # the next range is due later


def _join(stages: Sequence[_StageState]) -> None:
    """Let each stage pass its rows to the next under the same lease."""
    for state, following in pairwise(stages):
        state.next, following.first_try = following, state.first_try
        columns = dict.fromkeys((*state.stage.columns, *following.stage.columns))
        state.stage = replace(state.stage, columns=tuple(columns))


def _rules(
    config: ProcessorsConfig, requires_reward: str | None, wait_seconds: float | None
) -> finish_groups.Rules:
    """Return the rules for settling groups."""
    return finish_groups.Rules(
        min_size=config.group.min_size,
        drop_equal_rewards=config.group.drop_equal_rewards,
        keep=config.group.keep,
        solved_reward=config.group.solved_reward,
        requires_reward=requires_reward,
        wait_seconds=wait_seconds,
        are_sources=bool(config.synthesis),
    )
