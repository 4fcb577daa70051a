"""Settings of `trinity-db run` with --ray."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from trinity_db.settings import Settings

LEAST = 0.0001  # of a core, a GPU or another resource
Amount = Annotated[float, Field(gt=0, le=1e6)]


class ResourcesConfig(Settings):
    """What Ray keeps for one role on one machine."""

    cpus: float | None = Field(None, ge=0, le=10_000)
    """Cores. A role that computes has so many threads. None: 1; as many as trainer.ranks for a trainer; 0 for
    processors without a teacher."""
    gpus: float | None = Field(None, ge=0, le=10_000)
    """GPUs, all of one machine; 0.5 leaves half of one to another role. None: none in a cluster without GPUs,
    for the engine endpoint, and for processors without a teacher; else tensor_parallel of the engine vllm,
    trainer.ranks, or 1."""
    resources: dict[str, Amount] = Field(default_factory=dict)
    """What else its machine must have, by the names and amounts of `ray start --resources`, as in
    {spot: 1}."""

    @model_validator(mode="after")
    def ray_can_count_them(self) -> Self:
        if self.gpus is not None and self.gpus > 1 and self.gpus % 1:
            raise ValueError(f"gpus is {self.gpus:g}: take a whole number, or a share below 1")
        amounts = {"cpus": self.cpus, "gpus": self.gpus, **self.resources}
        for name, amount in amounts.items():
            if amount and amount < LEAST:
                raise ValueError(f"{name} is {amount:g}: Ray counts no less than {LEAST:g}")
        for name in self.resources:
            if not name.strip():
                raise ValueError("resources: a name is empty")
            if name in ("CPU", "GPU", "memory", "object_store_memory"):
                raise ValueError(f"resources: {name} is Ray's own; use cpus and gpus")
        return self


class RayConfig(Settings):
    """What the roles of a run ask of a Ray cluster, when `trinity-db run` has --ray."""

    explore: ResourcesConfig = ResourcesConfig()
    """What each explorer asks for (online runs)."""
    process: ResourcesConfig = ResourcesConfig()
    """What the processors ask for."""
    train: ResourcesConfig = ResourcesConfig()
    """What the trainer asks for, with all its ranks."""
    place_seconds: float = Field(120.0, gt=0, le=1e6)
    """How long in seconds a role may wait for a machine that has room. The run then ends with an error if it
    cannot begin without that role. Other roles, as further explorers, wait on, and a warning says so each
    time this long."""
