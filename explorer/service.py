"""The explorer: claims tasks as far as the pace allows, keeps attempts under way, writes rollouts.

It owns the engine and the groups it claimed. It reads tasks and policy versions and writes rollouts: one
transaction takes all that ended since the last one. It never speaks to a processor or the trainer.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from trinity_db.database import Database
from trinity_db.errors import ConfigError, DatabaseUnavailable, TrinityError
from trinity_db.explorer.attempts import GRACE_SECONDS, Attempts
from trinity_db.explorer.config import ExplorerConfig
from trinity_db.explorer.engines.engine import Engine, NotLoadedYet
from trinity_db.explorer.evaluating import SHARE, Look, PinnedAttempts, Turns, policy_of
from trinity_db.explorer.recording.listener import AttemptListener, Place
from trinity_db.explorer.waiting import EmptyPlaces
from trinity_db.explorer.workflow import Workflow
from trinity_db.models import folder_digest
from trinity_db.schema.states import WorkerRole
from trinity_db.service import POLL_SECONDS, Service
from trinity_db.store import calls, evaluations, groups, policies, runs
from trinity_db.store.metrics import record_metrics
from trinity_db.store.selection import Selection

if TYPE_CHECKING:
    from trinity_db.explorer.recording.endpoint import Endpoint

logger = logging.getLogger(__name__)

Result = TypeVar("Result")
MakeAttempt = Callable[[groups.ClaimedGroup, int], Coroutine[Any, Any, groups.Rollout]]

FAILURES_IN_A_ROW = 256  # rollouts; by then the setup is at fault, not a task
FAILURES_OF_A_GROUP = 32  # that count towards these, so that no single task ends the explorer
CLAIM_SHARE = 4  # groups are claimed when one place in so many is free, as explorers take turns to claim
NOT_LOADED_SECONDS = 600.0  # that an evaluation waits for other people to load its version
MEASURE_SECONDS = 5.0  # between two rows of the explorer's metrics

_LEFT: list[asyncio.Runner] = []
"""Event loops with attempts that cannot be ended: to close them would wait for these."""


class Explorer(Service):
    """One explorer with one engine.

    Args:
        greedy: each group has one more member, sampled at temperature 0, as the algorithm asks for.
        only: it makes the attempts of these evaluations, explores nothing for training, and then ends.
        place: where programs ask their policies, if it is the explorer's purpose that they do. None: on this
            machine, once a workflow needs it.
    """

    role = WorkerRole.EXPLORE

    def __init__(
        self,
        database: Database,
        run: runs.Run,
        config: ExplorerConfig,
        workflow: Workflow,
        engine: Engine,
        pace: groups.Pace,
        selection: Selection,
        prompt_template: str,
        greedy: bool = False,
        only: Sequence[int] | None = None,
        place: Place | None = None,
    ) -> None:
        super().__init__(database, run)
        self._only = only
        self._turns = Turns()
        self._evaluating: set[asyncio.Task[groups.Rollout]] = set()
        """Those under way that are attempts of evaluations: while there is one, its version stays loaded."""
        self._is_held_up = False
        """Whether training had nothing to claim when it last could."""
        self._config = config
        self._engine = engine
        self._pace = pace
        self._selection = selection
        self._greedy = greedy
        self._place = place
        if place is not None and place.offers is not None:  # they count from when a program takes the attempt
            config = config.model_copy(update={"attempt_seconds": None})
        listener = partial(AttemptListener, self._made_endpoint)
        self._attempts = Attempts(workflow, engine, config, prompt_template, selection.seed, listener)
        self._endpoint: Endpoint | None = None
        """Where programs ask their policies; None as long as none does."""
        self._loaded: tuple[int, str] | None = None
        """Version and hash."""
        self._unusable: policies.PolicyVersion | None = None
        self._awaited: tuple[policies.PolicyVersion, float] | None = None
        """The version of an evaluation that other people have not loaded yet, and since when."""
        self._failures_in_a_row: Counter[int] = Counter()
        """By group."""
        self._under_way: dict[asyncio.Task[groups.Rollout], int] = {}
        """Attempts, each with its group."""
        self._ended: list[asyncio.Task[groups.Rollout]] = []
        """Attempts that are not written yet."""
        self._may_claim = True
        """Whether anything happened since no group could be claimed."""
        self._wake_loop: Callable[[], None] = lambda: None
        """Lets the event loop look for news."""
        self._store = ThreadPoolExecutor(1, "store")
        """A thread with a connection of its own, so that attempts go on while a transaction waits."""
        self._runner = asyncio.Runner()
        self._num_tokens = 0
        self._measured_at = 0.0
        self._empty = EmptyPlaces(config.concurrency)

    def work(self) -> bool:
        """Explore until no group can be claimed and all attempts have ended; False when there were none."""
        return self._runner.run(self._explore())

    def release(self) -> None:
        """Close the connection of the thread that writes; the next transaction opens it again."""
        if self._endpoint is not None:
            self._runner.run(self._endpoint.stop())
            self._endpoint = None
        runner, self._runner = self._runner, asyncio.Runner()
        if runner.run(_end_all()):
            runner.close()
        else:
            _LEFT.append(runner)
        self._store.submit(self.database.close).result()

    def wake(self) -> None:
        super().wake()
        self._wake_loop()

    def is_done(self) -> bool:
        """When the run and its evaluations are finished, or what this explorer is to explore is explored."""
        if self._only is not None:
            with self.database.transaction() as tx:
                ended, attempts = evaluations.progress(tx, self._only)
                return ended == attempts or not evaluations.are_open(tx, self.run.id, self._only)
        if super().is_done():
            return True
        most = self._pace.most
        with self.database.transaction() as tx:
            return most is not None and groups.all_explored(tx, self.run.id, most)

    async def _explore(self) -> bool:
        loop, event = asyncio.get_running_loop(), asyncio.Event()
        unavailable: DatabaseUnavailable | None = None
        has_begun = False
        self._may_claim = True
        self._num_tokens, self._measured_at = 0, time.monotonic()

        def hear() -> None:
            self._may_claim = True
            event.set()

        def wake() -> None:
            with suppress(RuntimeError):  # the loop has ended in this moment
                loop.call_soon_threadsafe(hear)

        self._wake_loop = wake
        if self._place is not None:
            await self._made_endpoint().start()
        try:
            while not self.stopping:
                try:
                    if unavailable is None and not await self._refill(event):
                        break
                except DatabaseUnavailable as error:
                    # What is under way is finished first: it was claimed before, and its claim is known.
                    unavailable = error
                if not self._under_way and not self._ended and (unavailable or not await self._stays()):
                    break
                has_begun = True
                if not await _happens(event):
                    self._may_claim = True  # news may be lost
                await self._write_ended()
            await self._write_ended(is_last=True)
        finally:
            self._wake_loop = lambda: None
            await self._cancel()
        if unavailable is not None:
            raise unavailable
        return has_begun

    async def _refill(self, event: asyncio.Event) -> bool:
        """Start attempts where places are free; False when the run and its evaluations are finished.

        Raises:
            DatabaseUnavailable: groups may have been claimed or not.
        """
        self._empty.look(self._free)
        if not self._may_claim:
            return True
        self._may_claim = False  # first: news that arrive from here on are of something not seen below
        look = await self._in_store(self._look)
        trains = not look.is_finished and self._only is None
        self._empty.is_held_back &= trains
        if not trains and look.due is None and not self._evaluating:
            return False
        enough = max(self._attempts_of_group, self._config.concurrency // CLAIM_SHARE)
        if self._under_way and self._free < enough:
            self._may_claim = True  # as soon as there is room
            return True
        if look.due is None:
            self._turns.give(to_evaluation=False)
        elif not trains or look.is_shared:
            await self._evaluate(look.due, event, SHARE if trains and not self._is_held_up else 1.0)
        elif self._turns.look():
            await self._evaluate(look.due, event)
            return True
        if trains and look.newest is not None:
            await self._train(look.newest, event)
            if look.due is not None and not look.is_shared and not self._under_way:
                self._turns.give(to_evaluation=True)
                await self._evaluate(look.due, event)
        return True

    @property
    def _free(self) -> int:
        """How many more attempts may be under way."""
        return self._config.concurrency - len(self._under_way)

    @property
    def _attempts_of_group(self) -> int:
        """How many attempts are begun together."""
        return self._config.group_size + self._config.spare + self._greedy

    async def _train(self, policy: policies.PolicyVersion, event: asyncio.Event) -> None:
        """Start attempts for training, by the newest version, as far as the pace allows."""
        if self._evaluating and self._loaded != (policy.version, policy.checkpoint_hash):
            self._may_claim = True  # as soon as they have ended
            return
        if not await self._load(policy):
            return
        self._turns.begin()
        limit = max(1, self._free // self._attempts_of_group)
        claimed = await self._in_store(lambda: self._claim(policy.version, limit))
        self._is_held_up = not claimed
        self._empty.is_held_back = len(claimed) < limit
        self._begin(claimed, self._attempts.make, event)

    async def _evaluate(self, due: evaluations.Due, event: asyncio.Event, share: float = 1.0) -> None:
        """Start attempts of an evaluation in a share of the places.

        Where another version is loaded, what is under way ends by it first.
        """
        policy = policy_of(due)
        if self._loaded != (policy.version, policy.checkpoint_hash):
            if self._under_way:
                self._may_claim = True  # as soon as they have ended
                return
            if (error := await self._try_to_load(policy)) is not None:
                if isinstance(error, NotLoadedYet) and self._may_come(policy, error):
                    self._turns.give(to_evaluation=False)
                    return
                logger.warning("the evaluation of version %d is given up: %s", policy.version, error)
                await self._in_store(lambda: self._give_up(due, str(error)))
                self._may_claim = True
                return
        self._turns.begin()
        places = min(self._free, int(share * self._config.concurrency) - len(self._evaluating))
        limit = max(places // due.samples, int(not self._evaluating))
        claimed = await self._in_store(lambda: self._claim_of(due, limit)) if limit else []
        self._evaluating |= self._begin(claimed, PinnedAttempts.of(self._attempts, due).make, event)

    def _may_come(self, policy: policies.PolicyVersion, error: NotLoadedYet) -> bool:
        """Whether an evaluation still waits for other people to load its version."""
        if self._awaited is None or self._awaited[0] != policy:
            self._awaited = policy, time.monotonic()
            logger.warning("the evaluation of version %d waits: %s", policy.version, error)
        return time.monotonic() - self._awaited[1] < NOT_LOADED_SECONDS

    def _begin(
        self, claimed: Sequence[groups.ClaimedGroup], make: MakeAttempt, event: asyncio.Event
    ) -> set[asyncio.Task[groups.Rollout]]:
        """Start the attempts of claimed groups."""
        self._may_claim |= bool(claimed)
        begun = {
            asyncio.create_task(make(group, member)): group.id
            for group in claimed
            for member in group.members
        }
        for attempt in begun:
            attempt.add_done_callback(lambda ended: self._note(ended, event))
        self._under_way |= begun
        return set(begun)

    def _note(self, ended: asyncio.Task[groups.Rollout], event: asyncio.Event) -> None:
        self._under_way.pop(ended, None)
        self._evaluating.discard(ended)
        if not ended.cancelled():
            self._ended.append(ended)
            event.set()

    async def _cancel(self) -> None:
        """Give up what is under way. Other explorers attempt it when this worker has gone."""
        attempts = list(self._under_way)
        for attempt in attempts:
            attempt.cancel()
        await asyncio.gather(*attempts, return_exceptions=True)
        self._under_way.clear()
        self._evaluating.clear()
        self._ended.clear()

    async def _stays(self) -> bool:
        """Whether the endpoint answers although nothing is under way: agents may come, and late rewards."""
        return self._place is not None and not await self._in_store(self.is_done)

    async def _in_store(self, verb: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._store, verb)

    def _made_endpoint(self) -> "Endpoint":
        """The endpoint, which is made when the first program needs it."""
        if self._endpoint is None:
            from trinity_db.explorer.recording.endpoint import Endpoint
            from trinity_db.explorer.recording.log import CallLog

            log = CallLog(self.database, self._in_store, lambda: self.worker_id, lambda: self.stopping)
            self._endpoint = Endpoint(log, self.run.name, self._place or Place())
        return self._endpoint

    def _look(self) -> Look:
        """Whether the run is finished, its newest version, and the next evaluation."""
        loaded = -1 if self._loaded is None else self._loaded[0]

        def look() -> Look:
            with self.database.transaction() as tx:
                return Look(
                    runs.is_finished(tx, self.run.id),
                    policies.newest(tx, self.run.id),
                    evaluations.due(tx, self.run.id, loaded, self._only),
                )

        return self.database.retry(look, give_up=lambda: self.stopping)

    def _claim_of(self, due: evaluations.Due, limit: int) -> list[groups.ClaimedGroup]:
        with self.database.transaction() as tx:
            return evaluations.claim(tx, self.worker_id, due.id, limit)

    def _give_up(self, due: evaluations.Due, error: str) -> None:
        with self.database.transaction() as tx:
            evaluations.give_up(tx, self.run.id, due.id, error)

    def _claim(self, version: int, limit: int) -> list[groups.ClaimedGroup]:
        with self.database.transaction() as tx:
            return groups.claim(
                tx,
                self.run.id,
                self.worker_id,
                version,
                self._pace,
                self._selection,
                self._config.group_size,
                limit,
                self._greedy,
                self._config.spare,
            )

    async def _load(self, policy: policies.PolicyVersion) -> bool:
        """Use a version; False when its files are gone, damaged, or not those that were published.

        Another version follows then: the trainer prunes old ones, and at its start it withdraws damaged ones.

        Raises:
            ConfigError: there is no starting model.
        """
        # By the hash too: after a setback of the server the same number may stand for other weights.
        if self._loaded == (policy.version, policy.checkpoint_hash):
            return True
        error = await self._try_to_load(policy)
        if error is None:
            return True
        if policy.version == 0:
            raise ConfigError(str(error))
        if policy != self._unusable:
            logger.warning("version %d cannot be used: %s", policy.version, error)
        self._unusable = policy
        return False

    async def _try_to_load(self, policy: policies.PolicyVersion) -> Exception | None:
        """Load a version; why it cannot be loaded, or None."""
        try:
            if not await asyncio.to_thread(folder_digest.verify, policy.checkpoint, policy.checkpoint_hash):
                return ConfigError(
                    f"{policy.checkpoint}: its files are not those that were published; restore them."
                )
            self._loaded = None  # a load that fails may leave the engine without the weights of before
            await self._engine.load(policy.checkpoint, policy.version)
        except (ConfigError, OSError) as error:
            return error
        logger.info("using policy version %d", policy.version)
        self._loaded = policy.version, policy.checkpoint_hash
        return None

    async def _write_ended(self, is_last: bool = False) -> None:
        """Write all that ended since the last time, and now and then how fast it goes.

        Raises:
            EngineFailed: an attempt found that the engine cannot go on. The others are written.
        """
        ended, self._ended = self._ended, []
        failures = [failure for attempt in ended if (failure := attempt.exception()) is not None]
        finished = [attempt.result() for attempt in ended if attempt.exception() is None]
        self._num_tokens += sum(step.payload.num_trained for one in finished for step in one.all_steps)
        elapsed = time.monotonic() - self._measured_at
        metrics = {}
        if self._num_tokens and (is_last or elapsed > MEASURE_SECONDS):
            metrics = {"explore/tokens_per_second": self._num_tokens / elapsed, "explore/seconds": elapsed}
            metrics |= self._empty.measure()
            self._num_tokens, self._measured_at = 0, time.monotonic()
        if finished or metrics:
            self._end_spare(await self._in_store(lambda: self._write(finished, metrics)))
        if self._endpoint is not None:
            self._endpoint.note_written(finished)
        if failures:
            raise failures[0]

    def _end_spare(self, complete: set[int]) -> None:
        """Cancel attempts at members that their groups do not need any more; they are written as such."""
        for attempt, group_id in self._under_way.items():
            if group_id in complete and not attempt.cancelling():
                attempt.cancel()

    def _write(self, finished: list[groups.Rollout], metrics: dict[str, float]) -> set[int]:
        """Write rollouts; where members are spare, which of their groups are complete."""

        def write() -> tuple[groups.Unwanted, set[int]]:
            with self.database.transaction() as tx:
                if metrics:
                    record_metrics(tx, self.run.id, self.role, self._engine.version, metrics)
                unwanted = groups.write_rollouts(tx, self.run.id, self.worker_id, finished)
                if self._endpoint is not None:
                    calls.end(tx, self.worker_id, finished)
                ids = {rollout.group.id for rollout in finished}
                return unwanted, groups.complete(tx, ids) if self._config.spare else set()

        unwanted, complete = self.database.retry(write, give_up=lambda: self.stopping)
        if late := unwanted.refused - unwanted.spare:
            logger.warning("%d rollouts came too late: another explorer has their groups", late)
        if unwanted.lost:
            logger.warning(
                "%d rollouts could not be written: the store has no such groups, since the server lost their "
                "start, as after a failover to a replica behind; their tasks come again",
                unwanted.lost,
            )
        self._watch_failures([rollout for rollout in finished if not rollout.was_cancelled])
        return complete

    def _watch_failures(self, finished: list[groups.Rollout]) -> None:
        for rollout in finished:
            if rollout.error is None:
                self._failures_in_a_row.clear()
                continue
            if not self._failures_in_a_row:
                logger.warning("group %d failed: %s", rollout.group.id, rollout.error)
            self._failures_in_a_row[rollout.group.id] += 1
        counted = sum(min(number, FAILURES_OF_A_GROUP) for number in self._failures_in_a_row.values())
        if counted >= FAILURES_IN_A_ROW:
            total = self._failures_in_a_row.total()
            raise TrinityError(f"{total} rollouts failed in a row, the last with: {finished[-1].error}")


async def _end_all() -> bool:
    """End all other tasks of the event loop; False if one goes on although it was cancelled."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for one in others:
        one.cancel()
    return not others or not (await asyncio.wait(others, timeout=GRACE_SECONDS))[1]


async def _happens(event: asyncio.Event) -> bool:
    """Wait for news or the end of an attempt; False when neither came for a while."""
    try:
        await asyncio.wait_for(event.wait(), POLL_SECONDS)
    except TimeoutError:
        return False
    event.clear()
    return True
