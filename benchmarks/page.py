"""The page on a store of a million rows, with twenty visitors, while a run trains.

The store has one run in the middle of its life, with curves, drops, and texts of its newest rows. First the
page is opened: the command until its first view, and that view in a new browser. Then twenty visitors look
at every kind of view, each with another tab that follows the store, and in turns with that the run's rows go
from raw to trained undisturbed, as in `hour`. At last, tabs that are not seen: cost and remains.
"""

import asyncio
import multiprocessing
import os
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psycopg

from benchmarks import history
from benchmarks.beside import QUIET, Seconds, keep, latencies
from benchmarks.context import Context
from benchmarks.hour import FILLED, Flow
from benchmarks.measure import OURS, Bar, Result, absent, figure, percentile
from benchmarks.scene import RUN, Scene
from benchmarks.server import Server
from benchmarks.visitors import Shown, View, first_view, serve
from trinity_db import opening
from trinity_db.page.charts import METRICS

MEASURE = "page"
ROWS, WITH_TEXTS = 1_024_000, 102_400
VISITORS = 20
MOVES = 16  # of 2,048 rows in a turn: 512 claims a stage, and most of a minute for visitors
PATHS = 200  # places of each kind that visitors choose from
HIDDEN_SECONDS = 20.0  # for which the processor time of hidden tabs is measured
LEFT_SECONDS = (
    30.0  # until tabs that were closed are forgotten: 3 s for a browser that comes back, and a collection
)
TABS = 200  # that are opened and closed
BESIDE = f"beside {VISITORS} visitors"
VIEW_BAR, CLAIM_BAR, OPEN_BAR = Bar(1.0, at_most=True), Bar(1.2, at_most=True), Bar(2.0, at_most=True)

CURVES = """
INSERT INTO trinity.metric (run_id, role, step, name, value)
SELECT b.run_id, 'train', b.step, m.name, sin(b.step / 50.0)
FROM trinity.batch b, unnest(%s::text[]) m (name) WHERE b.state = 'committed'
"""
DROPS = """
INSERT INTO trinity."drop" (run_id, experience_id, stage, step, reason)
SELECT e.run_id, e.id, 'clean', 'length', 'too long' FROM trinity.experience e WHERE e.id %% 50 = 0
"""
CHOSEN = {
    "experience": "SELECT experience_id FROM trinity.experience_text ORDER BY random() LIMIT %s",
    "group": """
        SELECT e.group_id FROM trinity.experience_text x JOIN trinity.experience e ON e.id = x.experience_id
        ORDER BY random() LIMIT %s""",
    "before": "SELECT id FROM trinity.experience ORDER BY random() LIMIT %s",
    "version": "SELECT version FROM trinity.policy_version ORDER BY random() LIMIT %s",
    "key": "SELECT key FROM trinity.task ORDER BY random() LIMIT %s",
    "task": "SELECT id FROM trinity.task ORDER BY random() LIMIT %s",
}
TEXTS = ("c4ca4238", "nowhere")  # every text has the one, none the other
TICKS = os.sysconf("SC_CLK_TCK")


def run(context: Context) -> list[Result]:
    """All of it on one store."""
    if find_spec("nicegui") is None:
        return [absent(MEASURE, OURS, "all", "needs the extra: pip install 'trinity-db[page]'")]
    with context.server() as server:
        context.say("filling a store")
        scene = _filled(server, context.rows(ROWS), context.rows(WITH_TEXTS))
        found = _opened(context, server)
        with _served(server) as page, visiting(page.address, views(scene)) as visitors:
            found += _looks(context, scene, page, visitors)
            found += _hidden(context, page, visitors)
        return found


def _filled(server: Server, num_rows: int, with_texts: int) -> Scene:
    url = server.cluster.url()  # the home's own store, which has a login that may only read
    opening.upgrade(url)
    scene = Scene.open(url)
    fill(scene, num_rows, with_texts)
    server.settle()
    return scene


def fill(scene: Scene, num_rows: int, with_texts: int) -> None:
    """A run in the middle of its life, with what the page shows of one."""
    history.online(scene, num_rows, with_texts)
    with closing(psycopg.connect(scene.url, autocommit=True)) as connection:
        connection.execute(CURVES.encode(), [METRICS])
        connection.execute(DROPS.encode(), [])
        connection.execute(b"VACUUM (ANALYZE)")


