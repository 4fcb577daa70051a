"""Arrays of one experience, and their binary format in the store.

Explorers and imports write payloads, trainers read them, and no process modifies them. The layout's name, the
codec, is stored with the bytes, so that several layouts can coexist.
"""

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

CODEC = "compact-1"
"""Little endian, one after the other:

- uint8: what follows the mask. The sum of 1 (log-probabilities and versions), 2 (temperatures), 4 (routing)
- uint8: w, the bytes of a token id
- token_ids: n unsigned numbers of w bytes; signed if w is 4
- action_mask: n bits in bytes, the first token in a byte's highest bit, zeros at the end; k of them are ones
- log-probabilities: float32[k]
- versions: runs of int32
- temperatures: runs of float32
- routing [m, layers, e]: int32[4] with m, layers, e and s, the bytes of a choice; then unsigned numbers of s

Runs are uint32 r, the lengths uint32[r] and the values [r]. A sequence has few of them: a version or a
temperature changes between calls, or once while a call is in flight.
"""
_SAMPLED, _TEMPERED, _ROUTED = 1, 2, 4
_CONTENTS = (0, 1, 3, 5, 7)
"""An optional array, present only for sampled tokens."""

NO_VERSION = -1
"""Version of a token that no policy version of the row's run sampled, for example in an imported trace."""


@dataclass(frozen=True, eq=False)
class Payload:
    """One trainable token sequence: n tokens, k of them trained.

    Log-probabilities and versions are either both present (a policy sampled the trained tokens) or both None
    (written by a person or a program: a demonstration, a preference). Only sequences with at least one
    trained token can have them.
    """

    token_ids: NDArray[np.int32]
    """[n] The prompt's and the response's tokens."""
    action_mask: NDArray[np.bool_]
    """[n] True for trained tokens."""
    logprobs: NDArray[np.float32] | None = None
    """[k] Log-probability of each trained token under the distribution from which it was sampled."""
    versions: NDArray[np.int32] | None = None
    """[k] Policy version that sampled each trained token."""
    temperatures: NDArray[np.float32] | None = None
    """[k] Temperature at which each trained token was sampled. None: the run's temperature for all."""
    routing: NDArray[np.uint8] | NDArray[np.uint16] | None = None
    """[m, layers, e] Experts that the engine's routers chose for the first m tokens, e in each layer. m is
    below n, since the engine does not process the last token. None: no choices were recorded."""

    def __post_init__(self) -> None:
        if self.token_ids.ndim != 1 or self.action_mask.shape != self.token_ids.shape:
            raise ValueError(
                f"A payload needs one mask entry per token: {self.token_ids.shape} tokens, "
                f"{self.action_mask.shape} mask entries."
            )
        if (self.logprobs is None) != (self.versions is None):
            raise ValueError("A payload has log-probabilities and versions, or neither.")
        num_trained = self.num_trained
        for name, values in (
            ("log-probabilities", self.logprobs),
            ("versions", self.versions),
            ("temperatures", self.temperatures),
        ):
            if values is not None and (values.shape != (num_trained,) or not num_trained):
                raise ValueError(f"{values.shape} {name} do not fit {num_trained} trained tokens.")
        if self.routing is not None:
            check_routing(self.routing, self.num_tokens)
            if self.logprobs is None:
                raise ValueError("Only what a policy sampled has a routing.")

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_trained(self) -> int:
        return int(np.count_nonzero(self.action_mask))

    @property
    def num_predicted(self) -> int:
        """Trained tokens that a model can score: all except a sequence's first token."""
        return int(np.count_nonzero(self.action_mask[1:]))


def encode(payload: Payload) -> bytes:
    """Return the bytes of a payload in the layout `CODEC`."""
    token_ids = np.ascontiguousarray(payload.token_ids, "<i4")
    width = _width(token_ids)
    has = 0
    narrow = token_ids.view(np.uint8).reshape(-1, 4)[:, :width]
    parts: list[bytes | memoryview] = [narrow.tobytes(), np.packbits(payload.action_mask).tobytes()]
    if payload.logprobs is not None and payload.versions is not None:
        has |= _SAMPLED
        parts += [_little(payload.logprobs, "<f4"), _runs(payload.versions, "<i4")]
    if payload.temperatures is not None:
        assert payload.logprobs is not None, "only what a policy sampled has temperatures"
        has |= _TEMPERED
        parts.append(_runs(payload.temperatures, "<f4"))
    if payload.routing is not None:
        has |= _ROUTED
        size = payload.routing.itemsize
        sizes = np.array([*payload.routing.shape, size])
        parts += [_little(sizes, "<i4"), _little(payload.routing, f"<u{size}")]
    return b"".join([bytes([has, width]), *parts])


