"""Steps of `clean`: they drop rows that could only do harm in training.

Each returns why the row is dropped, or None.
"""

from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from trinity_db.processors.step import step


@step()
def not_empty(response: str) -> str | None:
    """Drops responses of nothing but white space."""
    return None if response.strip() else "empty"


@step()
def finite_logprobs(logprobs: NDArray[np.float32] | None) -> str | None:
    """Drops rows with a log-probability that is no number."""
    return None if logprobs is None or np.isfinite(logprobs).all() else "non_finite_logprobs"


@step()
def max_length(response_length: int, *, tokens: Annotated[int, Field(ge=1)]) -> str | None:
    """Drops responses of more than `tokens` tokens."""
    return "too_long" if response_length > tokens else None


@step()
def not_truncated(finish_reason: str | None) -> str | None:
    """Drops responses that ended because no more tokens were allowed (DAPO's overlong filtering).

    The rest of their group is compared without them.
    """
    return "truncated" if finish_reason == "length" else None
