"""How servers of other projects are asked for tokens over HTTP, and how their answers are read.

A dialect knows one kind of server and keeps nothing between calls. Whatever a server says, a caller sees one
form: a `Completion` with the log-probability and the policy version of each token, or one of these errors.

    ServerUnavailable   another server, or this one later, may answer
    ServerUnusable      this server cannot be a policy, until a person changes something
    RequestRefused      no server answers this request
    PromptTooLong       likewise, since the prompt is too long

Servers are asked for the log-probability under the distribution that each token was sampled from. For vLLM
this needs `--logprobs-mode processed_logprobs`; SGLang does so unless SGLANG_RETURN_ORIGINAL_LOGPROB is set.
"""

from trinity_db.explorer.engines.dialects.dialect import (
    Dialect,
    RequestRefused,
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
    "RequestRefused",
    "SGLang",
    "ServerUnavailable",
    "ServerUnusable",
    "open_session",
]

DIALECTS: dict[str, type[VLLM] | type[SGLang]] = {"vllm": VLLM, "sglang": SGLang}
