"""Draws: from nothing in memory to the decoded rows of a leased batch, for every sampler.

Times `draws.draw_groups` and `batches.read`, two transactions, as the trainer calls them. The floor is one
SELECT of the same rows and arrays by id, decoded in the same way; the sides take turns in reading first,
because the second finds the pages in memory. All groups are ready and no rows share arrays. Each batch is
reopened. Our draws check a limit of staleness; peers draw without one. `own_loop` adds the commit, and
compares `store.trainer` with the built-in trainer.
"""

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import count

import psycopg

from benchmarks import data, own_loop, peer
from benchmarks.context import Context
from benchmarks.measure import OURS, Bar, Result, percentile, ratio
from benchmarks.scene import RUN, Scene, payload
from benchmarks.server import Server
from trinity_db.arrays import codec
from trinity_db.postgres.connection import Database
from trinity_db.schema.states import WorkerRole
from trinity_db.store import batches, draws
from trinity_db.store.samplers import Sampler
from trinity_db.trainer.recipes.parts.kinds import chosen, part
from trinity_db.worker.service import LEASE_SECONDS

MEASURE = "draw"
SIZES = {"10 k": 10_240, "100 k": 102_400, "1 M": 1_024_000}
BATCH_ROWS = 64
DRAWS, WARM_UP = 200, 10  # the warm-up lets the server prepare its plans
SAMPLERS = (
    Sampler("fifo"),
    Sampler("newest"),
    Sampler("uniform"),
    Sampler("prioritized", alpha=0.6, beta=0.4),
)
MAX_STALENESS = 3  # all of versions 0 to 3 are within the limit
FLOOR = "bare SELECT"
COMPARED = "100 k"  # larger stores are compared with this size
FLOOR_BAR = Bar(2.5, at_most=True)
GROWTH_BAR = Bar(1.3, at_most=True)
PEER_BARS = {"reverb": Bar(1, at_most=True), "trinity_rft": Bar(1, at_most=True)}
PEER_DRAWS = 20  # per repetition
# Orders that each peer supports; at 100 k rows only where filling takes seconds.
PEERS: dict[str, dict[str, tuple[str, ...]]] = {
    "10 k": {
        "trinity_rft": ("fifo", "newest"),
        "reverb": ("uniform", "prioritized"),
        "transfer_queue": ("fifo",),
    },
    "100 k": {"reverb": ("uniform", "prioritized")},
}
TEMPLATES = 64  # rows whose arrays the others copy

# Foreign keys hold by construction; checking them would take most of the time.
FILL = """
SET LOCAL session_replication_role = replica;
INSERT INTO trinity.rollout_group
    (id, run_id, task_id, state, expected, arrived, version_min, completed_at, ready_xact, reward_count,
     priority)
SELECT n, {run_id}, (SELECT min(id) FROM trinity.task) + n % 256, 'ready', {group_size}, {group_size},
       {versions} * n / ({num_groups} + 1), now(), 1, {group_size}, greatest(0.01, random() ^ 2)
FROM generate_series(1, {num_groups}) n;
INSERT INTO trinity.rollout (id, run_id, group_id, ordinal, attempt, state)
SELECT n + 1, {run_id}, n / {group_size} + 1, n % {group_size}, 1, 'finished'
FROM generate_series(0, {num_groups} * {group_size} - 1) n;
INSERT INTO trinity.experience
    (id, run_id, group_id, rollout_id, state, version_min, version_max, reward, prompt_length,
     response_length)
SELECT m.id, {run_id}, m.group_id, m.id, 'ready', g.version_min, g.version_min, m.id % 2, 160, 420
FROM trinity.rollout m JOIN trinity.rollout_group g ON g.id = m.group_id
ORDER BY m.id;
"""
VERSION = """
INSERT INTO trinity.policy_version (run_id, version, step, checkpoint, checkpoint_hash)
VALUES (%s, %s, 0, 'version', 'hash')
"""
ARRAYS = """
INSERT INTO trinity.payload (experience_id, codec, num_tokens, data)
SELECT e.id, %s, t.num_tokens, t.data FROM trinity.experience e JOIN template t ON t.id = e.id %% %s
"""
DRAWN = "SELECT experience_id FROM trinity.batch_item WHERE batch_id = %s ORDER BY ordinal"
SELECT = """
SELECT e.id, e.group_id, e.reward, e.version_min, p.codec, p.num_tokens, p.data
FROM trinity.experience e JOIN trinity.payload p ON p.experience_id = e.id
WHERE e.id = ANY(%s)
"""


@dataclass(frozen=True)
class _Store:
    """Filled store and the trainer that draws from it."""

    database: Database
    run_id: int
    worker_id: int
    steps: "count[int]"


