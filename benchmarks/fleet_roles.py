"""The roles of a fleet: real explorers as threads, a real processor, and a trainer without a model.

An attempt of these explorers sleeps for a time with a long tail, in place of sampling, and then takes a
response of `data.py`'s kind from an engine that computes nothing.
"""

import asyncio
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from benchmarks import data, fleet_server
from benchmarks.scene import RUN, Scene
from trinity_db.config import PromptConfig
from trinity_db.database import Database
from trinity_db.embedded.cluster import Cluster
from trinity_db.explorer.config import ExplorerConfig
from trinity_db.explorer.engines.engine import Completion, Request
from trinity_db.explorer.policy import Policy
from trinity_db.explorer.service import Explorer
from trinity_db.models import folder_digest
from trinity_db.processors import lists
from trinity_db.processors.config import ProcessorsConfig
from trinity_db.processors.service import Processors
from trinity_db.schema.states import WorkerRole
from trinity_db.service import LEASE_SECONDS, Pulse, Service
from trinity_db.store import batches, draws, policies, runs
from trinity_db.store.groups import ClaimedGroup, Pace, Rollout
from trinity_db.store.selection import Selection
from trinity_db.weights.recorded_places import RecordedPlaces

GROUP_SIZE = 4
PROMPT_TOKENS = 64
RESPONSE_TOKENS = 100  # short, so that what the store adds to the arrays shows
SIGMA = 1.0  # of the logarithm of an attempt's seconds: the slowest twentieth takes five times the median
STEP_SECONDS = 10.0  # between two publications of the trainer
IDLE_SECONDS = 0.1  # between two looks of the trainer
STOP_SECONDS = 120  # for a process's explorers to end


@dataclass(frozen=True)
class Part:
    """The work of one process."""

    kind: str
    """explore, process, train or watch."""
    scene: Scene
    """By the address that roles come by."""
    server_url: str
    """By the server's own address."""
    cluster: Cluster
    model: Path
    explorers: int
    """In this process."""
    places: int
    """Attempts that each has under way."""
    latency: float
    """Seconds of an attempt in the mean."""
    warm: float
    """Seconds before the measurement."""
    seconds: float
    """Of the measurement."""
    step_groups: int
    """Groups of a batch."""
    backlog: int
    """Groups that may wait for the trainer, with those that are explored."""


@dataclass
class Waits:
    """How long rollouts waited for the store, in seconds; kept during the measurement only."""

    begins: float = 0.0
    ends: float = 0.0
    writes: list[float] = field(default_factory=list)
    """From the end of an attempt until its rollout is committed."""
    places: list[float] = field(default_factory=list)
    """From a free place until the next attempt begins there."""
    claims: list[float] = field(default_factory=list)
    """The part of it after enough places were free for a claim."""
    lives: list[float] = field(default_factory=list)
    """Of attempts themselves."""
    processor_seconds: float = 0.0

    @property
    def counts(self) -> bool:
        return self.begins <= time.monotonic() < self.ends


class Words:
    """A tokenizer that is asked for texts alone."""

    bos_token: str | None = None
    eos_token_id: int | None = None
    chat_template: str | None = None
    response_template = None
    all_special_ids: ClassVar[list[int]] = []
    all_special_tokens: ClassVar[list[str]] = []
    added_tokens_decoder: ClassVar[dict[int, Any]] = {}

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        return "word" * len(token_ids)


class Simulated:
    """An engine that computes nothing: its responses are slices of random tokens."""

    tokenizer = Words()
    context = 4096
    version = 0

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        rng = np.random.default_rng(seed)
        self._tokens: list[int] = (rng.zipf(1.2, 8192) % data.VOCABULARY).tolist()
        self._logprobs: list[float] = (-rng.exponential(0.5, 8192)).tolist()

    async def load(self, path: Path, version: int) -> None:
        self.version = version

    async def generate(self, request: Request) -> Completion:
        length = min(8 * RESPONSE_TOKENS, max(8, round(self._random.lognormvariate(4.48, 0.5))))
        start = self._random.randrange(8192 - length)
        end = start + length
        return Completion(self._tokens[start:end], self._logprobs[start:end], [self.version] * length, "stop")

    def close(self) -> None:
        """There is nothing to free."""


def prepare(part: Part) -> Callable[[], Any]:
    """The work of a process."""
    work: dict[str, Callable[[Part], Any]] = {
        "explore": _explore,
        "process": _process,
        "train": _train,
        "watch": _watch,
    }
    return partial(work[part.kind], part)


def _explore(part: Part) -> Waits:
    waits = Waits()
    began = time.monotonic()
    waits.begins, waits.ends = began + part.warm, began + part.warm + part.seconds
    explorers = [_explorer(part, waits, number) for number in range(part.explorers)]
    threads = [threading.Thread(target=_serve, args=(one,), daemon=True) for one in explorers]
    for thread in threads:
        thread.start()
    time.sleep(max(0.0, waits.begins - time.monotonic()))
    spent = time.process_time()
    time.sleep(max(0.0, waits.ends - time.monotonic()))
    waits.processor_seconds = time.process_time() - spent
    for explorer in explorers:
        explorer.stop()
        explorer.wake()
    deadline = time.monotonic() + STOP_SECONDS
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
        if thread.is_alive():
            raise RuntimeError("an explorer does not end")
    return waits


