"""`trinity-db rescore`: judges stored rows of a run again, with steps that are newer than their rewards."""

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trinity_db.cli import output
from trinity_db.cli.roles import STOPPED, stoppable
from trinity_db.errors import ConfigError
from trinity_db.run.restart_command import wait_for_upgrade

if TYPE_CHECKING:
    from trinity_db.postgres.connection import Database
    from trinity_db.processors.config import ScoreStepConfig
    from trinity_db.processors.jobs.rescore import Rescorer, Work
    from trinity_db.processors.lists.step import Step
    from trinity_db.run.configuration import RunConfig
    from trinity_db.store.rescore import RescoreSelection
    from trinity_db.store.runs import Run

LINE_SECONDS = 10.0  # between two lines without a terminal
LOOK_SECONDS = 0.5  # between two updates of the progress on a terminal
LABELS = {
    "list_version": "version of the list",
    "groups": "groups",
    "rows": "rows",
    "changed": "with a changed reward",
    "kept": "kept, as a person or program corrected them",
    "failed": "failed",
    "seconds": "seconds",
}
COUNTS = ("groups", "rows", "changed", "kept", "failed")


RunName = Annotated[str, typer.Argument(metavar="RUN", help="Name of the run.")]
Steps = Annotated[
    list[str] | None,
    typer.Option(
        "--steps",
        metavar="STEP|FILE",
        help="Run only this step, of the run or another one, or the steps under score in a YAML file; "
        "may be repeated. Default: all scoring steps of the run.",
    ),
]
Versions = Annotated[
    list[int] | None,
    typer.Option("--version", metavar="N", min=0, help="Rows of this policy version; may be repeated."),
]
Tasksets = Annotated[
    list[str] | None,
    typer.Option("--taskset", metavar="NAME", help="Rows of these tasks; may be repeated."),
]
Where = Annotated[
    str | None,
    typer.Option(
        "--where",
        metavar="SQL",
        help="Groups with a row that meets this SQL condition on the columns of experience_view.",
    ),
]
Rate = Annotated[float | None, typer.Option("--rate", metavar="N", min=0.001, help="Limit: rows per second.")]
ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="CONFIG",
        help="Configuration of the run, if its steps name code, files, addresses or variables.",
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Count the rows to judge, and change nothing.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print a JSON object.")]


