"""Agents of other people's frameworks, unchanged: a calculator that the policy plays with two tools.

Each runs as a program, and its attempt is trained on. What the engine saw and sampled is compared with what
is stored, and what became of the attempt with the table of docs/guides/programs.md.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.others.agents.conftest import CREWAI, PYTHON
from tests.others.agents.scripted_engine import Playing, check_exact
from tests.others.agents.table import documented
from tests.others.agents.training import AgentRun

PROGRAMS = Path(__file__).parent / "programs"

# Spaces and the order of keys are not those that the chat template writes. RESULT is what a tool gave.
CALLS = (
    'I multiply.\n<tool_call>{"name":  "multiply", "arguments": {"b":456,"a":123}}</tool_call>'
    '<tool_call>{"name": "add","arguments":{"a":1,"b":1}}</tool_call>',
    '<tool_call>\n{"arguments": {"a": RESULT, "b": 7}, "name": "add"}\n</tool_call>',
)
TEXT = (*CALLS, "The answer is RESULT.")


def by_tool(name: str, key: str, value: str = "RESULT") -> tuple[str, ...]:
    """A script that ends with a call."""
    return *CALLS, f'<tool_call>{{"name": "{name}", "arguments": {{"{key}": {value}}}}}</tool_call>'


CODE = (
    "I multiply.\n<code>\nprint(multiply(123,456))\n</code>",
    "<code>print( add(a=RESULT, b=7) )</code>",
    "<code>\nfinal_answer(RESULT)\n</code>",
)
JSON = (*CALLS, '{"value":  RESULT}')


def of_dspy(**fields: str) -> str:
    return "\n\n".join(f"[[ ## {name} ## ]]\n{value}" for name, value in {**fields, "completed": ""}.items())


def dspy_step(tool: str, arguments: str) -> str:
    return of_dspy(next_thought="So.", next_tool_name=tool, next_tool_args=arguments)


DSPY = (
    dspy_step("multiply", '{"a":123,"b":456}'),
    dspy_step("add", '{"a":RESULT,"b":7}'),
    dspy_step("finish", "{}"),
    of_dspy(reasoning="So.", answer="RESULT"),
)

AGENTS: Mapping[str, tuple[Sequence[str], Sequence[str]]] = {
    "OpenAI's library": (("client.py", "client.py stream"), TEXT),
    "openai-agents": (("openai_agents.py", "openai_agents.py stream"), TEXT),
    "openai-agents, chat completions": (("openai_agents.py chat", "openai_agents.py chat stream"), TEXT),
    "langchain": (
        (
            "langchain_graph.py",
            "langchain_graph.py stream",
            "langchain_graph.py responses",
            "langchain_graph.py responses stream",
        ),
        TEXT,
    ),
    "smolagents, `ToolCallingAgent`": (
        ("smol.py", "smol.py stream"),
        by_tool("final_answer", "answer", '"RESULT"'),
    ),
    "smolagents, `CodeAgent`": (("smol.py code", "smol.py code stream"), CODE),
    "pydantic-ai, output as a tool": (
        ("pydantic_agent.py openai-chat tool",),
        by_tool("final_result", "value"),
    ),
    "pydantic-ai, `NativeOutput`": (("pydantic_agent.py openai-chat native",), JSON),
    "pydantic-ai, `PromptedOutput`": (("pydantic_agent.py openai-chat prompted",), JSON),
    "pydantic-ai, responses": (
        ("pydantic_agent.py openai-responses tool",),
        by_tool("final_result", "value"),
    ),
    "pydantic-ai, messages": (("pydantic_agent.py anthropic tool",), by_tool("final_result", "value")),
    "inspect-ai": (("inspect_react.py",), by_tool("submit", "answer", '"RESULT"')),
    "agentscope": (("agentscope_agent.py stream",), TEXT),
    "dspy": (("dspy_react.py",), DSPY),
    "crewai": (("crew.py",), TEXT),
}
COMMANDS = [(agent, program) for agent, (programs, _) in AGENTS.items() for program in programs]


@pytest.mark.parametrize(("agent", "program"), COMMANDS, ids=[program for _, program in COMMANDS])
def test_an_agent_of_a_framework_is_recorded_and_trained_as_it_is(
    run: AgentRun, agent: str, program: str
) -> None:
    python = CREWAI if agent == "crewai" else PYTHON
    if not Path(python).exists():
        pytest.skip(f"{agent} is not installed: make test-agents installs it")
    _, says = AGENTS[agent]
    engine = Playing(tuple(says), tool="multiply" if agent == "inspect-ai" else None)
    run.attempt(f"{python} {PROGRAMS}/{program}", engine)
    assert len(engine.calls) == len(says)
    check_exact([*engine.asides, *engine.calls], run.scene)
    assert run.train() == documented(agent)
