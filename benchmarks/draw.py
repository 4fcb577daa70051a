"""Draws with their arrays: from nothing in memory to the decoded rows of a leased batch, for every sampler.

Ours does for each step as the trainer does: `draws.draw_groups` and `batches.read`, two transactions. The
floor is one SELECT of the same rows and arrays by their ids, decoded the same way. The two take turns in
reading first, because the second one finds the pages in memory. All groups can be drawn, and no two rows
share their arrays. Ten million rows would take 70 GB, so there a row gets its arrays when it is drawn for
the first time; that is not timed. Each batch is given back. Our draws check a limit of staleness. Peers
draw without one, as most of them know none.
"""

import time
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import count

import psycopg

from benchmarks import data, peer
from benchmarks.context import Context
from benchmarks.measure import OURS, Bar, Result, figure, percentile, ratio
from benchmarks.scene import Scene, payload
from benchmarks.server import Server
from trinity_db import arrays
from trinity_db.database import Database, Transaction
from trinity_db.schema.states import WorkerRole
from trinity_db.service import LEASE_SECONDS
from trinity_db.store import batches, draws
from trinity_db.store.samplers import Sampler
from trinity_db.trainer.parts.kinds import chosen, part

MEASURE = "draw"
SIZES = {"10 k": 10_240, "100 k": 102_400, "1 M": 1_024_000}
FULL_SIZES = {"10 M": 10_240_000}  # ten minutes to fill, and 6 GB
DRAWS = {64: 200, 512: 100}  # by the rows of a batch
WARM_UP = 10  # before them; statements are prepared by then
SAMPLERS = (
    Sampler("fifo"),
    Sampler("newest"),
    Sampler("uniform"),
    Sampler("prioritized", alpha=0.6, beta=0.4),
)
MAX_STALENESS = 3  # of versions 0 to 3: all is within the limit, and looked at
FLOOR = "bare SELECT"
COMPARED, BARRED_ROWS = "100 k", 64  # the bars hold for it; larger stores are compared with it
FLOOR_BAR = Bar(2.5, at_most=True)
GROWTH_BAR = Bar(1.3, at_most=True)
PEER_BARS = {"reverb": Bar(1, at_most=True), "trinity_rft": Bar(1, at_most=True)}
PEER_DRAWS = 20  # of one repetition, of 64 rows
# The orders that each of them knows; at 100 k rows those that are filled in seconds.
PEERS: dict[str, dict[str, tuple[str, ...]]] = {
    "10 k": {
        "trinity_rft": ("fifo", "newest"),
        "agent_lightning": ("fifo",),
        "torchrl": ("fifo", "uniform"),
        "reverb": ("uniform", "prioritized"),
        "transfer_queue": ("fifo",),
    },
    "100 k": {"torchrl": ("uniform",), "reverb": ("uniform", "prioritized")},
}
TEMPLATES = 64  # rows whose arrays all others copy
WITH_ARRAYS = 1_024_000  # rows of the largest store that is filled with them

# Keys hold by construction; checking them would take most of the time.
FILL = """
SET LOCAL session_replication_role = replica;
INSERT INTO trinity.rollout_group
    (id, run_id, task_id, state, expected, arrived, version_min, completed_at, ready_xact, reward_count,
     priority)
SELECT n, {run_id}, (SELECT min(id) FROM trinity.task) + n % 256, 'ready', {group_size}, {group_size},
       4 * n / ({num_groups} + 1), now(), 1, {group_size}, greatest(0.01, random() ^ 2)
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
INSERT INTO trinity.policy_version (run_id, version, step, checkpoint, checkpoint_hash)
VALUES ({run_id}, 3, 0, 'version-3', 'hash');
"""
ARRAYS = """
INSERT INTO trinity.payload (experience_id, codec, num_tokens, data)
SELECT e.id, %s, t.num_tokens, t.data FROM trinity.experience e JOIN template t ON t.id = e.id %% %s
"""
SELECT = """
SELECT e.id, e.group_id, e.reward, e.version_min, p.codec, p.num_tokens, p.data
FROM trinity.experience e JOIN trinity.payload p ON p.experience_id = e.id
WHERE e.id = ANY(%s)
"""


