"""Which tasks come next, as the configuration says it."""

from collections.abc import Mapping

from trinity_db.explorer.config import DifficultyConfig, SelectConfig, TasksConfig
from trinity_db.store import own_select
from trinity_db.store.selection import Selection


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
            text = own_select.read(config.query, "explorer.tasks.query")
            own = own_select.OwnSelect(text, config.seconds, "explorer.tasks", "explorer.tasks.seconds")
            return Selection(weights, seed, own=own)
        case _:
            return Selection(weights, seed, config.name)


def check(config: TasksConfig) -> None:
    """Find out early that the file of a SELECT is not there.

    Raises:
        ConfigError: naming it.
    """
    selection(config, {}, 0)
