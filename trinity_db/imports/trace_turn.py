"""One turn of OpenEnv's TrainingTrace, by the rules of its class: a call of an engine, as tokens.

Beyond them, `per_token_logps` may be null where what sampled the tokens is not known.
"""

from typing import Any

from trinity_db.imports.records import Unfit, tidy

Row = dict[str, Any]

OURS = "trinity_db"
"""The key of a turn's metadata under which we write what a trace has no place for."""
MAX_TOKEN = 2**31 - 1
MAX_NUMBER = 1e38  # of 32 bits, as log-probabilities and temperatures are stored
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
    """A turn that keeps the rules of OpenEnv, with all of its keys.

    Raises:
        Unfit: naming the key.
    """
    if not isinstance(value, dict):
        raise Unfit("'turns' must hold objects")
    if not value.keys() <= KEYS.keys():
        raise Unfit(f"a turn has a key that is none of {', '.join(KEYS)}")
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
    return {name: tidy(one) if isinstance(one, dict) else one for name, one in turn.items()}


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
    if not all(type(one) is int and one in (0, 1) for one in mask):
        raise Unfit("'loss_mask' of a turn must hold 0 and 1")
    if any(mask[: len(prompt_ids)]):
        raise Unfit("'loss_mask' of a turn trains a token of the prompt")


def _check_logprobs(logprobs: list[Any], num_tokens: int) -> None:
    if len(logprobs) != num_tokens:
        raise Unfit("'per_token_logps' of a turn must have one number for each token of the completion")
    if not all(is_number(one) and abs(one) < MAX_NUMBER for one in logprobs):
        raise Unfit("'per_token_logps' of a turn must hold finite numbers")
    if any(one > 0 for one in logprobs):
        raise Unfit("'per_token_logps' of a turn holds a number above 0, which is no log-probability")


def about_turn(turn: Row) -> Row:
    """What an export of ours wrote into a turn's metadata."""
    found = turn["metadata"].get(OURS, {})
    if not isinstance(found, dict):
        raise Unfit(f"'metadata.{OURS}' of a turn must be an object")
    return found


def is_number(value: Any) -> bool:
    return type(value) in (int, float)


_KINDS: dict[type, str] = {str: "text", list: "a list", dict: "an object"}
