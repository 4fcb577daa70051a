"""From the settings of an algorithm to the algorithm: which composition each recipe is of."""

from trinity_db.trainer.algorithms.interface import Algorithm
from trinity_db.trainer.algorithms.labels import Labels
from trinity_db.trainer.algorithms.mixed import Mixed
from trinity_db.trainer.algorithms.policy_gradient import PolicyGradient
from trinity_db.trainer.algorithms.preference import Preference
from trinity_db.trainer.algorithms.supervised import Supervised
from trinity_db.trainer.config import AlgorithmConfig
from trinity_db.trainer.recipes import LabelsConfig, MixConfig, PolicyGradientConfig, PreferenceConfig


def create(config: AlgorithmConfig) -> Algorithm:
    """The algorithm that these settings belong to.

    Raises:
        ConfigError: a part of the user's own is not there, or cannot be called so.
    """
    if isinstance(config, MixConfig):
        return Mixed(config)
    if isinstance(config, PolicyGradientConfig):
        return PolicyGradient(config)
    if isinstance(config, LabelsConfig):
        return Labels(config)
    return Preference(config) if isinstance(config, PreferenceConfig) else Supervised(config)
