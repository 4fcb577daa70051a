"""The arrays of one experience, and their bytes in the store.

Explorers and imports write payloads, trainers read them, and no process changes one. The layout has a
name, the codec, which is stored beside the bytes, so that a later layout can live with this one.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

CODEC = "packed-1"
"""Little endian, one after the other: token_ids int32[n], action_mask uint8[n], and for sampled
sequences logprobs float32[k] and versions int32[k], where k counts the ones in the mask."""
TEMPERED_CODEC = "packed-2"
"""The same, and after it temperatures float32[k]: sequences in which a call had a temperature of its own."""


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
    return CODEC if payload.temperatures is None else TEMPERED_CODEC


def encode(payload: Payload) -> bytes:
    """The bytes of a payload in the layout that `codec_of` names."""
    parts = [_little(payload.token_ids, "<i4"), _little(payload.action_mask, "u1")]
    if payload.logprobs is not None and payload.versions is not None:
        parts += [_little(payload.logprobs, "<f4"), _little(payload.versions, "<i4")]
    if payload.temperatures is not None:
        assert payload.logprobs is not None, "only what a policy sampled has temperatures"
        parts.append(_little(payload.temperatures, "<f4"))
    return b"".join(parts)


def decode(codec: str, data: bytes, num_tokens: int) -> Payload:
    """The payload of `num_tokens` tokens that `encode` wrote; its arrays are read-only views.

    Raises:
        ValueError: the codec is unknown, or the bytes are not those of such a payload.
    """
    if codec not in (CODEC, TEMPERED_CODEC):
        raise ValueError(
            f"Payload codec '{codec}' is unknown; this version reads '{CODEC}' and '{TEMPERED_CODEC}'."
        )
    if num_tokens < 0 or len(data) < 5 * num_tokens:
        raise ValueError(f"Damaged payload: {len(data)} bytes are too few for {num_tokens} tokens.")
    token_ids = np.frombuffer(data, "<i4", num_tokens)
    mask = np.frombuffer(data, np.bool_, num_tokens, offset=4 * num_tokens)
    # Counting bytes is ten times as fast as counting in arrays of some hundred numbers.
    num_trained = data.count(1, 4 * num_tokens, 5 * num_tokens)
    if num_trained + data.count(0, 4 * num_tokens, 5 * num_tokens) != num_tokens:
        raise ValueError("Damaged payload: its action mask holds values other than 0 and 1.")
    rest = len(data) - 5 * num_tokens
    has_temperatures = codec == TEMPERED_CODEC
    if rest == 0 and not has_temperatures:
        return Payload(token_ids, mask)
    expected = (12 if has_temperatures else 8) * num_trained
    if rest != expected:
        raise ValueError(
            f"Damaged payload: {rest} bytes follow the mask, expected {'' if has_temperatures else '0 or '}"
            f"{expected} for {num_trained} trained tokens."
        )
    after = 5 * num_tokens
    logprobs = np.frombuffer(data, "<f4", num_trained, offset=after)
    versions = np.frombuffer(data, "<i4", num_trained, offset=after + 4 * num_trained)
    if not has_temperatures:
        return Payload(token_ids, mask, logprobs, versions)
    temperatures = np.frombuffer(data, "<f4", num_trained, offset=after + 8 * num_trained)
    return Payload(token_ids, mask, logprobs, versions, temperatures)


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
