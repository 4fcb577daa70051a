"""Finds what is wrong with a configuration before a run uses it."""

from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from trinity_db import settings
from trinity_db.cli import launch
from trinity_db.configuration import RunConfig
from trinity_db.errors import TrinityError


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
        launch.check_fits(config)
    except TrinityError as error:
        return [str(error)]
    return []
