"""The explorer: claims tasks as far as the pace allows, keeps attempts under way, writes rollouts.

It owns the engine and the groups it claimed. It reads tasks and policy versions and writes rollouts: one
transaction takes all that ended since the last one. It never speaks to a processor or the trainer.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from trinity_db.config import PromptConfig
from trinity_db.database import Database, Transaction
from trinity_db.errors import DatabaseUnavailable
from trinity_db.explorer.attempts import GRACE_SECONDS, Attempts
from trinity_db.explorer.config import ExplorerConfig
from trinity_db.explorer.engines.engine import Engine, dtype_of
from trinity_db.explorer.evaluating import SHARE, Evaluator, Look
from trinity_db.explorer.given_back import GivenBack
from trinity_db.explorer.loading import LoadedVersion
from trinity_db.explorer.recording.listener import AttemptListener, Place
from trinity_db.explorer.recording.log import CallLog
from trinity_db.explorer.staging import Staging
from trinity_db.explorer.store_thread import StoreThread
from trinity_db.explorer.under_way import UnderWay
from trinity_db.explorer.waiting import EmptyPlaces
from trinity_db.explorer.workflow import Workflow
from trinity_db.explorer.writing import RolloutWriter
from trinity_db.schema.states import WorkerRole
from trinity_db.service import POLL_SECONDS, Service
from trinity_db.store import calls, evaluations, groups, parks, policies, runs, workers
from trinity_db.store.selection import Selection
from trinity_db.weights.recorded_places import RecordedPlaces

if TYPE_CHECKING:
    from trinity_db.explorer.recording.endpoint import Endpoint

logger = logging.getLogger(__name__)

CLAIM_SHARE = 4  # groups are claimed when one place in so many is free, as explorers take turns to claim

_LEFT: list[asyncio.Runner] = []
"""Event loops with attempts that cannot be ended: to close them would wait for these."""


class Explorer(Service):
    """One explorer with one engine.

    Args:
        places: the folders and addresses that versions may be read from.
        greedy: each group has one more member, sampled at temperature 0, as the algorithm asks for.
        only: it makes the attempts of these evaluations, explores nothing for training, and then ends.
        place: where programs ask their policies, if it is the explorer's purpose that they do. None: on this
            machine, once a workflow needs it.
    """

    role = WorkerRole.EXPLORE
    deaf_seconds = 0.05  # a run of a hundred explorers has more news than that, and most are of no use here

    def __init__(
        self,
        database: Database,
        run: runs.Run,
        config: ExplorerConfig,
        workflow: Workflow,
        engine: Engine,
        pace: groups.Pace,
        selection: Selection,
        prompts: PromptConfig,
        places: RecordedPlaces,
        greedy: bool = False,
        only: Sequence[int] | None = None,
        place: Place | None = None,
    ) -> None:
        super().__init__(database, run)
        self._only = only
        self._is_held_up = False
        """Whether training had nothing to claim when it last could."""
        self._config = config
        self._engine = engine
        self._pace = pace
        self._selection = selection
        self._greedy = greedy
        self._place = place
        self._store = StoreThread(self)
        self._log = CallLog(self._store)
        self._endpoint: Endpoint | None = None
        """Where programs ask their policies; None as long as none does."""
        self._event = asyncio.Event()
        """Set when there is news, or an attempt ended."""
        self._may_claim = True
        """Whether anything happened since no group could be claimed."""
        self._looked_at = -math.inf
        """Time of the last look at the store, by this process's clock."""
        self._wake_loop: Callable[[], None] = lambda: None
        """Lets the event loop look for news."""
        self._runner = asyncio.Runner()
        self._given_back = GivenBack()
        self._empty = EmptyPlaces(config.concurrency)
        self._under_way = UnderWay(config.concurrency, lambda: self._event.set())
        self._loaded = LoadedVersion(engine, places, self._write_meanwhile)
        self._staging = Staging(self._store, places, self.wake)
        if place is not None and place.offers is not None:  # they count from when a program takes the attempt
            config = config.model_copy(update={"attempt_seconds": None})
        listener = partial(AttemptListener, self._log, self._made_endpoint)
        self._attempts = Attempts(
            workflow, engine, config, prompts, selection.seed, listener, self._log.go_on
        )
        self._evaluator = Evaluator(
            self._store, self._attempts, self._loaded, self._staging, self._under_way, self._given_back
        )
        self._writer = RolloutWriter(
            self._store, self._log, self._under_way, self._empty, engine, has_spare=config.spare > 0
        )

    def start(self) -> None:
        """Record the engine's number format, and close the connection.

        From here on the thread that speaks to the store has one.
        """
        dtype = dtype_of(self._engine)
        if dtype is not None:
            with self.database.transaction() as tx:
                workers.record_engine_dtype(tx, self.worker_id, dtype)
        elif self.run.config.get("trainer", {}).get("publish_dtype") in ("auto", "float32"):
            logger.warning(
                "versions are in float32, and this engine rounds them by itself: if it computes in 16 bits, "
                "set trainer.publish_dtype to its format, or it hides most of each update"
            )
        self.database.close()

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
        self._store.close()
        self._staging.close()

    def wake(self) -> None:
        super().wake()
        self._wake_loop()

    def is_done(self) -> bool:
        """When the run and its evaluations are finished, or what this explorer is to explore is explored."""
        return self._store.wait(self._is_done)

    def _is_done(self) -> bool:
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
            with suppress(RuntimeError):  # the loop has ended in this moment
                loop.call_soon_threadsafe(hear)

        self._wake_loop = wake
        if self._place is not None:
            await self._made_endpoint().start()
        try:
            while not self.stopping:
                try:
                    if unavailable is None and not await self._refill():
                        break
                except DatabaseUnavailable as error:
                    # What is under way is finished first: it was claimed before, and its claim is known.
                    unavailable = error
                if not self._under_way.busy and (unavailable or not await self._stays()):
                    break
                has_begun = True
                if not await _happens(self._event):
                    self._may_claim = True  # news may be lost
                await self._write_ended()
            await self._write_ended(is_last=True)
        finally:
            self._wake_loop = lambda: None
            await self._under_way.cancel()
        if unavailable is not None:
            raise unavailable
        return has_begun

    async def _refill(self) -> bool:
        """Start attempts where places are free; False when the run and its evaluations are finished.

        Raises:
            DatabaseUnavailable: groups may have been claimed or not.
        """
        self._empty.look(self._under_way.free)
        enough = max(self._attempts_of_group, self._config.concurrency // CLAIM_SHARE)
        lacks_room = bool(self._under_way) and self._under_way.free < enough
        if not self._may_claim or (lacks_room and self._has_just_looked):
            return True
        self._may_claim = False  # first: news that arrive from here on are of something not seen below
        self._looked_at = time.monotonic()
        look = await self._store.decide(self._look)
        trains = not look.is_finished and self._only is None
        self._empty.is_held_back &= trains
        if not trains and look.due is None and not self._under_way.evaluating:
            return False
        await self._wake_parked()
        if self._under_way and self._under_way.free < enough:
            self._may_claim = True  # as soon as there is room
            return True
        if self._given_back.pauses:
            return True
        turns = self._evaluator.turns
        if look.due is None:
            turns.give(to_evaluation=False)
        elif not trains or look.is_shared:
            await self._evaluate(look.due, SHARE if trains and not self._is_held_up else 1.0)
        elif turns.look():
            await self._evaluate(look.due)
            return True
        if trains and look.newest is not None:
            await self._train(look.newest)
            if look.due is not None and not look.is_shared and not self._under_way:
                turns.give(to_evaluation=True)
                await self._evaluate(look.due)
        return True

    @property
    def _has_just_looked(self) -> bool:
        """Whether a look without room can wait: news come with each write of each explorer of the run.

        News of the run's end do not wait: no step takes what is sampled after it, and the archive waits.
        """
        if self.hears_of_end or self._under_way.parked:
            return False
        return time.monotonic() - self._looked_at < POLL_SECONDS

    @property
    def _attempts_of_group(self) -> int:
        """How many attempts are begun together."""
        return self._config.group_size + self._config.spare + self._greedy

    async def _evaluate(self, due: evaluations.Due, share: float = 1.0) -> None:
        if await self._evaluator.begin(due, share):
            self._may_claim = True

    async def _train(self, policy: policies.PolicyVersion) -> None:
        """Start attempts for training, by the newest version that is here, as far as the pace allows."""
        here = await self._staging.for_training(policy)
        if here is None:
            return
        policy = here
        if self._under_way.evaluating and not self._loaded.is_at(policy):
            self._may_claim = True  # as soon as they have ended
            return
        if not await self._loaded.load(policy):
            self._staging.forget()
            return
        self._evaluator.turns.begin()
        limit = max(1, self._under_way.free // self._attempts_of_group)
        if self._given_back.is_in_trouble:
            limit = 1
        claimed = await self._claim(policy.version, limit)
        self._is_held_up = not claimed
        self._empty.is_held_back = len(claimed) < limit
        self._may_claim |= bool(claimed)
        self._under_way.begin(claimed, self._attempts.make)

    async def _wake_parked(self) -> None:
        """Go on with parked members of groups that have other members under way.

        Other groups with parked members have no holder, and are claimed when one of them may go on.
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
        """Whether the endpoint answers although nothing is under way: agents may come, and late rewards."""
        return self._place is not None and not await self._store.run(self._is_done)

    def _made_endpoint(self) -> "Endpoint":
        """The endpoint, which is made when the first program needs it."""
        if self._endpoint is None:
            from trinity_db.explorer.recording.endpoint import Endpoint

            self._endpoint = Endpoint(self._log, self.run.name, self._place or Place())
        return self._endpoint

    def _look(self, tx: Transaction) -> Look:
        """Whether the run is finished, its newest version, and the next evaluation."""
        loaded = -1 if self._loaded.number is None else self._loaded.number
        return Look(
            runs.is_finished(tx, self.run.id),
            policies.newest(tx, self.run.id),
            evaluations.due(tx, self.run.id, loaded, self._only),
        )

    async def _woken(self, group_ids: list[int]) -> list[groups.ClaimedGroup]:
        version, most = self._loaded.number, self._pace.max_staleness
        return await self._store.once(
            lambda tx: parks.woken(tx, self.worker_id, group_ids, version, most, self._greedy)
        )

    async def _claim(self, version: int, limit: int) -> list[groups.ClaimedGroup]:
        return await self._store.once(
            lambda tx: groups.claim(
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
        )

    async def _write_meanwhile(self) -> None:
        """Write what ended while the engine loads a version, if anything did."""
        if self._under_way.has_ended:
            await self._write_ended()

    async def _write_ended(self, is_last: bool = False) -> None:
        """Write all that ended since the last time, and now and then how fast it goes.

        Raises:
            EngineFailed: an attempt found that the engine cannot go on. The others are written.
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
        """Give back attempts that did not begin here, and groups that have nothing under way any more.

        What is left of such a group did not begin here, or is parked.
        """
        self._given_back.note(made)
        given_back = [rollout for rollout in made if rollout.given_back]
        if any(rollout.group.is_evaluation for rollout in given_back):
            self._loaded.forget()  # the engine may not have the evaluation's version any more
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