def views(scene: Scene) -> list[View]:
    """Every kind of view, at places chosen by chance; the first follows the store."""
    with closing(psycopg.connect(scene.url)) as connection:
        ids = {
            name: [str(id) for (id,) in connection.execute(statement.encode(), [PATHS])]
            for name, statement in CHOSEN.items()
        }
    rows = '"href":"/experience/'
    filters = {
        "experiences of a state": ["state=ready", "state=trained"],
        "experiences by reward": [f"run={RUN}&reward_from=0.5", "reward_to=0.2"],
        "experiences of a version": [f"run={RUN}&version={version}" for version in ids["version"]],
        "experiences of a task": [f"task={key}" for key in ids["key"]],
        "experiences by reason": ["reason=too+long", f"run={RUN}&reason=too+long"],
        "experiences, far back": [f"before={id}" for id in ids["before"]],
    }
    return [
        View("run", [f"/run/{RUN}"], f'"href":"/experiences?run={RUN}&state=trained"'),
        View("runs", ["/"], f'"href":"/run/{RUN}"'),
        View("experiences", ["/experiences"], rows),
        *(View(kind, [f"/experiences?{one}" for one in queries], rows) for kind, queries in filters.items()),
        View(
            "experiences by text",
            [f"/experiences?text={text}" for text in TEXTS],
            "that meet the other filters",
        ),
        View("tasks", [f"/tasks?run={RUN}"], '"href":"/task/'),
        View("task", [f"/task/{id}?run={RUN}" for id in ids["task"]], '"caption":"by policy version"'),
        View("compare", [f"/compare?run={RUN}"], '"options":'),
        View("doctor", ["/doctor"], '"caption":"findings"'),
        View("SQL", ["/sql"], "experience_view"),
        View("group", [f"/group/{id}" for id in ids["group"]], "Attempt 0"),
        View("experience, tokens", [f"/experience/{id}" for id in ids["experience"]], '"items":[['),
    ]


