"""What processors make from the rows of a scene, without steps to ask."""

from collections.abc import Sequence

from tests.support.rows import Scene
from trinity_db.data import dataset
from trinity_db.data.records.records import Demonstration, Task
from trinity_db.processors.lists.synthesis_results import Made
from trinity_db.store import finish_groups, processing, synthesis
from trinity_db.store.finish_groups import Rules
from trinity_db.store.synthesis import Origin


def make(
    scene: Scene, records: Sequence[Task | Demonstration], taskset: str = "tasks", data: str = "made"
) -> None:
    """A new group of the run, and what the step `maker` made of it. It ends nothing that waits besides."""
    scene.explore(1)
    scene.judge(processing.CLEAN)
    scene.judge(processing.SCORE)
    with scene.database.transaction() as tx:
        assert finish_groups.settle_groups(tx, scene.run.id, Rules(2, are_sources=True), 1000) == 1
        [source] = synthesis.take(tx, scene.run.id, scene.processor, ("task",), 1, 30.0)
        dataset.prepare(tx, sorted({taskset, data}))
        origins = []
        for record in records:
            made = Made("maker", record, {"model": "big"})
            id = dataset.add(tx, taskset if made.is_task else data, record)
            assert id is not None, f"{record} is there already"
            of = {"task_id": id} if made.is_task else {"experience_id": id}
            origins.append(Origin(source, made.step, made.digest, made.detail, **of))
        synthesis.write_origins(tx, scene.run.id, origins)
        synthesis.finish(tx, 1, [(source, {"duplicate": 1})])
