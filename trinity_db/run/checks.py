"""Checks a configuration for errors that would stop the roles of its run right after their start."""

from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from trinity_db.config import base
from trinity_db.errors import ConfigError, TrinityError
from trinity_db.explorer.engines.settings import TransformersConfig
from trinity_db.run import model_revisions
from trinity_db.run.configuration import RunConfig
from trinity_db.trainer.recipes.recipes import compares_with_greedy, has_own_parts


def mistakes(path: Path, overrides: Sequence[str]) -> list[str]:
    """Return a line for each wrong key; without any, the first error that `run` would find beyond the keys.

    Raises:
        ConfigError: if the file cannot be read, or an override is malformed.
    """
    content = base.overridden(RunConfig, base.content_of(path), overrides)
    try:
        config = RunConfig.model_validate(content)
    except (ValidationError, UnicodeEncodeError) as error:
        return base.mistakes(RunConfig, error)
    try:
        check_fits(model_revisions.pinned(config))
    except TrinityError as error:
        return [str(error)]
    return []


def check_fits(config: RunConfig) -> None:
    """Check for errors that would stop a run's roles right after their start, without using the store.

    Raises:
        TrinityError: if the model, the workflow, a processing step or a part of the algorithm does not exist
            or does not fit, or an extra is missing.
    """
    from trinity_db.explorer.attempt.workflow import of
    from trinity_db.explorer.loop import tasks
    from trinity_db.models import check_source
    from trinity_db.processors.lists import lists
    from trinity_db.trainer.loop.sampling import sampler_of

    check_source(config.model, is_decoded(config), config.explorer.record_routing)
    check_weights(config)
    if not (config.explorer.is_served or config.explorer.is_external):
        of(config.explorer)
    config.explorer.engine.check()
    tasks.check(config.explorer.tasks)
    sampler_of(config.sampler)
    check_members(config)
    lists.check(config.processors, config.model)
    if _may_not_fit(config):
        from trinity_db.run.trainer_setup import trainer_setup

        trainer_setup(config)


def is_decoded(config: RunConfig) -> bool:
    """Whether the engine `transformers` samples from the model."""
    explorer = config.explorer
    return config.is_online and not explorer.is_external and isinstance(explorer.engine, TransformersConfig)


def check_members(config: RunConfig) -> None:
    """Check that each group has the members that its algorithm compares.

    Raises:
        ConfigError: if the algorithm uses the greedy member, and groups may lack it.
    """
    explorer = config.explorer
    if not (explorer.spare or explorer.is_external) or not compares_with_greedy(config.algorithm):
        return
    needs = f"algorithm {config.algorithm.name} compares with the greedy rollout of each group, which"
    if explorer.is_external:
        raise ConfigError(f"explorer.workflow: external: {needs} no program is asked for; take another one.")
    raise ConfigError(f"explorer.spare: {needs} may not be among the first; leave out spare.")


def check_weights(config: RunConfig) -> None:
    """Refuse an object store that this machine cannot write to.

    Raises:
        TrinityError: names the cause.
    """
    if config.trainer.weights is not None:
        from trinity_db.trainer.checkpoints import uploads

        uploads.check(config.trainer.weights)


def _may_not_fit(config: RunConfig) -> bool:
    """Whether only composing the algorithm, which loads torch for seconds, can tell if it fits."""
    return config.trainer.reference.name != "start" or has_own_parts(config.algorithm)
