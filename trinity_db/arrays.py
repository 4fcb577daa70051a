"""The arrays of one experience, and their bytes in the store.

Explorers and imports write payloads, trainers read them, and no process changes one. The layout has a
name, the codec, which is stored beside the bytes, so that a later layout can live with this one.
"""

from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

CODEC = "packed-1"
"""Little endian, one after the other: token_ids int32[n], action_mask uint8[n], and for sampled
sequences logprobs float32[k] and versions int32[k], where k counts the ones in the mask."""
TEMPERED_CODEC = "packed-2"
"""The same, and after it temperatures float32[k]: sequences in which a call had a temperature of its own."""
ROUTED_CODEC = "packed-3"
"""As the first, then int32[5]: 1 if temperatures follow, else 0; m, layers, e, and bytes of a choice. Then
the temperatures float32[k], if they follow, and the routing [m, layers, e] as uint8 or uint16."""
CODECS = (CODEC, TEMPERED_CODEC, ROUTED_CODEC)
_ROUTING_HEADER = 5  # numbers

NO_VERSION = -1
"""The version of a token that no policy version of the row's run sampled, as one of an imported trace."""


@dataclass(frozen=True, eq=False)
class Payload:
    """One trainable token sequence: n tokens, k of them trained.

    Log-probabilities and versions are both there (a policy sampled the trained tokens) or both
    None (a person or a program wrote them: a demonstration, a preference). Only sequences with at least one
    trained token can have them.
    """

    token_ids: NDArray[np.int32]
    """[n] The prompt's and the response's tokens."""
    action_mask: NDArray[np.bool_]
    """[n] True for a token that is trained."""
    logprobs: NDArray[np.float32] | None = None
    """[k] Log-probability of each trained token under the distribution it was sampled from."""
    versions: NDArray[np.int32] | None = None
    """[k] The policy version that sampled each trained token."""
    temperatures: NDArray[np.float32] | None = None
    """[k] The temperature at which each trained token was sampled. None: all at the run's own."""
    routing: NDArray[np.uint8] | NDArray[np.uint16] | None = None
    """[m, layers, e] The experts that the engine's routers chose for the first m tokens, e in each layer. m
    is below n, since the engine does not go through the last token. None: no choice was recorded."""

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


def codec_of(payload: Payload) -> str:
    """The name of the layout in which `encode` writes a payload."""
    if payload.routing is not None:
        return ROUTED_CODEC
    return CODEC if payload.temperatures is None else TEMPERED_CODEC


def encode(payload: Payload) -> bytes:
    """The bytes of a payload in the layout that `codec_of` names."""
    parts = [_little(payload.token_ids, "<i4"), _little(payload.action_mask, "u1")]
    if payload.logprobs is not None and payload.versions is not None:
        parts += [_little(payload.logprobs, "<f4"), _little(payload.versions, "<i4")]
    routing, temperatures = payload.routing, payload.temperatures
    if routing is not None:
        header = [int(temperatures is not None), *routing.shape, routing.itemsize]
        parts.append(_little(np.array(header), "<i4"))
    if temperatures is not None:
        assert payload.logprobs is not None, "only what a policy sampled has temperatures"
        parts.append(_little(temperatures, "<f4"))
    if routing is not None:
        parts.append(_little(routing, f"<u{routing.itemsize}"))
    return b"".join(parts)


