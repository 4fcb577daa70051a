"""A run that was asked the same tasks at two versions, also in evaluations; and what its rows say."""

from dataclasses import dataclass

from tests.support.rows import Scene, rollout
from trinity_db.store import evaluations, processing, runs

PATTERNS = {0: ("0.0", "0.5"), 1: ("1.0", "2.0"), 2: ("0.25", "1.0"), 3: ("1.0", "0.0")}
"""What the attempts at a task earn at version 0, by the number of the task; 1 and more solves it."""
VERSIONS = (0, 1)


def earned(number: int, version: int, member: int) -> str:
    """What an attempt earns: at version 1 task 0 is solved once more, and task 2 always."""
    return "1.5" if version == 1 and number % 4 == 2 else PATTERNS[number % 4][member]


def write(scene: Scene, version: int) -> None:
    """A group for each of the eight tasks, judged and settled; equal rewards are dropped."""
    written = []
    for group in scene.claim(8, version=version):
        number = int(group.task["answer"])
        for member in group.members:
            written.append(rollout(group, member, earned(number, version, member), (version, version)))
    scene.write(written)
    scene.judge(processing.CLEAN)
    scene.judge(processing.SCORE)
    scene.settle(drop_equal_rewards=True)


def evaluate(scene: Scene, version: int) -> int:
    """An evaluation of the first six tasks of eight; the last two still wait. One attempt failed."""
    with scene.database.transaction() as tx:
        settings = evaluations.Settings(runs.find_taskset(tx, "tasks"), 2, temperature=0.5, max_new_tokens=4)
        begun = evaluations.begin(tx, scene.run.id, version, settings)
        assert begun is not None
        claimed = evaluations.claim(tx, scene.explorer, begun, 6)
    written = []
    for number, group in enumerate(claimed):
        for member in group.members:
            error = "no answer" if (number, member) == (5, 1) else None
            said = earned(number, version, member)
            written.append(rollout(group, member, said, (version, version), error))
    scene.write(written)
    scene.judge(processing.SCORE)
    return begun


def fill(scene: Scene) -> None:
    """Two versions, each asked all eight tasks for training and six of them in an evaluation."""
    write(scene, 0)
    evaluate(scene, 0)
    scene.train(step=1, size=2)
    scene.publish(1, step=1)
    write(scene, 1)
    evaluate(scene, 1)


@dataclass(frozen=True)
class Attempt:
    """An attempt, as its rows say."""

    task_id: int
    prompt: str
    version: int
    reward: float


def attempts(scene: Scene, *, evaluated: bool = False) -> list[Attempt]:
    """Every attempt with a reward, from the rows themselves."""
    return [
        Attempt(*row)
        for row in scene.rows(
            """SELECT g.task_id, t.payload ->> 'prompt', e.version_min, e.reward
               FROM trinity.experience e JOIN trinity.rollout_group g ON g.id = e.group_id
               JOIN trinity.task t ON t.id = g.task_id
               WHERE e.run_id = %s AND e.reward IS NOT NULL AND (g.evaluation_id IS NOT NULL) = %s""",
            scene.run.id,
            evaluated,
        )
    ]
