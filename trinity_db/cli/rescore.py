"""`trinity-db rescore`: judge stored rows of a run again, by steps that are newer than their rewards."""

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
from trinity_db.cli.again import wait_for_upgrade
from trinity_db.cli.roles import STOPPED, stoppable
from trinity_db.errors import ConfigError

if TYPE_CHECKING:
    from trinity_db.configuration import RunConfig
    from trinity_db.database import Database
    from trinity_db.processors.config import ScoreStepConfig
    from trinity_db.processors.rescore import Rescorer, Work
    from trinity_db.processors.step import Step
    from trinity_db.store.rescore import Selection
    from trinity_db.store.runs import Run

LINE_SECONDS = 10.0  # between two lines where there is no terminal
LOOK_SECONDS = 0.5  # between two looks at how far it is, on a terminal
LABELS = {
    "list_version": "version of the list",
    "groups": "groups",
    "rows": "rows",
    "changed": "with another reward",
    "kept": "kept as a person or program corrected them",
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
        help="Ask this step alone, of the run or another one, or those under score in a YAML file; "
        "may be repeated. Without: all scoring steps of the run.",
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
        help="Groups with a row for which this holds, on the columns of experience_view.",
    ),
]
Rate = Annotated[float | None, typer.Option("--rate", metavar="N", min=0.001, help="Rows a second, at most.")]
ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="CONFIG",
        help="The run's file, if its steps name code, files, addresses or variables.",
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Count what would be judged, and change nothing.")]
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
    """Judge stored rows again by the scoring steps as they are now, while the run trains or after it.

    What the steps say now follows what they said, as new reward events. The next draw uses the new rewards;
    what batches used stays recorded with them, and the column reward of policy_progress does not change. A
    step that is not the run's own stands beside the reward, with weight 0, unless a file gives it a weight.
    Steps that are code, or that name files, addresses or variables, are taken from --config alone: the store
    is not trusted to name any.

    Rows that were judged by the same version of a step are passed over, so the same command goes on where it
    was stopped. Several may work at once. If a row fails, its group keeps its rewards and the exit code is
    1.

    Example:

        trinity-db rescore demo-1 --where "state = 'ready'" --rate 50
    """
    from trinity_db.opening import open_database
    from trinity_db.service import LEASE_SECONDS
    from trinity_db.store.rescore import Selection

    selection = Selection(version, taskset, where)
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
    selection: "Selection",
    rate: float | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    from trinity_db.processors.rescore import Rescorer, Work
    from trinity_db.processors.step import Context

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
    """The run, and how its rows are judged: as a file says, or as its own configuration does.

    Raises:
        TrinityError: there is no such run, or none whose rows steps judge; or the steps that are to be asked
            are code, or name a file, an address or a variable, and no file of the caller names them.
    """
    from trinity_db import model_revisions, trust
    from trinity_db.cli import launch
    from trinity_db.configuration import RunConfig
    from trinity_db.processors import lists
    from trinity_db.schema.states import RunKind
    from trinity_db.settings import validate
    from trinity_db.store import runs

    given = launch.read(path, ()) if path is not None else None
    with database.transaction() as tx:
        run = runs.find(tx, name)
    runs.check_stays(run)
    if run.kind != RunKind.TRAIN:
        raise ConfigError(f"'{name}' is an imported data set, whose rows no step has judged.")
    if given is not None:
        return run, model_revisions.pinned(given, run.config)
    config = validate(RunConfig, run.config, f"The configuration of run '{name}'", context="stored")
    asked = [step for step in config.processors.score if not named or step.name in named]
    rewarding = [step for step in asked if lists.LISTS["score"].says(step.name) is None]
    trust.check_stored(run.name, {"processors.score": rewarding})
    return run, config


def _steps(config: "RunConfig", named: Sequence[str]) -> "list[Step]":
    """The steps that are to be asked, checked and not yet ready. A teacher gives no reward, and is left out.

    Raises:
        ConfigError: a step is not there, or does not take its options; or there is none.
    """
    from trinity_db.processors import lists
    from trinity_db.processors.config import ProcessorsConfig

    score = lists.LISTS["score"]
    configs = _named(config, named) if named else config.processors.score
    configs = [step for step in configs if score.says(step.name) is None]
    if not configs:
        raise ConfigError(
            f"Run '{config.name}' has no step that gives a reward; name one with --steps."
            if not named
            else "--steps: names no step that gives a reward."
        )
    found = lists.load(ProcessorsConfig(clean=[], score=configs))["score"]
    for step in found:
        step.check(config.model)
    return list(found)


