"""Which roles a supervisor starts."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.waiting import wait_until
from trinity_db.cli.supervise import processes_of, roles_of
from trinity_db.config.base import validate
from trinity_db.errors import ConfigError
from trinity_db.explorer.attempt import workflow
from trinity_db.run.configuration import RunConfig
from trinity_db.worker import cores
from trinity_db.worker.process import Process

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
        (ONLINE | {"algorithm": "external"}, ["explore", "process"]),
        (ONLINE | {"explorer": {"workflow": "external"}}, ["process", "train"]),
        (ONLINE | {"algorithm": "external", "explorer": {"workflow": "external"}}, ["process"]),
        (OFFLINE | {"algorithm": {"name": "external", "draws": "rows"}}, []),
        (OFFLINE, ["train"]),
        (OFFLINE | ARCHIVING, ["process", "train"]),
        (OFFLINE | REMOVING, ["process", "train"]),
    ],
)
def test_a_run_has_the_roles_that_its_configuration_needs(content: dict[str, Any], roles: list[str]) -> None:
    config = validate(RunConfig, {"name": "run", "model": {"path": "model"}} | content, "run.yaml")
    assert roles_of(config) == {name: name.partition("-")[0] for name in roles}


def test_the_explorer_of_a_run_whose_agents_come_from_outside_is_serve() -> None:
    content = {"name": "run", "model": {"path": "model"}} | ONLINE | {"explorer": {"workflow": "served"}}
    config = validate(RunConfig, content, "run.yaml")
    assert roles_of(config) == {"explore": "serve", "process": "process", "train": "train"}
    with pytest.raises(ConfigError, match="start the explorer with trinity-db serve"):
        workflow.of(config.explorer)
    with pytest.raises(ConfigError, match="served has one endpoint for all agents: leave out explorers"):
        validate(RunConfig, content | {"explorers": 2}, "run.yaml")


@pytest.mark.parametrize(("set_to", "expected"), [(None, "13"), ("7", "7")])
def test_a_role_has_a_thread_for_each_core_unless_a_person_set_another_number(
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