def run(context: Context) -> list[Result]:
    """Measure each size of store and sampler, then peers on batches of the same size."""
    results: list[Result] = []
    compared: dict[str, list[float]] = {}
    for size, num_rows in SIZES.items():
        with context.server() as server:
            context.say(f"{size} rows: filling a store")
            scene = Scene.open(server.new_store())
            _fill(scene, context.rows(num_rows) // data.GROUP_SIZE)
            server.settle()
            database = Database(scene.url, LEASE_SECONDS)
            worker_id = scene.new_worker(database, WorkerRole.TRAIN)
            with closing(database):
                store = _Store(database, scene.run_id, worker_id, count(1))
                medians: dict[str, list[float]] = {
                    sampler.name: _measure(context, store, sampler, size, results) for sampler in SAMPLERS
                }
            if size == COMPARED:
                compared = medians
            for name, values in medians.items() if size != COMPARED and compared else ():
                against = f"{OURS}, {COMPARED} rows"
                variant = _variant(name, size)
                results.append(ratio(MEASURE, variant, "ms p50", values, compared[name], against, GROWTH_BAR))
            results += _peers(context, server, size, num_rows, medians)
            if size == COMPARED:
                results.append(measure_own_loop(context, server))
    return results


def measure_own_loop(context: Context, server: Server) -> Result:
    """Compare `store.trainer` with the built-in trainer, in another store of the same size."""
    variant = f"fifo and commit, {BATCH_ROWS} of {COMPARED} rows, store.trainer"
    context.say(variant)
    scene = Scene.open(server.new_store(), config=own_loop.config(RUN, BATCH_ROWS))
    num_rows = context.rows(SIZES[COMPARED])
    _fill(scene, num_rows // data.GROUP_SIZE, versions=1)
    server.settle()
    steps = min(DRAWS, num_rows // BATCH_ROWS // 2 - own_loop.WARM_UP)
    return own_loop.measure(scene.url, RUN, MEASURE, variant, context.repetitions, steps)


def _measure(
    context: Context, store: _Store, sampler: Sampler, size: str, results: list[Result]
) -> list[float]:
    """Return our p50 in ms, one per repetition; add the ratio to the floor for one size."""
    context.say(_variant(sampler.name, size))
    pairs = [_draw(store, sampler) for _ in range(WARM_UP + DRAWS)][WARM_UP:]
    ours, floor = (
        [
            percentile([1000 * pair[side] for pair in pairs[start :: context.repetitions]], 50)
            for start in range(context.repetitions)
        ]
        for side in range(2)
    )
    if size == COMPARED:
        variant = _variant(sampler.name, size)
        results.append(ratio(MEASURE, variant, "ms p50", ours, floor, FLOOR, FLOOR_BAR, alternated=True))
    return ours


def _peers(
    context: Context, server: Server, size: str, num_rows: int, medians: dict[str, list[float]]
) -> list[Result]:
    results = []
    for name, orders in PEERS.get(size, {}).items():
        for order in orders:
            context.say(f"{_variant(order, size)}: {name}")
            server.settle()
            specification = {
                "operation": MEASURE,
                "url": server.new_database(),
                "rows": context.rows(num_rows),
                "size": BATCH_ROWS,
                "order": order,
                "max_staleness": None,
                "draws": PEER_DRAWS,
            }
            answer = peer.ask(context, name, specification)
            results += peer.compared(
                MEASURE, _variant(order, size), answer, medians[order], PEER_BARS.get(name)
            )
    return results


def _variant(order: str, size: str) -> str:
    return f"{order}, {BATCH_ROWS} of {size} rows"


def _draw(store: _Store, sampler: Sampler) -> tuple[float, float]:
    """Return the seconds of one draw with its arrays, and of the floor for the same rows."""
    database = store.database
    step = batches.Draw(
        store.run_id, store.worker_id, next(store.steps), BATCH_ROWS // data.GROUP_SIZE, seed=0
    )
    start = time.perf_counter()
    with database.transaction() as tx:
        batch = draws.draw_groups(
            tx, step, MAX_STALENESS, part("advantage", chosen("advantage", "group")), sampler
        )
    ours = time.perf_counter() - start
    assert batch is not None
    with database.transaction() as tx:
        ids = [row["experience_id"] for row in tx.execute(DRAWN, [batch.id])]
    sides = (partial(_seconds, batches.read, database, batch.id), partial(_seconds, _select, database, ids))
    bare_first = step.step % 2
    seconds = [side() for side in (sides[::-1] if bare_first else sides)]
    reading, bare = seconds[::-1] if bare_first else seconds
    with database.transaction() as tx:
        batches.reopen_leased(tx, step)
    return ours + reading, bare


def _seconds(read: Callable[..., object], *arguments: object) -> float:
    """Return the seconds of a call that reads rows."""
    start = time.perf_counter()
    assert read(*arguments)
    return time.perf_counter() - start


def _select(database: Database, ids: list[int]) -> list[codec.Payload]:
    """Read the rows by id in one statement."""
    with database.transaction() as tx:
        rows = tx.execute(SELECT, [ids], binary=True).fetchall()
        return [codec.decode(row["codec"], row["data"], row["num_tokens"]) for row in rows]


def _fill(scene: Scene, num_groups: int, versions: int = 4) -> None:
    """Insert ready groups of so many versions with priorities from 0.01 to 1."""
    sizes = {"num_groups": num_groups, "group_size": data.GROUP_SIZE, "versions": versions}
    statement = FILL.format(run_id=scene.run_id, **sizes)
    with closing(psycopg.connect(scene.url)) as connection, connection:
        connection.execute(statement.encode())
        if versions > 1:
            connection.execute(VERSION, [scene.run_id, versions - 1])
        connection.execute("CREATE TABLE template (id int PRIMARY KEY, num_tokens int, data bytea)")
        connection.execute("ALTER TABLE template ALTER data SET STORAGE EXTERNAL")  # uncompressed
        rows = data.rows(TEMPLATES)
        with connection.cursor() as cursor:
            cursor.executemany(
                "INSERT INTO template VALUES (%s, %s, %s)",
                [(n, len(row.token_ids), codec.encode(payload(row))) for n, row in enumerate(rows)],
            )
        connection.execute("SET LOCAL session_replication_role = replica")
        connection.execute(ARRAYS.encode(), [codec.CODEC, TEMPLATES])
    with closing(psycopg.connect(scene.url, autocommit=True)) as connection:
        connection.execute("VACUUM ANALYZE")
