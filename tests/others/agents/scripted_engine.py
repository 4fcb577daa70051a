"""An engine that plays a script, and the tokens that the store has of it.

The tokenizer reads whole words as tokens, and the engine samples them a letter at a time, so that a text
that is tokenized again is not the tokens that were sampled.
"""

import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from tests.support.echo import Echo
from tests.support.rows import Scene
from tests.unit.test_tools import HERMES
from trinity_db.arrays import codec
from trinity_db.explorer.engines.engine import Completion, Request

DOCUMENTS = Path(__file__).parents[3] / "docs" / "guides"
BEGIN, END = "<|im_start|>", "<|im_end|>"
ASIDE = "A number times seven"
"""The answer to a call beside the work, such as one that asks for a title."""


@cache
def words() -> Any:
    """A tokenizer of words that the documents have, whose chat template shows tools."""
    plain = Tokenizer(models.BPE())
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    plain.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=2000,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[BEGIN, END],
        show_progress=False,
    )
    plain.train_from_iterator((path.read_text() for path in sorted(DOCUMENTS.glob("*.md"))), trainer)
    made = PreTrainedTokenizerFast(tokenizer_object=plain, eos_token=END, additional_special_tokens=[BEGIN])
    made.chat_template = HERMES
    return made


@dataclass
class Call:
    """What the engine saw, and what it sampled."""

    prompt_ids: list[int]
    token_ids: list[int]


@dataclass
class Playing(Echo):
    """Says texts one after the other, a letter a token, up to a stop string or the end.

    RESULT in a text is the largest number since the task.
    """

    says: tuple[str, ...]
    tool: str | None = None
    """Calls whose prompt does not have this tool are beside the work; None: none is."""
    context: int = 400_000
    tokenizer: Any = field(default_factory=words)
    calls: list[Call] = field(default_factory=list)
    asides: list[Call] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(context=self.context)

    async def generate(self, request: Request) -> Completion:
        prompt = self.tokenizer.decode(request.prompt_ids)
        is_aside = self.tool is not None and f'"name": "{self.tool}"' not in prompt
        text = ASIDE if is_aside else self.next(prompt)
        said = [token for letter in text for token in self.tokenizer.encode(letter)]
        if not text.endswith(tuple(request.stop)):
            said.append(self.tokenizer.eos_token_id)
        (self.asides if is_aside else self.calls).append(Call([*request.prompt_ids], said))
        return Completion(said, [-0.5] * len(said), [self.version] * len(said), "stop")

    def next(self, prompt: str) -> str:
        """Return the next text of the script."""
        _, _, since = prompt.rpartition("task 0")
        result = max(re.findall(r"\b\d+\b", since), key=int, default="")
        return self.says[len(self.calls)].replace("RESULT", result)


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


def rows(scene: Scene) -> list[Row]:
    statement = (
        "SELECT p.codec, p.data, p.num_tokens FROM trinity.payload p"
        " JOIN trinity.experience e ON e.id = p.experience_id WHERE e.run_id = %s ORDER BY e.id"
    )
    payloads = [codec.decode(*row) for row in scene.rows(statement, scene.run.id)]
    return [Row(one.token_ids.tolist(), set(one.action_mask.nonzero()[0].tolist())) for one in payloads]


def check_exact(calls: list[Call], scene: Scene) -> list[Row]:
    """Return the stored sequences, which have these calls to the token, and nothing else."""
    found = rows(scene)
    sampled: list[set[int]] = [set() for _ in found]
    for call in calls:
        [place] = [place for place, row in enumerate(found) if row.has(call)]
        begin = len(call.prompt_ids)
        sampled[place] |= {*range(begin, begin + len(call.token_ids))}
    assert sampled == [row.sampled for row in found]
    assert [len(row.token_ids) for row in found] == [max(row.sampled) + 1 for row in found]
    return found