def _explorer(part: Part, waits: Waits, number: int) -> Explorer:
    """An explorer whose waits are kept."""
    database = Database(part.scene.url, LEASE_SECONDS)
    with database.transaction() as tx:
        found = runs.find(tx, RUN)
    database.close()
    seconds = _Seconds(part.latency, part.places, random.Random(number))
    explorer = Explorer(
        database,
        found,
        ExplorerConfig(group_size=GROUP_SIZE, concurrency=part.places),
        partial(_attempt, seconds),
        Simulated(number),
        Pace(max_staleness=None, per_version=1, backlog=part.backlog),
        Selection({part.scene.taskset_id: 1.0}, seed=number, walk="sequential"),
        PromptConfig(prompt_template="{prompt}"),
        RecordedPlaces(checkpoints=Path("/")),
    )
    _keep(explorer, waits)
    return explorer


class _Seconds:
    """How long attempts take. The first ones are under way already, so that not all end at once."""

    def __init__(self, mean: float, places: int, rng: random.Random) -> None:
        self._mu = np.log(mean) - SIGMA**2 / 2
        self._first, self._random = places, rng

    def __call__(self) -> float:
        drawn = self._random.lognormvariate(self._mu, SIGMA)
        if self._first:
            self._first -= 1
            return drawn * self._random.random()
        return drawn


async def _attempt(seconds: Callable[[], float], task: Mapping[str, Any], policy: Policy) -> float:
    await asyncio.sleep(seconds())
    await policy.sample(range(1, PROMPT_TOKENS + 1))
    return float(policy.seed % 2)


def _serve(explorer: Explorer) -> None:
    """As `Service.serve`, which handles signals and so needs a process of its own."""
    explorer.worker_id = explorer._claim_place()
    pulse = Pulse(explorer)
    try:
        explorer._serve(pulse)
    finally:
        pulse.stop()
        explorer._sign_off()


def _keep(explorer: Explorer, waits: Waits) -> None:
    """Note when attempts end, are written and begin."""
    under_way, writer = explorer._under_way, explorer._writer
    note, begin, write = under_way._note, under_way.begin, writer.write
    free: deque[float] = deque()
    enough_at = 0.0
    enough = max(explorer._attempts_of_group, explorer._config.concurrency // 4)

    def noted(ended: Any) -> None:
        nonlocal enough_at
        free.append(time.monotonic())
        if under_way.free + 1 == enough:  # the attempt is still counted
            enough_at = free[-1]
        note(ended)

    def begun(claimed: Sequence[ClaimedGroup], make: Any) -> None:
        now = time.monotonic()
        for _ in range(min(len(free), sum(len(group.members) for group in claimed))):
            at = free.popleft()
            if waits.counts:
                waits.places.append(now - at)
                waits.claims.append(now - max(at, enough_at))
        begin(claimed, make)

    async def written(finished: list[Rollout], is_last: bool) -> None:
        await write(finished, is_last)
        now = datetime.now(UTC)
        if waits.counts:
            waits.writes += [(now - one.finished_at).total_seconds() for one in finished]
            waits.lives += [(one.finished_at - one.started_at).total_seconds() for one in finished]

    under_way._note = noted  # type: ignore[method-assign]
    under_way.begin = begun  # type: ignore[method-assign]
    writer.write = written  # type: ignore[method-assign]


def _process(part: Part) -> float:
    """Processor seconds of a processor."""
    database = Database(part.scene.url, LEASE_SECONDS)
    with database.transaction() as tx:
        found = runs.find(tx, RUN)
    config = ProcessorsConfig()
    service = Processors(database, found, config, lists.load(config))
    began, total = time.process_time(), part.warm + part.seconds
    timer = threading.Timer(total, service.stop)
    timer.start()
    service.serve()
    return (time.process_time() - began) * part.seconds / total


def _train(part: Part) -> int:
    """Steps that were made."""
    deadline = time.monotonic() + part.warm + part.seconds
    digest, step = folder_digest.digest(part.model), 0
    with closing(Database(part.scene.url, LEASE_SECONDS)) as database:
        worker_id = part.scene.new_worker(database, WorkerRole.TRAIN)
        with database.transaction() as tx:
            service = Service(database, runs.find(tx, RUN))
        service.worker_id = worker_id
        pulse = Pulse(service)
        pulse.start()
        while time.monotonic() < deadline:
            draw = batches.Draw(part.scene.run_id, worker_id, step + 1, part.step_groups, seed=0)
            with database.transaction() as tx:
                batch = draws.draw_groups(tx, draw, None, _no_advantage)
            if batch is None:
                time.sleep(IDLE_SECONDS)
                continue
            step += 1
            batches.read(database, batch.id)
            with database.transaction() as tx:
                batches.commit(tx, batch, worker_id, max_uses=1)
            with database.transaction() as tx:
                version = policies.PolicyVersion(step, step, part.model, digest)
                policies.publish(tx, part.scene.run_id, version, worker_id)
        pulse.stop()
    return step


def _no_advantage(columns: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
    return np.zeros(len(columns["rewards"]))


def _watch(part: Part) -> tuple[fleet_server.Spent, int]:
    """What the server spent during the measurement, and how many connections it had."""
    began = time.monotonic()
    time.sleep(part.warm)
    start = fleet_server.now(part.cluster)
    time.sleep(max(0.0, began + part.warm + part.seconds / 2 - time.monotonic()))
    connections = fleet_server.connections(part.server_url)
    time.sleep(max(0.0, began + part.warm + part.seconds - time.monotonic()))
    end = fleet_server.now(part.cluster)
    return fleet_server.between(part.cluster, start, end), connections
