"""HTTP clients for inference servers of other projects.

A dialect handles one kind of server and keeps no state between calls. Whatever the server, callers get a
`Completion` with log-probability and policy version of each token, or one of these errors:

    ServerUnavailable   another server, or this one later, may answer
    ServerUnusable      this server cannot serve a policy until someone changes its setup
    RequestRefused      the request is invalid for every server
    PromptTooLong       the same, because the prompt is too long
    RequestFailed       the server answered it with numbers that cannot be trained on

Servers must return log-probabilities under the distribution that each token was sampled from. vLLM needs
`--logprobs-mode processed_logprobs` for it; SGLang does it unless SGLANG_RETURN_ORIGINAL_LOGPROB is set.
"""

from trinity_db.explorer.engines.dialects.dialect import (
    Dialect,
    ServerUnavailable,
    ServerUnusable,
    open_session,
)
from trinity_db.explorer.engines.dialects.sglang import SGLang
from trinity_db.explorer.engines.dialects.vllm import VLLM

__all__ = [
    "DIALECTS",
    "VLLM",
    "Dialect",
    "SGLang",
    "ServerUnavailable",
    "ServerUnusable",
    "open_session",
]

DIALECTS: dict[str, type[VLLM] | type[SGLang]] = {"vllm": VLLM, "sglang": SGLang}
