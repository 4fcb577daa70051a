"""Prolong a run, or go on with one that was stopped: its stored configuration with another length."""

import textwrap
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from nicegui import ui
from pydantic import ValidationError

from trinity_db import model_revisions, settings, trust
from trinity_db.configuration import PER_PROCESS, RunConfig
from trinity_db.errors import ConfigError, TrinityError
from trinity_db.page import layout, questions
from trinity_db.page.drafting import Drafting
from trinity_db.page.elements import said
from trinity_db.page.forms import explained_field, real, whole
from trinity_db.page.manager import REFUSED, Manager
from trinity_db.page.reader import Reader
from trinity_db.page.rights import Right, may
from trinity_db.schema.states import RunKind
from trinity_db.store import runs

KEPT = "Run '{name}' as the store keeps it. Keys that are not here have their defaults."
LACKING = (
    "The store does not keep the keys that each process has for itself, and no file here describes this run. "
    "Write what they were: {keys}."
)
STEPS = "Steps after which the run ends, those that are done among them. The same number goes on to that end."
EPOCHS = "How often the run uses each row or pair, passes that are done among them."
MAX_STEPS = 2**31 - 1
WIDTH = 100  # characters of a comment's line


def register(reader: Reader, manager: Manager | None) -> None:
    """Add the page."""

    @ui.page("/prolong/{name:path}", response_timeout=layout.RESPONSE_SECONDS)
    async def prolong_page(name: str, length: str = "") -> None:
        with layout.frame(f"Prolong {name}"):
            if manager is None or not may(Right.MANAGE):
                said("p", REFUSED, "notice", role="alert")
                return
            read = partial(questions.kept, name=layout.text(name))
            await layout.once(reader, read, partial(_build, manager, length.strip())).look()


def _build(manager: Manager, length: str, run: runs.Run) -> None:
    with said("p", "", "more begin"):
        said("a", "The run", "button", href=layout.place("run", run.name))
    try:
        key, now = _length(run)
        _form(run.name, key, length or now)
        text = _file(run, manager.files_of(run.name), key, length or now)
    except TrinityError as error:
        said("p", str(error), "notice", role="alert")
        return
    Drafting(manager, text, change=True)


def _length(run: runs.Run) -> tuple[str, str]:
    """The key of the trainer that says how long the run is, and its value.

    Raises:
        ConfigError: it is a data set, or this version cannot read its configuration.
    """
    if run.kind != RunKind.TRAIN:
        raise ConfigError(f"'{run.name}' is an imported data set, which no role trains.")
    source = f"The configuration of run '{run.name}'"
    trainer = settings.validate(RunConfig, run.config, source, context="stored").trainer
    return ("epochs", f"{trainer.epochs:g}") if trainer.steps is None else ("steps", str(trainer.steps))


def _form(name: str, key: str, shown: str) -> None:
    place = {"action": layout.place("prolong", name), "method": "get", "aria_label": "How long"}
    with said("form", "", "filters meant", **place):
        explained_field("length", STEPS if key == "steps" else EPOCHS, shown, label=f"trainer.{key}")
        with said("p", "", "more"):
            said("button", "Write the file", "main", type="submit")


def _file(run: runs.Run, files: Sequence[Path], key: str, length: str) -> str:
    """The run's configuration with that length: as a file of it says, or else as the store keeps it.

    Raises:
        ConfigError: the length is no number, or this version cannot read the configuration.
    """
    number = (
        whole("number of steps", MAX_STEPS)(length) if key == "steps" else real("number of epochs")(length)
    )
    content = next(filter(None, (_as_stored(path, run) for path in files)), None)
    said_of = KEPT.format(name=run.name)
    if content is None:
        stored = settings.validate(RunConfig, run.config, "The stored configuration", context="stored")
        trust.check_stored(run.name, {"": stored})
        content = RunConfig.written(run.config)
        said_of += " " + LACKING.format(keys=", ".join(PER_PROCESS))
    trainer = content.get("trainer", {}) | {key: number}
    head = textwrap.fill(said_of, WIDTH, initial_indent="# ", subsequent_indent="# ")
    written = yaml.safe_dump(content | {"trainer": trainer}, sort_keys=False, allow_unicode=True)
    return f"{head}\n{written}"


def _as_stored(path: Path, run: runs.Run) -> dict[str, Any] | None:
    """What a file holds that describes the run as it is stored; None if it does not."""
    try:
        content = settings.content_of(path)
        config = model_revisions.recorded(RunConfig.model_validate(content), run.config)
        is_same = config.stored() == RunConfig.completed(run.config)
    except (ConfigError, ValidationError):
        return None
    return content if is_same else None
