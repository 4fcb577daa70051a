"""`trinity-db status`: all runs, one a line, or one in full. The counting is in schema/queries/status.sql."""

import sys
import time
from collections.abc import Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trinity_db.cli import disk, output

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from trinity_db.database import Database

REFRESH_SECONDS = 2  # people read no faster
PAUSES = 10  # times as long as a look took: who watches a large store does not keep it busy
RATE_SECONDS = 60  # short enough to see a stall, long enough to average over batches
RECENT_BATCHES = 20
NEWEST_VERSIONS = 5
MUCH_WAITING = 0.25  # a share of the time that is worth a hint

NAME_WIDTH = 12  # characters that a run's name has at least
STATE_WIDTH = 9  # of the longest word beside it

COUNTS = {
    "waiting": ("raw", "clean", "scored"),
    "ready": ("ready",),
    "leased": ("leased",),
    "trained": ("trained",),
    "gone": ("dropped", "expired"),
}
"""What a run's line counts, and the states of experiences, or of pairs, that count as it."""


def status(
    run: Annotated[
        str | None, typer.Argument(metavar="RUN", help="Name of a run; without it, one line for each run.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch",
            help=f"Refresh every {REFRESH_SECONDS} seconds, a large store less often, until Ctrl-C.",
        ),
    ] = False,
) -> None:
    """Show what runs are doing.

    For each run: which roles are alive, and how many experiences (or pairs, if it trains on pairs) wait, are
    ready, trained or gone. For one run also: rewards by policy version, staleness, rates, why rows were
    dropped, which rewards are awaited, which writes came too late, and how much disk it uses. The disk use of
    tables is an estimate, and files count if they can be read from here. All other counts are exact: at a
    million rows a look takes some hundred milliseconds.

    Example:

        trinity-db status --watch
    """
    if watch and (as_json or not sys.stdout.isatty()):
        raise typer.BadParameter("--watch draws on a terminal; it goes with neither --json nor a pipe")
    from trinity_db.database import open_reader

    with closing(open_reader()) as database:
        if watch:
            _watch(database, run)
        elif as_json:
            output.print_json(_all(database) if run is None else _one(database, run))
        else:
            output.console(sys.stdout).print(_picture(database, run))


def _watch(database: "Database", run: str | None) -> None:
    from rich.live import Live

    with Live(_picture(database, run), console=output.console(sys.stdout), auto_refresh=False) as live:
        try:
            took = 0.0
            while True:
                time.sleep(max(REFRESH_SECONDS, PAUSES * took))
                begun = time.monotonic()
                picture = _picture(database, run)
                took = time.monotonic() - begun
                live.update(picture, refresh=True)
        except KeyboardInterrupt:
            return


def _all(database: "Database", run_id: int | None = None) -> list[dict[str, Any]]:
    from trinity_db.schema.queries import query
    from trinity_db.service import LEASE_SECONDS

    with database.transaction(read_only=True) as tx:
        values = {"run_id": run_id, "lease_seconds": LEASE_SECONDS}
        return tx.execute(query("status_runs"), values).fetchall()


def _one(database: "Database", name: str) -> dict[str, Any]:
    from trinity_db.schema.queries import query
    from trinity_db.store import runs

    with database.transaction(read_only=True) as tx:
        run = runs.find(tx, name)
    overview = _all(database, run.id)[0]
    with database.transaction(read_only=True) as tx:
        values = {"run_id": run.id, "batches": RECENT_BATCHES}
        measured = tx.execute(query("status_metrics"), values).fetchone()
        values |= {"window_seconds": RATE_SECONDS, "versions": NEWEST_VERSIONS}
        progress = tx.execute(query("status_detail"), values).fetchone()
        used = disk.use(tx, run, sum(overview["experiences"].values()))
    assert measured is not None
    assert progress is not None
    return {**overview, **measured, **progress, "disk": used}


