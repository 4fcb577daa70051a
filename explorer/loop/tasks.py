"""The order of tasks, from the configuration."""

from collections.abc import Mapping

from trinity_db.explorer.config import DifficultyConfig, SelectConfig, TasksConfig
from trinity_db.store import user_query
from trinity_db.store.selection import TaskSelection


def selection(config: TasksConfig, weights: Mapping[int, float], seed: int) -> TaskSelection:
    """Return how the store selects tasks of these tasksets.

    Args:
        weights: share of each taskset, by id.

    Raises:
        ConfigError: if the SELECT's file cannot be read.
    """
    match config:
        case DifficultyConfig():
            return TaskSelection(weights, seed, target=config.target)
        case SelectConfig():
            text = user_query.read(config.query, "explorer.tasks.query")
            own = user_query.OwnSelect(text, config.seconds, "explorer.tasks", "explorer.tasks.seconds")
            return TaskSelection(weights, seed, own=own)
        case _:
            return TaskSelection(weights, seed, config.name)


def check(config: TasksConfig) -> None:
    """Check early that the SELECT's file exists.

    Raises:
        ConfigError: naming it, if not.
    """
    selection(config, {}, 0)
