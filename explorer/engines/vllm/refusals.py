"""Retry delays for a refused version; after the last retry, the engine fails."""

import time
from dataclasses import dataclass
from pathlib import Path

from trinity_db.errors import ConfigError, TrinityError
from trinity_db.explorer.engines.engine import EngineFailed

REFUSED_SECONDS = (5.0, 30.0, 120.0)
"""Delays before retrying a refused version, each time with a new server. Then the engine fails."""


class WrongWeights(TrinityError):
    """The server's results do not match the checkpoint's weights."""


@dataclass(frozen=True)
class Load:
    """A load, completed or requested."""

    checkpoint: Path
    version: int


@dataclass(frozen=True)
class Refusal:
    """A refused load, which left no server with accepted weights."""

    load: Load
    why: str
    times: int
    again_at: float
    """Time of the next retry, by the monotonic clock."""

    @property
    def seconds_left(self) -> float:
        return self.again_at - time.monotonic()

    @property
    def error(self) -> ConfigError:
        return ConfigError(self.why)


def refusal(load: Load, before: Refusal | None, problem: TrinityError) -> Refusal:
    """Return the refusal of a load, counting earlier refusals of it.

    Raises:
        EngineFailed: if it was refused too often.
    """
    why = f"{load.checkpoint}: refused: {problem}" if isinstance(problem, WrongWeights) else str(problem)
    times = 1 if before is None or before.load != load else before.times + 1
    if times > len(REFUSED_SECONDS):
        raise EngineFailed(
            f"vLLM could not use version {load.version} in {times} tries; restore its checkpoint, or set "
            f"another explorer.engine.dtype: {why}"
        )
    return Refusal(load, why, times, time.monotonic() + REFUSED_SECONDS[times - 1])
