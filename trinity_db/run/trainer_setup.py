"""What the trainer of a run reads from the configuration. Importing this module imports torch."""

from trinity_db.run.configuration import RunConfig
from trinity_db.trainer.checkpoints.recovery import Allowed
from trinity_db.trainer.loop.setup import TrainerSetup

NOTHING = Allowed()


def trainer_setup(config: RunConfig, allowed: Allowed = NOTHING) -> TrainerSetup:
    """Return the trainer's setup. Called before the run is created.

    Raises:
        ConfigError: if a part of the algorithm does not exist or cannot be called this way, or the reference
            does not fit.
    """
    setup = TrainerSetup(
        trainer=config.trainer.model_copy(update={"publish": config.publishes}),
        algorithm=config.algorithm,
        model=config.model,
        seed=config.seed,
        max_staleness=config.max_staleness,
        temperature=config.explorer.temperature,
        checkpoints=config.checkpoints,
        sampler=config.sampler,
        max_uses=config.max_uses,
        min_group_size=config.processors.group.min_size,
        explores=config.is_online,
        allowed=allowed,
    )
    setup.check()
    return setup