@dataclass(frozen=True)
class _Store:
    """A filled store, and the trainer that draws from it."""

    database: Database
    run_id: int
    worker_id: int
    steps: "count[int]"


def run(context: Context) -> list[Result]:
    """Each size of store, sampler and batch; ours and the floor on the same rows, one after the other."""
    found: list[Result] = []
    compared: dict[tuple[str, int], list[float]] = {}
    for size, num_rows in (SIZES | FULL_SIZES if context.full else SIZES).items():
        with context.server() as server:
            context.say(f"{size} rows: filling a store")
            scene = Scene.open(server.new_store())
            _fill(scene, context.rows(num_rows) // data.GROUP_SIZE)
            server.settle()
            database = Database(scene.url, LEASE_SECONDS)
            worker_id = scene.new_worker(database, WorkerRole.TRAIN)
            with closing(database):
                store = _Store(database, scene.run_id, worker_id, count(1))
                medians = _measure_all(context, store, size, found)
            if size == COMPARED:
                compared = medians
            elif compared:
                found += _growth(size, medians, compared)
            found += _peers(context, server, size, num_rows, medians)
    return found


def _measure_all(
    context: Context, store: _Store, size: str, found: list[Result]
) -> dict[tuple[str, int], list[float]]:
    """Add the results of each sampler and batch size to `found`; our p50 in ms, one a repetition."""
    medians: dict[tuple[str, int], list[float]] = {}
    for sampler in SAMPLERS:
        for batch_rows, num_draws in DRAWS.items():
            variant = _variant(sampler.name, batch_rows, size)
            context.say(variant)
            pairs = [_draw(store, sampler, batch_rows) for _ in range(WARM_UP + num_draws)][WARM_UP:]
            p50 = {}
            for side, who in enumerate((OURS, FLOOR)):
                values = [1000 * pair[side] for pair in pairs]
                parts = [values[start :: context.repetitions] for start in range(context.repetitions)]
                p50[who] = [percentile(part, 50) for part in parts]
                found.append(figure(MEASURE, who, variant, "ms p50", p50[who]))
                found.append(figure(MEASURE, who, variant, "ms p99", [percentile(values, 99)]))
            bar = FLOOR_BAR if (size, batch_rows) == (COMPARED, BARRED_ROWS) else None
            found.append(ratio(MEASURE, variant, p50[OURS], p50[FLOOR], FLOOR, bar, alternated=True))
            medians[sampler.name, batch_rows] = p50[OURS]
    return medians


def _growth(
    size: str, medians: dict[tuple[str, int], list[float]], compared: dict[tuple[str, int], list[float]]
) -> list[Result]:
    """Our p50 in a larger store as a multiple of that in the one that bars are about."""
    return [
        ratio(
            MEASURE,
            _variant(name, batch_rows, size),
            values,
            compared[name, batch_rows],
            f"{OURS} at {COMPARED} rows",
            GROWTH_BAR if batch_rows == BARRED_ROWS else None,
        )
        for (name, batch_rows), values in medians.items()
    ]


def _peers(
    context: Context, server: Server, size: str, num_rows: int, medians: dict[tuple[str, int], list[float]]
) -> list[Result]:
    """The times of peers for the same batches of 64, and our p50 as a multiple of theirs."""
    found = []
    for name, orders in PEERS.get(size, {}).items():
        for order in orders:
            variant = _variant(order, BARRED_ROWS, size)
            context.say(f"{variant}: {name}")
            server.settle()
            asked = {
                "operation": MEASURE,
                "url": server.new_database(),
                "rows": context.rows(num_rows),
                "size": BARRED_ROWS,
                "order": order,
                "max_staleness": None,
                "draws": PEER_DRAWS,
            }
            answer = peer.ask(context, name, asked)
            ours = medians[order, BARRED_ROWS]
            found += peer.compared(MEASURE, variant, answer, ours, PEER_BARS.get(name))
    return found


def _variant(order: str, batch_rows: int, size: str) -> str:
    return f"{order}, {batch_rows} of {size} rows"


def _draw(store: _Store, sampler: Sampler, batch_rows: int) -> tuple[float, float]:
    """Seconds of one draw with its arrays, and of the floor for the same rows."""
    database = store.database
    step = batches.Draw(
        store.run_id, store.worker_id, next(store.steps), batch_rows // data.GROUP_SIZE, seed=0
    )
    start = time.perf_counter()
    with database.transaction() as tx:
        batch = draws.draw_groups(
            tx, step, MAX_STALENESS, part("advantage", chosen("advantage", "group")), sampler
        )
    ours = time.perf_counter() - start
    assert batch is not None
    with database.transaction() as tx:
        ids = _write_arrays(tx, batch.id)
    sides = (partial(_read, database, batch.id), partial(_select, database, ids))
    bare_first = step.step % 2
    seconds = [side() for side in (sides[::-1] if bare_first else sides)]
    reading, bare = seconds[::-1] if bare_first else seconds
    with database.transaction() as tx:
        batches.reopen_leased(tx, step)
    return ours + reading, bare


def _read(database: Database, batch_id: int) -> float:
    """Seconds in which the trainer has the rows of its batch."""
    start = time.perf_counter()
    assert batches.read(database, batch_id)
    return time.perf_counter() - start


def _select(database: Database, ids: list[int]) -> float:
    """Seconds in which one statement has them, by their ids."""
    start = time.perf_counter()
    with database.transaction() as tx:
        found = tx.execute(SELECT, [ids], binary=True).fetchall()
        decoded = [arrays.decode(row["codec"], row["data"], row["num_tokens"]) for row in found]
    assert len(decoded) == len(ids)
    return time.perf_counter() - start


def _fill(scene: Scene, num_groups: int) -> None:
    """Ready groups of four versions with priorities from 0.01 to 1, and rows without arrays."""
    statement = FILL.format(run_id=scene.run_id, num_groups=num_groups, group_size=data.GROUP_SIZE)
    with closing(psycopg.connect(scene.url)) as connection, connection:
        connection.execute(statement.encode())
        connection.execute("CREATE TABLE template (id int PRIMARY KEY, num_tokens int, data bytea)")
        connection.execute("ALTER TABLE template ALTER data SET STORAGE EXTERNAL")  # a copy stays as it is
        rows = data.rows(TEMPLATES)
        with connection.cursor() as cursor:
            cursor.executemany(
                "INSERT INTO template VALUES (%s, %s, %s)",
                [(n, len(row.token_ids), arrays.encode(payload(row))) for n, row in enumerate(rows)],
            )
        if num_groups * data.GROUP_SIZE <= WITH_ARRAYS:
            connection.execute("SET LOCAL session_replication_role = replica")
            connection.execute(ARRAYS.encode(), [arrays.CODEC, TEMPLATES])
    with closing(psycopg.connect(scene.url, autocommit=True)) as connection:
        connection.execute("VACUUM ANALYZE")


def _write_arrays(tx: Transaction, batch_id: int) -> list[int]:
    """Give those rows of a batch their arrays that have none; the ids of all."""
    tx.execute(
        "INSERT INTO trinity.payload (experience_id, codec, num_tokens, data)"
        " SELECT i.experience_id, %s, t.num_tokens, t.data"
        " FROM trinity.batch_item i JOIN template t ON t.id = i.experience_id %% %s"
        " WHERE i.batch_id = %s ON CONFLICT DO NOTHING",
        [arrays.CODEC, TEMPLATES, batch_id],
    )
    items = "SELECT experience_id FROM trinity.batch_item WHERE batch_id = %s ORDER BY ordinal"
    return [row["experience_id"] for row in tx.execute(items, [batch_id])]
