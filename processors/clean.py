"""The clean processor: drops what could only do harm in training."""

import numpy as np
from psycopg.rows import DictRow

from trinity_db import arrays
from trinity_db.processors.config import CleanConfig
from trinity_db.schema.states import Outcome
from trinity_db.store.rows import Verdict


def judge(row: DictRow, config: CleanConfig) -> Verdict:
    """Pass or drop one raw row, with the reason."""
    payload = arrays.decode(row["codec"], row["data"], row["num_tokens"])
    reason = _unfit(row, payload, config)
    if reason is None:
        return Verdict(row["id"], row["attempt"])
    return Verdict(row["id"], row["attempt"], Outcome.DROPPED, reason)


def _unfit(row: DictRow, payload: arrays.Payload, config: CleanConfig) -> str | None:
    if not row["response"].strip():
        return "empty"
    if payload.logprobs is not None and not np.isfinite(payload.logprobs).all():
        return "non_finite_logprobs"
    if config.max_response_length is not None and payload.num_trained > config.max_response_length:
        return "too_long"
    if config.drop_truncated and row["finish_reason"] == "length":
        return "truncated"
    return None
