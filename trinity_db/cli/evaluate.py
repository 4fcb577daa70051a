"""`trinity-db evaluate`: measures versions of a run, or a model, on the tasks of a taskset.

This process plays two roles in turn: an explorer that makes only the attempts of these evaluations, then a
processor that judges them. Active roles of the run share the work.
"""

import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trinity_db.cli import output
from trinity_db.cli.roles import STOPPED, Overrides
from trinity_db.errors import ConfigError, DatabaseUnavailable, TrinityError
from trinity_db.insight.words import cell, number, with_limits

if TYPE_CHECKING:
    from trinity_db.postgres.connection import Database, Transaction
    from trinity_db.run.configuration import RunConfig
    from trinity_db.schema.typed_rows import EvaluationRow
    from trinity_db.store.runs import Run
    from trinity_db.weights.recorded_places import RecordedPlaces

LOOK_SECONDS = 1.0  # between two updates of the progress on a terminal
LINE_SECONDS = 10.0  # between two lines without a terminal
SILENT_SECONDS = 60.0  # after which a line is printed though no other attempt has ended


Subject = Annotated[
    str,
    typer.Argument(metavar="RUN|MODEL", help="Name of a run, folder of a model, or OWNER/NAME on the Hub."),
]
Tasksets = Annotated[
    list[str], typer.Option("--taskset", metavar="NAME", help="Imported tasks; may be repeated.")
]
Versions = Annotated[
    list[int] | None,
    typer.Option(
        "--version",
        metavar="N",
        min=0,
        help="Version of the run; may be repeated. Default: the newest.",
    ),
]
Samples = Annotated[
    int, typer.Option("--samples", metavar="K", min=1, max=10_000, help="Attempts at each task.")
]
Temperature = Annotated[
    float | None,
    typer.Option(
        "--temperature",
        metavar="T",
        min=0,
        max=1000,
        help="Sampling temperature; 0 is greedy. Default: the run's.",
    ),
]
MaxNewTokens = Annotated[
    int | None,
    typer.Option(
        "--max-new-tokens",
        metavar="N",
        min=1,
        max=10_000_000,
        help="Longest response, in tokens. Default: the run's.",
    ),
]
ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config", metavar="CONFIG", help="Use the workflow and rewards of this file, not the run's."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print a JSON object.")]


