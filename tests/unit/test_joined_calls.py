"""Sequences of an attempt's calls: a sequence that lost its last call is continued by a later one."""

import numpy as np
import pytest

from trinity_db.explorer.attempt.recorded import JoinedCalls, Sampled
from trinity_db.explorer.engines.engine import Completion


def sequence(*calls: tuple[int, list[int], list[int]], routed: int = 0) -> JoinedCalls:
    """Calls, each with number, prompt and response. `routed` is the expert of each token; 0: not recorded."""
    joined = JoinedCalls("prompt", [], [], len(calls[0][1]), 1.0)
    for number, prompt_ids, token_ids in calls:
        length = len(prompt_ids) + len(token_ids) - 1
        routing = np.full((length, 1, 1), routed, np.uint8) if routed else None
        logprobs, versions = [-float(number)] * len(token_ids), [number] * len(token_ids)
        completion = Completion(token_ids, logprobs, versions, "stop", routing)
        joined.add(Sampled(number, "prompt", prompt_ids, completion), 1.0 + number)
    return joined


@pytest.mark.parametrize("routed", [0, 1])
def test_a_sequence_without_its_last_call_is_continued_by_what_the_program_went_on_with(routed: int) -> None:
    first = sequence((1, [5, 6], [7]), (2, [5, 6, 7, 8], [9]), routed=routed)
    later = sequence((3, [5, 6, 7, 8], [10, 11]), routed=2 * routed)
    rest = first.without({2})
    assert rest is not None
    joined = rest.continued_by(later)
    assert joined is not None
    assert (joined.token_ids, joined.first_response) == ([5, 6, 7, 8, 10, 11], 2)
    assert joined.mask == [False, False, True, False, True, True]
    assert joined.logprobs == [-1.0, -3.0, -3.0]
    assert joined.versions == [1, 3, 3]
    assert joined.temperatures == [2.0, 4.0, 4.0]
    assert list(joined.calls) == [1, 3]
    routing = joined.payload.routing
    if not routed:
        assert routing is None
    else:  # those of a token's own call
        assert routing is not None
        assert routing.ravel().tolist() == [1, 1, 2, 2, 2]


def test_a_sequence_is_not_continued_by_another_conversation() -> None:
    first, other = sequence((1, [5, 6], [7])), sequence((2, [5, 6], [8]))
    assert first.continued_by(other) is None
    assert first.continued_by(sequence((3, [5], [6, 7, 8]))) is None, "its tokens were sampled again"
