"""The packages live in an environment of their own, .venv-environments; these tests run in ours."""

import asyncio
from pathlib import Path
from typing import Any

from tests.support.echo import Scripted
from trinity_db.config.shared import PromptConfig
from trinity_db.explorer.attempt.attempts import Attempts
from trinity_db.explorer.attempt.workflow import of
from trinity_db.explorer.config import EnvironmentConfig, ExplorerConfig
from trinity_db.store.groups import ClaimedGroup, Rollout

HERE = Path(__file__).parent
PYTHON = str(HERE.parents[2] / ".venv-environments" / "bin" / "python")


def played(environment: dict[str, Any], *says: str, task: dict[str, Any] | None = None) -> Rollout:
    """The rollout of one attempt in which the policy says these texts."""
    made = attempted(environment, *says, task=task)
    assert made.error is None
    return made


def attempted(environment: dict[str, Any], *says: str, task: dict[str, Any] | None = None) -> Rollout:
    """The same of an attempt that may fail."""
    engine = Scripted(*says, is_chat="messages" in (task or {}))
    config = ExplorerConfig(environment=EnvironmentConfig(**environment))
    attempts = Attempts(of(config), engine, config, PromptConfig(prompt_template="{prompt}"), seed=3)
    return asyncio.run(attempts.make(ClaimedGroup(1, 1, task or {"seed": 5}, [0]), 0))