def evaluate(
    subject: Subject,
    taskset: Tasksets,
    version: Versions = None,
    samples: Samples = 4,
    temperature: Temperature = None,
    max_new_tokens: MaxNewTokens = None,
    config: ConfigFile = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate versions of a run, or a model, on a taskset.

    Use tasks that it was not trained on. The run's workflow makes the attempts and its reward functions
    judge them. Nothing of it is trained on. If interrupted, repeat the command to continue; results of
    earlier evaluations are printed at once. A model needs --config, the configuration of a run in which
    it replaces the model. So does a run whose configuration names code, files, addresses or variables,
    because the store is not trusted to name them. Version 0 of a run with model.path, and versions that
    exist only in an object store, need it too.

    Example:

        trinity-db evaluate demo-1 --taskset test --version 0 --version 40
    """
    if overrides and config is None:
        raise typer.BadParameter("--set overrides keys of a file; name it with --config")
    from trinity_db.postgres.opening import open_database
    from trinity_db.worker.service import LEASE_SECONDS

    chosen = {"samples": samples, "temperature": temperature, "max_new_tokens": max_new_tokens}
    with closing(open_database(LEASE_SECONDS)) as database:
        run, settings, places = _run_to_evaluate(database, subject, config, overrides or ())
        _check_places(database, run, version, places)
        ids = begin(database, run, settings, taskset, version, chosen)
        with _progress(ids):
            is_whole = carry_out(database, run, settings, ids, places)
        _print_evaluations(database, ids, as_json, is_whole)


def _print_evaluations(database: "Database", ids: Sequence[int], as_json: bool, is_whole: bool) -> None:
    """Print evaluations and their differences.

    Raises:
        Exit: if a signal came before they were complete, or one was given up.
    """
    from trinity_db.store import evaluations

    with database.transaction() as tx:
        rows = evaluations.read(tx, ids)
        differences = list(_differences(tx, rows))
    if as_json:
        output.print_json({"evaluations": rows, "differences": differences})
    else:
        _print_tables(rows, differences)
    if not is_whole:
        print("Stopped; repeat the command to continue.", file=sys.stderr)
        raise typer.Exit(STOPPED)
    if any(row["error"] is not None for row in rows):
        raise typer.Exit(1)


def _run_to_evaluate(
    database: "Database", subject: str, config: Path | None, overrides: Sequence[str]
) -> tuple["Run", "RunConfig", "RecordedPlaces"]:
    """Return the run, the configuration for attempts and rewards, and the folders of its versions.

    Raises:
        ConfigError: if there is neither such a run nor such a model, or the configuration does not fit.
    """
    from trinity_db.models import hub
    from trinity_db.run import joining, model_revisions
    from trinity_db.schema.states import RunKind
    from trinity_db.store import runs
    from trinity_db.weights.recorded_places import RecordedPlaces

    configuration = joining.read(config, overrides) if config is not None else None
    with database.transaction() as tx:
        is_run = subject in runs.names(tx)
        if not is_run and not Path(subject).is_dir() and not hub.is_name(Path(subject)):
            runs.find(tx, subject)
        run = runs.find(tx, subject) if is_run else None
    if run is not None:
        runs.check_stays(run)
        if run.kind != RunKind.TRAIN:
            raise ConfigError(f"'{subject}' is an imported data set, which has no policy to evaluate.")
        if configuration is None:
            return run, _stored(run), RecordedPlaces()
        configuration = model_revisions.pinned(configuration, run.config)
        return run, configuration, joining.recorded_places(configuration)
    if configuration is None:
        raise ConfigError(f"{subject} is a model: define its workflow and rewards with --config.")
    has_name = any(override.startswith("name=") for override in overrides)
    of_model = joining.pinned(_for_model(configuration, Path(subject), has_name))
    return _run_of_model(of_model), of_model, joining.recorded_places(of_model)


def _check_places(
    database: "Database", run: "Run", versions: Sequence[int] | None, places: "RecordedPlaces"
) -> None:
    """Refuse versions whose files may not be read, before recording an evaluation that cannot finish.

    Raises:
        TrinityError: see `RecordedPlaces.check`.
    """
    from trinity_db.store import policies

    with database.transaction() as tx:
        kept = policies.with_checkpoint(tx, run.id)
    for policy in kept if versions else kept[:1]:
        if versions is None or policy.version in versions:
            places.check(policy)


def _stored(run: "Run") -> "RunConfig":
    """Return the run's stored configuration.

    Raises:
        ConfigError: if it names code, a file, an address or a variable, or this version cannot read it.
    """
    from trinity_db.config.base import STORED, validate
    from trinity_db.run import trust
    from trinity_db.run.configuration import RunConfig

    config = validate(RunConfig, run.config, f"The configuration of run '{run.name}'", context=STORED)
    used = {
        "model.chat_template": config.model.chat_template,
        "explorer": config.explorer,
        "processors": config.processors,
    }
    trust.check_stored(run.name, used)
    return config


def _for_model(config: "RunConfig", folder: Path, has_name: bool) -> "RunConfig":
    """Return a configuration with its model replaced with this one, and without training data.

    Args:
        has_name: whether the configuration sets the run's name; otherwise the folder does.
    """
    from trinity_db.models import hub

    path = folder if hub.is_name(folder) else folder.expanduser().absolute()
    source = {"path": path, "revision": None, "run": None, "scratch": None}
    model = config.model.model_copy(update=source)
    name = re.sub(r"[^A-Za-z0-9._-]+|^[^A-Za-z0-9]+", "-", folder.absolute().name).strip("-._") or "model"
    update = {"model": model, "data": [], "holdout": 0.0, "evaluation": None}
    return config.model_copy(update=update if has_name else update | {"name": f"evaluate-{name[:80]}"})


def _run_of_model(config: "RunConfig") -> "Run":
    """Return the run whose version 0 is the model; it counts as finished from its start."""
    from trinity_db.run import joining
    from trinity_db.store import runs
    from trinity_db.trainer.checkpoints import publish_initial

    database, run = joining.open_run(config)
    with closing(database):
        publish_initial.begin(database, run, config.model, config.seed, config.checkpoints)
        with database.transaction() as tx:
            runs.finish(tx, run.id)
            return runs.find(tx, config.name)


def begin(
    database: "Database",
    run: "Run",
    config: "RunConfig",
    tasksets: Sequence[str],
    versions: Sequence[int] | None,
    chosen: dict[str, Any],
) -> list[int]:
    """Begin evaluations of each version on each taskset, or find existing ones. Return their ids.

    Args:
        chosen: `samples`, and `temperature` and `max_new_tokens`; None for the configuration's values.

    Raises:
        ConfigError: if the run has no such version, or its checkpoint is gone, or a program explores it.
        NotFound: if a taskset does not exist.
    """
    from trinity_db.store import evaluations, policies, runs

    explorer = config.explorer
    if explorer.is_external:
        raise ConfigError(
            f"Run '{run.name}' is explored by a program of yours (explorer.workflow: external), and only "
            "explorers evaluate: measure its versions in the program."
        )
    for name in ("temperature", "max_new_tokens"):
        if chosen[name] is None:
            chosen[name] = getattr(explorer, name)
    ids = []
    with database.transaction() as tx:
        kept = [policy.version for policy in policies.with_checkpoint(tx, run.id)]
        if not kept:
            raise ConfigError(f"Run '{run.name}' has no version yet; start its trainer first.")
        for version in dict.fromkeys(versions or kept[:1]):
            for name in dict.fromkeys(tasksets):
                settings = evaluations.Settings(runs.find_taskset(tx, name), **chosen)
                begun = evaluations.begin(tx, run.id, version, settings)
                if begun is None:
                    there = ", ".join(map(str, sorted(kept)))
                    raise ConfigError(
                        f"--version {version}: run '{run.name}' has no checkpoint of it; available: {there}."
                    )
                ids.append(begun)
    return ids


def carry_out(
    database: "Database", run: "Run", config: "RunConfig", ids: Sequence[int], places: "RecordedPlaces"
) -> bool:
    """Make the missing attempts, and judge them. Return False if a signal came."""
    from trinity_db.store import evaluations

    with database.transaction() as tx:
        if not evaluations.are_open(tx, run.id, ids):
            return True
    from trinity_db.explorer import engines
    from trinity_db.explorer.attempt.workflow import of
    from trinity_db.explorer.service import Explorer, ExplorerSetup
    from trinity_db.processors.lists import lists
    from trinity_db.processors.lists.step import Context
    from trinity_db.processors.service import Processors
    from trinity_db.store.groups import Pace
    from trinity_db.store.selection import TaskSelection

    lists.check(config.processors, config.model)
    engine = engines.create(config.explorer.engine, config.model)
    setup = ExplorerSetup(
        config=config.explorer,
        workflow=of(config.explorer),
        engine=engine,
        pace=Pace(0, 1),
        selection=TaskSelection({}, config.seed),
        prompts=config.model,
        places=places,
        needs_reward=config.attempts_need_reward,
    )
    explorer = Explorer(database, run, setup, only=ids)
    explorer.serve()
    engine.close()
    if explorer.stopping:
        return False
    steps = lists.prepare(
        lists.load(config.processors), Context(database, config.model, config.explorer.temperature)
    )
    processors = Processors(database, run, config.processors, steps, only=ids)
    processors.serve()
    return not processors.stopping


@contextmanager
def _progress(ids: Sequence[int]) -> Iterator[None]:
    """Report on stderr how many attempts have ended, from a thread with a separate connection.

    If the login may not read, nothing is reported, and the evaluation continues.
    """
    from trinity_db.postgres.opening import open_reader
    from trinity_db.store import evaluations

    over = Event()
    pause, silent, end = (
        (LOOK_SECONDS, 0.0, "\r") if sys.stderr.isatty() else (LINE_SECONDS, SILENT_SECONDS, "\n")
    )

    def look() -> None:
        from trinity_db.insight.checks.finding import span

        try:
            reader = open_reader()
        except TrinityError:
            return
        began, before = time.monotonic(), None
        printed, printed_at = -1, began
        while not over.wait(pause):
            try:
                with reader.transaction(read_only=True) as tx:
                    ended, attempts = evaluations.progress(tx, ids)
            except DatabaseUnavailable:
                continue
            before = ended if before is None else before
            if ended == printed and time.monotonic() - printed_at < silent:
                continue
            printed, printed_at = ended, time.monotonic()
            left = ""
            if ended > before:
                seconds = (time.monotonic() - began) / (ended - before) * (attempts - ended)
                left = f", {span(seconds)} left"
            print(f"{ended} of {attempts} attempts{left}", end=end, file=sys.stderr, flush=True)
        reader.close()

    looking = Thread(target=look, name="progress", daemon=True)
    looking.start()
    try:
        yield
    finally:
        over.set()
        looking.join()


def _differences(tx: "Transaction", rows: Sequence["EvaluationRow"]) -> Iterator[Mapping[str, Any]]:
    """Yield the difference of every evaluation to the first, for each taskset."""
    from trinity_db.store import evaluations

    first: dict[str, EvaluationRow] = {}
    for row in rows:
        before = first.setdefault(row["taskset"], row)
        if before is not row:
            named = {"taskset": row["taskset"], "before": before["version"], "after": row["version"]}
            yield {**named, **evaluations.compare(tx, before["id"], row["id"])}


def _print_tables(rows: Sequence["EvaluationRow"], differences: Sequence[Mapping[str, Any]]) -> None:
    console = output.console(sys.stdout)
    k = rows[0]["samples"]
    columns = [
        "taskset",
        "version",
        "tasks",
        f"mean@{k}",
        f"best@{k}",
        "pass@1",
        f"pass@{k}",
        "failed",
        "waiting",
    ]
    if k == 1:
        columns.remove("pass@1")
    table = output.table(*columns)
    for row in rows:
        cells = {
            "taskset": row["taskset"],
            "version": cell(row["version"]),
            "tasks": cell(row["tasks"]),
            "failed": cell(row["failed"]),
            "waiting": cell(row["waiting"]),
            f"mean@{k}": with_limits(row, "mean"),
            f"best@{k}": number(row["best"]),
            "pass@1": with_limits(row, "pass_1"),
            f"pass@{k}": with_limits(row, "pass_k"),
        }
        table.add_row(*(cells[name] for name in columns))
    console.print(table)
    for row in rows:
        if row["error"] is not None:
            console.print(f"version {row['version']} on {row['taskset']} was given up: {row['error']}")
    for difference in differences:
        console.print(
            f"{difference['taskset']}, version {difference['after']} minus version {difference['before']}, "
            f"{difference['tasks']} tasks: "
            f"mean {with_limits(difference, 'mean', '+')}, pass@1 {with_limits(difference, 'pass', '+')}"
        )
