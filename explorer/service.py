"""The explorer: claims tasks as the pace allows, runs their attempts, and writes rollouts.

It owns the engine and the groups that it has claimed. It reads tasks and policy versions, and writes rollouts
in batches, one transaction at a time. It never communicates directly with a processor or the trainer.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from trinity_db.config.shared import PromptConfig
from trinity_db.errors import DatabaseUnavailable
from trinity_db.explorer.attempt.attempts import GRACE_SECONDS, Attempts
from trinity_db.explorer.attempt.workflow import Workflow
from trinity_db.explorer.config import ExplorerConfig
from trinity_db.explorer.engines.engine import Engine, dtype_of
from trinity_db.explorer.http.listener import AttemptListener, EndpointAddress
from trinity_db.explorer.http.log import CallLog
from trinity_db.explorer.loop.backoff import GivenBack
from trinity_db.explorer.loop.evaluating import SHARE, Evaluator, Look
from trinity_db.explorer.loop.idle_time import EmptyPlaces
from trinity_db.explorer.loop.loading import LoadedVersion
from trinity_db.explorer.loop.next_action import Action, Situation, next_action
from trinity_db.explorer.loop.staging import Staging
from trinity_db.explorer.loop.store_thread import StoreThread
from trinity_db.explorer.loop.under_way import UnderWay
from trinity_db.explorer.loop.writing import RolloutWriter
from trinity_db.postgres.connection import Database, Transaction
from trinity_db.schema.states import WorkerRole
from trinity_db.store import calls, evaluations, groups, parks, policies, runs, workers
from trinity_db.store.selection import TaskSelection
from trinity_db.weights.recorded_places import RecordedPlaces
from trinity_db.worker.service import POLL_SECONDS, Service

if TYPE_CHECKING:
    from trinity_db.explorer.http.endpoint import Endpoint

logger = logging.getLogger(__name__)

CLAIM_SHARE = 4  # claim groups when 1/4 of the slots is free, as explorers take turns to claim

_LEFT: list[asyncio.Runner] = []
"""Event loops with attempts that ignore cancellation: closing them would wait for these."""


@dataclass(frozen=True, kw_only=True)
class ExplorerSetup:
    """What an explorer of a run works with."""

    config: ExplorerConfig
    workflow: Workflow
    engine: Engine
    pace: groups.Pace
    selection: TaskSelection
    prompts: PromptConfig
    places: RecordedPlaces
    """Folders and addresses that versions may be read from."""
    greedy: bool = False
    """Whether each group has one more member, sampled at temperature 0, as some algorithms need."""
    needs_reward: bool = False
    """Whether an attempt without a reward is a failure, because nothing else gives one."""

    @property
    def plan(self) -> groups.GroupPlan:
        """How its groups are claimed."""
        config = self.config
        return groups.GroupPlan(self.pace, self.selection, config.group_size, self.greedy, config.spare)


class Explorer(Service):
    """One explorer with one engine.

    Args:
        only: ids of evaluations: the explorer runs only these, explores nothing for training, and then ends.
        address: address of the endpoint for external programs. None: the endpoint listens on this machine,
            once a workflow needs it.
    """

    role = WorkerRole.EXPLORE
    notify_debounce_seconds = 0.05  # 100 explorers of a run get more notifications, mostly irrelevant ones

    def __init__(
        self,
        database: Database,
        run: runs.Run,
        setup: ExplorerSetup,
        only: Sequence[int] | None = None,
        address: EndpointAddress | None = None,
    ) -> None:
        super().__init__(database, run)
        self._only = only
        self._is_held_up = False
        """Whether training could claim nothing at the latest try."""
        self._setup = setup
        self._plan = setup.plan
        self._address = address
        self._store = StoreThread(self)
        self._log = CallLog(self._store)
        self._endpoint: Endpoint | None = None
        """HTTP endpoint for programs; None until it is needed."""
        self._event = asyncio.Event()
        """Set on a notification, or when an attempt ends."""
        self._may_claim = True
        """Whether anything has changed since no group could be claimed."""
        self._looked_at = -math.inf
        """Time of the last check of the store, by the monotonic clock."""
        self._wake_loop: Callable[[], None] = lambda: None
        """Wakes the event loop to check for news."""
        self._runner = asyncio.Runner()
        self._given_back = GivenBack()
        config, engine, places = setup.config, setup.engine, setup.places
        self._empty = EmptyPlaces(config.concurrency)
        self._under_way = UnderWay(config.concurrency, lambda: self._event.set())
        self._loaded = LoadedVersion(engine, places, self._write_meanwhile)
        self._staging = Staging(self._store, places, self.wake)
        if address is not None and address.offers is not None:
            # Offers time attempts from when they are taken.
            config = config.model_copy(update={"attempt_seconds": None})
        listener = partial(AttemptListener, self._log, self._made_endpoint)
        self._attempts = Attempts(
            *(setup.workflow, engine, config, setup.prompts, setup.selection.seed),
            *(listener, self._log.go_on, setup.needs_reward),
        )
        self._evaluator = Evaluator(
            self._store, self._attempts, self._loaded, self._staging, self._under_way, self._given_back
        )
        self._writer = RolloutWriter(
            self._store, self._log, self._under_way, self._empty, engine, has_spare=config.spare > 0
        )

    def start(self) -> None:
        """Record the engine's number format, and close the connection.

        From here on, the store thread uses its own connection.
        """
        dtype = dtype_of(self._setup.engine)
        if dtype is not None:
            with self.database.transaction() as tx:
                workers.record_engine_dtype(tx, self.worker_id, dtype)
        elif self.run.config.get("trainer", {}).get("publish_dtype") in ("auto", "float32"):
            logger.warning(
                "versions are published in float32, and this engine rounds them by itself: if it computes in "
                "16 bits, set trainer.publish_dtype to its format, or rounding hides most of each update"
            )
        self.database.close()

    def work(self) -> bool:
        """Explore until no group can be claimed and all attempts have ended; False if there were none."""
        return self._runner.run(self._explore())

    def release(self) -> None:
        """Stop the endpoint and close the store connection; the next transaction opens a new one."""
        if self._endpoint is not None:
            self._runner.run(self._endpoint.stop())
            self._endpoint = None
        runner, self._runner = self._runner, asyncio.Runner()
        if runner.run(_end_all()):
            runner.close()
        else:
            _LEFT.append(runner)
        self._store.close()
        self._staging.close()

    def wake(self) -> None:
        super().wake()
        self._wake_loop()

    def is_done(self) -> bool:
        """Whether the run and its evaluations are finished, or this explorer's own work is."""
        return self._store.wait(self._is_done)

    def _is_done(self) -> bool:
        if self._only is not None:
            with self.database.transaction() as tx:
                ended, attempts = evaluations.progress(tx, self._only)
                return ended == attempts or not evaluations.are_open(tx, self.run.id, self._only)
        if super().is_done():
            return True
        most = self._plan.pace.most
        with self.database.transaction() as tx:
            return most is not None and groups.all_explored(tx, self.run.id, most)

    async def _explore(self) -> bool:
        loop = asyncio.get_running_loop()
        self._event = asyncio.Event()
        unavailable: DatabaseUnavailable | None = None
        has_begun = False
        self._may_claim = True
        self._writer.begin()

        def hear() -> None:
            self._may_claim = True
            self._event.set()

        def wake() -> None:
            with suppress(RuntimeError):  # the loop has just been closed
                loop.call_soon_threadsafe(hear)

        self._wake_loop = wake
        if self._address is not None:
            await self._made_endpoint().start()
        try:
            while not self.stopping:
                try:
                    if unavailable is None and not await self._refill():
                        break
                except DatabaseUnavailable as error:
                    # Finish the attempts in progress first: their claims are known to be committed.
                    unavailable = error
                if not self._under_way.busy and (unavailable or not await self._stays()):
                    break
                has_begun = True
                if not await _happens(self._event):
                    self._may_claim = True  # a notification may have been lost
                await self._write_ended()
            await self._write_ended(is_last=True)
        finally:
            self._wake_loop = lambda: None
            await self._under_way.cancel()
        if unavailable is not None:
            raise unavailable
        return has_begun

    async def _refill(self) -> bool:
        """Start attempts in free slots; False if the run and its evaluations are finished.

        Raises:
            DatabaseUnavailable: if it is unknown whether groups were claimed.
        """
        self._empty.look(self._under_way.free)
        if not self._may_claim or (self._lacks_slots and self._has_just_looked):
            return True
        self._may_claim = False  # before reading, so that later notifications set it again
        self._looked_at = time.monotonic()
        look = await self._store.decide(self._look)
        situation = self._situation(look)
        self._empty.is_held_back &= situation.trains
        if situation.is_over:
            return False
        await self._wake_parked()
        await self._act(next_action(replace(situation, lacks_slots=self._lacks_slots)), look)
        return True

    async def _act(self, action: Action, look: Look) -> None:
        turns = self._evaluator.turns
        match action:
            case Action.WAIT:
                pass
            case Action.WAIT_FOR_SLOTS:
                self._may_claim = True
            case Action.EVALUATE:
                await self._evaluate(look.due)
            case Action.SHARE:
                await self._evaluate(look.due, 1.0 if self._is_held_up else SHARE)
                await self._train(look.newest)
            case Action.TRAIN:
                if look.due is None:
                    turns.give(to_evaluation=False)
                await self._train(look.newest)
                if look.due is not None and not self._under_way:  # training has no work
                    turns.give(to_evaluation=True)
                    await self._evaluate(look.due)

    def _situation(self, look: Look) -> Situation:
        trains = not look.is_finished and self._only is None
        takes_turns = trains and look.due is not None and not look.is_shared
        return Situation(
            trains=trains,
            has_version=look.newest is not None,
            is_due=look.due is not None,
            is_shared=look.is_shared,
            is_evaluating=bool(self._under_way.evaluating),
            lacks_slots=self._lacks_slots,
            pauses=self._given_back.pauses,
            is_turn_of_evaluation=takes_turns and self._evaluator.turns.look(),
        )

    @property
    def _lacks_slots(self) -> bool:
        """Whether attempts are in progress, and the free slots are too few for a claim."""
        enough = max(self._plan.attempts, self._setup.config.concurrency // CLAIM_SHARE)
        return bool(self._under_way) and self._under_way.free < enough

    @property
    def _has_just_looked(self) -> bool:
        """Whether a check without free slots can wait: notifications come with each write of every explorer.

        The end of the run is not delayed: samples after it are never trained on, and the archive waits.
        """
        if self.hears_of_end or self._under_way.parked:
            return False
        return time.monotonic() - self._looked_at < POLL_SECONDS

    async def _evaluate(self, due: evaluations.DueEvaluation | None, share: float = 1.0) -> None:
        assert due is not None
        if await self._evaluator.begin(due, share):
            self._may_claim = True

    async def _train(self, newest: policies.PolicyVersion | None) -> None:
        """Start attempts for training with the newest version available here, as the pace allows."""
        assert newest is not None
        here = await self._staging.for_training(newest)
        if here is None:
            return
        if self._under_way.evaluating and not self._loaded.is_at(here):
            self._may_claim = True  # once they have ended
            return
        if not await self._loaded.load(here):
            self._staging.forget()
            return
        self._evaluator.turns.begin()
        limit = max(1, self._under_way.free // self._plan.attempts)
        if self._given_back.is_in_trouble:
            limit = 1
        claimed = await self._claim(here.version, limit)
        self._is_held_up = not claimed
        self._empty.is_held_back = len(claimed) < limit
        self._may_claim |= bool(claimed)
        self._under_way.begin(claimed, self._attempts.make)

    async def _wake_parked(self) -> None:
        """Resume parked members of groups that have other members in progress.

        Other groups with parked members are unclaimed, and are claimed once one of them can resume.
        """
        parked = self._under_way.parked
        if not parked or self._under_way.free < 1:
            return
        busy = self._under_way.busy
        for group in await self._woken([*parked]):
            members = [member for member in group.members if (group.id, member) not in busy]
            woken = replace(group, members=members[: max(0, self._under_way.free)])
            self._may_claim = True
            self._under_way.begin([woken], parked[group.id])

    async def _stays(self) -> bool:
        """Whether to keep the endpoint running without attempts: agents and late rewards may still come."""
        return self._address is not None and not await self._store.run(self._is_done)

    def _made_endpoint(self) -> "Endpoint":
        """Return the endpoint, creating it on first use."""
        if self._endpoint is None:
            from trinity_db.explorer.http.endpoint import Endpoint

            address = self._address or EndpointAddress()
            rules = self._setup.config.requests
            self._endpoint = Endpoint(self._log, self.run.name, address, rules)
        return self._endpoint

    def _look(self, tx: Transaction) -> Look:
        """Read whether the run is finished, its newest version, and the next evaluation."""
        loaded = -1 if self._loaded.number is None else self._loaded.number
        return Look(
            runs.is_finished(tx, self.run.id),
            policies.newest(tx, self.run.id),
            evaluations.due(tx, self.run.id, loaded, self._only),
        )

    async def _woken(self, group_ids: list[int]) -> list[groups.ClaimedGroup]:
        version, most, greedy = self._loaded.number, self._plan.pace.max_staleness, self._plan.greedy
        return await self._store.once(
            lambda tx: parks.woken(tx, self.worker_id, group_ids, version, most, greedy)
        )

    async def _claim(self, version: int, limit: int) -> list[groups.ClaimedGroup]:
        return await self._store.once(
            lambda tx: groups.claim(tx, self.run.id, self.worker_id, self._plan, version, limit)
        )

    async def _write_meanwhile(self) -> None:
        """Write finished attempts while the engine loads a version."""
        if self._under_way.has_ended:
            await self._write_ended()

    async def _write_ended(self, is_last: bool = False) -> None:
        """Write all attempts that ended since the last call and, periodically, metrics.

        Raises:
            EngineFailed: if an attempt found that the engine has failed. The others are written.
        """
        ended = self._under_way.take_ended()
        failures = [failure for attempt in ended if (failure := attempt.exception()) is not None]
        results = [attempt.result() for attempt in ended if attempt.exception() is None]
        made = [rollout for rollout in results if rollout is not None]
        await self._writer.write([rollout for rollout in made if not rollout.given_back], is_last)
        if self._endpoint is not None:
            self._endpoint.note_written(made)
        await self._give_back(made)
        if failures:
            raise failures[0]

    async def _give_back(self, made: list[groups.Rollout]) -> None:
        """Release attempts that did not start here, and groups without attempts in progress.

        The remaining members of such a group did not start here, or are parked.
        """
        self._given_back.note(made)
        given_back = [rollout for rollout in made if rollout.given_back]
        if any(rollout.group.is_evaluation for rollout in given_back):
            self._loaded.forget()  # the engine may no longer have the evaluation's version
        busy, parked = self._under_way.busy_groups, self._under_way.parked
        at_rest = {*self._given_back.at_rest(busy), *parked.keys() - busy}
        if not given_back and not at_rest:
            return

        def give_back(tx: Transaction) -> None:
            groups.give_back(tx, self.run.id, self.worker_id, given_back, sorted(at_rest))
            if self._log.has_agents:
                calls.end(tx, self.worker_id, given_back)

        await self._store.decide(give_back)
        for group_id in at_rest:
            parked.pop(group_id, None)


async def _end_all() -> bool:
    """Cancel all other tasks of the event loop; False if one ignores it."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    return not others or not (await asyncio.wait(others, timeout=GRACE_SECONDS))[1]


async def _happens(event: asyncio.Event) -> bool:
    """Wait for a notification or the end of an attempt; False after a timeout."""
    try:
        await asyncio.wait_for(event.wait(), POLL_SECONDS)
    except TimeoutError:
        return False
    event.clear()
    return True
