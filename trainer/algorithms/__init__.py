"""The algorithms: five compositions of named parts, each part a pure function.

A composition (`policy_gradient.py`, `mixed.py`, `preference.py`, `labels.py`, `supervised.py`) sees columns
(`interface.py`), never the model, the optimizer or the database; its parts are found by `parts.py`. Which
parts make a named algorithm stands in `trainer/recipes.py`. To add a part: a function in its kind's
file here, and a class of its options in `trainer/options.py` or beside it.
"""

from trinity_db.trainer.algorithms.interface import Algorithm, Columns, Shares, Totals
from trinity_db.trainer.algorithms.labels import Labels
from trinity_db.trainer.algorithms.mixed import Mixed
from trinity_db.trainer.algorithms.policy_gradient import PolicyGradient
from trinity_db.trainer.algorithms.preference import Preference
from trinity_db.trainer.algorithms.supervised import Supervised
from trinity_db.trainer.config import AlgorithmConfig
from trinity_db.trainer.recipes import LabelsConfig, MixConfig, PolicyGradientConfig, PreferenceConfig

__all__ = ["Algorithm", "Columns", "Shares", "Totals", "create"]


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
