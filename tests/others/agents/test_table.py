"""The table of agents in docs/guides/programs.md, whose rows the other files compare with real attempts."""

from tests.others.agents.table import agents, pins
from tests.others.agents.test_command_lines import PROGRAMS
from tests.others.agents.test_frameworks import AGENTS


def test_the_table_has_each_agent_that_is_tested_with_its_version() -> None:
    assert agents().keys() == {*AGENTS, *(program.agent for program in PROGRAMS)}
    assert {(package, version) for package, version, _ in agents().values()} <= pins()
