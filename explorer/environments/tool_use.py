"""An attempt in a tool environment: the policy answers and its tool calls are run, until there are none."""

from collections.abc import Mapping
from typing import Any

from trinity_db.explorer.attempt.policy import Policy
from trinity_db.explorer.attempt.tools import answer
from trinity_db.explorer.environments.instance import Instance
from trinity_db.explorer.environments.text import with_user
from trinity_db.models.chat.prompts import PromptTooLong


async def play(environment: Instance, task: Mapping[str, Any], policy: Policy, turns: int) -> Any:
    """Answer and run tool calls until there are none, the context is full, or all turns are used.

    Returns:
        The reward that the environment reports for the attempt.
    """
    messages = await _begun(environment, task, policy)
    tools = await environment.tools()
    for turn in range(turns):
        try:
            reply = await policy.chat(messages, tools=[*tools.values()])
        except PromptTooLong:
            if turn == 0:  # the task itself does not fit
                raise
            break
        if not reply.tool_calls:
            break
        messages += [reply.message, *[await answer(call, tools) for call in reply.tool_calls]]
    return await environment.reward()


async def _begun(environment: Instance, task: Mapping[str, Any], policy: Policy) -> list[dict[str, Any]]:
    """Return the first messages: those of the task, and the text that `reset` adds."""
    observation = await environment.call("reset", **task)
    if observation is not None and not isinstance(observation, str):
        kind = type(observation).__name__
        raise TypeError(f"{environment.name}: reset returned {kind}, not a string or None")
    begun = task.get("messages") or ()
    messages = [dict(message) for message in policy.renderer.with_system_prompt(begun)]
    if not begun and task.get("prompt"):
        messages = with_user(messages, task["prompt"])
    return with_user(messages, observation) if observation else messages
