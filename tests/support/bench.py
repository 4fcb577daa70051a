"""Trainers in this process over a few imported rows, for tests of how a trainer starts and ends."""

from pathlib import Path
from typing import Any, Literal

from tests.support.recipes import recipe
from tests.support.rows import Scene, import_records, trajectory
from trinity_db.config.shared import ModelConfig, ScratchConfig
from trinity_db.schema.states import WorkerRole
from trinity_db.store import adoption, batches, runs, workers
from trinity_db.trainer.checkpoints.recovery import Allowed
from trinity_db.trainer.config import AlgorithmConfig, LoraConfig, TrainerConfig
from trinity_db.trainer.loop.setup import TrainerSetup
from trinity_db.trainer.service import Trainer

TINY = ModelConfig(scratch=ScratchConfig(hidden_size=8, layers=1, heads=1, context=64))


def settings(
    micro_batch_size: int = 2,
    lora: LoraConfig | None = None,
    publish_every: int = 2,
    keep: int = 3,
    checkpoint_every: Literal["auto"] | int = 1,
    sharding: Literal["none", "full"] = "none",
    publish: Literal["adapter", "merged"] | None = None,
    weights: str | None = None,
) -> TrainerConfig:
    return TrainerConfig(
        epochs=2,
        batch_size=2,
        micro_batch_size=micro_batch_size,
        publish_every=publish_every,
        keep_checkpoints=keep,
        checkpoint_every=checkpoint_every,
        sharding=sharding,
        lora=lora,
        publish=publish,
        weights=weights,
    )


NOTHING = Allowed()


def setup_of(
    trainer: TrainerConfig,
    algorithm: AlgorithmConfig,
    checkpoints: Path,
    *,
    model: ModelConfig = TINY,
    seed: int = 0,
    allowed: Allowed = NOTHING,
) -> TrainerSetup:
    """What a trainer of a tiny model is made with; rows of any age are good enough."""
    return TrainerSetup(
        trainer=trainer,
        algorithm=algorithm,
        model=model,
        seed=seed,
        max_staleness=None,
        temperature=1.0,
        checkpoints=checkpoints,
        allowed=allowed,
    )


class Bench:
    """Trainers of one run over eight rows, two a step, one after the other; not started yet."""

    def __init__(self, scene: Scene, checkpoints: Path) -> None:
        self._scene = scene
        self.checkpoints = checkpoints
        self.weights: str | None = None
        """The object store of the next trainers."""
        import_records(scene.database, "set", [trajectory(number, "a response", 1.0) for number in range(8)])
        self.run = self.open("imitation")

    def open(self, name: str, holdout: float = 0.0) -> runs.Run:
        with self._scene.database.transaction() as tx:
            return runs.open_run(tx, name, {}, "rows", adoption.Sources(["set"], holdout))

    def trainer(
        self,
        micro_batch_size: int = 2,
        model: ModelConfig = TINY,
        lora: LoraConfig | None = None,
        publish_every: int = 2,
        loss: str = "nll",
        allowed: Allowed = NOTHING,
        keep: int = 3,
        checkpoint_every: Literal["auto"] | int = 1,
        sharding: Literal["none", "full"] = "none",
        publish: Literal["adapter", "merged"] | None = None,
    ) -> Trainer:
        setup = setup_of(
            settings(
                micro_batch_size,
                lora,
                publish_every,
                keep,
                checkpoint_every,
                sharding,
                publish,
                self.weights,
            ),
            recipe("sft", loss=loss),
            self.checkpoints,
            model=model,
            allowed=allowed,
        )
        trainer = Trainer(self._scene.database, self.run, setup)
        with self._scene.database.transaction() as tx:
            trainer.worker_id = workers.register(tx, self.run, WorkerRole.TRAIN)
        return trainer

    def take_over(self) -> None:
        """What another trainer does to the run when it starts."""
        with self._scene.database.transaction() as tx:
            worker = workers.register(tx, self.run, WorkerRole.TRAIN)
            workers.replace_others(tx, worker)
            batches.reopen(tx, self.run.id, worker, 0)

    def replace(self, trainer: Trainer) -> None:
        with self._scene.database.transaction() as tx:
            workers.stop(tx, trainer.worker_id)

    def forget_tokens(self) -> None:
        with self._scene.database.transaction() as tx:
            tx.execute("UPDATE trinity.experience SET prompt_length = NULL WHERE run_id = %s", [self.run.id])

    def execute(self, statement: str, *values: Any) -> None:
        with self._scene.database.transaction() as tx:
            tx.execute(statement, values)

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        """What a statement finds of the run."""
        return self._scene.rows(statement, self.run.id)

    def folders(self) -> list[str]:
        """Those of versions."""
        return sorted(path.name for path in self.checkpoints.glob("version-*"))

    def saved(self) -> list[str]:
        """The folders of checkpoints."""
        return sorted(path.name for path in self.checkpoints.glob("checkpoint-*"))
