"""An environment that waits before it gives a reward, as one that runs a program or asks a service."""

import time
from collections.abc import Mapping
from typing import Any

from trinity_db.processors.steps.rewards import position_match


class WaitingJudge:
    """Shows a number, takes one response, and sleeps for as long as the task's `wait` says, in seconds."""

    def reset(self, *, seed: int, options: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        self._task = options
        return options["prompt"], {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        time.sleep(self._task["wait"])
        return "", position_match(action, self._task), True, False, {}
