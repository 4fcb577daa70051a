"""Validation of turns of OpenEnv's TrainingTrace: engine calls as tokens.

In addition to OpenEnv's rules, `per_token_logps` may be null if the sampler is unknown.
"""

from typing import Any

from trinity_db.data.records.records import Unfit

Row = dict[str, Any]

OURS = "trinity_db"
"""Metadata key of a turn for fields that traces lack."""
MAX_TOKEN = 2**31 - 1
MAX_NUMBER = 1e38  # largest float32, the format of log-probabilities and temperatures
KEYS = {
    "node_id": str,
    "prompt_token_ids": list,
    "completion_token_ids": list,
    "per_token_logps": list,
    "loss_mask": list,
    "request": dict,
    "response": dict,
    "metadata": dict,
}
NEEDED = tuple(KEYS)[:5]


def read_turn(value: Any) -> Row:
    """Validate a turn by OpenEnv's rules, and return it with all keys.

    Raises:
        Unfit: naming the key.
    """
    if not isinstance(value, dict):
        raise Unfit("'turns' must hold objects")
    if not value.keys() <= KEYS.keys():
        raise Unfit(f"a turn has a key other than {', '.join(KEYS)}")
    turn = {name: value.get(name, {}) for name in KEYS if name not in NEEDED}
    for name in NEEDED:
        if name not in value:
            raise Unfit(f"a turn has no '{name}'")
        turn[name] = value[name]
    for name, kind in KEYS.items():
        if not isinstance(turn[name], kind) and not (name == "per_token_logps" and turn[name] is None):
            raise Unfit(f"'{name}' of a turn must be {_KINDS[kind]}")
    if not turn["node_id"]:
        raise Unfit("'node_id' of a turn is empty")
    _check_tokens(turn)
    return turn


def _check_tokens(turn: Row) -> None:
    prompt_ids, completion = turn["prompt_token_ids"], turn["completion_token_ids"]
    logprobs, mask = turn["per_token_logps"], turn["loss_mask"]
    if not prompt_ids:
        raise Unfit("'prompt_token_ids' of a turn is empty")
    for name in ("prompt_token_ids", "completion_token_ids"):
        if not all(type(token) is int and 0 <= token <= MAX_TOKEN for token in turn[name]):
            raise Unfit(f"'{name}' of a turn must hold whole numbers from 0 to {MAX_TOKEN}")
    if logprobs is not None:
        _check_logprobs(logprobs, len(completion))
    if len(mask) != len(prompt_ids) + len(completion):
        raise Unfit("'loss_mask' of a turn must have one number for each token of prompt and completion")
    if not all(type(entry) is int and entry in (0, 1) for entry in mask):
        raise Unfit("'loss_mask' of a turn must hold 0 and 1")
    if any(mask[: len(prompt_ids)]):
        raise Unfit("'loss_mask' of a turn trains a token of the prompt")


def _check_logprobs(logprobs: list[Any], num_tokens: int) -> None:
    if len(logprobs) != num_tokens:
        raise Unfit("'per_token_logps' of a turn must have one number for each token of the completion")
    if not all(is_number(logprob) and abs(logprob) < MAX_NUMBER for logprob in logprobs):
        raise Unfit("'per_token_logps' of a turn must hold finite numbers")
    if any(logprob > 0 for logprob in logprobs):
        raise Unfit("'per_token_logps' of a turn holds a number above 0, which is not a log-probability")


def about_turn(turn: Row) -> Row:
    """Return what our export wrote into a turn's metadata."""
    metadata = turn["metadata"].get(OURS, {})
    if not isinstance(metadata, dict):
        raise Unfit(f"'metadata.{OURS}' of a turn must be an object")
    return metadata


def is_number(value: Any) -> bool:
    return type(value) in (int, float)


_KINDS: dict[type, str] = {str: "text", list: "a list", dict: "an object"}
