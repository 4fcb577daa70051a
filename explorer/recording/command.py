"""A workflow that is a program: its environment has base URL, key and task, its last line its reward."""

import json
import os
import shlex
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trinity_db.errors import ConfigError
from trinity_db.explorer.policy import Policy
from trinity_db.explorer.recording.programs import Ended, Programs
from trinity_db.explorer.serving import Address
from trinity_db.store.groups import Reward, named_rewards

TASK_BYTES = 64 * 1024  # of a task in the environment; Linux takes 128 KiB of one variable
ERROR_LINES = 5  # of the standard error, in the error of a failed rollout
OURS = ("TRINITY_DB_", "PG")  # beginnings of variables that a program does not get: they name the store


class ProgramFailed(Exception):
    """The program says so by its exit status, or ended with something that is no reward."""


class Command:
    """Runs a command for each attempt.

    Args:
        command: its words as a shell reads them, without a shell's other services.

    Raises:
        ConfigError: there is no such program.
    """

    def __init__(self, command: str) -> None:
        try:
            self._words = shlex.split(command)
        except ValueError as error:
            raise ConfigError(f"explorer.workflow.command '{command:.200}': {error}.") from None
        if not self._words or shutil.which(self._words[0]) is None:
            raise ConfigError(
                f"explorer.workflow.command '{command:.200}': there is no program "
                f"'{''.join(self._words[:1]):.200}' on the PATH."
            )
        self._programs = Programs()

    async def __call__(self, task: Mapping[str, Any], policy: Policy) -> Reward:
        """Run the program, and take its reward.

        Raises:
            ProgramFailed: it failed.
        """
        address = await policy.address()
        with _environment(task, address) as environment:
            ended = await self._programs.run(self._words, environment)
        return reward_of(ended)

    def close(self) -> None:
        """End what watches over the programs."""
        self._programs.close()


def reward_of(ended: Ended) -> Reward:
    """What a program's last line says: a number, or a JSON object with several. None: it is something else.

    Raises:
        ProgramFailed: the exit status is not 0, or the object has what is no number.
    """
    if ended.status:
        how = f"with status {ended.status}" if ended.status > 0 else f"by signal {-ended.status}"
        said = " | ".join(ended.errors[-ERROR_LINES:])
        raise ProgramFailed(f"the program ended {how}{f': {said}' if said else ''}")
    try:
        value = json.loads(ended.output[-1]) if ended.output else None
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, int | float | dict):
        return None
    try:
        named_rewards(value)
    except (TypeError, ValueError) as error:
        raise ProgramFailed(f"the program's last line is no reward: {error}") from None
    return value


def variables() -> dict[str, str]:
    """Of a process with a user's code: our variables without the store's, and no proxy on the way here."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
    local = ",".join([*filter(None, [ours.get("NO_PROXY")]), "127.0.0.1", "localhost"])
    return ours | {"NO_PROXY": local, "no_proxy": local}


@contextmanager
def _environment(task: Mapping[str, Any], address: Address) -> Iterator[dict[str, str]]:
    """The variables of a program: ours without the store's, and what it needs to ask the policy."""
    text = json.dumps(task, ensure_ascii=False)
    environment = variables() | {
        "OPENAI_BASE_URL": f"{address.url}/v1",
        "OPENAI_API_KEY": address.key,
        "ANTHROPIC_BASE_URL": address.url,
        "ANTHROPIC_API_KEY": address.key,
    }
    if len(text.encode()) <= TASK_BYTES:
        yield {**environment, "TRINITY_TASK": text}
        return
    with tempfile.TemporaryDirectory(prefix="trinity-db-task-") as folder:
        path = Path(folder) / "task.json"
        path.write_text(text, encoding="utf-8")
        yield {**environment, "TRINITY_TASK_FILE": str(path)}
