"""The packages live in an environment of their own, .venv-environments; these tests run in ours."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.echo import Echo
from trinity_db.explorer.attempts import Attempts
from trinity_db.explorer.config import EnvironmentConfig, ExplorerConfig
from trinity_db.explorer.engines.engine import Completion, Request
from trinity_db.explorer.workflow import of
from trinity_db.store.groups import ClaimedGroup, Rollout

HERE = Path(__file__).parent
PYTHON = str(HERE.parents[1] / ".venv-environments" / "bin" / "python")


class Letters:
    """A tokenizer of bytes without a chat template."""

    bos_token: str | None = None
    chat_template: str | None = None

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return [*text.encode()]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        return bytes(token_ids).decode()


class Scripted(Echo):
    """An engine that says texts one after the other."""

    def __init__(self, *says: str) -> None:
        super().__init__(context=20_000)
        self.tokenizer: Any = Letters()
        self._says = iter(says)

    async def generate(self, request: Request) -> Completion:
        await super().generate(request)
        said = [*next(self._says).encode()]
        return Completion(said, [-0.5] * len(said), [0] * len(said), "stop")


def played(environment: dict[str, Any], *says: str, task: dict[str, Any] | None = None) -> Rollout:
    """The rollout of one attempt in which the policy says these texts."""
    made = attempted(environment, *says, task=task)
    assert made.error is None
    return made


def attempted(environment: dict[str, Any], *says: str, task: dict[str, Any] | None = None) -> Rollout:
    """The same of an attempt that may fail."""
    config = ExplorerConfig(environment=EnvironmentConfig(**environment))
    attempts = Attempts(of(config), Scripted(*says), config, "{prompt}", seed=3)
    return asyncio.run(attempts.make(ClaimedGroup(1, 1, task or {"seed": 5}, [0]), 0))
