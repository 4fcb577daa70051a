"""Payloads survive their bytes; damaged bytes are refused."""

import math
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from numpy.typing import NDArray

from trinity_db.arrays.codec import CODEC, Payload, decode, decode_scores, encode, encode_scores


@st.composite
def payloads(draw: st.DrawFn) -> Payload:
    mask = np.array(draw(st.lists(st.booleans(), max_size=40)), dtype=np.bool_)
    int32 = st.integers(-(2**31), 2**31 - 1)
    tokens = np.array([draw(int32) for _ in mask], dtype=np.int32)
    trained = int(mask.sum())
    if not trained or draw(st.booleans()):
        return Payload(tokens, mask)
    logprobs = [draw(st.floats(width=32)) for _ in range(trained)]
    versions = [draw(int32) for _ in range(trained)]
    sampled = np.array(logprobs, np.float32), np.array(versions, np.int32)
    temperatures = [draw(st.floats(0.125, 1000, width=32)) for _ in range(trained)]
    tempered = np.array(temperatures, np.float32) if draw(st.booleans()) else None
    return Payload(tokens, mask, *sampled, tempered, draw(routings(len(tokens))))


@st.composite
def routings(draw: st.DrawFn, num_tokens: int) -> NDArray[Any] | None:
    if num_tokens < 2 or draw(st.booleans()):
        return None
    shape = draw(st.integers(1, num_tokens - 1)), draw(st.integers(1, 3)), draw(st.integers(1, 3))
    highest = draw(st.sampled_from([2**8 - 1, 2**16 - 1]))
    numbers = [draw(st.integers(0, highest)) for _ in range(math.prod(shape))]
    return np.array(numbers, np.min_scalar_type(highest)).reshape(shape)


@given(payloads())
def test_a_payload_survives_its_bytes(payload: Payload) -> None:
    same(payload, decode(CODEC, encode(payload), payload.num_tokens))


def same(payload: Payload, again: Payload) -> None:
    for name in ("token_ids", "action_mask", "logprobs", "versions", "temperatures", "routing"):
        before, after = getattr(payload, name), getattr(again, name)
        if before is None:
            assert after is None
        else:
            assert after.dtype == before.dtype
            np.testing.assert_array_equal(before, after)


@given(payloads(), st.data())
def test_shortened_and_lengthened_bytes_are_refused(payload: Payload, data: st.DataObject) -> None:
    whole = encode(payload)
    shorter = whole[: data.draw(st.integers(0, len(whole) - 1))]
    longer = whole + data.draw(st.binary(min_size=1, max_size=9))
    for damaged in (shorter, longer):
        with pytest.raises(ValueError, match="Damaged payload"):
            decode(CODEC, damaged, payload.num_tokens)


@given(st.binary(max_size=80), st.integers(-1, 20))
def test_any_other_bytes_are_a_payload_or_refused(data: bytes, num_tokens: int) -> None:
    try:
        found = decode(CODEC, data, num_tokens)
    except ValueError:
        return
    same(found, decode(CODEC, encode(found), num_tokens))


def test_the_layout_is_the_documented_one() -> None:
    plain = Payload(np.array([1, 258], np.int32), np.array([False, True]))
    assert encode(plain) == bytes.fromhex("00 02 0100 0201 40")


@pytest.mark.parametrize(
    ("codec", "data", "num_tokens", "message"),
    [
        ("packed-9", b"", 0, "'packed-9' is unknown"),
        (CODEC, b"", 1, "too few"),
        (CODEC, bytes([0, 1, 1]), -1, "too few"),
        (CODEC, bytes([0, 0, 1, 0]), 1, "begins with 0 and 0"),
        (CODEC, bytes([0, 5, 1, 0]), 1, "begins with 0 and 5"),
        (CODEC, bytes([2, 1, 1, 0]), 1, "begins with 2 and 1"),
        (CODEC, bytes([0, 1, 1, 1]), 1, "mask is longer"),
        (CODEC, bytes([0, 1, 1, 0, 0]), 1, "5 bytes, expected 4"),
        (CODEC, bytes([1, 1, 1, 0x80, *bytes(4), *bytes(4)]), 1, "0 numbers in runs, expected 1"),
        (CODEC, bytes([1, 1, 1, 0x80, *bytes(4), 255, 255, 255, 255]), 1, "too few"),
    ],
)
def test_damaged_bytes_are_refused(codec: str, data: bytes, num_tokens: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decode(codec, data, num_tokens)


TOKENS = np.zeros(2, np.int32)
MASK = np.array([False, True])
SAMPLED = (TOKENS, MASK, np.zeros(1, np.float32), np.zeros(1, np.int32))


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ((TOKENS, MASK[:1]), "one mask entry per token"),
        ((TOKENS, MASK, np.zeros(1, np.float32), None), "or neither"),
        ((TOKENS, MASK, np.zeros(2, np.float32), np.zeros(1, np.int32)), "do not fit 1 trained"),
        ((TOKENS, ~MASK | MASK, np.zeros(2, np.float32), np.zeros(1, np.int32)), "do not fit 2 trained"),
        ((TOKENS, MASK & ~MASK, np.zeros(0, np.float32), np.zeros(0, np.int32)), "do not fit 0 trained"),
        ((TOKENS, MASK, None, None, np.ones(2, np.float32)), r"\(2,\) temperatures do not fit 1 trained"),
        ((*SAMPLED, None, np.zeros((2, 1, 1), np.uint8)), r"the shape \(2, 1, 1\) does not fit 2 tokens"),
        ((*SAMPLED, None, np.zeros((1, 1), np.uint8)), r"the shape \(1, 1\) does not fit"),
        ((*SAMPLED, None, np.zeros((1, 1, 1), np.int32)), "8 or 16 bits without sign, and this one int32"),
        ((TOKENS, MASK, None, None, None, np.zeros((1, 1, 1), np.uint8)), "Only what a policy sampled"),
    ],
)
def test_arrays_that_do_not_fit_together_are_refused(arrays: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Payload(*arrays)


@given(payloads(), st.data())
def test_scores_survive_their_bytes(payload: Payload, data: st.DataObject) -> None:
    drawn = [data.draw(st.floats(width=32)) for _ in range(int(payload.action_mask[1:].sum()))]
    again = decode_scores(payload, encode_scores(payload, np.array(drawn, np.float32)))
    assert again.dtype == np.float32
    np.testing.assert_array_equal(again, np.array(drawn, np.float32))


@pytest.mark.parametrize("count", [0, 1, 3])
def test_scores_of_another_number_of_tokens_are_refused(count: int) -> None:
    # The first token is trained, but nothing predicts it: two can be scored.
    payload = Payload(np.arange(4, dtype=np.int32), np.array([True, False, True, True]))
    with pytest.raises(ValueError, match="do not fit 2 predicted tokens"):
        encode_scores(payload, np.zeros(count, np.float32))
    with pytest.raises(ValueError, match="expected 8 for 2 predicted tokens"):
        decode_scores(payload, bytes(4 * count))