def rescore(
    name: RunName,
    steps: Steps = None,
    version: Versions = None,
    taskset: Tasksets = None,
    where: Where = None,
    rate: Rate = None,
    config: ConfigFile = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Judge stored rows again with the current scoring steps.

    The run may be training meanwhile. New results are added as reward events that supersede the old ones.
    The next draw uses the new rewards; batches keep the rewards that they used, and the column reward of
    policy_progress does not change. A step that is not in the run's configuration gets weight 0, unless a
    file gives it a weight. Steps that are code, or that name files, addresses or variables, come only
    from --config, because the store is not trusted to name them.

    Rows that the same version of a step has judged are skipped, so you can repeat an interrupted command to
    continue. Several commands may run at once. If a row fails, its group keeps its rewards and the exit code
    is 1.

    Example:

        trinity-db rescore demo-1 --where "state = 'ready'" --rate 50
    """
    from trinity_db.postgres.opening import open_database
    from trinity_db.store.rescore import RescoreSelection
    from trinity_db.worker.service import LEASE_SECONDS

    selection = RescoreSelection(version, taskset, where)
    with stoppable():
        wait_for_upgrade()
        with closing(open_database(LEASE_SECONDS)) as database:
            run, settings = _run_to_rescore(database, name, config, steps or ())
            _rescore(database, run, settings, steps or (), selection, rate, dry_run, as_json)


def _rescore(
    database: "Database",
    run: "Run",
    config: "RunConfig",
    named: Sequence[str],
    selection: "RescoreSelection",
    rate: float | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    from trinity_db.processors.jobs.rescore import Rescorer, Work
    from trinity_db.processors.lists.step import Context

    chosen = _steps(config, named)
    work = Work(chosen, is_whole=not named, among=_selected(database, run, selection), rate=rate)
    context = Context(database, config.model, config.explorer.temperature)
    if dry_run:
        known = replace(work, steps=[step.identified(context) for step in chosen])
        _print(_counted(database, run, known), as_json)
        return
    ready = replace(work, steps=[step.prepared(context) for step in chosen])
    _carry_out(Rescorer(database, run, ready), as_json)


def _run_to_rescore(
    database: "Database", name: str, path: Path | None, named: Sequence[str]
) -> "tuple[Run, RunConfig]":
    """Return the run, and the configuration for judging its rows: of a file, or else its stored one.

    Raises:
        TrinityError: if the run does not exist, or steps do not judge its rows; or if steps to run are
            code, or name a file, an address or a variable, and no file of the caller names them.
    """
    from trinity_db.config.base import STORED, validate
    from trinity_db.processors.config import TEACHER
    from trinity_db.run import joining, model_revisions, trust
    from trinity_db.run.configuration import RunConfig
    from trinity_db.schema.states import RunKind
    from trinity_db.store import runs

    configuration = joining.read(path, ()) if path is not None else None
    with database.transaction() as tx:
        run = runs.find(tx, name)
    runs.check_stays(run)
    if run.kind != RunKind.TRAIN:
        raise ConfigError(f"'{name}' is an imported data set, whose rows no step has judged.")
    if configuration is not None:
        return run, model_revisions.pinned(configuration, run.config)
    config = validate(RunConfig, run.config, f"The configuration of run '{name}'", context=STORED)
    steps = [step for step in config.processors.score if not named or step.name in named]
    rewarding = [step for step in steps if step.name != TEACHER]
    trust.check_stored(run.name, {"processors.score": rewarding})
    return run, config


def _steps(config: "RunConfig", named: Sequence[str]) -> "list[Step]":
    """Return the steps to run, checked but not yet set up. Teachers give no rewards, and are left out.

    Raises:
        ConfigError: if a step does not exist or does not accept its options, or no step is left.
    """
    from trinity_db.processors.config import TEACHER, ProcessorsConfig
    from trinity_db.processors.lists import lists

    configs = _named(config, named) if named else config.processors.score
    configs = [step for step in configs if step.name != TEACHER]
    if not configs:
        raise ConfigError(
            f"Run '{config.name}' has no step that gives a reward; name one with --steps."
            if not named
            else "--steps names no step that gives a reward."
        )
    steps = lists.load(ProcessorsConfig(clean=[], score=configs))["score"]
    for step in steps:
        step.check(config.model)
    return list(steps)


def _named(config: "RunConfig", named: Sequence[str]) -> "list[ScoreStepConfig]":
    """Return the steps that --steps names.

    A step of the run keeps its options and weight. Any other step gets weight 0, unless a file sets its
    weight, so that two judges are not added up by accident.

    Raises:
        ConfigError: if a file contains no steps, or a step's configuration is invalid.
    """
    from trinity_db.config.base import validate
    from trinity_db.processors.config import ProcessorsConfig
    from trinity_db.run import model_revisions

    own = {step.name: step for step in config.processors.score}
    configs: list[Any] = []
    for name in named:
        if name.endswith((".yaml", ".yml")):
            configs += [_weighed(step, own) for step in _in_file(Path(name))]
        else:
            configs.append(own[name].model_dump() if name in own else {"name": name, "weight": 0.0})
    steps = validate(ProcessorsConfig, {"clean": [], "score": configs}, "--steps").score
    return [model_revisions.pinned_step(step) for step in steps]


def _in_file(path: Path) -> list[Any]:
    from trinity_db.config.base import content_of

    content = content_of(path)
    section = content.get("processors", content)
    steps = section.get("score") if isinstance(section, dict) else None
    if not isinstance(steps, list):
        raise ConfigError(f"{path}: contains no steps; list them under score, as in the processors of a run.")
    return steps


def _weighed(step: Any, own: "Mapping[str, ScoreStepConfig]") -> Any:
    """A step of a file, with a weight."""
    config = {"name": step} if isinstance(step, str) else step
    if not isinstance(config, dict) or "weight" in config:
        return config
    known = own.get(config.get("name", ""))
    return {**config, "weight": 0.0 if known is None else known.weight}


def _selected(database: "Database", run: "Run", selection: "RescoreSelection") -> list[int] | None:
    """Return the selected groups; None for all groups.

    Raises:
        TrinityError: if a taskset does not exist, or the condition cannot be evaluated.
    """
    from trinity_db.store import rescore, runs

    if selection.is_all:
        return None
    with database.transaction(read_only=True) as tx:
        for name in selection.tasksets or ():
            runs.find_taskset(tx, name)
        return rescore.select(tx, run.name, selection)


def _counted(database: "Database", run: "Run", work: "Work") -> dict[str, Any]:
    """Count the rows to judge."""
    from trinity_db.store import rescore

    records = [step.record() for step in work.steps]
    with database.transaction(read_only=True) as tx:
        plan = rescore.plan(tx, run.id, records, work.is_whole, is_recorded=False)
        due = rescore.due_groups(tx, plan, rescore.last_group(tx, run.id), work.among)
    return _facts(run.name, work.steps) | {"groups": len(due), "rows": sum(due.values())}


def _carry_out(rescorer: "Rescorer", as_json: bool) -> None:
    """Judge, report progress on stderr, and print the outcome.

    Raises:
        Exit: if rows failed, or a signal came.
    """
    begun = time.monotonic()
    with _progress(rescorer):
        rescorer.serve()
    seconds = time.monotonic() - begun
    done = {name: getattr(rescorer.counted, name) for name in COUNTS}
    facts = _facts(rescorer.run.name, rescorer.steps) | {"list_version": rescorer.list_version}
    _print(facts | done | {"seconds": round(seconds, 1)}, as_json)
    if rescorer.stopping:
        print("Stopped; repeat the command to continue.", file=sys.stderr)
        raise typer.Exit(STOPPED)
    if done["failed"]:
        hint = "Groups with failed rows keep their rewards; repeat the command to retry them."
        print(hint, file=sys.stderr)
        raise typer.Exit(1)


def _facts(run: str, steps: "Sequence[Step]") -> dict[str, Any]:
    return {"run": run, "steps": {step.name: step.weight for step in steps}}


def _print(facts: dict[str, Any], as_json: bool) -> None:
    if as_json:
        output.print_json(facts)
        return
    steps = [
        f"{name}, weight {weight:g}{'' if weight else ' (not part of the reward)'}"
        for name, weight in facts["steps"].items()
    ]
    labelled = {label: facts[name] for name, label in LABELS.items() if name in facts}
    output.console(sys.stdout).print(
        output.facts({"run": facts["run"], "steps": "; ".join(steps), **labelled})
    )


@contextmanager
def _progress(rescorer: "Rescorer") -> Iterator[None]:
    """Report progress on stderr: often on a terminal, at longer intervals elsewhere."""
    over = Event()
    is_terminal = sys.stderr.isatty()
    end = "\r" if is_terminal else "\n"

    def look() -> None:
        while not over.wait(LOOK_SECONDS if is_terminal else LINE_SECONDS):
            done = rescorer.counted
            failed = f", {done.failed} failed" if done.failed else ""
            print(f"{done.rows} of {rescorer.total} rows{failed}", end=end, file=sys.stderr, flush=True)

    looking = Thread(target=look, name="progress", daemon=True)
    looking.start()
    try:
        yield
    finally:
        over.set()
        looking.join()
