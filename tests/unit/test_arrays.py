"""Payloads survive their bytes; damaged bytes are refused."""

import math
from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from numpy.typing import NDArray

from trinity_db.arrays import (
    CODEC,
    ROUTED_CODEC,
    TEMPERED_CODEC,
    Payload,
    codec_of,
    decode,
    decode_scores,
    encode,
    encode_scores,
)


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
    again = decode(codec_of(payload), encode(payload), payload.num_tokens)
    for name in ("token_ids", "action_mask", "logprobs", "versions", "temperatures", "routing"):
        before, after = getattr(payload, name), getattr(again, name)
        if before is None:
            assert after is None
        else:
            assert after.dtype == before.dtype
            np.testing.assert_array_equal(before, after)


@given(payloads(), st.integers(0, 400))
def test_shortened_bytes_are_never_read_as_all_of_the_payload(payload: Payload, length: int) -> None:
    data = encode(payload)[:length]
    if len(data) == len(encode(payload)):
        return
    try:
        again = decode(codec_of(payload), data, payload.num_tokens)
    except ValueError:
        return
    # What remains can only be the payload without its log-probabilities and versions.
    assert payload.logprobs is not None
    assert payload.temperatures is None
    assert payload.routing is None
    assert again.logprobs is None
    np.testing.assert_array_equal(payload.action_mask, again.action_mask)


def test_the_layout_is_the_documented_one() -> None:
    payload = Payload(
        np.array([1, 258], np.int32),
        np.array([False, True]),
        np.array([-0.5], np.float32),
        np.array([7], np.int32),
    )
    assert encode(payload) == bytes.fromhex("01000000 02010000 00 01 000000bf 07000000")
    assert codec_of(payload) == "packed-1"
    tempered = replace(payload, temperatures=np.array([0.5], np.float32))
    assert encode(tempered) == encode(payload) + bytes.fromhex("0000003f")
    assert codec_of(tempered) == "packed-2"
    routed = replace(payload, routing=np.array([[[3, 258]]], np.uint16))
    header = bytes.fromhex("00000000 01000000 01000000 02000000 02000000")
    assert encode(routed) == encode(payload) + header + bytes.fromhex("0300 0201")
    assert codec_of(routed) == "packed-3"
    both = replace(routed, temperatures=tempered.temperatures)
    assert encode(both) == encode(payload) + b"\1" + header[1:] + bytes.fromhex("0000003f 0300 0201")


@pytest.mark.parametrize(
    ("codec", "data", "num_tokens", "message"),
    [
        ("packed-9", b"", 0, "'packed-9' is unknown"),
        (CODEC, bytes(4), 1, "too few"),
        (CODEC, bytes(5), -1, "too few"),
        (CODEC, bytes([0, 0, 0, 0, 2]), 1, "other than 0 and 1"),
        (CODEC, bytes([0, 0, 0, 0, 1, 9]), 1, "expected 0 or 8"),
        (CODEC, bytes(6), 1, "expected 0 or 0"),
        (TEMPERED_CODEC, bytes([0, 0, 0, 0, 1]), 1, "expected 12"),
        (ROUTED_CODEC, bytes([0, 0, 0, 0, 1, *bytes(8)]), 1, "before the size of its routing"),
        (ROUTED_CODEC, bytes([0, 0, 0, 0, 1, *bytes(28)]), 1, "its routing has 0 by 0 by 0 numbers"),
        (TEMPERED_CODEC, bytes([0, 0, 0, 0, 1, *bytes(8)]), 1, "8 bytes follow the mask, expected 12"),
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
