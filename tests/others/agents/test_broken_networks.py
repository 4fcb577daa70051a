"""Agents as they are behind a network that fails: each token that an agent goes on with is trained once.

Each sample of the engine has a number, in its text and in the log-probabilities of its tokens, so that a
second sample of a prompt differs from the first.
"""

import asyncio
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import pytest

from tests.others.agents.conftest import PYTHON
from tests.others.agents.scripted_engine import Call, Playing
from tests.others.agents.test_frameworks import PROGRAMS
from tests.others.agents.training import AgentRun
from tests.support.failing_network import cut, drop, failing_network, swallow
from trinity_db.arrays import codec
from trinity_db.explorer.engines.engine import Completion, Request

FIRST = 9_000_000  # the number of the first sample in its text
NUMBER = re.compile(r"\b9\d{6}\b")
LOGPROB = -1 / 64  # of the first sample's tokens; the second one's is twice this
PAYLOADS = (
    "SELECT p.codec, p.data, p.num_tokens FROM trinity.payload p"
    " JOIN trinity.experience e ON e.id = p.experience_id WHERE e.state = 'trained' ORDER BY e.id"
)
OUTPUT = "SELECT coalesce(output, '') FROM trinity.rollout"
CALCULATOR = (
    'I multiply.\n<tool_call>{"name":  "multiply", "arguments": {"b":456,"a":123}}</tool_call>'
    '<tool_call>{"name": "multiply","arguments":{"a":1,"b":NUMBER}}</tool_call>',
    '<tool_call>\n{"arguments": {"a": 56088, "b": 7}, "name": "add"}\n</tool_call>'
    '<tool_call>{"name": "multiply","arguments":{"a":1,"b":NUMBER}}</tool_call>',
    "The answer is 56095. NUMBER",
)


@dataclass
class Numbering(Playing):
    """Says the text that is due by the prompt, with the number of the sample in place of NUMBER."""

    evidence: Sequence[str] = ()
    """What is in the prompts that follow each text."""
    begun: int = 0
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    sampled: dict[int, Call] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.gate.set()

    async def generate(self, request: Request) -> Completion:
        number, self.begun = self.begun, self.begun + 1
        await self.gate.wait()
        self._number = number
        completion = await super().generate(request)
        self.sampled[number] = Call([*request.prompt_ids], completion.token_ids)
        return replace(completion, logprobs=[LOGPROB * (number + 1)] * len(completion.token_ids))

    def next(self, prompt: str) -> str:
        due = max((place for place, text in enumerate(self.evidence, 1) if text in prompt), default=0)
        return self.says[due].replace("NUMBER", str(FIRST + self._number))

    def gone_on_with(self, output: str) -> set[int]:
        """Return the samples that an agent went on with, by its prompts and its output.

        The last sample of the work is one, and so is one for each prompt beside the work.
        """
        texts = [self.tokenizer.decode(call.prompt_ids) for call in self.calls]
        shown = {int(number) - FIRST for text in [*texts, output] for number in NUMBER.findall(text)}
        beside = {
            tuple(call.prompt_ids): number for number, call in self.sampled.items() if call in self.asides
        }
        last = max(number for number, call in self.sampled.items() if call in self.calls)
        ends = {int(number) - FIRST for number in NUMBER.findall(output)} or {last}
        return shown | ends | {*beside.values()}


def check_trained_once(run: AgentRun, engine: Numbering) -> None:
    """Compare what was trained, by sample, with what the agent went on with."""
    tokens: Counter[int] = Counter()
    for row in run.scene.rows(PAYLOADS):
        payload = codec.decode(*row)
        assert payload.logprobs is not None
        tokens.update(round(float(value) / LOGPROB) - 1 for value in payload.logprobs)
    kept = engine.gone_on_with(run.scene.value(OUTPUT))
    assert tokens == {number: len(engine.sampled[number].token_ids) for number in kept}


def test_the_library_of_openai_behind_a_network_that_fails(run: AgentRun) -> None:
    if not Path(PYTHON).exists():
        pytest.skip("openai is not installed: make test-agents installs it")
    engine = Numbering(CALCULATOR, evidence=("56088", "56095"))
    network = partial(failing_network, faults=(cut, drop, swallow), sampler=engine)
    run.attempt(f"{PYTHON} {PROGRAMS}/client.py", engine, network=network)
    run.train()
    check_trained_once(run, engine)
