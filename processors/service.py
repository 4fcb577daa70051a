"""The processor daemon: claim, work, finish, for each processor in turn.

It owns the moves raw → clean → scored → ready, preferences out of groups, and payloads into the archive. It
reads what explorers wrote and never speaks to them or to the trainer. Any number may run at once.
"""

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise

from psycopg.rows import DictRow

from trinity_db.database import Database
from trinity_db.errors import TrinityError
from trinity_db.processors.archive import Archiver
from trinity_db.processors.changed_files import ChangedFiles
from trinity_db.processors.config import ProcessorsConfig
from trinity_db.processors.flow import Flow
from trinity_db.processors.judge import Row, judge
from trinity_db.processors.lists import LISTS, Steps, stages
from trinity_db.processors.priorities import PROCESSOR, Prioritiser
from trinity_db.processors.retention import Remover
from trinity_db.processors.scan_position import ScanPosition, Sweep
from trinity_db.processors.step import Step
from trinity_db.processors.synthesis import Synthesizer
from trinity_db.schema.states import Outcome, WorkerRole
from trinity_db.service import LEASE_SECONDS, Service
from trinity_db.store import evaluations, processing, retention, runs, settling, workers

logger = logging.getLogger(__name__)

FAILURES_IN_A_ROW = 256  # rows; by then the steps are at fault, or a field that all tasks lack


@dataclass
class _Stage:
    """What this process knows of a stage."""

    stage: processing.Stage
    all_steps: Sequence[Step]
    """Of its list."""
    steps: Sequence[Step]
    first_try: int
    """Claims of a row that comes here for the first time and was never given back."""
    flow: Flow | None
    """Its asynchronous steps at work; None if it has none. `steps` are the others, which come before them."""
    then: "_Stage | None" = None
    """The next stage, where it judges a row that passes here at once, under the same lease."""
    position: ScanPosition = field(default_factory=ScanPosition)
    failures_in_a_row: int = 0


