"""Shows the first task of a run as its model reads it.

To render a task takes the tokenizer, and so transformers and torch (seconds, 400 MB), but no weights.
`trinity-db run` starts this module as a separate process, because the supervisor lives as long as the run.
"""

import json
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psycopg

from trinity_db import settings
from trinity_db.cli import launch
from trinity_db.config import ModelConfig
from trinity_db.configuration import RunConfig
from trinity_db.database import Database, Transaction
from trinity_db.diagnosis.finding import Finding, ok, warn
from trinity_db.errors import ConfigError, TrinityError
from trinity_db.inspection.words import printable
from trinity_db.models import hub
from trinity_db.opening import open_reader
from trinity_db.prompts import PLAIN_PROMPT_WARNING, ChatRenderer, offered_tools, prompt_ids
from trinity_db.schema.queries import query
from trinity_db.store import policies, runs
from trinity_db.weights.recorded_places import RecordedPlaces

logger = logging.getLogger(__name__)

WHAT = "prompt first"  # the name of its findings
STATEMENT_SECONDS = 2.0  # a table may be locked
CHARACTERS = 1500  # of a prompt; about 20 lines
CHARACTERS_IN_LINE = 300  # of a prompt that is shown in one line


@dataclass(frozen=True)
class FirstTask:
    """A task to show, and where the tokenizer of its run is."""

    title: str
    """What the task is, in two or three words."""
    task: Mapping[str, Any]
    model: ModelConfig
    folder: Path | None
    """The folder of a model with the tokenizer; None: the model is from scratch, or not on this machine."""
    is_imported: bool = False
    """Whether it is the prompt of an imported row. Its plain prompt stays plain text."""


@dataclass(frozen=True)
class RenderedTask:
    """A task as the model reads it."""

    prompt: str
    """With the special tokens."""
    num_tokens: int
    stop_tokens: list[str]
    """The tokens that end a response."""
    warning: str | None

    def lines(self, title: str) -> list[str]:
        prompt = printable(without_middle(self.prompt, CHARACTERS)).split("\n")
        head = f"{title} as the model reads it ({self.num_tokens} tokens):"
        return [head, *(f"    {line}" for line in prompt), self._stops]

    def line(self, title: str) -> str:
        prompt = without_middle(self.prompt, CHARACTERS_IN_LINE).replace("\n", "\\n")
        return f"{title} as the model reads it ({self.num_tokens} tokens): {prompt}; {self._stops}"

    @property
    def _stops(self) -> str:
        return f"a response ends with {' or '.join(self.stop_tokens)}"


def render(first: FirstTask) -> RenderedTask:
    """Render a task with the tokenizer of its run. No weights are loaded.

    Raises:
        ConfigError: there is no tokenizer on this machine, or `model.chat_template` cannot be read.
        MissingExtra: transformers is not installed.
        UntokenizableText: the chat template refuses the messages, or the tokenizer a character.
    """
    from trinity_db.explorer.engines import folder

    if not first.task.get("messages") and not isinstance(first.task.get("prompt"), str):
        raise ConfigError("it has neither a prompt nor messages; the workflow writes what the model reads.")
    if first.folder is not None:
        source = folder.read(first.folder, first.model)
    elif first.model.scratch is not None:
        source = folder.of_scratch(first.model.scratch, first.model)
    else:
        raise ConfigError("the tokenizer is not on this machine.")
    renderer = ChatRenderer(source.tokenizer, first.model)
    is_plain = not (first.task.get("messages") if first.is_imported else renderer.messages(first.task))
    if is_plain:
        text = renderer.plain_prompt(first.task["prompt"])
    else:
        text = renderer.task(first.task, offered_tools(first.task))
    ids = prompt_ids(text, source.tokenizer)
    return RenderedTask(
        source.tokenizer.decode(ids, skip_special_tokens=False),
        len(ids),
        source.tokenizer.convert_ids_to_tokens(sorted(source.end_tokens)),
        PLAIN_PROMPT_WARNING if is_plain and renderer.misses_template(text) else None,
    )


def lines_and_warning(first: FirstTask) -> tuple[list[str], str | None]:
    """What a command prints of a task: lines, or one line that names why there is nothing to show."""
    try:
        rendered = render(first)
    except TrinityError as error:
        return [f"{first.title} is not shown: {error}"], None
    return rendered.lines(first.title), rendered.warning


def of_run(tx: Transaction, run_id: int, config: RunConfig, places: RecordedPlaces) -> FirstTask | None:
    """The first task of the first taskset of a run, or the prompt of its first imported row; None: no row.

    Args:
        places: the folders of tokenizers that may be read.
    """
    folder = _tokenizer_folder(tx, run_id, config.model, places)
    if config.is_online:
        taskset_id = runs.find_taskset(tx, next(iter(config.tasksets)))
        row = tx.execute(query("first_task"), {"taskset_id": taskset_id}).fetchone()
        title = "first task"
        if config.explorer.workflow != "single_turn" or config.explorer.environment is not None:
            title += " (the workflow of the run may ask otherwise)"
        return None if row is None else FirstTask(title, row["payload"], config.model, folder)
    row = tx.execute(query("first_imported_row"), {"run_id": run_id}).fetchone()
    if row is None:
        return None
    task = {name: value for name, value in row.items() if value is not None}
    return FirstTask("first imported row", task, config.model, folder, is_imported=True)


