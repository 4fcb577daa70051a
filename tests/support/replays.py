"""What tests of replays share: every draw of a run, run again."""

from tests.support.rows import Scene, reward
from trinity_db.store import batches, replay, rewards


def difference(scene: Scene, batch_id: int) -> str | None:
    """Where the batch and its draw, run again, first differ."""
    with scene.database.transaction(read_only=True) as tx:
        return replay.first_difference(tx, replay.find(tx, batch_id))


def differences(scene: Scene) -> list[str | None]:
    """The same of every batch of a run, reopened ones too."""
    ids = scene.values("SELECT id FROM trinity.batch WHERE run_id = %s ORDER BY id", scene.run.id)
    assert ids
    return [found for found in (difference(scene, batch_id) for batch_id in ids) if found]


def drawn(batch: batches.Batch | None) -> batches.Batch:
    assert batch is not None
    return batch


def correct(scene: Scene, rollout_id: int, value: float, name: str = "score") -> None:
    """A person gives a rollout another reward; imported ones have the name reward."""
    with scene.database.transaction() as tx:
        rewards.record(tx, scene.run.id, "person", [reward(rollout_id, value, name)])


def adopted(scene: Scene, name: str, *data: str, as_groups: bool = False) -> Scene:
    """A run over data sets, with tokens; with `as_groups` it learns from their groups, or those of runs."""
    algorithm = "grpo" if as_groups else "sft"
    run = Scene.open(scene.database, name, data=data, algorithm=algorithm, as_groups=as_groups)
    run.encode()
    return run
