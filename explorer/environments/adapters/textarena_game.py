"""Games of TextArena for one player."""

from collections.abc import Mapping
from typing import Any


class Game:
    """A game, as a text environment. What the policy writes is its move; the last one earns the reward.

    TextArena draws its chances from the process's own random numbers, so that a process plays one game at
    a time.

    Args:
        id: as `textarena.make` takes it.
        whole: whether each observation repeats the game so far, for rollout steps that read it alone.
        options: of the game, as `textarena.make` takes them.
    """

    def __init__(self, *, id: str, whole: bool = False, options: Mapping[str, Any] | None = None) -> None:
        import textarena

        self._game: Any = textarena.make(id, **(options or {}))
        self._whole = whole
        self._seen = ""

    def reset(self, *, seed: int, options: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
        """Begin; nothing of the task but its seed is read."""
        self._game.reset(num_players=1, seed=seed)
        return self._observation(), {}

    def step(self, action: str) -> tuple[str, float, bool, bool, Mapping[str, Any]]:
        """Make a move."""
        is_over, _ = self._game.step(action=action)
        if not is_over:
            return self._observation(), 0.0, False, False, {}
        rewards, about = self._game.close()
        return "", float(rewards[0]), True, False, dict(about.get(0, {}))

    def _observation(self) -> str:
        """What is new since the last one, or all of it."""
        _, text = self._game.get_observation()
        new: str = text.removeprefix(self._seen)
        self._seen = text
        return text if self._whole else new
