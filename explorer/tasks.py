"""Which tasks come next, as the configuration says it."""

from collections.abc import Mapping
from pathlib import Path

from trinity_db.errors import ConfigError
from trinity_db.explorer.config import DifficultyConfig, SelectConfig, TasksConfig
from trinity_db.store.selection import OwnSelect, Selection


def selection(config: TasksConfig, weights: Mapping[int, float], seed: int) -> Selection:
    """How the store chooses among the tasks of these tasksets.

    Args:
        weights: the ids of the tasksets, and the share of each.

    Raises:
        ConfigError: the file of the SELECT cannot be read.
    """
    match config:
        case DifficultyConfig():
            return Selection(weights, seed, target=config.target)
        case SelectConfig():
            return Selection(weights, seed, own=OwnSelect(_statement(config.query), config.seconds))
        case _:
            return Selection(weights, seed, config.name)


def check(config: TasksConfig) -> None:
    """Find out early that the file of a SELECT is not there.

    Raises:
        ConfigError: naming it.
    """
    selection(config, {}, 0)


def _statement(query: str) -> str:
    if not query.endswith(".sql"):
        return query
    try:
        return Path(query).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"explorer.tasks.query: there is no file {query}.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"explorer.tasks.query: {query} cannot be read: {error}") from error
