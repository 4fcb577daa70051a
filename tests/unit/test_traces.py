"""OpenEnv's traces: which turns make a sequence, what is refused, and what an export makes of it again."""

import base64
from typing import Any

import pytest

from tests.support.columns import read, reason
from trinity_db.arrays.codec import NO_VERSION, Payload, decode
from trinity_db.data.traces.traces import TokenSequence, Trace

USER = {"role": "user", "content": "2+2?"}
EXACT = -0.12345679104328156  # a float32


def turn(
    number: int, prompt: list[int], completion: list[int], mask: list[int] | None = None, **more: Any
) -> dict[str, Any]:
    return {
        "node_id": f"call-{number}",
        "prompt_token_ids": prompt,
        "completion_token_ids": completion,
        "per_token_logps": [EXACT - place for place in range(len(completion))],
        "loss_mask": [0] * len(prompt) + ([1] * len(completion) if mask is None else mask),
        **more,
    }


def trace(*turns: Any, **columns: Any) -> Trace:
    record = read("traces", {"schema_version": 1, "turns": list(turns), **columns})
    assert isinstance(record, Trace)
    return record


def arrays(sequence: TokenSequence) -> Payload:
    return decode(sequence.codec, base64.b64decode(sequence.data), sequence.num_tokens)


def tokens(record: Trace) -> list[tuple[list[int], list[int]]]:
    found = [arrays(sequence) for sequence in record.sequences]
    return [(one.token_ids.tolist(), one.action_mask.astype(int).tolist()) for one in found]


def test_turns_that_go_on_from_one_another_are_one_sequence() -> None:
    record = trace(turn(0, [1, 2], [3, 4]), turn(1, [1, 2, 3, 4, 5], [6]))
    assert tokens(record) == [([1, 2, 3, 4, 5, 6], [0, 0, 1, 1, 0, 1])]
    [sequence] = record.sequences
    payload = arrays(sequence)
    assert payload.logprobs is not None
    assert payload.versions is not None
    assert payload.logprobs.tolist()[0] == EXACT, "to the bit"
    assert payload.versions.tolist() == [NO_VERSION] * 3
    assert (sequence.num_tokens, sequence.num_trained) == (6, 3)


def test_a_turn_that_rewrites_what_was_sampled_begins_a_sequence_that_does_not_train_it_again() -> None:
    record = trace(turn(0, [1], [2, 3]), turn(1, [1, 2, 9], [4]), turn(2, [1, 2, 3, 5], [6]))
    assert tokens(record) == [([1, 2, 3, 5, 6], [0, 1, 1, 0, 1]), ([1, 2, 9, 4], [0, 0, 0, 1])]


def test_a_completion_may_be_trained_in_part() -> None:
    record = trace(turn(0, [1], [2, 3, 4], [1, 0, 1]))
    assert tokens(record) == [([1, 2, 3, 4], [0, 1, 0, 1])]
    payload = arrays(record.sequences[0])
    assert payload.logprobs is not None
    assert payload.logprobs.tolist() == pytest.approx([EXACT, EXACT - 2], abs=1e-6)


def test_a_trace_says_its_task_and_its_texts_as_far_as_they_are_known() -> None:
    asked, said = {"messages": [USER]}, {"choices": [{"message": {"role": "assistant", "content": "4"}}]}
    record = trace(turn(0, [1], [2], request=asked, response=said), reward=1, model="m", seconds=3)
    assert (record.task.payload, record.model, record.sequences[0].reward) == (asked, "m", 1.0)
    assert (record.sequences[0].prompt, record.sequences[0].response) == ("2+2?", "4")
    assert record.extra["seconds"] == 3
    bare = trace(turn(0, [1, 7], [2, 3]))
    assert (bare.task.payload, bare.sequences[0].response) == ({"prompt": "1 7"}, "2 3")
    named = trace(turn(0, [1], [2]), prompt="What?", answer=4)
    assert named.task.payload == {"prompt": "What?", "answer": 4}


BAD: list[tuple[Any, str]] = [
    ([], "'turns' must be a list of turns"),
    ("turns", "'turns' must be a list of turns"),
    ([3], "'turns' must hold objects"),
    ([turn(0, [1], [2], tokens=[])], "a turn has a key other than node_id"),
    ([{"node_id": "a"}], "a turn has no 'prompt_token_ids'"),
    ([turn(0, [], [2])], "'prompt_token_ids' of a turn is empty"),
    ([turn(0, [1], [2.0])], "'completion_token_ids' of a turn must hold whole numbers"),  # type: ignore[list-item]
    ([turn(0, [True], [2])], "'prompt_token_ids' of a turn must hold whole numbers"),
    ([turn(0, [-1], [2])], "'prompt_token_ids' of a turn must hold whole numbers"),
    ([turn(0, [1], [2**31])], "'completion_token_ids' of a turn must hold whole numbers"),
    ([turn(0, [1], [2]) | {"per_token_logps": []}], "one number for each token of the completion"),
    ([turn(0, [1], [2]) | {"per_token_logps": [0.1]}], "a number above 0, which is not a log-prob"),
    ([turn(0, [1], [2]) | {"per_token_logps": ["-1"]}], "must hold finite numbers"),
    ([turn(0, [1], [2]) | {"per_token_logps": [-(10**400)]}], "must hold finite numbers"),
    ([turn(0, [1], [2]) | {"loss_mask": [1]}], "one number for each token of prompt and completion"),
    ([turn(0, [1], [2]) | {"loss_mask": [1, 1]}], "'loss_mask' of a turn trains a token of the prompt"),
    ([turn(0, [1], [2], [2])], "'loss_mask' of a turn must hold 0 and 1"),
    ([turn(0, [1], [2], [0])], "no turn has a token that its 'loss_mask' trains"),
    ([turn(0, [1], [2]), turn(0, [1, 2, 3], [4])], "two turns have the same 'node_id'"),
    ([turn(0, [1], [2], request=[])], "'request' of a turn must be an object"),
    ([turn(0, [1], [2], metadata={"trinity_db": {"versions": [1, 2]}})], "one number for each trained token"),
    ([turn(0, [1], [2], metadata={"trinity_db": {"sequence": 3}})], "leaves a sequence out"),
    ([turn(0, [1], [2], metadata={"trinity_db": {"reward": "good"}})], "must be a number, not text"),
    ([turn(0, [1], [2], metadata={"trinity_db": {"task": {}}})], "must be an object with 'prompt'"),
]


@pytest.mark.parametrize(("turns", "said"), BAD)
def test_what_is_no_trace_is_refused_with_a_reason(turns: Any, said: str) -> None:
    assert said in reason("traces", {"turns": turns})


def test_a_trace_of_another_schema_is_refused() -> None:
    assert (
        reason("traces", {"turns": [turn(0, [1], [2])], "schema_version": 2}) == "'schema_version' must be 1"
    )
