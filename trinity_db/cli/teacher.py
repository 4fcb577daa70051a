"""The teacher of a run's processors: checked against the run's model, and loaded.

Here, above the roles, since processors know nothing of models: they are handed the trainer's way of asking
one.
"""

from typing import Any

from trinity_db.cli.configuration import RunConfig
from trinity_db.config import ModelConfig
from trinity_db.database import Database
from trinity_db.errors import ConfigError
from trinity_db.models import check_source, context_length, load_tokenizer, other_token, source_tokenizer
from trinity_db.processors.teacher import Teacher
from trinity_db.store import policies, runs, scores


def check(config: RunConfig) -> None:
    """Find out what would stop a processor, as far as it can be told before the run is created.

    Raises:
        ConfigError: there is no such model, or it has other tokens than the run's own.
    """
    teacher = config.processors.teacher
    if teacher is None:
        return
    check_source(ModelConfig(path=teacher.path))
    if config.model.run is None:
        _check_tokens(config, source_tokenizer(config.model))


def load(config: RunConfig, database: Database) -> Teacher | None:
    """The teacher, ready to be asked; None where the run has none.

    Raises:
        ConfigError: it has other tokens than the run's model.
    """
    if config.processors.teacher is None:
        return None
    from trinity_db.trainer import checkpoint
    from trinity_db.trainer.frozen import FrozenModel

    folder = config.processors.teacher.path.expanduser().absolute()
    if config.model.run is not None:
        with database.transaction() as tx:
            policy = policies.newest(tx, runs.find(tx, config.model.run).id)
        if policy is not None:
            _check_tokens(config, load_tokenizer(policy.checkpoint))
    model = FrozenModel(folder, config.trainer, temperature=config.explorer.temperature)
    return Teacher(scores.Model("teacher", checkpoint.digest(folder)), context_length(folder), model.scores)


def _check_tokens(config: RunConfig, tokenizer: Any) -> None:
    assert config.processors.teacher is not None
    path = config.processors.teacher.path
    other = load_tokenizer(path.expanduser())
    token = other_token(tokenizer, other)
    if token is not None:
        raise ConfigError(
            f"processors.teacher.path: {path} has other tokens ({len(other)}) than the run's model "
            f"({len(tokenizer)}): '{token}' is not the same in both. Name a teacher with the model's tokens."
        )