def _picture(database: "Database", run: str | None) -> "RenderableType":
    return _overview(_all(database)) if run is None else _detail(_one(database, run))


def _overview(runs: list[dict[str, Any]]) -> "Table | str":
    if not runs:
        return "There are no runs yet; trinity-db demo makes one."
    console_width = output.console(sys.stdout).width
    lines = [
        [
            _state(run),
            "" if run["policy_version"] is None else str(run["policy_version"]),
            *(str(sum(_counted(run).get(state, 0) for state in counted)) for counted in COUNTS.values()),
        ]
        for run in runs
    ]
    table = output.table("run", "state", "version", *COUNTS)
    for column in table.columns:
        column.no_wrap = column.header != "state"
    for column in table.columns[2:]:
        column.justify = "right"
    widths = [max(map(len, cells)) for cells in zip(["", "version", *COUNTS], *lines, strict=True)]
    name_width = max(NAME_WIDTH, console_width - STATE_WIDTH - sum(widths[1:]) - output.GAP * len(widths))
    for run, line in zip(runs, lines, strict=True):
        table.add_row(output.shorten(run["run"], name_width), *line)
    return table


def _state(run: Mapping[str, Any]) -> str:
    """What becomes of a run, and which of its roles are alive; whether its line counts pairs."""
    state = run["state"] if run["kind"] == "train" else run["kind"]
    alive = ", ".join(worker["role"] for worker in run["workers"] if worker["alive"])
    return f"{state}{' (pairs)' if run['draws_pairs'] else ''}{f': {alive}' if alive else ''}"


def _counted(run: Mapping[str, Any]) -> Mapping[str, int]:
    """The rows that a run's steps take, by state: those of pairs stay ready, and the pairs are trained on."""
    counted: Mapping[str, int] = run["preferences" if run["draws_pairs"] else "experiences"]
    return counted


def _detail(run: Mapping[str, Any]) -> "Table":
    return output.facts(
        {
            "run": f"{run['run']} ({run['kind']}, {run['state']})",
            "created": output.moment(run["created_at"]),
            "workers": "\n".join(map(_worker, run["workers"])) or "none",
            "experiences": _counts(run["experiences"]),
            "groups": _counts(run["groups"]),
            "preferences": _counts(run["preferences"]),
            "policy": _policy(run),
            "staleness": _staleness(run["staleness"]),
            "sampling": _sampling(run["sampling"]),
            "rates": _rates(run["rates"]),
            "waiting": _waiting(run["waiting"]),
            "rewards": "\n".join(_reward(version, run) for version in run["rewards"]) or None,
            "evaluations": "\n".join(map(_evaluation, run["evaluations"])) or None,
            "drops": "\n".join(map(_drop, run["drops"])) or None,
            "waits for": _awaited(run["awaited"]) or _unlabelled(run),
            "came too late": _refused(run["refused"]),
            "server lost": "\n".join(map(_setback, run["setbacks"])) or None,
            "archived": _archived(run["archived"]),
            "disk": disk.describe(run["disk"]),
        }
    )


def _worker(worker: Mapping[str, Any]) -> str:
    life = "alive" if worker["alive"] else f"silent for {worker['silent_seconds']:.0f} s"
    return f"{worker['role']} on {worker['host']}, pid {worker['pid']}, {life}"


def _counts(states: Mapping[str, int]) -> str | None:
    return ", ".join(f"{rows} {state}" for state, rows in states.items()) or None


def _policy(run: Mapping[str, Any]) -> str | None:
    if run["policy_version"] is None:
        return None
    published = output.moment(run["published_at"])
    return f"version {run['policy_version']}, step {run['step']}, published {published}"


def _staleness(recent: Mapping[str, Any]) -> str | None:
    if recent["max"] is None:
        return None
    return f"mean {recent['mean']:.2f}, max {recent['max']} in the last {recent['batches']} batches"


