"""Single-player games of TextArena."""

from collections.abc import Mapping
from typing import Any


class Game:
    """A game, as a text environment. Each response is a move; the last one gets the reward.

    TextArena uses the process's global random generator, so a process plays one game at a time.

    Args:
        id: as for `textarena.make`.
        whole: whether each observation repeats the game so far, for rollout steps without history.
        options: options of the game for `textarena.make`.
    """

    def __init__(self, *, id: str, whole: bool = False, options: Mapping[str, Any] | None = None) -> None:
        import textarena

        self._game: Any = textarena.make(id, **(options or {}))
        self._whole = whole
        self._seen = ""

    def reset(self, *, seed: int, options: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
        """Start a game. Only the seed of the task is used."""
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
        """Return the text since the last observation, or all of it."""
        _, text = self._game.get_observation()
        new: str = text.removeprefix(self._seen)
        self._seen = text
        return text if self._whole else new
