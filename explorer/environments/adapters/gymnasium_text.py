"""Gymnasium environments whose state can be shown as text and whose actions can be named."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

_MARKED = re.compile(r"\x1b\[(?:4[0-7]|10[0-7])m(.)\x1b\[0m")
_COLOUR = re.compile(r"\x1b\[[\d;]*m")


class GymnasiumText:
    """A Gymnasium environment, as a text environment.

    A response without an action leaves the environment unchanged, and the same observation is shown again.

    Args:
        id: as for `gymnasium.make`, optionally with a module prefix.
        actions: words for the actions, in order, or a mapping to their numbers. None: the numbers themselves.
        show: content shown to the policy: the text picture, with brackets for a coloured background, or the
            observation. None: the picture if the environment has one.
        penalty: cost of a response without an action.
        options: options of the environment for `gymnasium.make`.
    """

    def __init__(
        self,
        *,
        id: str,
        actions: Sequence[str] | Mapping[str, int] | None = None,
        show: Literal["picture", "observation"] | None = None,
        penalty: float = 0.0,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        import gymnasium

        chosen = dict(options or {})
        self._environment: Any = gymnasium.make(id, **chosen)
        has_picture = "ansi" in self._environment.metadata.get("render_modes", ())
        if show == "picture" and not has_picture:
            raise ValueError(f"{id} cannot be rendered as text; use show: observation")
        self._draws = has_picture and show != "observation"
        if self._draws:
            self._environment.close()
            self._environment = gymnasium.make(id, render_mode="ansi", **chosen)
        self._penalty = penalty
        self._numbers = self._named(actions)
        self._observation: Any = None

    def reset(self, *, seed: int, options: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
        """Start an episode. Only the seed of the task is used."""
        self._observation, _ = self._environment.reset(seed=seed)
        return self._shown()

    def step(self, action: str) -> tuple[str, float, bool, bool, Mapping[str, Any]]:
        """Take the last action named in the response."""
        number = self._number(action)
        if number is None:
            text, info = self._shown()
            return text, 0.0 - self._penalty, False, False, info
        self._observation, reward, terminated, truncated, _ = self._environment.step(number)
        text, info = self._shown()
        return text, float(reward), terminated, truncated, info

    def close(self) -> None:
        """Close the environment."""
        self._environment.close()

    def _shown(self) -> tuple[str, Mapping[str, Any]]:
        state = str(self._observation)
        if not self._draws:
            return state, {"state": state}
        return _COLOUR.sub("", _MARKED.sub(r"[\1]", self._environment.render())).strip("\n"), {"state": state}

    def _named(self, actions: Sequence[str] | Mapping[str, int] | None) -> dict[str, int]:
        from gymnasium.spaces import Discrete

        space = self._environment.action_space
        if not isinstance(space, Discrete):
            raise TypeError(f"its actions are {space}, which cannot be named; only discrete actions can")
        numbers = range(int(space.start), int(space.start + space.n))
        if actions is None:
            named = {str(number): number for number in numbers}
        elif isinstance(actions, Mapping):
            named = {word: int(number) for word, number in actions.items()}
        else:
            named = dict(zip(actions, numbers, strict=len(actions) > space.n))
        if unknown := [word for word, number in named.items() if number not in numbers]:
            raise ValueError(f"unknown action {named[unknown[0]]} for '{unknown[0]}'; known: {numbers}")
        return {word.casefold(): number for word, number in named.items()}

    def _number(self, response: str) -> int | None:
        text = response.casefold()
        if text.strip() in self._numbers:
            return self._numbers[text.strip()]
        # Match the longest first, so that "turn left" is not read as "left".
        words = sorted(map(re.escape, self._numbers), key=len, reverse=True)
        matches = re.findall(rf"(?<!\w)(?:{'|'.join(words)})(?!\w)", text)
        return self._numbers[matches[-1]] if matches else None
