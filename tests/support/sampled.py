"""What an engine sampled, as a payload."""

import numpy as np

from trinity_db.arrays.codec import Payload
from trinity_db.explorer.engines.engine import Completion, Request


def payload(asked: Request, completion: Completion) -> Payload:
    """A prompt and its response, which is trained."""
    token_ids = np.array([*asked.prompt_ids, *completion.token_ids], np.int32)
    return Payload(
        token_ids,
        np.arange(len(token_ids)) >= len(asked.prompt_ids),
        np.array(completion.logprobs, np.float32),
        np.array(completion.versions, np.int32),
    )
