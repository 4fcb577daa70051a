"""Shows the first task of a run as its model reads it.

Rendering a task needs the tokenizer, and therefore transformers and torch (seconds, 400 MB), but no weights.
`trinity-db run` starts this module as a separate process, because the supervisor lives as long as the run.
"""

import json
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psycopg

from trinity_db.config import base
from trinity_db.config.shared import ModelConfig
from trinity_db.errors import ConfigError, TrinityError
from trinity_db.insight.checks.finding import Finding, ok, warn
from trinity_db.insight.words import printable
from trinity_db.models import hub
from trinity_db.models.chat.prompts import PLAIN_PROMPT_WARNING, ChatRenderer, offered_tools, prompt_ids
from trinity_db.postgres.connection import Database, Transaction
from trinity_db.postgres.opening import open_reader
from trinity_db.run import joining, model_revisions
from trinity_db.run.configuration import RunConfig
from trinity_db.schema.queries import query
from trinity_db.store import policies, runs
from trinity_db.weights.recorded_places import RecordedPlaces

logger = logging.getLogger(__name__)

WHAT = "prompt first"  # name of the findings
QUESTION = "What is 7 plus 5?"  # shown by `trinity-db config check`
STATEMENT_SECONDS = 2.0  # a table may be locked
CHARACTERS = 1500  # characters of a prompt; about 20 lines
CHARACTERS_IN_LINE = 300  # characters of a prompt that is shown in one line


@dataclass(frozen=True)
class FirstTask:
    """A task to show, and the location of its run's tokenizer."""

    title: str
    """Description of the task in two or three words."""
    task: Mapping[str, Any]
    model: ModelConfig
    folder: Path | None
    """Model folder with the tokenizer; None if the model is from scratch or not on this machine."""
    is_imported: bool = False
    """Whether it is the prompt of an imported row. Its plain prompt stays plain text."""
    max_new_tokens: int | None = None
    """Maximum length of a response in tokens; None if none is sampled."""


@dataclass(frozen=True)
class RenderedTask:
    """A task as the model reads it."""

    prompt: str
    """Prompt with its special tokens."""
    num_tokens: int
    stop_tokens: list[str]
    """Tokens that end a response."""
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
    """Render a task with the tokenizer of its run. Loads no weights.

    Raises:
        ConfigError: if this machine has no tokenizer, or `model.chat_template` cannot be read.
        MissingExtra: if transformers is not installed.
        UntokenizableText: if the chat template rejects the messages, or the tokenizer a character.
    """
    from trinity_db.explorer.engines import folder

    if not first.task.get("messages") and not isinstance(first.task.get("prompt"), str):
        raise ConfigError("it has neither a prompt nor messages; the workflow writes the prompt.")
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
    warnings = [
        PLAIN_PROMPT_WARNING if is_plain and renderer.misses_template(text) else None,
        _context_warning(len(ids), first.max_new_tokens, source.context),
    ]
    return RenderedTask(
        source.tokenizer.decode(ids, skip_special_tokens=False),
        len(ids),
        source.tokenizer.convert_ids_to_tokens(sorted(source.end_tokens)),
        "; ".join(filter(None, warnings)) or None,
    )


def _context_warning(num_tokens: int, max_new_tokens: int | None, context: int) -> str | None:
    """Return a warning if a prompt leaves fewer tokens of the context than a response may have."""
    if max_new_tokens is None or num_tokens + max_new_tokens <= context:
        return None
    if num_tokens >= context:
        return f"the prompt does not fit the model's context of {context} tokens, so such attempts fail"
    return (
        f"the model's context of {context} tokens leaves {context - num_tokens} for a response, fewer than "
        f"explorer.max_new_tokens ({max_new_tokens}), so longer responses are cut off there"
    )


def lines_and_warning(first: FirstTask) -> tuple[list[str], str | None]:
    """Return the lines that a command prints for a task, or the reason why it is not shown, and a warning."""
    try:
        rendered = render(first)
    except TrinityError as error:
        return [f"{first.title} is not shown: {error}"], None
    return rendered.lines(first.title), rendered.warning


def of_file(path: Path, overrides: Sequence[str]) -> tuple[list[str], str | None]:
    """Return a question as the configuration's model reads it, and a warning; opens no store.

    Raises:
        ConfigError: if the file cannot be read, or a key is wrong.
    """
    config = model_revisions.pinned(joining.read(path, overrides))
    model = config.model
    if model.run is not None:
        return [
            "sample question is not shown: the tokenizer belongs to another run, and no store is opened."
        ], None
    alphabet = None if model.scratch is None else model.scratch.alphabet
    if alphabet is not None and not set(QUESTION) <= set(alphabet):
        return ["sample question is not shown: model.scratch.alphabet lacks characters of it."], None
    folder = None if model.path is None else hub.folder(model.path, model.revision, with_weights=False)
    limit = config.explorer.max_new_tokens if config.is_online else None
    question = FirstTask("sample question", {"prompt": QUESTION}, model, folder, max_new_tokens=limit)
    return lines_and_warning(question)


