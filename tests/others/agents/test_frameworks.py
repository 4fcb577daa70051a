"""Agents of other people's frameworks, unchanged: a calculator that the policy plays with two tools.

Each runs as a program in .venv-agents. What the engine saw and sampled is compared with what is stored.
"""

import re
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tests.others.agents.conftest import PYTHON
from tests.support.echo import Echo
from tests.support.explorers import ERRORS, Explore
from tests.support.rows import Scene
from tests.unit.test_tools import HERMES
from trinity_db.arrays import codec
from trinity_db.explorer.engines.engine import Completion, Request
from trinity_db.explorer.http.command import Command

PROGRAMS = Path(__file__).parent / "programs"

# Spaces and the order of keys are not those that the chat template writes. RESULT is what a tool gave.
CALLS = (
    'I multiply.\n<tool_call>{"name":  "multiply", "arguments": {"b":456,"a":123}}</tool_call>'
    '<tool_call>{"name": "add","arguments":{"a":1,"b":1}}</tool_call>',
    '<tool_call>\n{"arguments": {"a": RESULT, "b": 7}, "name": "add"}\n</tool_call>',
)
SAYS = (*CALLS, "The answer is RESULT.")
CALLS_ALL = (*CALLS, '<tool_call>{"name": "final_answer", "arguments": {"answer": "RESULT"}}</tool_call>')
CODE = (
    "I multiply.\n<code>\nprint(multiply(123,456))\n</code>",
    "<code>print( add(a=RESULT, b=7) )</code>",
    "<code>\nfinal_answer(RESULT)\n</code>",
)


@pytest.fixture(autouse=True)
def no_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    """By openai-agents, to OpenAI."""
    monkeypatch.setenv("OPENAI_AGENTS_DISABLE_TRACING", "1")


def pairs() -> Any:
    """A tokenizer of bytes that reads two digits as one token, while the engine samples them as two."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [(first, second) for first in "0123456789" for second in "0123456789"]
    words = [*letters, *map("".join, merges)]
    plain = Tokenizer(models.BPE({word: place for place, word in enumerate(words)}, merges))
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    plain.decoder = decoders.ByteLevel()
    marks = ["<|im_start|>"]
    made = PreTrainedTokenizerFast(
        tokenizer_object=plain, eos_token="<|im_end|>", additional_special_tokens=marks
    )
    made.chat_template = HERMES
    return made


@dataclass
class Call:
    """What the engine saw, and what it sampled."""

    prompt_ids: list[int]
    token_ids: list[int]


@dataclass
class Row:
    """A sequence that is stored."""

    token_ids: list[int]
    sampled: set[int]
    """The places of the tokens that are trained."""

    def has(self, call: Call) -> bool:
        """Whether it begins with the prompt and the response of a call."""
        whole = [*call.prompt_ids, *call.token_ids]
        return self.token_ids[: len(whole)] == whole


@dataclass
class Calculating(Echo):
    """An engine that says texts one after the other, a character a token, up to a stop string or the end."""

    says: tuple[str, ...]
    tokenizer: Any = field(default_factory=pairs)
    calls: list[Call] = field(default_factory=list)
    context: int = 100_000

    def __post_init__(self) -> None:
        super().__init__(context=self.context)

    async def generate(self, request: Request) -> Completion:
        _, _, since = self.tokenizer.decode(request.prompt_ids).rpartition("task 0")
        result = max(re.findall(r"\b\d+\b", since), key=int, default="")
        text = self.says[len(self.calls)].replace("RESULT", result)
        said = [token for letter in text for token in self.tokenizer.encode(letter)]
        if not text.endswith(tuple(request.stop)):
            said.append(self.tokenizer.eos_token_id)
        self.calls.append(Call([*request.prompt_ids], said))
        return Completion(said, [-0.5] * len(said), [self.version] * len(said), "stop")


def rows(scene: Scene) -> list[Row]:
    found = scene.rows("SELECT codec, data, num_tokens FROM trinity.payload ORDER BY experience_id")
    payloads = [codec.decode(*row) for row in found]
    return [Row(one.token_ids.tolist(), set(one.action_mask.nonzero()[0].tolist())) for one in payloads]


def calculated(explore: Explore, scene: Scene, program: str, says: tuple[str, ...] = SAYS) -> list[Row]:
    """What is stored of one attempt, which has all calls to the token, and nothing else."""
    engine = Calculating(says)
    with closing(Command(f"{PYTHON} {PROGRAMS}/{program}")) as workflow:
        explore(workflow, engine, size=1, max_new_tokens=500)
    assert scene.values(ERRORS) == [None]
    assert len(engine.calls) == 3
    found = check_exact(engine, scene)
    assert scene.values("SELECT reward FROM trinity.experience") == [1.0] * len(found)
    return found


def check_exact(engine: Calculating, scene: Scene) -> list[Row]:
    """Return the stored sequences, which have all calls of the engine to the token, and nothing else."""
    found = rows(scene)
    sampled: list[set[int]] = [set() for _ in found]
    for call in engine.calls:
        [place] = [place for place, row in enumerate(found) if row.has(call)]
        begin = len(call.prompt_ids)
        sampled[place] |= {*range(begin, begin + len(call.token_ids))}
    assert sampled == [row.sampled for row in found]
    assert [len(row.token_ids) for row in found] == [max(row.sampled) + 1 for row in found]
    return found


@pytest.mark.parametrize(
    "program",
    [
        "client.py",
        "client.py stream",
        "openai_agents.py",
        "openai_agents.py stream",
        "openai_agents.py chat",
        "openai_agents.py chat stream",
        "langchain_graph.py",
        "langchain_graph.py stream",
        "langchain_graph.py responses",
        "langchain_graph.py responses stream",
    ],
)
def test_an_agent_whose_framework_says_again_what_was_said_is_one_sequence(
    explore: Explore, scene: Scene, program: str
) -> None:
    assert len(calculated(explore, scene, program)) == 1


@pytest.mark.parametrize("program", ["smol.py", "smol.py stream"])
def test_an_agent_whose_framework_writes_its_calls_as_text_is_a_sequence_for_each_call(
    explore: Explore, scene: Scene, program: str
) -> None:
    assert len(calculated(explore, scene, program, CALLS_ALL)) == 3


@pytest.mark.parametrize("program", ["smol.py code", "smol.py code stream"])
def test_an_agent_that_writes_code_up_to_a_stop_string_is_one_sequence(
    explore: Explore, scene: Scene, program: str
) -> None:
    assert len(calculated(explore, scene, program, CODE)) == 1
