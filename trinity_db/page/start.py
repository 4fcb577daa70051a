"""The page that starts a run: its purpose, model, tasks and main keys; below, the file with these settings.

For an existing run it shows only the file. A person edits the file, and the run continues with it.
"""

import re
import textwrap
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from nicegui import ui
from pydantic import ValidationError

from trinity_db.config import base, keys
from trinity_db.config.yaml_text import one_line, parsed
from trinity_db.errors import ConfigError, TrinityError
from trinity_db.page import layout, questions
from trinity_db.page.drafting import Drafting
from trinity_db.page.elements import element
from trinity_db.page.forms import explained_choice, explained_field
from trinity_db.page.manager import REFUSED, Manager
from trinity_db.page.reader import Reader
from trinity_db.page.rights import Right, may
from trinity_db.run import model_revisions, starting_file, trust
from trinity_db.run.configuration import PER_PROCESS, RunConfig
from trinity_db.store import runs

PURPOSES = {"grpo": "tasks and a reward", "dpo": "pairs", "agent": "a workflow of your own"}
NAME = "Name of the run: letters, digits, '.', '_' and '-'."
MODEL = (
    "Folder of a causal language model in Hugging Face format, on this machine. Empty: a small model with "
    "random weights, to try things out."
)
NOT_TAKEN = (
    "The link also has values for {keys}. A link may come from a stranger, so values that may name code or "
    "files are ignored: type them here if you want them."
)
KEPT = (
    "Run '{name}' as stored. Keys that are missing here have their defaults. The store does not keep the "
    "keys that are set per process, and no file in this folder describes this run. Add their values: {keys}."
)
PLAIN = re.compile(r"-?[0-9.]{1,20}(e-?[0-9]{1,3})?|true|false")


def register(reader: Reader, manager: Manager | None) -> None:
    """Add the page."""

    @ui.page("/start", response_timeout=layout.RESPONSE_SECONDS)
    async def start_page(run: str = "") -> None:
        with layout.frame(f"Resume {run}" if run else "Start a run"):
            if manager is None or not may(Right.MANAGE):
                element("p", REFUSED, "notice", role="alert")
                return
            if run:
                read = partial(questions.kept, name=layout.text(run))
                await layout.once(reader, read, partial(_build_existing, manager)).look()
                return
            parameters = {
                name: layout.text(value) for name, value in ui.context.client.request.query_params.items()
            }
            look = layout.once(reader, questions.sources, partial(_build, manager, parameters))
            await look.look()


def _build(manager: Manager, parameters: Mapping[str, str], sources: Mapping[str, list[str]]) -> None:
    purpose = parameters.get("for", "grpo")
    if purpose not in PURPOSES:
        element("p", f"The purpose of a run is one of {', '.join(PURPOSES)}.", "notice", role="alert")
        return
    with element("p", "", "explained"):
        for name, words in PURPOSES.items():
            link = element("a", f"{name}: {words}", href=layout.link("start", **{"for": name}))
            link.style("margin-right: 0.9rem")
            if name == purpose:
                link.props["aria-current"] = "page"
    element("p", textwrap.dedent(f"        {starting_file.CONTENTS[purpose][0]}"), "empty")
    taken, left_out = _of_link(purpose, parameters, sources)
    if left_out:
        element("p", NOT_TAKEN.format(keys=", ".join(left_out)), "notice", role="alert")
    shown = _first_values(purpose, sources) | taken
    _form(purpose, shown, sources)

    def write(fields: Mapping[str, str]) -> str:
        values = shown | {name: value.strip() for name, value in fields.items()}
        return starting_file.text(purpose, values["name"], _values(purpose, values, sources))

    try:
        text = write({})
    except TrinityError:
        text = ""  # the error is shown in place of the file once the page is connected
    Drafting(manager, text, False, "form.meant", write)


def _build_existing(manager: Manager, run: runs.Run) -> None:
    try:
        text = _file_of(run, manager.files_of(run.name))
    except TrinityError as error:
        element("p", str(error), "notice", role="alert")
        return
    Drafting(manager, text, change=True)