def of_run(tx: Transaction, run_id: int, config: RunConfig, places: RecordedPlaces) -> FirstTask | None:
    """Return the first task of a run's first taskset, or its first imported prompt; None without rows.

    Args:
        places: folders of tokenizers that may be read.
    """
    folder = _tokenizer_folder(tx, run_id, config.model, places)
    if config.is_online:
        taskset_id = runs.find_taskset(tx, next(iter(config.tasksets)))
        row = tx.execute(query("first_task"), {"taskset_id": taskset_id}).fetchone()
        title = "first task"
        if config.explorer.workflow != "single_turn" or config.explorer.environment is not None:
            title += " (the run's workflow may change the prompt)"
        limit = config.explorer.max_new_tokens
        return None if row is None else FirstTask(title, row["payload"], config.model, folder, False, limit)
    row = tx.execute(query("first_imported_row"), {"run_id": run_id}).fetchone()
    if row is None:
        return None
    task = {name: value for name, value in row.items() if value is not None}
    return FirstTask("first imported row", task, config.model, folder, is_imported=True)


@contextmanager
def logged(database: Database, run: runs.Run, config: RunConfig) -> Iterator[None]:
    """Context that logs a run's first task when another process has rendered it, and ends that process."""
    with database.transaction(read_only=True) as tx:
        first = of_run(tx, run.id, config, joining.recorded_places(config))
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
    if not output:  # terminated, because the run has ended
        return
    shown = json.loads(output)
    for line in shown["lines"]:
        logger.info("%s: %s", run_name, line)
    if shown["warning"]:
        logger.warning("%s: %s", run_name, shown["warning"])


def findings() -> list[Finding]:
    """Return the first task of each run with a living worker, for `trinity-db doctor`.

    A store that does not answer within STATEMENT_SECONDS is a finding.
    """
    try:
        with closing(open_reader(STATEMENT_SECONDS)) as database:
            with database.transaction(read_only=True) as tx:
                names = [row["run"] for row in tx.execute(query("working_runs"))]
            return [finding for name in names if (finding := _finding(database, name)) is not None]
    except (TrinityError, psycopg.Error) as error:
        return [warn(WHAT, f"could not be read: {' '.join(str(error).split())}", "try again")]


def _finding(database: Database, name: str) -> Finding | None:
    try:
        with database.transaction(read_only=True) as tx:
            run = runs.find(tx, name)
            config = base.validate(RunConfig, run.config, "the configuration", context=base.STORED)
            first = of_run(tx, run.id, config, RecordedPlaces())
        if first is None:
            return None
        if first.folder is None and first.model.scratch is None:
            raise ConfigError(
                "no version of the run is on this machine yet; config check shows a sample question."
            )
        rendered = render(_without_stored_files(first))
    except TrinityError as error:
        return ok(WHAT, f"run '{name}': the first task is not shown: {error}")
    text = f"run '{name}': {rendered.line(first.title)}"
    return warn(WHAT, f"{text}; {rendered.warning}", run=name) if rendered.warning else ok(WHAT, text)


def _without_stored_files(first: FirstTask) -> FirstTask:
    """Remove file names from a stored model: the store is not trusted to name a chat template.

    The tokenizer of a version includes that template.

    Raises:
        ConfigError: if no version is on this machine.
    """
    if first.model.chat_template is not None and first.folder is None:
        raise ConfigError("no version of the run, which has its chat template, is on this machine.")
    return replace(first, model=first.model.model_copy(update={"chat_template": None}))


def _tokenizer_folder(
    tx: Transaction, run_id: int, model: ModelConfig, places: RecordedPlaces
) -> Path | None:
    """Folder on this machine with a run's tokenizer: of its newest version, or of its starting model.

    The store is not trusted to name folders: a version counts if `places` allows its folder, and the starting
    model if `places` names it.
    """
    ids = [run_id] if model.run is None else [run_id, runs.find(tx, model.run).id]
    versions = [policies.newest(tx, number) for number in ids]
    folders = [
        version.checkpoint for version in versions if version is not None and places.allows_folder(version)
    ]
    if places.model is not None:
        folders.append(places.model.expanduser())
    return next((folder for folder in folders if folder.is_dir()), None)


def without_middle(text: str, characters: int) -> str:
    """Cut the middle out of a long text, and insert the number of characters that were left out."""
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
