"""A version that was refused is tried again after a while, and at last the engine gives up."""

import time
from dataclasses import dataclass
from pathlib import Path

from trinity_db.errors import ConfigError, TrinityError
from trinity_db.explorer.engines.engine import EngineFailed

REFUSED_SECONDS = (5.0, 30.0, 120.0)
"""Before a refused version is tried again, each time with a new server. Then the engine gives up."""


class WrongWeights(TrinityError):
    """The server computes something other than the checkpoint's weights do."""


@dataclass(frozen=True)
class Load:
    """A load, or the wish for one."""

    checkpoint: Path
    version: int


@dataclass(frozen=True)
class Refusal:
    """A load that left no server with weights that count."""

    load: Load
    why: str
    times: int
    again_at: float
    """When it may be tried again, in seconds of a clock that is never set back."""

    @property
    def seconds_left(self) -> float:
        return self.again_at - time.monotonic()

    @property
    def error(self) -> ConfigError:
        return ConfigError(self.why)


def refusal(load: Load, before: Refusal | None, problem: TrinityError) -> Refusal:
    """The refusal of a load that may have been refused before.

    Raises:
        EngineFailed: it was refused so often that it will be again.
    """
    why = f"{load.checkpoint}: refused: {problem}" if isinstance(problem, WrongWeights) else str(problem)
    times = 1 if before is None or before.load != load else before.times + 1
    if times > len(REFUSED_SECONDS):
        raise EngineFailed(
            f"vLLM could not use version {load.version} in {times} tries; restore its checkpoint, or name "
            f"another explorer.engine.dtype: {why}"
        )
    return Refusal(load, why, times, time.monotonic() + REFUSED_SECONDS[times - 1])
