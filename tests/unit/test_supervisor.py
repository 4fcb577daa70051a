"""Which roles a supervisor starts."""

from typing import Any

import pytest

from trinity_db.cli.configuration import RunConfig
from trinity_db.cli.supervise import roles_of
from trinity_db.settings import validate

ONLINE = {"algorithm": "grpo", "taskset": "tasks", "trainer": {"steps": 1}}
OFFLINE = {"algorithm": "sft", "data": ["rows"]}
ARCHIVING: dict[str, Any] = {"processors": {"archive": {}}}


@pytest.mark.parametrize(
    ("content", "roles"),
    [
        (ONLINE, ["explore", "process", "train"]),
        (ONLINE | ARCHIVING, ["explore", "process", "train"]),
        (OFFLINE, ["train"]),
        (OFFLINE | ARCHIVING, ["process", "train"]),
    ],
)
def test_a_run_has_the_roles_that_its_configuration_needs(content: dict[str, Any], roles: list[str]) -> None:
    config = validate(RunConfig, {"name": "run", "model": {"path": "model"}} | content, "run.yaml")
    assert roles_of(config) == roles