def _file_of(run: runs.Run, files: Sequence[Path]) -> str:
    """Return the first file that matches the stored run, or else the stored configuration.

    Raises:
        ConfigError: if this version cannot read the stored configuration, or it names code or files.
    """
    if (text := next(filter(None, (_text_for(path, run) for path in files)), None)) is not None:
        return text
    stored = base.validate(RunConfig, run.config, "The stored configuration", context=base.STORED)
    trust.check_stored(run.name, {"": stored})
    said_of = KEPT.format(name=run.name, keys=", ".join(PER_PROCESS))
    head = textwrap.fill(said_of, starting_file.WIDTH, initial_indent="# ", subsequent_indent="# ")
    written = yaml.safe_dump(RunConfig.written(run.config), sort_keys=False, allow_unicode=True)
    return f"{head}\n{written}"


def _text_for(path: Path, run: runs.Run) -> str | None:
    """Content of a file if it matches the stored run, else None."""
    try:
        config = model_revisions.recorded(RunConfig.model_validate(base.content_of(path)), run.config)
        is_same = config.stored() == RunConfig.completed(run.config)
        return path.read_text(encoding="utf-8") if is_same else None
    except (ConfigError, OSError, ValidationError):
        return None


def _of_link(
    purpose: str, parameters: Mapping[str, str], sources: Mapping[str, list[str]]
) -> tuple[dict[str, str], list[str]]:
    """Return the values of a link that fill in the form, and the keys of the others.

    Anybody can craft a link, and one press of a button would run the code or load the folder that it names.
    The run's name, names in the store, numbers, true and false are harmless.
    """
    values = {name: value.strip() for name, value in parameters.items() if name in _keys(purpose)}
    taken = {
        name: value
        for name, value in values.items()
        if name == "name" or value in sources.get(name, ()) or PLAIN.fullmatch(value)
    }
    return taken, [name for name in values if name not in taken]


def _keys(purpose: str) -> list[str]:
    return ["name", "model", *starting_file.settings_of(purpose)]


def _first_values(purpose: str, sources: Mapping[str, list[str]]) -> dict[str, str]:
    """Initial values of an empty form."""
    values = {key: _written(value) for key, value in starting_file.settings_of(purpose).items()}
    values |= {key: names[0] for key, names in sources.items() if key in values and names}
    return {"name": f"my-{purpose}", "model": "", **values}


def _form(purpose: str, shown: Mapping[str, str], sources: Mapping[str, list[str]]) -> None:
    """Show the fields from which the file is written."""
    with element("form", "", "filters meant", aria_label="Settings of the file"), element("fieldset"):
        explained_field("name", NAME, shown["name"])
        explained_field("model", MODEL, shown["model"])
        for key in starting_file.settings_of(purpose):
            if sources.get(key):
                explained_choice(key, _text_of(key), sources[key], shown[key])
            else:
                explained_field(key, _text_of(key), shown[key])


def _values(purpose: str, shown: Mapping[str, str], sources: Mapping[str, list[str]]) -> dict[str, Any]:
    """Parse the form's values for the file. A name from the store is a text, whatever it looks like.

    Raises:
        ConfigError: if a value is not YAML.
    """
    values: dict[str, Any] = {}
    for key in starting_file.settings_of(purpose):
        if shown[key] in sources.get(key, ()):
            values[key] = [shown[key]] if key == "data" else shown[key]
        elif shown[key]:
            values[key] = _read(key, shown[key])
    if shown["model"]:
        values |= {"model.path": shown["model"], "model.scratch": starting_file.Off({})}
    return values


def _read(key: str, text: str) -> Any:
    try:
        return parsed(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{key}: {one_line(error)}") from error


def _written(value: Any) -> str:
    """Format a value as YAML."""
    return yaml.safe_dump(value, default_flow_style=True, width=10**6).removesuffix("...\n").strip()


def _text_of(key: str) -> str:
    """Describe a key and the values that it accepts."""
    meaning = keys.find(RunConfig, key)[0]
    kind = "" if meaning.kind == "section" else f" ({meaning.kind})"
    return f"{meaning.text}{kind}"