def decode(codec: str, data: bytes, num_tokens: int) -> Payload:
    """Decode a payload of `num_tokens` tokens; its arrays may be read-only views of data.

    Raises:
        ValueError: if the codec is unknown, or the bytes do not fit such a payload.
    """
    if codec != CODEC:
        raise ValueError(f"Payload codec '{codec}' is unknown; this version reads '{CODEC}'.")
    reader = _Rest(data)
    has, width = reader.take("u1", 2).tolist()
    if has not in _CONTENTS or not 1 <= width <= 4:
        raise ValueError(f"Damaged payload: it begins with {has} and {width}.")
    token_ids = _widened(reader.take("u1", width * num_tokens), width)
    mask = _mask(reader.take("u1", (num_tokens + 7) // 8), num_tokens)
    num_trained = int(np.count_nonzero(mask))
    logprobs = reader.take("<f4", num_trained) if has & _SAMPLED else None
    versions = reader.take_runs("<i4", num_trained) if has & _SAMPLED else None
    temperatures = reader.take_runs("<f4", num_trained) if has & _TEMPERED else None
    routing = reader.take_routing() if has & _ROUTED else None
    reader.end()
    return Payload(token_ids, mask, logprobs, versions, temperatures, routing)


class _Rest:
    """Sequential reader of a payload's bytes."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, dtype: str, count: int) -> NDArray[Any]:
        """Return the next `count` numbers, as a read-only view."""
        begin = self._at
        self._at += int(dtype[-1]) * count
        if count < 0 or self._at > len(self._data):
            raise ValueError(f"Damaged payload: its {len(self._data)} bytes are too few.")
        return np.frombuffer(self._data, dtype, count, offset=begin)

    def take_runs(self, dtype: str, count: int) -> NDArray[Any]:
        """Return `count` numbers written by `_runs`."""
        num_runs = int(self.take("<u4", 1)[0])
        lengths, values = self.take("<u4", num_runs), self.take(dtype, num_runs)
        if lengths.sum() != count:
            raise ValueError(f"Damaged payload: {lengths.sum()} numbers in runs, expected {count}.")
        return np.repeat(values, lengths)

    def take_routing(self) -> NDArray[Any]:
        """Return the numbers of a routing, which follow their sizes."""
        *shape, itemsize = self.take("<i4", 4).tolist()
        if min(shape) < 1 or itemsize not in (1, 2):
            sizes = " by ".join(map(str, shape))
            raise ValueError(f"Damaged payload: its routing has {sizes} numbers of {itemsize} bytes.")
        return self.take(f"<u{itemsize}", prod(shape)).reshape(shape)

    def end(self) -> None:
        """Refuse trailing bytes."""
        if self._at != len(self._data):
            raise ValueError(f"Damaged payload: {len(self._data)} bytes, expected {self._at}.")


def _width(token_ids: NDArray[np.int32]) -> int:
    """Return the number of bytes per token id; 4 if any is negative, 1 if there are none."""
    if not len(token_ids):
        return 1
    return 4 if token_ids.min() < 0 else max(1, (int(token_ids.max()).bit_length() + 7) // 8)


def _widened(narrow: NDArray[np.uint8], width: int) -> NDArray[np.int32]:
    """Widen token ids [n] of `width` bytes each."""
    if width == 4:
        return narrow.view("<i4")
    wide = np.zeros((len(narrow) // width, 4), np.uint8)
    wide[:, :width] = narrow.reshape(-1, width)
    return wide.reshape(-1).view("<i4")


def _mask(packed: NDArray[np.uint8], num_tokens: int) -> NDArray[np.bool_]:
    """Unpack the action mask [n] from bits."""
    if num_tokens % 8 and packed[-1] & (0xFF >> num_tokens % 8):
        raise ValueError("Damaged payload: its action mask is longer than its tokens.")
    return np.unpackbits(packed, count=num_tokens).view(np.bool_)


def _runs(values: NDArray[np.generic], dtype: str) -> bytes:
    """Encode four-byte numbers as lengths and values of runs."""
    bits = np.ascontiguousarray(values, dtype).view("<i4")
    begins = np.flatnonzero(np.concatenate(([True], bits[1:] != bits[:-1])))
    lengths = np.diff(begins, append=len(bits)).astype("<u4")
    return len(begins).to_bytes(4, "little") + lengths.tobytes() + bits[begins].tobytes()


def check_routing(routing: NDArray[np.generic], num_tokens: int) -> None:
    """Refuse an array that cannot be the routing of this many tokens.

    Raises:
        ValueError: if its shape or its numbers do not fit.
    """
    if routing.ndim != 3 or not 0 < len(routing) < num_tokens or min(routing.shape) < 1:
        raise ValueError(f"A routing of the shape {routing.shape} does not fit {num_tokens} tokens.")
    if routing.dtype not in (np.uint8, np.uint16):
        raise ValueError(f"A routing has numbers of 8 or 16 bits without sign, and this one {routing.dtype}.")


def encode_scores(payload: Payload, logprobs: NDArray[np.floating]) -> bytes:
    """Encode another model's scores of a payload's tokens, stored with the payload: float32[k], little
    endian.

    Args:
        logprobs: [k] of the trained tokens in order, except a sequence's first token, which nothing predicts.

    Raises:
        ValueError: if their number does not fit.
    """
    if logprobs.shape != (payload.num_predicted,):
        raise ValueError(f"{logprobs.shape} scores do not fit {payload.num_predicted} predicted tokens.")
    return bytes(_little(logprobs, "<f4"))


def decode_scores(payload: Payload, data: bytes) -> NDArray[np.float32]:
    """Decode the log-probabilities [k] written by `encode_scores`.

    Raises:
        ValueError: if they belong to another payload.
    """
    if len(data) != 4 * payload.num_predicted:
        raise ValueError(
            f"Damaged scores: {len(data)} bytes, expected {4 * payload.num_predicted} "
            f"for {payload.num_predicted} predicted tokens."
        )
    return np.frombuffer(data, "<f4")


def _little(values: NDArray[np.generic], dtype: str) -> memoryview:
    return np.ascontiguousarray(values, dtype).data
