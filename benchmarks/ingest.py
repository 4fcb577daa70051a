"""Durable ingest: rows per second from rollouts in memory to committed rows.

Times `groups.write_rollouts`, which explorers call; groups are claimed before. The floor is one binary COPY
per commit of the same bytes, already encoded, into a plain table.
"""

from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from itertools import count
from typing import Any

import psycopg

from benchmarks import data, peer
from benchmarks.context import Context
from benchmarks.measure import OURS, Bar, Result, in_turns, ratio
from benchmarks.processes import at_once, elapsed
from benchmarks.scene import Scene, payload, rollouts
from benchmarks.server import Server
from trinity_db.arrays import codec
from trinity_db.postgres.connection import Database
from trinity_db.schema.states import WorkerRole
from trinity_db.store import groups
from trinity_db.worker.service import LEASE_SECONDS

MEASURE = "ingest"
ROWS = 8192  # per repetition; about a second
PEER_ROWS = {"trinity_rft": 2048, "transfer_queue": 2048}  # they write hundreds a second
VARIANTS = ((1, 8), (1, 64), (4, 8), (4, 64))  # writers, rows per commit
PEER_VARIANTS = ((1, 8), (4, 64))  # peers take long to start
FLOOR = "bare COPY"
BARS = {FLOOR: Bar(0.7), "trinity_rft": Bar(10), "reverb": Bar(1)}  # for one writer that commits groups
BARRED = (1, 8)

FLOOR_TABLE = """
CREATE TABLE bare (
    id bigint PRIMARY KEY, group_id bigint, member smallint, version int, reward float8,
    prompt_length int, response_length int, prompt text, response text, data bytea
)
"""
FLOOR_TYPES = ("int8", "int8", "int2", "int4", "float8", "int4", "int4", "text", "text", "bytea")


Part = tuple[Any, int, int, int]
"""Scene, or URL of the floor's database; number of groups; first group; rows per commit."""


def run(context: Context) -> list[Result]:
    """Measure ours and the floor in turns, then each peer."""
    results = []
    for writers, rows_a_commit in VARIANTS:
        variant = f"{writers} writer{'s' * (writers > 1)}, {rows_a_commit} rows a commit"
        with context.server() as server:
            context.say(f"{variant}: {OURS} and {FLOOR}")
            rates = _measure(context, server, writers, rows_a_commit)
            is_barred = (writers, rows_a_commit) == BARRED
            bar = BARS[FLOOR] if is_barred else None
            results.append(
                ratio(MEASURE, variant, "rows/s", rates[OURS], rates[FLOOR], FLOOR, bar, alternated=True)
            )
            for name in peer.NAMES if (writers, rows_a_commit) in PEER_VARIANTS else ():
                context.say(f"{variant}: {name}")
                answer = _ask(context, server, name, writers, rows_a_commit)
                bar = BARS.get(name) if is_barred else None
                results += peer.compared(MEASURE, variant, answer, rates[OURS], bar)
    return results


def _measure(context: Context, server: Server, writers: int, rows_a_commit: int) -> dict[str, list[float]]:
    """Return rows per second of ours and of the floor, in separate databases."""
    num_groups = context.rows(ROWS) // data.GROUP_SIZE // writers
    bare = server.new_database()
    with closing(psycopg.connect(bare)) as connection:
        connection.execute(FLOOR_TABLE)
        connection.execute("ALTER TABLE bare ALTER data SET STORAGE EXTERNAL")
        connection.commit()
    sides: dict[str, tuple[Callable[[Part], Callable[[], None]], Any]] = {
        OURS: (prepare_ours, Scene.open(server.new_store())),
        FLOOR: (prepare_floor, bare),
    }
    numbers = {name: count(0, num_groups) for name in sides}

    def write(name: str) -> float:
        prepare, where = sides[name]
        parts = [(where, num_groups, next(numbers[name]), rows_a_commit) for _ in range(writers)]
        server.settle()
        return writers * num_groups * data.GROUP_SIZE / elapsed(at_once(prepare, parts))

    return in_turns({name: partial(write, name) for name in sides}, context.repetitions)


def prepare_ours(part: Part) -> Callable[[], None]:
    """Prepare a writer of ours: an explorer with claimed groups and their rollouts."""
    scene, num_groups, first_group, rows_a_commit = part
    database = Database(scene.url, LEASE_SECONDS)
    worker_id = scene.new_worker(database, WorkerRole.EXPLORE)
    claimed = scene.claim(database, worker_id, num_groups)
    members = data.groups(num_groups, first_group)
    written = [rollouts(group, rows) for group, rows in zip(claimed, members, strict=True)]
    commits = _commits(written, rows_a_commit)

    def write() -> None:
        for commit in commits:
            with database.transaction() as tx:
                groups.write_rollouts(tx, scene.run_id, worker_id, commit)

    return write


def prepare_floor(part: Part) -> Callable[[], None]:
    """Prepare a writer of the floor: one COPY of encoded tuples per commit."""
    url, num_groups, first_group, rows_a_commit = part
    connection = psycopg.connect(url)
    tuples = [[_tuple(row) for row in members] for members in data.groups(num_groups, first_group)]
    commits = _commits(tuples, rows_a_commit)

    def write() -> None:
        for commit in commits:
            with (
                connection.transaction(),
                connection.cursor() as cursor,
                cursor.copy("COPY bare FROM STDIN (FORMAT binary)") as copy,
            ):
                copy.set_types(FLOOR_TYPES)
                for row in commit:
                    copy.write_row(row)

    return write


def _tuple(row: data.Experience) -> tuple[Any, ...]:
    written = payload(row)
    return (
        row.group * data.GROUP_SIZE + row.member,
        row.group,
        row.member,
        row.version,
        row.reward,
        row.prompt_tokens,
        len(row.logprobs),
        row.prompt,
        row.response,
        codec.encode(written),
    )


def _commits(groups_of_rows: Sequence[list[Any]], rows_a_commit: int) -> list[list[Any]]:
    """Split groups into commits; each holds whole groups."""
    size = rows_a_commit // data.GROUP_SIZE
    return [
        [row for members in groups_of_rows[start : start + size] for row in members]
        for start in range(0, len(groups_of_rows), size)
    ]


def _ask(context: Context, server: Server, name: str, writers: int, rows_a_commit: int) -> peer.Answer:
    server.settle()
    return peer.ask(
        context,
        name,
        {
            "operation": MEASURE,
            "url": server.new_database(),
            "rows": context.rows(PEER_ROWS.get(name, ROWS)),
            "writers": writers,
            "rows_a_commit": rows_a_commit,
        },
    )
