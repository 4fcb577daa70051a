"""A fleet: the share of a rollout's life that the store costs, with 10 to 1,000 explorers, and where it ends.

The roles are those of a run, whole: explorers with heartbeats, news and their single writers, a processor,
and a trainer that draws, commits and publishes. Only sampling and training are left out: an attempt sleeps
for a time with a long tail. The asked load stays below what this machine takes, so that waits are those of a
store that keeps up. Then attempts take almost no time, and the rate is what the store, with its clients on
the same cores, can take; once with images of pages in the log as they are, and once compressed. 1,000
explorers come by PgBouncer.
"""

from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks import fleet_roles, fleet_server
from benchmarks.context import Context
from benchmarks.fleet_roles import GROUP_SIZE, STEP_SECONDS, Part, Waits
from benchmarks.fleet_server import Spent
from benchmarks.measure import OURS, Result, figure, percentile
from benchmarks.processes import at_once
from benchmarks.scene import Scene
from benchmarks.server import Server

MEASURE = "fleet"
MOST_DIRECT = 300  # explorers; beyond it a server has more processes than memory for them
CONNECTIONS = 1000
BACKLOG = 10_000  # groups, as by default
MOST_RATE = 100  # rollouts/s by which the size of batches is chosen
PROCESSES = 2  # of explorers: this machine's cores


@dataclass(frozen=True)
class Size:
    """A number of explorers, and what they ask for."""

    explorers: int
    places: int
    latency: float
    """Seconds of an attempt in the mean."""
    warm: float
    seconds: float
    name: str = ""

    @property
    def variant(self) -> str:
        return self.name or f"{self.explorers:,} explorers"

    @property
    def rate(self) -> float:
        """Rollouts per second, if the store took no time."""
        return self.explorers * self.places / self.latency


SIZES = (
    Size(10, 32, 20, 20, 60),
    Size(100, 16, 25, 30, 60),
    Size(1000, 8, 120, 90, 90),
)
QUICK = (Size(4, 16, 5, 5, 15), Size(16, 16, 6, 5, 15))
SATURATED = Size(16, 32, 0.02, 40, 30)  # warm until the backlog is full: then the rate is that of the loop


def run(context: Context) -> list[Result]:
    """All sizes, then saturation with images of pages as they are and compressed."""
    found: list[Result] = []
    with context.server() as server, TemporaryDirectory(dir=context.scratch) as folder:
        (Path(folder) / "model.txt").write_text("no model")
        fleet_server.prepare(server, CONNECTIONS)
        for size in QUICK if context.quick else SIZES:
            found += _measured(context, server, Path(folder), size)
        for is_on in (False, True):
            fleet_server.compress_images(server, is_on)
            name = f"saturated, wal_compression {'on' if is_on else 'off'}"
            size = replace(SATURATED, name=name, warm=10 if context.quick else SATURATED.warm)
            found += _measured(context, server, Path(folder), size)
    return found


def _measured(context: Context, server: Server, model: Path, size: Size) -> list[Result]:
    """One size, on a new store."""
    context.say(f"{size.variant}: {size.places} places each, {size.rate:,.0f} rollouts/s asked")
    direct = server.new_store()
    scene = Scene.open(direct, model)
    server.settle()
    is_direct = size.explorers <= MOST_DIRECT
    through = nullcontext(direct) if is_direct else fleet_server.pooled(direct, clients=4 * size.explorers)
    with through as url:
        first = Part(
            kind="watch",
            scene=replace(scene, url=url),
            server_url=direct,
            cluster=server.cluster,
            model=model,
            explorers=size.explorers // PROCESSES,
            places=size.places,
            latency=size.latency,
            warm=size.warm,
            seconds=size.seconds,
            step_groups=max(1, round(min(size.rate, MOST_RATE) * STEP_SECONDS / GROUP_SIZE)),
            backlog=BACKLOG,
        )
        kinds = ("watch", "process", "train", *("explore",) * PROCESSES)
        # Explorers alone come by the pooler: behind a thousand of them, others would wait for a connection.
        parts = [replace(first, kind=k, scene=scene if k != "explore" else first.scene) for k in kinds]
        outcomes = [one.value for one in at_once(fleet_roles.prepare, parts)]
    (spent, connections), processor, steps = outcomes[:3]
    how = "directly" if is_direct else f"by PgBouncer, {fleet_server.POOL} connections to the server"
    note = f"{size.variant}: {how}; {steps} steps of {first.step_groups} groups were made"
    found = _waits(size, outcomes[3:], note) + _server(size, outcomes[3:], spent, processor)
    tables, indexes = fleet_server.bytes_on_disk(direct)
    found += [
        figure(MEASURE, OURS, size.variant, "connections to the server", [connections]),
        figure(MEASURE, OURS, size.variant, "bytes on disk a rollout, tables", [tables]),
        figure(MEASURE, OURS, size.variant, "bytes on disk a rollout, indexes", [indexes]),
    ]
    context.say(", ".join(f"{one.median:,.3g} {one.unit}" for one in found if one.median is not None))
    return found


def _waits(size: Size, waits: list[Waits], note: str) -> list[Result]:
    """What explorers saw."""
    writes, places, claims, lives = (
        list(chain.from_iterable(getattr(one, name) for one in waits))
        for name in ("writes", "places", "claims", "lives")
    )
    share = 100 * (sum(writes) + sum(claims)) / (sum(lives) + sum(writes) + sum(places))
    found = [
        figure(MEASURE, OURS, size.variant, "rollouts/s asked", [size.rate], note=note),
        figure(MEASURE, OURS, size.variant, "rollouts/s", [len(writes) / size.seconds]),
        figure(MEASURE, OURS, size.variant, "% of a rollout's life", [share]),
    ]
    for what, values in (
        ("ended to committed", writes),
        ("free to begun", places),
        ("enough free to begun", claims),
    ):
        for percent in (50, 95):
            value = 1e3 * percentile(values, percent)
            found.append(figure(MEASURE, OURS, size.variant, f"ms {what}, p{percent}", [value]))
    return found


def _server(size: Size, waits: list[Waits], spent: Spent, processor: float) -> list[Result]:
    """What the server and the roles spent for each rollout."""
    rollouts = sum(len(one.writes) for one in waits)
    explorers = sum(one.processor_seconds for one in waits)
    values = {
        "CPU s of Postgres / 1,000 rollouts": 1e3 * spent.seconds,
        "CPU s of explorers / 1,000 rollouts": 1e3 * explorers,
        "CPU s of the processor / 1,000 rollouts": 1e3 * processor,
        "bytes of WAL a rollout": spent.images + spent.heap + spent.indexes + spent.other,
        "bytes of it, images of pages": spent.images,
        "bytes of it, heap": spent.heap,
        "bytes of it, indexes": spent.indexes,
        "bytes of it, other": spent.other,
    }
    return [figure(MEASURE, OURS, size.variant, unit, [value / rollouts]) for unit, value in values.items()]
