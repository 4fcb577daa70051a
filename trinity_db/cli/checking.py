"""Finds what is wrong with a configuration before a run uses it."""

from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from trinity_db import model_revisions, settings
from trinity_db.cli import first_task, launch
from trinity_db.cli.first_task import FirstTask
from trinity_db.configuration import RunConfig
from trinity_db.errors import TrinityError
from trinity_db.models import hub


def mistakes(path: Path, overrides: Sequence[str]) -> list[str]:
    """One line for each mistake in the keys; without any, the first of what `run` finds beyond them.

    Raises:
        ConfigError: the file cannot be read, or an override is none.
    """
    content = settings.overridden(RunConfig, settings.content_of(path), overrides)
    try:
        config = RunConfig.model_validate(content)
    except (ValidationError, UnicodeEncodeError) as error:
        return settings.mistakes(RunConfig, error)
    try:
        launch.check_fits(model_revisions.pinned(config))
    except TrinityError as error:
        return [str(error)]
    return []


def sample_question(path: Path, overrides: Sequence[str]) -> tuple[list[str], str | None]:
    """Lines with a question as the model of a configuration reads it, and a warning; no store is opened.

    Raises:
        ConfigError: the file cannot be read, or a key is wrong.
    """
    model = model_revisions.pinned(launch.read(path, overrides)).model
    if model.run is not None:
        return [
            "sample question is not shown: the tokenizer belongs to another run, and no store is opened."
        ], None
    folder = None if model.path is None else hub.folder(model.path, model.revision, with_weights=False)
    question = FirstTask("sample question", {"prompt": "What is 7 plus 5?"}, model, folder)
    return first_task.lines_and_warning(question)
