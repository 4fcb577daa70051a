"""An attempt in a text environment: the prompt is an observation, and the response is the action."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from trinity_db.explorer.attempt.policy import Policy
from trinity_db.explorer.environments.instance import Instance
from trinity_db.models.chat.decoding import response_text
from trinity_db.models.chat.prompts import PromptTooLong, encode, prompt_ids

SEEDS = 2**31  # limit of the random generators of some libraries


async def play(
    environment: Instance, task: Mapping[str, Any], policy: Policy, turns: int, steps: bool
) -> float | None:
    """Act until the environment ends the episode, the context is full, or all turns are used.

    Args:
        steps: whether each action is a rollout step with its own reward, whose prompt is only its
            observation; otherwise the prompt includes everything before, and the attempt is one sequence.

    Returns:
        The attempt's reward, if its actions are not rollout steps.
    """
    began = await environment.call("reset", seed=_seed(task, policy), options=dict(task))
    observation, info = _unpacked(environment, "reset", began, ("observation", "info"))
    reader = _Reader(task, policy)
    earned = 0.0
    for turn in range(turns):
        try:
            action = await (reader.answer_alone if steps else reader.answer)(_text(environment, observation))
        except PromptTooLong:
            if turn == 0:  # the task itself does not fit
                raise
            break
        outcome = await environment.call("step", action)
        names = ("observation", "reward", "terminated", "truncated", "info")
        observation, gained, terminated, truncated, next_info = _unpacked(environment, "step", outcome, names)
        reward = _number(environment, gained)
        if steps:
            policy.step(reward=reward, state=info.get("state"))
        earned, info = earned + reward, next_info
        if terminated or truncated:
            break
    return None if steps else earned


def _seed(task: Mapping[str, Any], policy: Policy) -> int:
    seed = task.get("seed")
    if seed is None:
        seed = policy.group_seed
    if not isinstance(seed, int):
        raise TypeError(f"the task's column 'seed' is {seed!r:.80}, not an integer")
    return seed % SEEDS


class _Reader:
    """Presents observations to the policy, as messages with a chat template, otherwise as plain text."""

    def __init__(self, task: Mapping[str, Any], policy: Policy) -> None:
        self._policy = policy
        self._renderer = policy.renderer
        messages = task.get("messages") or ()
        self._is_chat = bool(messages or self._renderer.has_template)
        begun = self._renderer.with_system_prompt(messages) if self._is_chat else ()
        self._messages: list[dict[str, Any]] = [dict(message) for message in begun]
        self._token_ids: list[int] = []

    async def answer_alone(self, observation: str) -> str:
        """Return the response to an observation, without any history."""
        if self._is_chat:
            return str(await self._policy.chat(with_user(self._messages, observation)))
        return await self._policy.complete(self._prompt(observation))

    async def answer(self, observation: str) -> str:
        """Return the response to an observation, with all earlier observations and responses."""
        if self._is_chat:
            self._messages = with_user(self._messages, observation)
            reply = await self._policy.chat(self._messages)
            self._messages.append(reply.message)
            return str(reply)
        tokenizer, text = self._policy.tokenizer, self._prompt(observation)
        self._token_ids += encode(text, tokenizer) if self._token_ids else prompt_ids(text, tokenizer)
        completion = await self._policy.sample(self._token_ids)
        self._token_ids += completion.token_ids
        return response_text(completion.token_ids, tokenizer)

    def _prompt(self, observation: str) -> str:
        return self._renderer.plain_prompt(observation)


def with_user(messages: list[dict[str, Any]], text: str) -> list[dict[str, Any]]:
    """Append a user's text to the conversation, merging it into a last message of the user."""
    if messages and messages[-1]["role"] == "user":
        *before, last = messages
        return [*before, {**last, "content": last["content"] + text}]
    return [*messages, {"role": "user", "content": text}]


def _unpacked(environment: Instance, method: str, value: Any, names: tuple[str, ...]) -> tuple[Any, ...]:
    """Check the number of values that a method returned.

    Raises:
        TypeError: if it is wrong, naming the environment and the returned values.
    """
    if not isinstance(value, tuple | list) or len(value) != len(names):
        size = f" of {len(value)}" if isinstance(value, tuple | list) else ""
        raise TypeError(
            f"{environment.name}: {method} returned {type(value).__name__}{size}, not ({', '.join(names)})"
        )
    if not isinstance(value[-1], Mapping):
        raise TypeError(f"{environment.name}: {method} returned {value[-1]!r:.80} as info, not a dict")
    return tuple(value)


def _text(environment: Instance, observation: Any) -> str:
    if not isinstance(observation, str):
        raise TypeError(f"{environment.name}: an observation is {type(observation).__name__}, not a string")
    return observation


def _number(environment: Instance, reward: Any) -> float:
    if not isinstance(reward, int | float | np.integer | np.floating):
        raise TypeError(f"{environment.name}: a reward is {type(reward).__name__}, not a number")
    return float(reward)
