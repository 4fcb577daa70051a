"""What other models say of rows: written with their verdicts or before the first step, read with a batch."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support import steps as steps_of
from tests.support.explorers import ANY_FOLDER
from tests.support.recipes import recipe
from tests.support.rows import Scene, finish_rows, import_records, preference, rollout
from trinity_db.arrays.codec import Payload
from trinity_db.config.shared import ModelConfig, PromptConfig, ScratchConfig
from trinity_db.errors import ConfigError, LeaseLost, NotFound
from trinity_db.explorer.attempt import workflow
from trinity_db.explorer.config import ExplorerConfig
from trinity_db.explorer.engines.transformers_engine import TransformersEngine
from trinity_db.explorer.service import Explorer, ExplorerSetup
from trinity_db.models import build_scratch
from trinity_db.models.frozen_model import FrozenModel
from trinity_db.processors.lists import lists
from trinity_db.processors.lists.step import Step
from trinity_db.processors.service import Processors
from trinity_db.processors.steps.teacher import Ask, Teacher
from trinity_db.schema.states import WorkerRole
from trinity_db.store import adoption, payloads, processing, runs, scores, workers
from trinity_db.store.groups import Pace
from trinity_db.trainer.config import TrainerConfig
from trinity_db.trainer.learner.starting_scores import StartingScores
from trinity_db.trainer.loop.setup import TrainerSetup
from trinity_db.trainer.rows import precompute
from trinity_db.trainer.service import Trainer

TINY = ScratchConfig(hidden_size=8, layers=1, heads=1, context=64)
MODEL = scores.Model("teacher", "its digest")
SCORED = "SELECT experience_id FROM trinity.score WHERE name = %s ORDER BY experience_id"
STATES = "SELECT state::text, count(*) FROM trinity.experience GROUP BY state ORDER BY state"
DROPS = 'SELECT stage, reason, detail FROM trinity."drop" WHERE experience_id IS NOT NULL ORDER BY id'
METRIC = "SELECT value FROM trinity.metric WHERE run_id = %s AND name = %s ORDER BY step"


def constant(asked: Sequence[Payload]) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """A teacher that finds each token as likely as its number, negative; the last row first."""
    for place in reversed(range(len(asked))):
        yield place, -asked[place].token_ids[asked[place].action_mask].astype(np.float32)


class Asked(Teacher):
    """A teacher whose answers a function gives."""

    def __init__(self, model: scores.Model, context: int, ask: Ask) -> None:
        self.model, self.context, self.ask = model, context, ask


def steps(teacher: Teacher, *others: str) -> lists.Steps:
    """A list of score with a teacher."""
    asked = Step("teacher", Teacher, ("id", "payload"), {}, call=teacher)
    return {"score": [*steps_of.load("score", *others), asked]}


def process(scene: Scene, teacher: Teacher, *others: str, **config: Any) -> None:
    steps_of.process(scene, config, steps(teacher, *others))


def read(scene: Scene, name: scores.Name, ids: Sequence[int]) -> list[list[float]]:
    found = payloads.read(scene.database, ids)
    with scene.database.transaction() as tx:
        return [one.tolist() for one in scores.read(tx, name, [(one, found[one]) for one in ids])]


def test_a_row_is_ready_with_what_its_teacher_says(scene: Scene) -> None:
    scene.explore(2)
    process(scene, Asked(MODEL, 100, constant), "exact_match")
    assert scene.rows(STATES) == [("ready", 4)]
    ids = scene.values(SCORED, "teacher")
    assert ids == scene.values("SELECT id FROM trinity.experience ORDER BY id")
    assert read(scene, "teacher", ids) == [[-3.0, -4.0]] * 4
    assert scene.values("SELECT DISTINCT digest FROM trinity.score") == ["its digest"]


def test_rows_without_rewards_are_ready_where_rewards_are_not_read(scene: Scene) -> None:
    scene.explore(2)
    process(scene, Asked(MODEL, 100, constant))
    assert scene.rows(STATES) == [("ready", 4)]
    assert scene.values("SELECT reward FROM trinity.experience") == [None] * 4
    assert scene.rows("SELECT scored, solved FROM trinity.task_stat ORDER BY task_id") == [(0, 0)] * 2


def test_a_row_that_the_teacher_cannot_take_is_dropped_with_the_reason(scene: Scene) -> None:
    [group] = scene.claim(1, group_size=3)
    lengths = (2, 3, 2)
    scene.write([rollout(group, member, versions=(0,) * n) for member, n in enumerate(lengths)])

    def unsure(asked: Sequence[Payload]) -> Iterator[tuple[int, NDArray[np.float32]]]:
        for place, said in constant(asked):
            yield place, said if place else np.full_like(said, -np.inf)

    process(scene, Asked(MODEL, 5, unsure), max_attempts=1, group={"min_size": 1})
    assert sorted(scene.rows(DROPS)) == [
        ("score", "score_failed", {"error": "the teacher gave a log-probability that is not finite"}),
        ("score", "too_long_for_teacher", {"tokens": 6, "context": 5}),
    ]
    assert scene.rows(STATES) == [("dropped", 2), ("ready", 1)]
    assert len(scene.values(SCORED, "teacher")) == 1


def test_what_the_teacher_was_not_asked_before_a_stop_is_asked_later(scene: Scene) -> None:
    scene.explore(2)
    role: Processors

    def interrupted(asked: Sequence[Payload]) -> Iterator[tuple[int, NDArray[np.float32]]]:
        for answer in constant(asked):
            role.stop()
            yield answer

    role = steps_of.processors(scene, {}, steps=steps(Asked(MODEL, 100, interrupted)))
    role.work()
    assert len(scene.values(SCORED, "teacher")) == 1
    assert scene.rows(STATES) == [("clean", 3), ("scored", 1)]
    scene.lose(scene.processor)
    process(replace(scene, processor=scene.new_worker(WorkerRole.PROCESS)), Asked(MODEL, 100, constant))
    assert len(scene.values(SCORED, "teacher")) == 4
    assert scene.rows(STATES) == [("ready", 4)]


def test_what_comes_too_late_is_not_stored(scene: Scene) -> None:
    scene.explore(1)
    scene.judge(processing.CLEAN)
    with scene.database.transaction() as tx:
        claimed = processing.claim(tx, processing.SCORE, scene.run.id, scene.processor, 10)
    found = payloads.read(scene.database, [row["id"] for row in claimed])
    scene.lose(scene.processor)
    said = {id: [scores.scored(id, MODEL, one, np.zeros(2))] for id, one in found.items()}
    late = [
        processing.StepVerdict(row["id"], row["attempt"], model_scores=said[row["id"]]) for row in claimed
    ]
    assert finish_rows(scene, late, processing.SCORE) == set()
    assert scene.values(SCORED, "teacher") == []


def test_scores_of_the_wrong_length_are_refused(scene: Scene) -> None:
    scene.make_ready(1)
    [first, _] = scene.values("SELECT id FROM trinity.experience ORDER BY id")
    payload = payloads.read(scene.database, [first])[first]
    with pytest.raises(ValueError, match="do not fit 2 predicted tokens"):
        scores.scored(first, MODEL, payload, np.zeros(3))
    with scene.database.transaction() as tx:
        tx.execute(
            "INSERT INTO trinity.score (experience_id, name, digest, data) VALUES (%s, 'teacher', '', %s)",
            [first, bytes(12)],
        )
    with pytest.raises(ValueError, match="12 bytes, expected 8"):
        read(scene, "teacher", [first])


def test_a_row_without_a_score_is_named(scene: Scene) -> None:
    scene.make_ready(1)
    [first, _] = scene.values("SELECT id FROM trinity.experience ORDER BY id")
    with pytest.raises(NotFound, match=f"Experience {first} has no score from the teacher: name one under"):
        read(scene, "teacher", [first])


def test_another_model_of_the_same_name_takes_the_place_of_the_first(scene: Scene) -> None:
    scene.make_ready(1)
    [first, _] = scene.values("SELECT id FROM trinity.experience ORDER BY id")
    payload = payloads.read(scene.database, [first])[first]
    with scene.database.transaction() as tx:
        for number, digest in enumerate(("one", "two")):
            model = scores.Model("teacher", digest)
            scores.write(tx, [scores.scored(first, model, payload, np.full(2, number, np.float32))])
    assert read(scene, "teacher", [first]) == [[1.0, 1.0]]
    assert scene.values("SELECT digest FROM trinity.score") == ["two"]


class Distillation:
    """A run whose roles are all here: explorer, processors with a teacher of other weights, trainer."""

    def __init__(self, scene: Scene, folder: Path) -> None:
        self.scene = scene.beside("distillation")
        build_scratch(TINY, 7, folder / "teacher")
        self._folder = folder
        self.config = TrainerConfig(steps=3, batch_size=2, learning_rate=0.01)
        self.teacher = FrozenModel(folder / "teacher", self.config, temperature=0.8, device="cpu")

    def explorer(self) -> Explorer:
        config = ExplorerConfig(group_size=1, concurrency=2, max_new_tokens=6, temperature=0.8)
        scene = self.scene
        setup = ExplorerSetup(
            config=config,
            workflow=workflow.single_turn,
            engine=TransformersEngine("cpu"),
            pace=Pace(max_staleness=0, per_version=2),
            selection=scene.selection,
            prompts=PromptConfig(prompt_template="{prompt}"),
            places=ANY_FOLDER,
        )
        role = Explorer(scene.database, scene.run, setup)
        role.worker_id = scene.explorer
        return role

    def trainer(self) -> Trainer:
        setup = TrainerSetup(
            trainer=self.config,
            algorithm=recipe("on_policy_distillation"),
            model=ModelConfig(scratch=TINY),
            seed=0,
            max_staleness=None,
            temperature=0.8,
            checkpoints=self._folder / "checkpoints",
        )
        trainer = Trainer(self.scene.database, self.scene.run, setup)
        trainer.worker_id = self.scene.trainer
        trainer.start()
        return trainer


def test_a_run_learns_from_its_teacher_alone(scene: Scene, tmp_path: Path) -> None:
    run = Distillation(scene, tmp_path)
    trainer, explorer = run.trainer(), run.explorer()
    config = {"group": {"min_size": 1}}
    for _ in range(3):
        assert explorer.work()
        process(run.scene, Asked(scores.Model("teacher", "seven"), 64, run.teacher.scores), **config)
        assert trainer.work()
        trainer.release()  # publishes, so that the explorer may go on
    explorer.release()
    assert len(run.scene.values(SCORED, "teacher")) == 6
    distances = run.scene.values(METRIC, run.scene.run.id, "teacher_kl")
    norms = run.scene.values(METRIC, run.scene.run.id, "grad_norm")
    assert len(distances) == len(norms) == 3
    assert all(np.isfinite(distances))
    assert all(norm > 0 for norm in norms)
    # The first step's rows are the policy's own: its loss is its distance from the teacher.
    assert distances[0] == pytest.approx(run.scene.values(METRIC, run.scene.run.id, "loss")[0], abs=1e-4)
    ids = run.scene.values(SCORED, "teacher")
    found = payloads.read(run.scene.database, ids)
    expected = dict(run.teacher.scores([found[one] for one in ids]))
    for place, said in enumerate(read(run.scene, "teacher", ids)):
        np.testing.assert_allclose(said, expected[place], atol=1e-6)


class Comparison:
    """Trainers of a run over pairs that compare the policy with its starting model."""

    def __init__(self, scene: Scene, folder: Path) -> None:
        self.scene, self._folder = scene, folder
        import_records(scene.database, "pairs", [preference(number) for number in range(6)])

    def open(self, name: str) -> runs.Run:
        with self.scene.database.transaction() as tx:
            return runs.open_run(tx, name, {}, "rows", adoption.Sources(["pairs"], 0.34))

    def trainer(self, run: runs.Run, reference: str, **algorithm: Any) -> Trainer:
        setup = TrainerSetup(
            trainer=TrainerConfig.model_validate(
                {"epochs": 2, "batch_size": 2, "learning_rate": 0.01, "reference": reference}
            ),
            algorithm=recipe(**({"name": "dpo"} | algorithm)),
            model=ModelConfig(scratch=TINY),
            seed=0,
            max_staleness=None,
            temperature=1.0,
            checkpoints=self._folder / run.name,
        )
        trainer = Trainer(self.scene.database, run, setup)
        with self.scene.database.transaction() as tx:
            trainer.worker_id = workers.register(tx, run, WorkerRole.TRAIN)
        return trainer

    def metrics(self, run: runs.Run) -> dict[tuple[int, str], float]:
        """All but those of time."""
        found = self.scene.rows("SELECT step, name, value FROM trinity.metric WHERE run_id = %s", run.id)
        timed = ("time/", "perf/", "step_time")
        return {(step, name): value for step, name, value in found if not name.startswith(timed)}


@pytest.fixture
def comparison(scene: Scene, tmp_path: Path) -> Comparison:
    return Comparison(scene, tmp_path)


class Killed(BaseException):
    """The process ends."""


def test_a_reference_that_is_killed_in_between_is_asked_about_the_rest_alone(
    comparison: Comparison, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    say = StartingScores.of

    def counted(model: StartingScores, rows: Sequence[Payload]) -> list[tuple[int, NDArray[np.float32]]]:
        if sum(asked) == 8:
            raise Killed
        asked.append(len(rows))
        return say(model, rows)

    monkeypatch.setattr(precompute, "CHUNK_ROWS", 4)
    monkeypatch.setattr(StartingScores, "of", counted)
    stored, live = comparison.open("stored"), comparison.open("live")
    with pytest.raises(Killed):
        comparison.trainer(stored, "precomputed").start()
    assert len(comparison.scene.values(SCORED, "reference")) == 8
    asked.clear()
    trainers = [comparison.trainer(stored, "precomputed"), comparison.trainer(live, "start")]
    for trainer in trainers:
        trainer.start()
        while trainer.work():
            pass
        assert trainer.is_done()
    assert asked == [4]
    expected = comparison.metrics(live)
    assert comparison.metrics(stored) == pytest.approx(expected, abs=1e-6)
    assert {name for _, name in expected} > {"loss", "rewards/margins", "eval/loss", "eval/rewards/margins"}
    assert len({step for step, _ in expected}) > 3


def test_a_model_that_has_said_all_is_not_loaded_again(
    comparison: Comparison, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = comparison.open("stored")
    comparison.trainer(run, "precomputed").start()
    before = comparison.scene.rows("SELECT experience_id, created_at FROM trinity.score ORDER BY 1")
    assert len(before) == 12
    monkeypatch.setattr(StartingScores, "__init__", None)
    again = comparison.trainer(run, "precomputed")
    again.start()
    assert comparison.scene.rows("SELECT experience_id, created_at FROM trinity.score ORDER BY 1") == before
    assert again.work()


def test_a_trainer_that_was_replaced_stores_nothing_of_what_it_asked(
    comparison: Comparison, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = comparison.open("stored")
    trainer, say = comparison.trainer(run, "precomputed"), StartingScores.of

    def overtaken(model: StartingScores, rows: Sequence[Payload]) -> list[tuple[int, NDArray[np.float32]]]:
        found = say(model, rows)
        with comparison.scene.database.transaction() as tx:
            workers.stop(tx, trainer.worker_id)
        return found

    monkeypatch.setattr(StartingScores, "of", overtaken)
    with pytest.raises(LeaseLost):
        trainer.start()
    assert comparison.scene.values(SCORED, "reference") == []


def test_nothing_is_asked_for_an_algorithm_that_compares_with_nothing(comparison: Comparison) -> None:
    run = comparison.open("stored")
    with pytest.raises(ConfigError, match="compares the policy with nothing; remove it"):
        comparison.trainer(run, "precomputed", name="simpo").start()