class Processors(Service):
    """All configured processors of a run in one process.

    Args:
        wait_seconds: How long a group waits for that source once it is complete; None: without end.
        only: it scores the rows of evaluations, and ends when these ones have ended.
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
        self._stages = [
            self._stage(stage, steps[stage.processor], first_try)
            for first_try, stage in enumerate(stages(steps), 1)
            if only is None or stage.processor == processing.SCORE.processor
        ]
        if all(of.flow is None for of in self._stages):
            _join(self._stages)
        self._prioritiser = None
        if steps[PROCESSOR] and only is None:
            self._prioritiser = Prioritiser(
                database, run.id, steps[PROCESSOR], config.max_attempts, lambda: self.stopping
            )
        self._synthesizer = None
        if steps["synthesis"] and only is None:
            self._synthesizer = Synthesizer(
                database, run, steps["synthesis"], config.made, config.max_attempts, self.wake
            )
        self._archiver = None
        if config.archive is not None:
            self._archiver = Archiver(database, run, config.archive, lambda: self.stopping)
        self._remover = Remover(database)
        self._drain = drain
        self._rules = _rules(config, requires_reward, wait_seconds)
        own = [step for of in self._stages for step in of.all_steps]
        own += [step for name in ("priority", "synthesis") for step in steps[name]]
        self._changed = ChangedFiles(own)
        self._all_groups = Sweep()
        self._judged_groups: set[int] = set()
        """Groups of rows that were judged since groups were last settled."""

    def start(self) -> None:
        """Record by which steps the rows are judged; each record of a row names this version of them."""
        for of in self._stages:
            record = [step.record() for step in of.all_steps]
            with self.database.transaction() as tx:
                version = processing.record_steps(tx, self.run.id, of.stage.processor, record)
            of.stage = replace(of.stage, version=version)
        if self._prioritiser is not None:
            self._prioritiser.start()
        if self._synthesizer is not None:
            self._synthesizer.start()
        if self._only is None:  # to evaluate a copy of a run must not cost its old rows
            with self.database.transaction() as tx:
                retention.enter(tx, self.run.id)

    def work(self) -> bool:
        """One round over all processors; whether any had something to do."""
        self._changed.say()
        judges = [partial(self._judge, of) for of in self._stages]
        turns: list[Callable[[], bool]] = [
            *judges,
            self._settle,
            self._prioritise,
            self._synthesize,
            self._end_evaluations,
            self._pair,
            self._archive,
            self._remove,
        ]
        if self._only is not None:
            turns = [*judges, self._end_evaluations]
        # A list, so that each gets its turn in every round, until a signal comes.
        moved = [not self.stopping and take_turn() for take_turn in turns]
        return any(moved)

    def held(self) -> list[int]:
        """Rows that asynchronous steps are judging."""
        return [id for of in self._stages if of.flow is not None for id in of.flow.ids]

    def release(self) -> None:
        """Keep the verdicts that are there; the rows in flight are given back with the goodbye."""
        for of in self._stages:
            if of.flow is not None:
                self._finish(of, of.flow.done())
                of.flow.close()
        if self._synthesizer is not None:
            self._synthesizer.release(self.worker_id)

    def is_done(self) -> bool:
        """A drain ends when nothing is left to move; a daemon with the run."""
        if self._only is not None:
            with self.database.transaction() as tx:
                return not evaluations.are_open(tx, self.run.id, self._only)
        if self._drain:
            if self._settle_groups(None):  # also those that ended by what others did
                return False
            with self.database.transaction() as tx:
                is_done = not processing.count_unprocessed(tx, self.run.id, self._rules.requires_reward)
            is_done = is_done and (self._prioritiser is None or self._prioritiser.is_done())
            is_done = is_done and (self._synthesizer is None or self._synthesizer.is_done())
        else:
            is_done = super().is_done() and (self._archiver is None or self._has_judged_last_rows())
        return is_done and (self._archiver is None or self._archiver.finish(self.worker_id))

    def _has_judged_last_rows(self) -> bool:
        """Whether no explorer is left, and no row to judge: the archive takes judged rows alone.

        An explorer writes what ends before it hears of the run's end. Rows may be with asynchronous steps or
        with another processor, and one that failed comes back.
        """
        with self.database.transaction() as tx:
            found = workers.running(tx, self.run.id, LEASE_SECONDS)
            if any(worker.role == WorkerRole.EXPLORE and worker.is_alive for worker in found):
                return False
            return processing.all_judged(tx, self.run.id)

    def _stage(self, stage: processing.Stage, steps: Sequence[Step], first_try: int) -> _Stage:
        slow = [step for step in steps if step.is_async]
        flow = Flow(slow, LISTS[stage.processor].reading, self.wake) if slow else None
        return _Stage(stage, steps, [step for step in steps if not step.is_async], first_try, flow)

    def _judge(self, of: _Stage) -> bool:
        """Claim rows, judge them, finish. What a signal leaves unjudged is given back with the goodbye."""
        ended = of.flow.done() if of.flow is not None else []
        self._finish(of, ended)
        size = self._config.claim_size if of.flow is None else min(self._config.claim_size, of.flow.room)
        if not size:
            return bool(ended)
        claimed = of.position.look(partial(self._claim, of.stage, size))
        if of.then is not None:
            of.then.position.advance(claimed)  # evaluations write rows for it at the same time
        reading = LISTS[of.stage.processor].reading
        rows = (Row(row, self._first_verdict(of.stage, row)) for row in claimed)
        judged = list(judge(rows, of.steps, reading, lambda: self.stopping))
        if of.flow is not None:
            of.flow.take([row for row in judged if row.passes])
            self._finish(of, [row for row in judged if not row.passes])
        elif of.then is not None:
            self._judge_on(of, of.then, judged)
        else:
            self._finish(of, judged)
        return bool(ended or judged)

    def _judge_on(self, of: _Stage, then: _Stage, judged: Sequence[Row]) -> None:
        """Judge rows that passed by the next list too, so that each moves once.

        Not those that came back without a verdict: each list has them alone, so that a row which kills this
        process is given up by the list that it breaks.
        """
        passed: dict[int, Row] = {}
        if not self.stopping:
            passed = {row.verdict.id: row for row in judged if row.passes and not row.columns["unanswered"]}
        rows = [
            replace(row, verdict=processing.Verdict(id, row.verdict.attempt)) for id, row in passed.items()
        ]
        ended = list(judge(rows, then.steps, LISTS[then.stage.processor].reading, lambda: self.stopping))
        before = processing.Passed(of.stage, [passed[row.verdict.id].verdict for row in ended])
        gone_on = {row.verdict.id for row in ended}
        others = [row for row in judged if row.verdict.id not in gone_on]
        if any(row.passes for row in others):
            then.position.hasten()
        self._finish(of, others)
        self._finish(then, ended, before)

    def _first_verdict(self, stage: processing.Stage, row: DictRow) -> processing.Verdict:
        given_up = processing.give_up(stage, row, self._config.max_attempts)
        return given_up or processing.Verdict(row["id"], row["attempt"])

    def _claim(self, stage: processing.Stage, size: int, after: int) -> list[DictRow]:
        max_attempts = self._config.max_attempts
        with self.database.transaction() as tx:
            return processing.claim(
                tx, stage, self.run.id, self.worker_id, size, max_attempts, after, self._only is not None
            )

    def _finish(self, of: _Stage, rows: Sequence[Row], before: processing.Passed | None = None) -> None:
        if not rows:
            return
        verdicts = [row.verdict for row in rows]
        self._judged_groups.update(row.columns["group_id"] for row in rows)
        stage, max_attempts = of.stage, self._config.max_attempts
        with self.database.transaction() as tx:
            held = processing.finish(tx, stage, self.run.id, self.worker_id, verdicts, max_attempts, before)
        lost = len(verdicts) - len(held)
        if lost:
            logger.warning(
                "%s: %d rows were taken over by another worker; their results are refused",
                stage.processor,
                lost,
            )
        for verdict in verdicts:
            if verdict.outcome == Outcome.FAILED:
                of.position.hasten()
            if verdict.detail and "error" in verdict.detail:
                logger.warning("%s: experience %d: %s", stage.processor, verdict.id, verdict.detail["error"])
        self._watch_failures(of, verdicts)

    def _watch_failures(self, of: _Stage, verdicts: list[processing.Verdict]) -> None:
        """Notice that no row can be judged. Those that failed before, and come back together, do not count.

        Raises:
            TrinityError: in the same words for the same error, by which a supervisor sees that it stays so.
        """
        for verdict in verdicts:
            if verdict.outcome == Outcome.PASSED:
                of.failures_in_a_row = 0
            elif verdict.outcome == Outcome.FAILED and verdict.attempt <= of.first_try:
                of.failures_in_a_row += 1
            if of.failures_in_a_row == FAILURES_IN_A_ROW:
                error = f"{FAILURES_IN_A_ROW} rows failed in a row, the last with: {verdict.error}"
                raise TrinityError(f"{of.stage.processor}: {error}")

    def _settle(self) -> bool:
        """Groups of rows that were just judged; now and then all, as some end by what others do."""
        if self._all_groups.is_due:
            with self._all_groups.timed():
                settled = self._settle_groups(None)
            if settled == self._config.claim_size:
                self._all_groups.hasten()  # there are more
        else:
            settled = bool(self._judged_groups) and self._settle_groups(self._judged_groups)
        self._judged_groups.clear()
        return bool(settled)

    def _settle_groups(self, group_ids: Collection[int] | None) -> int:
        with self.database.transaction() as tx:
            return settling.settle_groups(tx, self.run.id, self._rules, self._config.claim_size, group_ids)

    def _synthesize(self) -> bool:
        if self._synthesizer is None:
            return False
        return self._synthesizer.work(self.worker_id, lambda: self.stopping)

    def _prioritise(self) -> bool:
        return self._prioritiser is not None and self._prioritiser.work()

    def _end_evaluations(self) -> bool:
        with self.database.transaction() as tx:
            ended = evaluations.finish(tx, self.run.id)
        for evaluation in ended:
            logger.info("evaluated: %s", evaluations.describe(evaluation))
        return bool(ended)

    def _pair(self) -> bool:
        if self._config.pair is None:
            return False
        with self.database.transaction() as tx:
            made = processing.pair_groups(tx, self.run.id, self._config.pair.margin, self._config.claim_size)
        if made:
            logger.info("paired: %d preferences", made)
        return made is not None

    def _archive(self) -> bool:
        return self._archiver is not None and self._archiver.work(self.worker_id)

    def _remove(self) -> bool:
        self._remover.work()
        return False  # the next range waits for its time


def _join(stages: Sequence[_Stage]) -> None:
    """Let each stage pass its rows on to the next under the same lease."""
    for of, then in pairwise(stages):
        of.then, then.first_try = then, of.first_try
        columns = dict.fromkeys((*of.stage.columns, *then.stage.columns))
        of.stage = replace(of.stage, columns=tuple(columns))


def _rules(
    config: ProcessorsConfig, requires_reward: str | None, wait_seconds: float | None
) -> settling.Rules:
    """By which groups are settled."""
    return settling.Rules(
        min_size=config.group.min_size,
        drop_equal_rewards=config.group.drop_equal_rewards,
        keep=config.group.keep,
        solved_reward=config.group.solved_reward,
        requires_reward=requires_reward,
        wait_seconds=wait_seconds,
        are_sources=bool(config.synthesis),
    )
