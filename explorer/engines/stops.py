"""Stop strings, for engines that sample tokens."""

from collections.abc import Sequence
from typing import Any

from trinity_db.explorer.engines.engine import Completion


def has_stopped(tokenizer: Any, token_ids: Sequence[int], stops: Sequence[str]) -> bool:
    """Whether the newest token completed one of the stop strings."""
    if not stops:
        return False
    # A token has at least one byte. Decode one more token, as some decoders strip the first one's space.
    longest = max(len(stop.encode()) for stop in stops)
    tail = tokenizer.decode(token_ids[-longest - 1 :], skip_special_tokens=False)
    return any(stop in tail for stop in stops)


def cut_off(tokenizer: Any, completion: Completion, stops: Sequence[str]) -> Completion:
    """Cut a response after the first token that completes a stop string; servers may sample beyond it."""
    if not stops:
        return completion
    for end in range(1, len(completion.token_ids) + 1):
        if has_stopped(tokenizer, completion.token_ids[:end], stops):
            routing, beyond = completion.routing, len(completion.token_ids) - end
            return Completion(
                completion.token_ids[:end],
                completion.logprobs[:end],
                completion.versions[:end],
                "stop",
                None if routing is None else routing[: len(routing) - beyond],
            )
    return completion
