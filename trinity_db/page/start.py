"""Start a run: what for, from which model and tasks, the main keys; below, the file with these settings.

For an existing run it shows the file alone. A person changes the file, and the run continues with it.
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

from trinity_db import keys, model_revisions, settings, starting, trust
from trinity_db.configuration import PER_PROCESS, RunConfig
from trinity_db.errors import ConfigError, TrinityError
from trinity_db.page import layout, questions
from trinity_db.page.drafting import Drafting
from trinity_db.page.elements import said
from trinity_db.page.forms import explained_choice, explained_field
from trinity_db.page.manager import REFUSED, Manager
from trinity_db.page.reader import Reader
from trinity_db.page.rights import Right, may
from trinity_db.store import runs
from trinity_db.yaml_text import one_line, parsed

PURPOSES = {"grpo": "tasks and a reward", "dpo": "pairs", "agent": "a workflow of your own"}
NAME = "Name of the run: letters, digits, '.', '_' and '-'."
MODEL = (
    "Folder of a causal language model in Hugging Face format, on this machine. Empty: a small model with "
    "random weights, to try things out."
)
NOT_TAKEN = (
    "The link also has values for {keys}. A link may come from a stranger, so values that can name code or "
    "files are not taken from it: type them here if you want them."
)
KEPT = (
    "Run '{name}' as the store keeps it. Keys that are not here have their defaults. The store does not keep "
    "the keys that each process has for itself, and no file here describes this run. Write what they were: "
    "{keys}."
)
PLAIN = re.compile(r"-?[0-9.]{1,20}(e-?[0-9]{1,3})?|true|false")


def register(reader: Reader, manager: Manager | None) -> None:
    """Add the page."""

    @ui.page("/start", response_timeout=layout.RESPONSE_SECONDS)
    async def start_page(run: str = "") -> None:
        with layout.frame(f"Go on with {run}" if run else "Start a run"):
            if manager is None or not may(Right.MANAGE):
                said("p", REFUSED, "notice", role="alert")
                return
            if run:
                read = partial(questions.kept, name=layout.text(run))
                await layout.once(reader, read, partial(_build_existing, manager)).look()
                return
            given = {
                name: layout.text(value) for name, value in ui.context.client.request.query_params.items()
            }
            look = layout.once(reader, questions.sources, partial(_build, manager, given))
            await look.look()


def _build(manager: Manager, given: Mapping[str, str], found: Mapping[str, list[str]]) -> None:
    purpose = given.get("for", "grpo")
    if purpose not in PURPOSES:
        said("p", f"A run is for one of {', '.join(PURPOSES)}.", "notice", role="alert")
        return
    with said("p", "", "explained"):
        for one, words in PURPOSES.items():
            link = said("a", f"{one}: {words}", href=layout.place("start", **{"for": one}))
            link.style("margin-right: 0.9rem")
            if one == purpose:
                link.props["aria-current"] = "page"
    said("p", textwrap.dedent(f"        {starting.CONTENTS[purpose][0]}"), "empty")
    taken, left_out = _of_link(purpose, given, found)
    if left_out:
        said("p", NOT_TAKEN.format(keys=", ".join(left_out)), "notice", role="alert")
    shown = _first_values(purpose, found) | taken
    _form(purpose, shown, found)

    def write(fields: Mapping[str, str]) -> str:
        values = shown | {name: value.strip() for name, value in fields.items()}
        return starting.text(purpose, values["name"], _values(purpose, values, found))

    try:
        text = write({})
    except TrinityError:
        text = ""  # what is wrong is told where the file would be, as soon as the page works
    Drafting(manager, text, False, "form.meant", write)


def _build_existing(manager: Manager, run: runs.Run) -> None:
    try:
        text = _file_of(run, manager.files_of(run.name))
    except TrinityError as error:
        said("p", str(error), "notice", role="alert")
        return
    Drafting(manager, text, change=True)


def _file_of(run: runs.Run, files: Sequence[Path]) -> str:
    """The first file that describes the run as it is stored, or else what the store keeps of it.

    Raises:
        ConfigError: this version cannot read the stored configuration, or it names code or files.
    """
    if (text := next(filter(None, (_text_for(path, run) for path in files)), None)) is not None:
        return text
    stored = settings.validate(RunConfig, run.config, "The stored configuration", context="stored")
    trust.check_stored(run.name, {"": stored})
    said_of = KEPT.format(name=run.name, keys=", ".join(PER_PROCESS))
    head = textwrap.fill(said_of, starting.WIDTH, initial_indent="# ", subsequent_indent="# ")
    written = yaml.safe_dump(RunConfig.written(run.config), sort_keys=False, allow_unicode=True)
    return f"{head}\n{written}"


def _text_for(path: Path, run: runs.Run) -> str | None:
    """The content of the file if it describes the run as it is stored, else None."""
    try:
        config = model_revisions.recorded(RunConfig.model_validate(settings.content_of(path)), run.config)
        is_same = config.stored() == RunConfig.completed(run.config)
        return path.read_text(encoding="utf-8") if is_same else None
    except (ConfigError, OSError, ValidationError):
        return None


def _of_link(
    purpose: str, given: Mapping[str, str], found: Mapping[str, list[str]]
) -> tuple[dict[str, str], list[str]]:
    """The values of a link that fill in the form, and the keys of the others.

    Anybody can make a link, and one press would run the code or load the folder that it names. A name for the
    run, names that the store has, numbers, true and false cannot do this.
    """
    values = {name: value.strip() for name, value in given.items() if name in _keys(purpose)}
    taken = {
        name: value
        for name, value in values.items()
        if name == "name" or value in found.get(name, ()) or PLAIN.fullmatch(value)
    }
    return taken, [name for name in values if name not in taken]


def _keys(purpose: str) -> list[str]:
    return ["name", "model", *starting.asked(purpose)]


def _first_values(purpose: str, found: Mapping[str, list[str]]) -> dict[str, str]:
    """What stands in the fields of a form that no one has filled in."""
    values = {key: _written(value) for key, value in starting.asked(purpose).items()}
    values |= {key: names[0] for key, names in found.items() if key in values and names}
    return {"name": f"my-{purpose}", "model": "", **values}


def _form(purpose: str, shown: Mapping[str, str], found: Mapping[str, list[str]]) -> None:
    """The fields that write the file."""
    with said("form", "", "filters meant", aria_label="What the file says"), said("fieldset"):
        explained_field("name", NAME, shown["name"])
        explained_field("model", MODEL, shown["model"])
        for key in starting.asked(purpose):
            if found.get(key):
                explained_choice(key, _text_of(key), found[key], shown[key])
            else:
                explained_field(key, _text_of(key), shown[key])


def _values(purpose: str, shown: Mapping[str, str], found: Mapping[str, list[str]]) -> dict[str, Any]:
    """The values of the form, as the file has them. A name of the store is a text, whatever it looks like.

    Raises:
        ConfigError: a value is no YAML.
    """
    values: dict[str, Any] = {}
    for key in starting.asked(purpose):
        if shown[key] in found.get(key, ()):
            values[key] = [shown[key]] if key == "data" else shown[key]
        elif shown[key]:
            values[key] = _read(key, shown[key])
    if shown["model"]:
        values |= {"model.path": shown["model"], "model.scratch": starting.Off({})}
    return values


def _read(key: str, text: str) -> Any:
    try:
        return parsed(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{key}: {one_line(error)}") from error


def _written(value: Any) -> str:
    """A value as it stands in a file."""
    return yaml.safe_dump(value, default_flow_style=True, width=10**6).removesuffix("...\n").strip()


def _text_of(key: str) -> str:
    """What a key means, and which values it takes."""
    meaning = keys.find(RunConfig, key)[0]
    kind = "" if meaning.kind == "section" else f" ({meaning.kind})"
    return f"{meaning.text}{kind}"