@contextmanager
def logged(database: Database, run: runs.Run, config: RunConfig) -> Iterator[None]:
    """Log the first task of a run, once another process has rendered it. That process ends with the block."""
    with database.transaction(read_only=True) as tx:
        first = of_run(tx, run.id, config, launch.recorded_places(config))
    if first is None:
        yield
        return
    path = config.model.path
    if first.folder is None and path is not None and hub.is_name(path):
        first = replace(first, folder=hub.folder(path, config.model.revision, with_weights=False))
    process = subprocess.Popen(
        [sys.executable, "-m", __name__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    thread = threading.Thread(target=_log, args=(process, first, run.name), daemon=True)
    thread.start()
    try:
        yield
    finally:
        process.terminate()
        thread.join()


def _log(process: "subprocess.Popen[str]", first: FirstTask, run_name: str) -> None:
    output, _ = process.communicate(_to_json(first))
    if not output:  # it was terminated, because the run has ended
        return
    shown = json.loads(output)
    for line in shown["lines"]:
        logger.info("%s: %s", run_name, line)
    if shown["warning"]:
        logger.warning("%s: %s", run_name, shown["warning"])


def findings() -> list[Finding]:
    """The first task of each run that has a living worker, for `trinity-db doctor`.

    A store that does not answer within STATEMENT_SECONDS is a finding.
    """
    try:
        with closing(open_reader(STATEMENT_SECONDS)) as database:
            with database.transaction(read_only=True) as tx:
                names = [row["run"] for row in tx.execute(query("working_runs"))]
            return [finding for name in names if (finding := _finding(database, name)) is not None]
    except (TrinityError, psycopg.Error) as error:
        return [warn(WHAT, f"could not be looked at: {' '.join(str(error).split())}", "try again")]


def _finding(database: Database, name: str) -> Finding | None:
    try:
        with database.transaction(read_only=True) as tx:
            run = runs.find(tx, name)
            config = settings.validate(RunConfig, run.config, "the configuration", context="stored")
            first = of_run(tx, run.id, config, RecordedPlaces())
        if first is None:
            return None
        rendered = render(_without_stored_files(first))
    except TrinityError as error:
        return ok(WHAT, f"run '{name}': the first task is not shown: {error}")
    text = f"run '{name}': {rendered.line(first.title)}"
    return warn(WHAT, f"{text}; {rendered.warning}", run=name) if rendered.warning else ok(WHAT, text)


def _without_stored_files(first: FirstTask) -> FirstTask:
    """A task of a stored configuration: the store is not trusted to name a file with a chat template.

    The tokenizer of a version has that template already.

    Raises:
        ConfigError: there is no version on this machine.
    """
    if first.model.chat_template is not None and first.folder is None:
        raise ConfigError("no version of the run, which has its chat template, is on this machine.")
    return replace(first, model=first.model.model_copy(update={"chat_template": None}))


def _tokenizer_folder(
    tx: Transaction, run_id: int, model: ModelConfig, places: RecordedPlaces
) -> Path | None:
    """A folder on this machine with the tokenizer of a run: its newest version, or its starting model.

    The store is not trusted to name folders: a version counts if `places` allows its folder, and the starting
    model if `places` names it.
    """
    ids = [run_id] if model.run is None else [run_id, runs.find(tx, model.run).id]
    versions = [policies.newest(tx, number) for number in ids]
    folders = [one.checkpoint for one in versions if one is not None and places.allows_folder(one)]
    if places.model is not None:
        folders.append(places.model.expanduser())
    return next((folder for folder in folders if folder.is_dir()), None)


def without_middle(text: str, characters: int) -> str:
    """A text without its middle if it is longer, and the number of characters that were left out."""
    if len(text) <= characters:
        return text
    half = characters // 2
    return f"{text[:half]} [... {len(text) - 2 * half:,} characters ...] {text[-half:]}"


def _to_json(first: FirstTask) -> str:
    folder = None if first.folder is None else str(first.folder)
    content = {"title": first.title, "task": dict(first.task), "is_imported": first.is_imported}
    return json.dumps(content | {"model": first.model.model_dump(mode="json"), "folder": folder})


def _from_json(text: str) -> FirstTask:
    content = json.loads(text)
    folder = None if content["folder"] is None else Path(content["folder"])
    return FirstTask(**content | {"model": ModelConfig(**content["model"]), "folder": folder})


if __name__ == "__main__":
    shown = lines_and_warning(_from_json(sys.stdin.read()))
    print(json.dumps(dict(zip(("lines", "warning"), shown, strict=True))))
