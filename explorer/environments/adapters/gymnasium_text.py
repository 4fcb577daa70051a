"""Environments of Gymnasium whose state can be written and whose actions can be named."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

_MARKED = re.compile(r"\x1b\[(?:4[0-7]|10[0-7])m(.)\x1b\[0m")
_COLOUR = re.compile(r"\x1b\[[\d;]*m")


class GymnasiumText:
    """An environment of Gymnasium, as a text environment.

    A response that names no action leaves the environment as it was, and is told the same observation again.

    Args:
        id: as `gymnasium.make` takes it, also with a module before it.
        actions: words for the actions, in their order, or each with its number. None: their numbers.
        show: what the policy reads: the picture in letters, in which brackets stand for a coloured ground,
            or the observation. None: the picture where the environment has one.
        penalty: what a response that names no action costs.
        options: of the environment, as `gymnasium.make` takes them.
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
            raise ValueError(f"{id} draws no picture in letters; take show: observation")
        self._draws = has_picture and show != "observation"
        if self._draws:
            self._environment.close()
            self._environment = gymnasium.make(id, render_mode="ansi", **chosen)
        self._penalty = penalty
        self._numbers = self._named(actions)
        self._observation: Any = None

    def reset(self, *, seed: int, options: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
        """Begin; nothing of the task but its seed is read."""
        self._observation, _ = self._environment.reset(seed=seed)
        return self._shown()

    def step(self, action: str) -> tuple[str, float, bool, bool, Mapping[str, Any]]:
        """Do what the response names last."""
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
            raise TypeError(f"its actions are {space}, which have no words; one of a few can be named")
        numbers = range(int(space.start), int(space.start + space.n))
        if actions is None:
            named = {str(number): number for number in numbers}
        elif isinstance(actions, Mapping):
            named = {word: int(number) for word, number in actions.items()}
        else:
            named = dict(zip(actions, numbers, strict=len(actions) > space.n))
        if unknown := [word for word, number in named.items() if number not in numbers]:
            raise ValueError(f"there is no action {named[unknown[0]]} for '{unknown[0]}': they are {numbers}")
        return {word.casefold(): number for word, number in named.items()}

    def _number(self, response: str) -> int | None:
        said = response.casefold()
        if said.strip() in self._numbers:
            return self._numbers[said.strip()]
        # The longest first, so that "turn left" is not read as "left".
        words = sorted(map(re.escape, self._numbers), key=len, reverse=True)
        found = re.findall(rf"(?<!\w)(?:{'|'.join(words)})(?!\w)", said)
        return self._numbers[found[-1]] if found else None
