"""What a user's environment is: a class, and one instance of it for each attempt.

With a method `step` it is a text environment in the style of Gymnasium. Without one, its other public methods
are the tools that the policy may call, as in TRL's `environment_factory`. With a method `attempt` it plays by
itself. Every method may be a coroutine
function, and `close()` is called at the end if there is one. Importing this needs no package.
"""

from collections.abc import Mapping
from typing import Any, Protocol


class NotStarted(Exception):
    """The environment could not be started, which is not the task's fault."""


class TextEnvironment(Protocol):
    """An environment that the policy acts in by texts."""

    def reset(self, *, seed: int, options: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
        """Begin.

        Args:
            seed: the task's column `seed`; without one, a number that all attempts of a rollout group share.
            options: the columns of the task as they were imported.

        Returns:
            what the policy reads first, and `info`.
        """

    def step(self, action: str) -> tuple[str, float, bool, bool, Mapping[str, Any]]:
        """Act by a text of the policy.

        Returns:
            what the policy reads next, what the action earned, whether the task came to its end, whether a
            limit ended it, and `info`. Its entry `state` says by a text where the policy acts next, for
            algorithms that compare what was done in equal states; without it, what the policy reads does.
        """


class ToolEnvironment(Protocol):
    """An environment that the policy acts in by tools: its public methods, each with a docstring.

    What the attempt earned is what `get_reward()` returns at its end, or else the attribute `reward`. Where
    the class has neither, reward functions alone judge. A class whose tools are not its methods, as those of
    a server, has `list_tools()`, which returns `trinity_db.explorer.tools.Tool` by name.
    """

    def reset(self, **task: Any) -> str | None:
        """Begin. The text that it returns is added to what the task says."""


class PlayingEnvironment(Protocol):
    """An environment that plays by itself, as an agent of another framework: it asks the policy over HTTP."""

    def attempt(self, *, task: Mapping[str, Any], url: str, key: str) -> Any:
        """Make the attempt, by the protocol of OpenAI or Anthropic.

        Args:
            url: the base URL, without /v1.
            key: the API key, which stands for this attempt.

        Returns:
            what it earned: a number, several by name, or None.
        """
