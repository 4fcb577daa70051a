"""Creates the algorithm of a configuration: finds the composition of a recipe."""

from trinity_db.trainer.algorithms.external import External
from trinity_db.trainer.algorithms.interface import Algorithm
from trinity_db.trainer.algorithms.labels import Labels
from trinity_db.trainer.algorithms.mixed import Mixed
from trinity_db.trainer.algorithms.policy_gradient import PolicyGradient
from trinity_db.trainer.algorithms.preference import Preference
from trinity_db.trainer.algorithms.reward_model import RewardModel
from trinity_db.trainer.algorithms.supervised import Supervised
from trinity_db.trainer.config import AlgorithmConfig
from trinity_db.trainer.recipes.recipes import (
    ExternalConfig,
    LabelsConfig,
    MixConfig,
    PolicyGradientConfig,
    PreferenceConfig,
    RewardModelConfig,
)


def create(config: AlgorithmConfig) -> Algorithm:
    """Create the algorithm with these settings.

    Raises:
        ConfigError: if a user's own part does not exist, or has parameters that cannot be filled.
    """
    if isinstance(config, MixConfig):
        return Mixed(config)
    if isinstance(config, PolicyGradientConfig):
        return PolicyGradient(config)
    if isinstance(config, ExternalConfig):
        return External(config)
    if isinstance(config, LabelsConfig):
        return Labels(config)
    if isinstance(config, RewardModelConfig):
        return RewardModel(config)
    return Preference(config) if isinstance(config, PreferenceConfig) else Supervised(config)
