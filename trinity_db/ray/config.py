"""Settings of `trinity-db run` with --ray."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from trinity_db.config.base import Settings

LEAST = 0.0001  # smallest share of a core, GPU or other resource
Amount = Annotated[float, Field(gt=0, le=1e6)]


class ResourcesConfig(Settings):
    """Resources that Ray reserves for one role on one node."""

    cpus: float | None = Field(None, ge=0, le=10_000)
    """Cores, and the number of threads of a role that computes. None: 1; trainer.ranks for a trainer; 0 for
    processors without a teacher."""
    gpus: float | None = Field(None, ge=0, le=10_000)
    """GPUs, all on one node; 0.5 leaves half of one to another role. None: none in a cluster without GPUs,
    for the engine endpoint, and for processors without a teacher; otherwise tensor_parallel of the engine
    vllm, trainer.ranks, or 1."""
    resources: dict[str, Amount] = Field(default_factory=dict)
    """Other resources that its node must have, by the names and amounts of `ray start --resources`, such as
    {spot: 1}."""

    @model_validator(mode="after")
    def ray_can_count_them(self) -> Self:
        if self.gpus is not None and self.gpus > 1 and self.gpus % 1:
            raise ValueError(f"gpus is {self.gpus:g}: use an integer, or a share below 1")
        amounts = {"cpus": self.cpus, "gpus": self.gpus, **self.resources}
        for name, amount in amounts.items():
            if amount and amount < LEAST:
                raise ValueError(f"{name} is {amount:g}: the minimum is {LEAST:g}")
        for name in self.resources:
            if not name.strip():
                raise ValueError("resources: a name is empty")
            if name in ("CPU", "GPU", "memory", "object_store_memory"):
                raise ValueError(f"resources: {name} is reserved by Ray; use cpus and gpus")
        return self


class RayConfig(Settings):
    """Resources of a run's roles in a Ray cluster, for `trinity-db run` with --ray."""

    explore: ResourcesConfig = ResourcesConfig()
    """Resources of each explorer (online runs)."""
    process: ResourcesConfig = ResourcesConfig()
    """Resources of the processors."""
    train: ResourcesConfig = ResourcesConfig()
    """Resources of the trainer, including all its ranks."""
    place_seconds: float = Field(120.0, gt=0, le=1e6)
    """How many seconds a role may wait for a node with room. After that, the run ends with an error if it
    cannot start without the role. Other roles, such as additional explorers, keep waiting, with a warning at
    this interval."""