@dataclass(frozen=True)
class _Page:
    """The page's process."""

    address: str
    process: int

    @property
    def megabytes(self) -> float:
        """Its resident memory."""
        for line in Path(f"/proc/{self.process}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1e3
        return 0.0

    @property
    def cpu_seconds(self) -> float:
        """The processor time that it took so far."""
        after_name = Path(f"/proc/{self.process}/stat").read_text().rpartition(")")[2].split()
        return (int(after_name[11]) + int(after_name[12])) / TICKS


@contextmanager
def _served(server: Server) -> Iterator[_Page]:
    environment = {**os.environ, "TRINITY_DB_HOME": str(server.cluster.home)}
    for name in ("TRINITY_DB_URL", "TRINITY_DB_READ_URL"):
        environment.pop(name, None)
    command = [sys.executable, "-m", "trinity_db", "page", "--port", "0"]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        first = process.stdout.readline()
        assert first.startswith("Open http"), first
        yield _Page(first.removeprefix("Open ").strip(), process.pid)
    finally:
        process.kill()
        process.wait()


def _opened(context: Context, server: Server) -> list[Result]:
    """From the command to the first view, and from the address to that view in a new browser."""
    context.say("opening")
    view = View("runs", ["/"], f'"href":"/run/{RUN}"')
    whole, printed, drawn = [], [], []
    for _ in range(context.repetitions):
        begun = time.perf_counter()
        with _served(server) as page:
            printed.append(time.perf_counter() - begun)
            assert asyncio.run(first_view(page.address, view)).seconds is not None
            whole.append(time.perf_counter() - begun)
            drawn.append(_in_a_browser(page.address))
    note = f"the address is printed after {sorted(printed)[len(printed) // 2]:.2f} s"
    found = [figure(MEASURE, OURS, "command until the first view", "s", whole, OPEN_BAR, note)]
    seconds = [one for one in drawn if one is not None]
    where = "address until the runs are drawn, new browser"
    if not seconds:
        return [*found, absent(MEASURE, OURS, where, "needs playwright and Chromium")]
    return [*found, figure(MEASURE, OURS, where, "s", seconds, OPEN_BAR)]


def _in_a_browser(address: str) -> float | None:
    """Seconds until a headless Chromium with empty caches shows the runs; None where there is none."""
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None or find_spec("playwright") is None:
        return None
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        tab = browser.new_page()
        begun = time.perf_counter()
        tab.goto(address)
        tab.get_by_role("link", name=RUN, exact=True).wait_for()
        seconds = time.perf_counter() - begun
        browser.close()
    return seconds


@contextmanager
def visiting(address: str, places: Sequence[View]) -> Iterator[Connection]:
    """The visitors' process; it takes its orders by the pipe."""
    process = multiprocessing.get_context("spawn")
    ours, theirs = process.Pipe()
    visitors = process.Process(target=serve, args=(address, places, VISITORS, theirs))
    visitors.start()
    theirs.close()
    try:
        yield ours
        ours.send("end")
        visitors.join()
    finally:
        visitors.kill()
        visitors.join()


def asked(visitors: Connection, order: str) -> Any:
    """What they answer to an order, as `visitors.serve` says."""
    visitors.send(order)
    return visitors.recv()


def _looks(context: Context, scene: Scene, page: _Page, visitors: Connection) -> list[Result]:
    """Views while a run trains, and what they cost the run."""
    flow = Flow.open(scene)
    flow.step = _last_step(scene)
    flow.move(FILLED)  # connections, plans and caches
    asked(visitors, "hide")
    asked(visitors, "stop")
    seconds: dict[str, Seconds] = {QUIET: {}, BESIDE: {}}
    shown: list[Shown] = []
    cpu = 0.0
    for number in range(context.repetitions):
        context.say(f"turn {number + 1} of {context.repetitions}")
        for phase in (BESIDE, QUIET):
            if phase == BESIDE:
                asked(visitors, "look")
            flow.seconds.clear()
            before = page.cpu_seconds
            for _ in range(1 if context.quick else MOVES):
                flow.move(FILLED)
            keep(flow, seconds[phase])
            if phase == BESIDE:
                cpu += page.cpu_seconds - before
                shown += asked(visitors, "stop")
    return [*_times(shown, cpu), *latencies(MEASURE, BESIDE, seconds, CLAIM_BAR)]


def _last_step(scene: Scene) -> int:
    with closing(psycopg.connect(scene.url)) as connection:
        [(step,)] = connection.execute(b"SELECT max(step) FROM trinity.batch").fetchall()
    return int(step)


def _times(shown: Sequence[Shown], cpu: float) -> list[Result]:
    """p50 and p95 of each kind of view, and those that were not shown."""
    of_kind: dict[str, list[float]] = defaultdict(list)
    for one in shown:
        if one.seconds is not None:
            of_kind[one.kind].append(one.seconds)
    found = []
    for kind, values in of_kind.items():
        found.append(figure(MEASURE, OURS, kind, "s p50", [percentile(values, 50)]))
        note = f"{len(values)} views"
        found.append(figure(MEASURE, OURS, kind, "s p95", [percentile(values, 95)], VIEW_BAR, note))
    missing = float(sum(one.seconds is None for one in shown))
    found.append(figure(MEASURE, OURS, "all views", "not shown", [missing], Bar(0, at_most=True)))
    share = [1e3 * cpu / len(shown)]
    return [*found, figure(MEASURE, OURS, "all views", "ms of the page's processor time a view", share)]


def _hidden(context: Context, page: _Page, visitors: Connection) -> list[Result]:
    """What tabs cost that are open and not seen, and what is left of those that were closed."""
    context.say("tabs that are not seen")
    time.sleep(LEFT_SECONDS)
    before = page.megabytes
    asked(visitors, "hide")
    open_, cpu = page.megabytes, page.cpu_seconds
    time.sleep(HIDDEN_SECONDS)
    busy = 100 * (page.cpu_seconds - cpu) / HIDDEN_SECONDS
    asked(visitors, "stop")
    for _ in range(TABS // VISITORS - 1):
        asked(visitors, "hide")
        asked(visitors, "stop")
    time.sleep(LEFT_SECONDS)
    left = page.megabytes - before
    tabs = f"{VISITORS} tabs, not seen"
    return [
        figure(MEASURE, OURS, tabs, "MB a visitor", [(open_ - before) / VISITORS]),
        figure(MEASURE, OURS, tabs, "% of a core", [busy]),
        figure(MEASURE, OURS, f"{TABS} tabs, opened and closed", "MB more than before", [left]),
        figure(MEASURE, OURS, "process, no tab open", "MB", [before]),
    ]
