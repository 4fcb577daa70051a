"""Layouts of arrays in which each number has four bytes, and each entry of the mask one.

No process writes them any more. Rows that were stored before the layout of `trinity_db.arrays` keep them.
"""

from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

PLAIN = "packed-1"
"""Little endian, one after the other: token_ids int32[n], action_mask uint8[n], and for sampled
sequences logprobs float32[k] and versions int32[k], where k counts the ones in the mask."""
TEMPERED = "packed-2"
"""The same, and after it temperatures float32[k]: sequences in which a call had a temperature of its own."""
ROUTED = "packed-3"
"""As the first, then int32[5]: 1 if temperatures follow, else 0; m, layers, e, and bytes of a choice. Then
the temperatures float32[k], if they follow, and the routing [m, layers, e] as uint8 or uint16."""
CODECS = (PLAIN, TEMPERED, ROUTED)
_ROUTING_HEADER = 5  # numbers


def decode(codec: str, data: bytes, num_tokens: int) -> dict[str, NDArray[Any]]:
    """The arrays of a payload of `num_tokens` tokens by the names of its fields, as read-only views.

    Args:
        codec: one of `CODECS`.

    Raises:
        ValueError: the bytes are not those of such a payload.
    """
    if num_tokens < 0 or len(data) < 5 * num_tokens:
        raise ValueError(f"Damaged payload: {len(data)} bytes are too few for {num_tokens} tokens.")
    found: dict[str, NDArray[Any]] = {
        "token_ids": np.frombuffer(data, "<i4", num_tokens),
        "action_mask": np.frombuffer(data, np.bool_, num_tokens, offset=4 * num_tokens),
    }
    # Counting bytes is ten times as fast as counting in arrays of some hundred numbers.
    num_trained = data.count(1, 4 * num_tokens, 5 * num_tokens)
    if num_trained + data.count(0, 4 * num_tokens, 5 * num_tokens) != num_tokens:
        raise ValueError("Damaged payload: its action mask holds values other than 0 and 1.")
    after = 5 * num_tokens
    if len(data) == after and codec == PLAIN:
        return found
    has_temperatures, shape, itemsize = _what_follows(codec, data, after + 8 * num_trained)
    header = 4 * _ROUTING_HEADER * (codec == ROUTED)
    expected = (12 if has_temperatures else 8) * num_trained + header + prod(shape) * itemsize
    if len(data) - after != expected:
        raise ValueError(
            f"Damaged payload: {len(data) - after} bytes follow the mask, expected "
            f"{'0 or ' if codec == PLAIN else ''}{expected} for {num_trained} trained tokens."
        )
    found["logprobs"] = np.frombuffer(data, "<f4", num_trained, offset=after)
    found["versions"] = np.frombuffer(data, "<i4", num_trained, offset=after + 4 * num_trained)
    after += 8 * num_trained + header
    if has_temperatures:
        found["temperatures"] = np.frombuffer(data, "<f4", num_trained, offset=after)
        after += 4 * num_trained
    if codec == ROUTED:
        found["routing"] = np.frombuffer(data, f"<u{itemsize}", prod(shape), offset=after).reshape(shape)
    return found


def _what_follows(codec: str, data: bytes, after: int) -> tuple[bool, tuple[int, ...], int]:
    """Whether temperatures are there; the shape of the routing, and the bytes of one choice.

    Args:
        after: where the header of the routing stands, if there is one.
    """
    if codec != ROUTED:
        return codec == TEMPERED, (0,), 0
    if len(data) < after + 4 * _ROUTING_HEADER:
        raise ValueError(f"Damaged payload: {len(data)} bytes end before the size of its routing.")
    has_temperatures, *shape, itemsize = np.frombuffer(data, "<i4", _ROUTING_HEADER, offset=after).tolist()
    if has_temperatures not in (0, 1) or min(shape) < 1 or itemsize not in (1, 2):
        raise ValueError(
            f"Damaged payload: its routing has {' by '.join(map(str, shape))} numbers of {itemsize} bytes."
        )
    return bool(has_temperatures), tuple(shape), itemsize
