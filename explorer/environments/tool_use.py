"""An attempt in an environment of tools: the policy answers, and its calls are made, until it makes none."""

from collections.abc import Mapping
from typing import Any

from trinity_db.explorer.environments.instance import Instance
from trinity_db.explorer.environments.text import with_user
from trinity_db.explorer.policy import Policy
from trinity_db.explorer.tools import answer
from trinity_db.prompts import PromptTooLong


async def play(environment: Instance, task: Mapping[str, Any], policy: Policy, turns: int) -> Any:
    """Answer and call tools until an answer calls none, the context is full, or all turns are taken.

    Returns:
        what the environment says that the attempt earned.
    """
    messages = await _begun(environment, task, policy)
    tools = await environment.tools()
    for turn in range(turns):
        try:
            said = await policy.chat(messages, tools=[*tools.values()])
        except PromptTooLong:
            if turn == 0:  # the task itself does not fit
                raise
            break
        if not said.tool_calls:
            break
        messages += [said.message, *[await answer(call, tools) for call in said.tool_calls]]
    return await environment.reward()


async def _begun(environment: Instance, task: Mapping[str, Any], policy: Policy) -> list[dict[str, Any]]:
    """What the policy reads first: what the task says, and what `reset` adds to it."""
    observation = await environment.call("reset", **task)
    if observation is not None and not isinstance(observation, str):
        kind = type(observation).__name__
        raise TypeError(f"{environment.name}: reset returned {kind}, neither a text nor None")
    begun = task.get("messages") or ()
    messages = [dict(message) for message in policy.renderer.with_system_prompt(begun)]
    if not begun and task.get("prompt"):
        messages = with_user(messages, task["prompt"])
    return with_user(messages, observation) if observation else messages
