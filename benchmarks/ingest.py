"""Durable ingest: rows per second from rollouts in memory to rows that are committed.

Ours is what explorers call, `groups.write_rollouts`, all of it inside the timed part; the groups were claimed
before. The floor is one binary COPY a commit of the same bytes, already encoded, into one plain table.
"""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

import psycopg

from benchmarks import data, peer
from benchmarks.context import Context
from benchmarks.measure import OURS, Bar, Result, figure, in_turns, ratio
from benchmarks.processes import at_once, elapsed
from benchmarks.scene import Scene, payload, rollouts
from benchmarks.server import Server
from trinity_db import arrays
from trinity_db.database import Database
from trinity_db.schema.states import WorkerRole
from trinity_db.service import LEASE_SECONDS
from trinity_db.store import groups

MEASURE = "ingest"
ROWS = 8192  # of one repetition; about a second
PEER_ROWS = {"trinity_rft": 2048, "agent_lightning": 2048, "transfer_queue": 2048}  # hundreds a second
VARIANTS = ((1, 8), (1, 64), (4, 8), (4, 64))  # writers, and rows a commit
PEER_VARIANTS = ((1, 8), (4, 64))  # most of their time goes into starting them
FLOOR = "bare COPY"
BARS = {FLOOR: Bar(0.7), "trinity_rft": Bar(10), "reverb": Bar(1)}  # promised for one writer, group commits
BARRED = (1, 8)

FLOOR_TABLE = """
CREATE TABLE bare (
    id bigint PRIMARY KEY, group_id bigint, member smallint, version int, reward float8,
    prompt_length int, response_length int, prompt text, response text, data bytea
)
"""
FLOOR_TYPES = ("int8", "int8", "int2", "int4", "float8", "int4", "int4", "text", "text", "bytea")


@dataclass(frozen=True)
class Part:
    """The part of the rows that one process writes."""

    where: Any
    """A Scene, or the URL of the floor's database."""
    num_groups: int
    first_group: int
    rows_a_commit: int


def run(context: Context) -> list[Result]:
    """All variants: ours and the floor in turns, then each peer."""
    found = []
    for writers, rows_a_commit in VARIANTS:
        variant = f"{writers} writer{'s' * (writers > 1)}, {rows_a_commit} rows a commit"
        with context.server() as server:
            context.say(f"{variant}: {OURS} and {FLOOR}")
            rates = _measure(context, server, writers, rows_a_commit)
            found += _absolute(variant, rates)
            is_barred = (writers, rows_a_commit) == BARRED
            bar = BARS[FLOOR] if is_barred else None
            found.append(ratio(MEASURE, variant, rates[OURS], rates[FLOOR], FLOOR, bar, alternated=True))
            for name in peer.NAMES if (writers, rows_a_commit) in PEER_VARIANTS else ():
                context.say(f"{variant}: {name}")
                answer = _ask(context, server, name, writers, rows_a_commit)
                bar = BARS.get(name) if is_barred else None
                found += peer.compared(MEASURE, variant, answer, rates[OURS], bar)
    return found


def _measure(context: Context, server: Server, writers: int, rows_a_commit: int) -> dict[str, list[float]]:
    """Rows per second of ours and of the floor, each into a database of its own."""
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
        parts = [Part(where, num_groups, next(numbers[name]), rows_a_commit) for _ in range(writers)]
        server.settle()
        return writers * num_groups * data.GROUP_SIZE / elapsed(at_once(prepare, parts))

    return in_turns({name: partial(write, name) for name in sides}, context.repetitions)


def prepare_ours(part: Part) -> Callable[[], None]:
    """A writer process of ours: an explorer with claimed groups and what came of them."""
    scene: Scene = part.where
    database = Database(scene.url, LEASE_SECONDS)
    worker_id = scene.new_worker(database, WorkerRole.EXPLORE)
    claimed = scene.claim(database, worker_id, part.num_groups)
    members = data.groups(part.num_groups, part.first_group)
    written = [rollouts(group, rows) for group, rows in zip(claimed, members, strict=True)]
    commits = _commits(written, part.rows_a_commit)

    def write() -> None:
        for commit in commits:
            with database.transaction() as tx:
                groups.write_rollouts(tx, scene.run_id, worker_id, commit)

    return write


def prepare_floor(part: Part) -> Callable[[], None]:
    """A writer process of the floor: encoded tuples, and one COPY a commit."""
    connection = psycopg.connect(part.where)
    tuples = [[_tuple(row) for row in members] for members in data.groups(part.num_groups, part.first_group)]
    commits = _commits(tuples, part.rows_a_commit)

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
        arrays.encode(written),
    )


def _commits(groups_of_rows: Sequence[list[Any]], rows_a_commit: int) -> list[list[Any]]:
    """Rows as they are committed: whole groups together."""
    size = rows_a_commit // data.GROUP_SIZE
    return [
        [row for members in groups_of_rows[start : start + size] for row in members]
        for start in range(0, len(groups_of_rows), size)
    ]


def _absolute(variant: str, rates: dict[str, list[float]]) -> list[Result]:
    """Rows and raw bytes per second."""
    sample = data.rows(ROWS)
    megabytes = sum(row.raw_bytes for row in sample) / len(sample) / 1e6
    return [
        result
        for who, values in rates.items()
        for result in (
            figure(MEASURE, who, variant, "rows/s", values),
            figure(MEASURE, who, variant, "MB/s", [value * megabytes for value in values]),
        )
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
