"""Interfaces of a user's environment: a class, with one instance for each attempt.

With a method `step` it is a text environment in the style of Gymnasium. Without one, its other public methods
are offered to the policy as tools (like TRL's `environment_factory`). With a method `attempt` it runs the
whole attempt by itself. Any method may be a coroutine function. `close()` is called at the end, if defined.
Importing this module needs no package.
"""

from collections.abc import Mapping
from typing import Any, Protocol


class NotStarted(Exception):
    """The environment could not be started, which does not count against the task."""


class TextEnvironment(Protocol):
    """An environment in which the policy acts through text."""

    def reset(self, *, seed: int, options: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
        """Start an episode.

        Args:
            seed: the task's column `seed`; without one, a number shared by all attempts of a rollout group.
            options: columns of the task as imported.

        Returns:
            The first observation, and `info`.
        """

    def step(self, action: str) -> tuple[str, float, bool, bool, Mapping[str, Any]]:
        """Apply a response of the policy as an action.

        Returns:
            The next observation, the reward of the action, whether the task ended, whether a limit ended it,
            and `info`. Its entry `state` is a string that identifies the policy's next state, for algorithms
            that compare actions taken in equal states; by default, the observation does.
        """


class ToolEnvironment(Protocol):
    """An environment in which the policy acts through tools: its public methods, each with a docstring.

    The attempt's reward is the result of `get_reward()` at its end, or else the attribute `reward`. If the
    class has neither, only reward functions score the attempt. A class whose tools are not its methods, such
    as those of a server, defines `list_tools()`, which returns objects of the class `Tool`
    (`trinity_db.explorer.attempt.tools`) by name.
    """

    def reset(self, **task: Any) -> str | None:
        """Start an episode. The returned text is appended to the task's prompt."""


class PlayingEnvironment(Protocol):
    """An environment that runs attempts by itself, querying the policy over HTTP: an agent framework."""

    def attempt(self, *, task: Mapping[str, Any], url: str, key: str) -> Any:
        """Run the attempt, using the protocol of OpenAI or Anthropic.

        Args:
            url: base URL, without /v1.
            key: API key, which identifies this attempt.

        Returns:
            The reward: a number, numbers by name, or None.
        """