def decode(codec: str, data: bytes, num_tokens: int) -> Payload:
    """The payload of `num_tokens` tokens that `encode` wrote; its arrays are read-only views.

    Raises:
        ValueError: the codec is unknown, or the bytes are not those of such a payload.
    """
    if codec not in CODECS:
        known = ", ".join(f"'{one}'" for one in CODECS)
        raise ValueError(f"Payload codec '{codec}' is unknown; this version reads {known}.")
    if num_tokens < 0 or len(data) < 5 * num_tokens:
        raise ValueError(f"Damaged payload: {len(data)} bytes are too few for {num_tokens} tokens.")
    token_ids = np.frombuffer(data, "<i4", num_tokens)
    mask = np.frombuffer(data, np.bool_, num_tokens, offset=4 * num_tokens)
    # Counting bytes is ten times as fast as counting in arrays of some hundred numbers.
    num_trained = data.count(1, 4 * num_tokens, 5 * num_tokens)
    if num_trained + data.count(0, 4 * num_tokens, 5 * num_tokens) != num_tokens:
        raise ValueError("Damaged payload: its action mask holds values other than 0 and 1.")
    after = 5 * num_tokens
    if len(data) == after and codec == CODEC:
        return Payload(token_ids, mask)
    has_temperatures, shape, itemsize = _what_follows(codec, data, after + 8 * num_trained)
    header = 4 * _ROUTING_HEADER * (codec == ROUTED_CODEC)
    expected = (12 if has_temperatures else 8) * num_trained + header + prod(shape) * itemsize
    if len(data) - after != expected:
        raise ValueError(
            f"Damaged payload: {len(data) - after} bytes follow the mask, expected "
            f"{'0 or ' if codec == CODEC else ''}{expected} for {num_trained} trained tokens."
        )
    logprobs = np.frombuffer(data, "<f4", num_trained, offset=after)
    versions = np.frombuffer(data, "<i4", num_trained, offset=after + 4 * num_trained)
    after += 8 * num_trained + header
    temperatures = np.frombuffer(data, "<f4", num_trained, offset=after) if has_temperatures else None
    if codec != ROUTED_CODEC:
        return Payload(token_ids, mask, logprobs, versions, temperatures)
    after += 4 * num_trained * has_temperatures
    routing = np.frombuffer(data, f"<u{itemsize}", prod(shape), offset=after).reshape(shape)
    return Payload(token_ids, mask, logprobs, versions, temperatures, routing)


def _what_follows(codec: str, data: bytes, after: int) -> tuple[bool, tuple[int, ...], int]:
    """Whether temperatures are there; the shape of the routing, and the bytes of one choice.

    Args:
        after: where the header of the routing stands, if there is one.
    """
    if codec != ROUTED_CODEC:
        return codec == TEMPERED_CODEC, (0,), 0
    if len(data) < after + 4 * _ROUTING_HEADER:
        raise ValueError(f"Damaged payload: {len(data)} bytes end before the size of its routing.")
    has_temperatures, *shape, itemsize = np.frombuffer(data, "<i4", _ROUTING_HEADER, offset=after).tolist()
    if has_temperatures not in (0, 1) or min(shape) < 1 or itemsize not in (1, 2):
        raise ValueError(
            f"Damaged payload: its routing has {' by '.join(map(str, shape))} numbers of {itemsize} bytes."
        )
    return bool(has_temperatures), tuple(shape), itemsize


def check_routing(routing: NDArray[np.generic], num_tokens: int) -> None:
    """Refuse an array that cannot be the routing of so many tokens.

    Raises:
        ValueError: its shape or its numbers are others.
    """
    if routing.ndim != 3 or not 0 < len(routing) < num_tokens or min(routing.shape) < 1:
        raise ValueError(f"A routing of the shape {routing.shape} does not fit {num_tokens} tokens.")
    if routing.dtype not in (np.uint8, np.uint16):
        raise ValueError(f"A routing has numbers of 8 or 16 bits without sign, and this one {routing.dtype}.")


def encode_scores(payload: Payload, logprobs: NDArray[np.floating]) -> bytes:
    """Another model's scores of a payload's tokens, as stored beside the payload: float32[k], little endian.

    Args:
        logprobs: [k] of the trained tokens in order, but of a first one, which nothing predicts.

    Raises:
        ValueError: they are more or fewer.
    """
    if logprobs.shape != (payload.num_predicted,):
        raise ValueError(f"{logprobs.shape} scores do not fit {payload.num_predicted} predicted tokens.")
    return bytes(_little(logprobs, "<f4"))


def decode_scores(payload: Payload, data: bytes) -> NDArray[np.float32]:
    """The log-probabilities [k] that `encode_scores` wrote.

    Raises:
        ValueError: they belong to another payload.
    """
    if len(data) != 4 * payload.num_predicted:
        raise ValueError(
            f"Damaged scores: {len(data)} bytes, expected {4 * payload.num_predicted} "
            f"for {payload.num_predicted} predicted tokens."
        )
    return np.frombuffer(data, "<f4")


def _little(values: NDArray[np.generic], dtype: str) -> memoryview:
    return np.ascontiguousarray(values, dtype).data
