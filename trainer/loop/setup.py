"""The settings of a run that its trainer reads, and derived settings."""

import math
from dataclasses import dataclass, field
from pathlib import Path

from trinity_db.config.shared import ModelConfig
from trinity_db.errors import ConfigError
from trinity_db.trainer.algorithms.compositions import create
from trinity_db.trainer.checkpoints import recovery
from trinity_db.trainer.config import AlgorithmConfig, FifoConfig, MixedConfig, SamplerConfig, TrainerConfig
from trinity_db.trainer.learner import optimizer
from trinity_db.trainer.recipes.recipes import MixConfig


@dataclass(frozen=True, kw_only=True)
class TrainerSetup:
    """The settings of a run that its trainer reads."""

    trainer: TrainerConfig
    algorithm: AlgorithmConfig
    model: ModelConfig
    seed: int
    max_staleness: int | None
    temperature: float
    checkpoints: Path
    sampler: SamplerConfig = field(default_factory=FifoConfig)
    max_uses: int = 1
    min_group_size: int = 2
    """Attempts that an adopted group needs, not counting those dropped because the model cannot process
    them."""
    explores: bool = True
    """Whether rollout groups are live ones. Otherwise they were adopted."""
    allowed: recovery.Allowed = field(default_factory=recovery.Allowed)

    @property
    def is_online(self) -> bool:
        """Whether the run learns from live rollout groups. An offline run learns from adopted rows."""
        return self.algorithm.draws == "groups" and self.explores

    @property
    def expert_rows(self) -> int:
        """Number of adopted rows in each step, in addition to the live rollout groups."""
        return self.algorithm.expert_rows if isinstance(self.algorithm, MixConfig) else 0

    @property
    def expert_shares(self) -> dict[str, float]:
        """Share of the expert rows by data set. Empty: common passes over all data sets."""
        return self.sampler.experts if isinstance(self.sampler, MixedConfig) else {}

    def check(self) -> None:
        """Find mistakes in the settings early, without a database.

        Raises:
            ConfigError: if a part of the algorithm does not exist or has wrong parameters, or the algorithm
                cannot use the configured reference.
        """
        optimizer.check(self.trainer.optimizer)
        needs = create(self.algorithm).needs
        if self.trainer.value_learning_rate is not None and "values" not in needs:
            raise ConfigError(
                f"trainer.value_learning_rate: algorithm {self.algorithm.name} with these parts has no "
                "value head; remove it."
            )
        if "mismatched" in needs and self.trainer.reference.name == "precomputed":
            raise ConfigError(
                f"trainer.reference: {needs['mismatched']} also scores each prompt with the response to "
                "another prompt of the batch, and batches are not known in advance; remove precomputed."
            )
        if "reference" not in needs and self.trainer.reference.name != "start":
            raise ConfigError(
                f"trainer.reference: algorithm {self.algorithm.name} with these parts compares the policy "
                "with nothing; remove it."
            )

    @property
    def needs_first_model(self) -> bool:
        """Whether the learner loads the starting model, as a reference or as the base of an adapter."""
        has_reference = "reference" in create(self.algorithm).needs
        loads_reference = has_reference and self.trainer.reference.name != "precomputed"
        return loads_reference or self.trainer.lora is not None

    @property
    def uses_of_row(self) -> int:
        """Number of committed batches after which a row or group is used up."""
        return self.max_uses if self.is_online else math.ceil(self.trainer.epochs)

    @property
    def publish_every(self) -> int:
        """Steps between published versions."""
        return self.trainer.publish_every or (1 if self.is_online else 100)
