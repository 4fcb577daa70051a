"""The lines that `trinity-db run` prints, from a store."""

import logging
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.rows import Scene, rollout
from trinity_db.cli.progress import Progress, outcome
from trinity_db.config.base import validate
from trinity_db.postgres.connection import Database
from trinity_db.run.configuration import RunConfig


@pytest.fixture
def scene(database_url: str) -> Iterator[Scene]:
    with closing(Database(database_url)) as database:
        yield Scene.open(database, algorithm="grpo")


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    content = {
        "name": "run",
        "algorithm": "grpo",
        "model": {"path": str(tmp_path)},
        "taskset": "tasks",
        "explorer": {"group_size": 2},
        "trainer": {"steps": 5},
    }
    return validate(RunConfig, content, "run.yaml")


def lines(
    scene: Scene, config: RunConfig, caplog: pytest.LogCaptureFixture, quiet: bool = False
) -> list[str]:
    caplog.clear()
    with (
        caplog.at_level(logging.INFO, "trinity_db"),
        Progress(scene.database, scene.run, config, quiet) as progress,
    ):
        progress.update(now=True)
    return [record.getMessage() for record in caplog.records]


def test_a_line_has_step_time_left_rewards_and_drops_and_a_sample_follows(
    scene: Scene, config: RunConfig, caplog: pytest.LogCaptureFixture
) -> None:
    assert lines(scene, config, caplog) == ["run: step 0 of 5, version 0"]
    scene.make_ready(4)
    scene.train(1, size=2)
    scene.train(2, size=2)
    progress, sample = lines(scene, config, caplog)
    assert progress.startswith("run: step 2 of 5, ")
    assert "version 0, reward 0.500 (+0.000 in 1), length " in progress
    assert "4 groups" in progress
    [(question, response)] = scene.rows(
        "SELECT x.prompt, x.response FROM trinity.batch_item i JOIN trinity.batch b ON b.id = i.batch_id "
        "JOIN trinity.experience_text x ON x.experience_id = i.experience_id "
        "WHERE b.step = 2 AND i.ordinal = 0"
    )
    assert sample.startswith(f"run: sample: {question} → {response or '(empty)'} (reward ")


def test_many_failed_attempts_are_warned_of_once(
    scene: Scene, config: RunConfig, caplog: pytest.LogCaptureFixture
) -> None:
    error = "PromptTooLong: 40 tokens \x1b[2J"
    scene.write([rollout(group, member, error=error) for group in scene.claim(10) for member in (0, 1)])
    caplog.clear()
    with Progress(scene.database, scene.run, config) as progress:
        progress.update(now=True)
        progress.update(now=True)
    [warning] = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert warning.startswith(
        r"run 'run': 20 of its last 20 attempts failed: PromptTooLong: 40 tokens \x1b[2J; "
    )


def test_quiet_prints_nothing(scene: Scene, config: RunConfig, caplog: pytest.LogCaptureFixture) -> None:
    assert lines(scene, config, caplog, quiet=True) == []


def test_the_outcome_names_the_weights_and_the_command_that_shows_the_run(scene: Scene) -> None:
    scene.make_ready(1)
    scene.train(1, size=1)
    scene.publish(1, step=1)
    assert list(outcome(scene.database, scene.run)) == [
        "model: version 1 in version-1",
        "inspect it: trinity-db page, or trinity-db status run",
    ]