def _sampling(latest: Mapping[str, Any] | None) -> str | None:
    """How far the engine's log-probabilities are from the trainer's, for the same weights."""
    if latest is None:
        return None
    return (
        f"engine and trainer differ by {latest['mean']:.2g} nats a token, {latest['outside']:.1%} of the "
        f"tokens outside 0.8 to 1.2, at step {latest['step']}"
    )


def _rates(rates: Mapping[str, Any]) -> str:
    explored, trained = rates["rollouts_per_second"], rates["trained_rows_per_second"]
    return f"{explored:g} rollouts/s, {trained:g} trained rows/s in the last {rates['seconds']} s"


def _waiting(waiting: Mapping[str, Any]) -> str | None:
    """Which side waits for the other, and what helps."""
    trainer, explorers = waiting["trainer"], waiting["explorers"]
    if trainer is None or explorers is None:
        return None
    said = f"trainer {trainer:.0%} of its time for rollouts, explorers {explorers:.0%} for training"
    waits = trainer >= MUCH_WAITING, explorers >= MUCH_WAITING
    if not any(waits):
        return said
    if waiting["max_staleness"] == 0:
        return f"{said}: they take turns; max_staleness: 1 lets them overlap"
    if all(waits):
        return f"{said}: look at what lies between, the processors, or raise max_staleness"
    if waits[0]:
        return f"{said}: add explorers (explorers: N, or trinity-db explore elsewhere), or a faster engine"
    return f"{said}: training is slower; raise max_staleness, or give the trainer more of the machine"


def _reward(version: Mapping[str, Any], run: Mapping[str, Any]) -> str:
    """What the rollouts of a version earned; of a version that wrote none, the loss of its last step."""
    said = f"version {version['version']}: "
    if version["reward"] is not None:
        return f"{said}{version['reward']:.3f}, experiences {version['experiences']}"
    if version["experiences"]:
        why = "not scored yet" if run["state"] == "active" else "not scored before the run's end"
        return f"{said}{why}, experiences {version['experiences']}"
    loss = "" if version["loss"] is None else f", loss {version['loss']:.4g} at step {version['step']}"
    return f"{said}no rollouts{loss}"


def _evaluation(one: Mapping[str, Any]) -> str:
    """The newest evaluation on a taskset."""
    from trinity_db.store.evaluations import describe

    return describe(one)


def _drop(drop: Mapping[str, Any]) -> str:
    rows = ", ".join(
        f"{kind} {drop[kind]}" for kind in ("experiences", "groups", "preferences") if drop[kind]
    )
    where = drop["stage"] if drop["step"] is None else f"{drop['stage']}, {drop['step']}"
    return f"{drop['reason']} ({where}): {rows}"


def _awaited(rewards: Mapping[str, Any] | None) -> str | None:
    """What a run with requires_reward cannot train on yet; which rows these are is in awaited_reward_view."""
    if rewards is None:
        return None
    experiences, groups = rewards["experiences"], rewards["groups"]
    return f"rewards from {rewards['source']}: {experiences} experiences in {groups} groups"


def _unlabelled(run: Mapping[str, Any]) -> str | None:
    """Rows that an active run which learns from labels cannot draw yet: those without a reward."""
    if run["state"] != "active" or not run["unlabelled"]:
        return None
    return f"a reward, good or bad: {run['unlabelled']} experiences"


def _refused(writes: Mapping[str, int]) -> str | None:
    """Writes of workers whose lease had ended: kept for the record, and nothing else."""
    return ", ".join(f"{count} {what}" for what, count in writes.items() if count) or None


def _setback(row: Mapping[str, Any]) -> str:
    """What the server lost, and where the run went on."""
    from trinity_db.store.setbacks import describe

    return describe(row)


def _archived(archive: Mapping[str, int] | None) -> str | None:
    """What has left Postgres for Lance."""
    return f"{archive['payloads']} payloads, {archive['bytes'] / 1e6:.1f} MB" if archive else None