def _named(config: "RunConfig", named: Sequence[str]) -> "list[ScoreStepConfig]":
    """The steps that --steps names.

    A step of the run has the options and the weight that it has there. Another one stands beside the reward,
    unless a file says its weight: two judges do not add up by accident.

    Raises:
        ConfigError: a file holds no steps, or a step cannot be configured so.
    """
    from trinity_db import model_revisions, settings
    from trinity_db.processors.config import ProcessorsConfig

    own = {step.name: step for step in config.processors.score}
    found: list[Any] = []
    for one in named:
        if one.endswith((".yaml", ".yml")):
            found += [_weighed(step, own) for step in _in_file(Path(one))]
        else:
            found.append(own[one].model_dump() if one in own else {"name": one, "weight": 0.0})
    steps = settings.validate(ProcessorsConfig, {"clean": [], "score": found}, "--steps").score
    return [model_revisions.pinned_step(step) for step in steps]


def _in_file(path: Path) -> list[Any]:
    from trinity_db import settings

    content = settings.content_of(path)
    section = content.get("processors", content)
    found = section.get("score") if isinstance(section, dict) else None
    if not isinstance(found, list):
        raise ConfigError(f"{path}: holds no steps; list them under score, as processors of a run have them.")
    return found


def _weighed(step: Any, own: "Mapping[str, ScoreStepConfig]") -> Any:
    """A step of a file, with a weight."""
    given = {"name": step} if isinstance(step, str) else step
    if not isinstance(given, dict) or "weight" in given:
        return given
    known = own.get(given.get("name", ""))
    return {**given, "weight": 0.0 if known is None else known.weight}


def _selected(database: "Database", run: "Run", selection: "Selection") -> list[int] | None:
    """The groups that are selected; None if all are.

    Raises:
        TrinityError: there is no such taskset, or the condition cannot be asked.
    """
    from trinity_db.store import rescore, runs

    if selection.is_all:
        return None
    with database.transaction(read_only=True) as tx:
        for name in selection.tasksets or ():
            runs.find_taskset(tx, name)
        return rescore.select(tx, run.name, selection)


def _counted(database: "Database", run: "Run", work: "Work") -> dict[str, Any]:
    """What would be judged."""
    from trinity_db.store import rescore

    records = [step.record() for step in work.steps]
    with database.transaction(read_only=True) as tx:
        plan = rescore.plan(tx, run.id, records, work.is_whole, is_recorded=False)
        due = rescore.due_groups(tx, plan, rescore.last_group(tx, run.id), work.among)
    return _facts(run.name, work.steps) | {"groups": len(due), "rows": sum(due.values())}


def _carry_out(rescorer: "Rescorer", as_json: bool) -> None:
    """Judge, say on stderr how far it is, and print what was done.

    Raises:
        Exit: rows failed, or a signal came.
    """
    begun = time.monotonic()
    with _progress(rescorer):
        rescorer.serve()
    seconds = time.monotonic() - begun
    done = {name: getattr(rescorer.counted, name) for name in COUNTS}
    facts = _facts(rescorer.run.name, rescorer.steps) | {"list_version": rescorer.list_version}
    _print(facts | done | {"seconds": round(seconds, 1)}, as_json)
    if rescorer.stopping:
        print("Stopped; the same command goes on where it stopped.", file=sys.stderr)
        raise typer.Exit(STOPPED)
    if done["failed"]:
        said = "Groups with rows that failed keep their rewards; the same command tries them again."
        print(said, file=sys.stderr)
        raise typer.Exit(1)


def _facts(run: str, steps: "Sequence[Step]") -> dict[str, Any]:
    return {"run": run, "steps": {step.name: step.weight for step in steps}}


def _print(facts: dict[str, Any], as_json: bool) -> None:
    if as_json:
        output.print_json(facts)
        return
    steps = [
        f"{name}, weight {weight:g}{'' if weight else ' (beside the reward)'}"
        for name, weight in facts["steps"].items()
    ]
    said = {label: facts[name] for name, label in LABELS.items() if name in facts}
    output.console(sys.stdout).print(output.facts({"run": facts["run"], "steps": "; ".join(steps), **said}))


@contextmanager
def _progress(rescorer: "Rescorer") -> Iterator[None]:
    """Say on stderr how far it is: often on a terminal, now and then elsewhere."""
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
