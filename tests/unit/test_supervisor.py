"""Which roles a supervisor starts."""

from pathlib import Path
from typing import Any

import pytest

from tests.waiting import wait_until
from trinity_db import cores
from trinity_db.cli.supervise import processes_of, roles_of, threads_of
from trinity_db.configuration import RunConfig
from trinity_db.process import Process
from trinity_db.settings import validate

ONLINE = {"algorithm": "grpo", "taskset": "tasks", "trainer": {"steps": 1}}
OFFLINE = {"algorithm": "sft", "data": ["rows"]}
TAUGHT: dict[str, Any] = {"processors": {"score": ["defaults", {"name": "teacher", "path": "t"}]}}
REMOVING: dict[str, Any] = {"processors": {"retention": {"metrics": "30d"}}}
ARCHIVING: dict[str, Any] = {"processors": {"archive": {}}}


@pytest.mark.parametrize(
    ("content", "roles"),
    [
        (ONLINE, ["explore", "process", "train"]),
        (ONLINE | ARCHIVING, ["explore", "process", "train"]),
        (ONLINE | {"explorers": 3}, ["explore", "explore-2", "explore-3", "process", "train"]),
        (OFFLINE, ["train"]),
        (OFFLINE | ARCHIVING, ["process", "train"]),
        (OFFLINE | REMOVING, ["process", "train"]),
    ],
)
def test_a_run_has_the_roles_that_its_configuration_needs(content: dict[str, Any], roles: list[str]) -> None:
    config = validate(RunConfig, {"name": "run", "model": {"path": "model"}} | content, "run.yaml")
    assert roles_of(config) == {name: name.partition("-")[0] for name in roles}


@pytest.mark.parametrize(
    ("content", "threads"),
    [
        (ONLINE, {"explore": 6, "process": 1, "train": 6}),
        (ONLINE | {"explorers": 2}, {"explore": 4, "explore-2": 4, "process": 1, "train": 4}),
        (ONLINE | TAUGHT, {"explore": 4, "process": 4, "train": 4}),
        (OFFLINE | ARCHIVING, {"process": 1, "train": 12}),
    ],
)
def test_roles_that_compute_share_the_cores_of_the_machine(
    content: dict[str, Any], threads: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cores, "available", lambda: 13)
    config = validate(RunConfig, {"name": "run", "model": {"path": "model"}} | content, "run.yaml")
    assert threads_of(config) == threads


@pytest.mark.parametrize(("set_to", "expected"), [(None, "6"), ("7", "7")])
def test_a_role_is_told_its_share_of_the_cores_unless_a_person_has_said_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, set_to: str | None, expected: str
) -> None:
    monkeypatch.setattr(cores, "available", lambda: 13)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if set_to is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", set_to)
    config = validate(RunConfig, {"name": "run", "model": {"path": "model"}} | ONLINE, "run.yaml")
    explore, *_ = processes_of(config, [])
    says = "import os; print(os.environ['OMP_NUM_THREADS'])"
    child = Process("explore", ["-S", "-c", says], tmp_path / "log", environment=explore.environment)
    child.start()
    wait_until(lambda: not child.is_alive, "it ends")
    assert (child.code, child.words) == (0, expected)
