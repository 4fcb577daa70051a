"""A workflow that runs a program, and a check of its work.

Base URL, key and task are in the program's environment. The reward is a marked line of its output, or the
verdict of the check.
"""

import asyncio
import json
import os
import re
import shlex
import shutil
import tempfile
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from trinity_db.errors import ConfigError
from trinity_db.explorer.attempt.policy import Policy
from trinity_db.explorer.attempt.serving import Address
from trinity_db.explorer.http.programs import MARK, Ended, Programs
from trinity_db.store.groups import Reward, named_rewards

TASK_BYTES = 64 * 1024  # largest task passed in the environment; Linux allows 128 KiB per variable
WORD_BYTES = 128 * 1024 - 1  # Linux's limit for an argument
ERROR_LINES = 5  # lines of standard error quoted in the error of a failed rollout
UNDERLINE = " ^~"  # characters of lines in Python's tracebacks that mark a part of the line above
OURS = ("TRINITY_DB_", "PG")  # prefixes of variables that programs do not get: they name the store
FOLDERS = "XDG_"  # prefix of variables that name folders in the user's HOME
START = "start"  # field of a command: the explorer's working directory
FIELD = re.compile(r"\{(\{\w+\}|\w+)\}")
OPTION = re.compile(r"--?[A-Za-z]")
END_OF_OPTIONS = "--"


class ProgramFailed(Exception):
    """The program or its check exited with an error, or gave an invalid reward."""


@dataclass(frozen=True)
class AttemptFolder:
    """The folders of one attempt."""

    work: Path
    home: Path


class Command:
    """Runs a command for each attempt.

    Args:
        command: the command line, split into words as by a shell, without other shell features. {NAME} is the
            task's column of that name, and {start} the explorer's working directory.
        folder: fresh: each attempt has a working folder and a HOME of its own.
        check: a command that judges the attempt after the program has ended.

    Raises:
        ConfigError: if a program does not exist.
    """

    def __init__(
        self, command: str, folder: Literal["shared", "fresh"] = "shared", check: str | None = None
    ) -> None:
        self._is_fresh = folder == "fresh"
        self._words = _words("command", command, self._is_fresh)
        self._check = None if check is None else _words("check", check, self._is_fresh)
        self._programs = Programs()
        self.ended: dict[str, Ended] = {}
        """How program and check of the latest attempt ended."""

    async def __call__(self, task: Mapping[str, Any], policy: Policy) -> Reward:
        """Run the program, then the check, and return the reward.

        Raises:
            ProgramFailed: if one of them fails.
        """
        address = await policy.address()
        async with self._folder(task) as folder:
            more, lines = _variables_of(address), policy.output
            ended = await self._run(self._words, task, folder, lines, more, has_task=self._check is None)
            self.ended = {"program": ended}
            if ended.status:
                raise ProgramFailed(f"the program {_how(ended)}")
            if self._check is None:
                return reward_of(ended, "program")
            output = "".join(f"{line}\n" for line in ended.output).encode()
            self.ended["check"] = await self._run(self._check, task, folder, lines, stdin=output)
            return verdict_of(self.ended["check"])

    def close(self) -> None:
        """Stop the guard process."""
        self._programs.close()

    async def _run(
        self,
        words: Sequence[str],
        task: Mapping[str, Any],
        folder: AttemptFolder | None,
        lines: deque[str],
        more: Mapping[str, str] | None = None,
        has_task: bool = True,
        stdin: bytes = b"",
    ) -> Ended:
        filled = [*_all_filled(words, task)]
        with _environment(task if has_task else None, folder) as environment:
            work = None if folder is None else folder.work
            return await self._programs.run(filled, {**environment, **(more or {})}, work, stdin, lines)

    @asynccontextmanager
    async def _folder(self, task: Mapping[str, Any]) -> AsyncIterator[AttemptFolder | None]:
        """Yield the attempt's own folders, and remove them; None if all attempts share the explorer's."""
        if not self._is_fresh:
            yield None
            return
        root = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="trinity-db-attempt-"))
        try:
            folder = AttemptFolder(root / "work", root / "home")
            await asyncio.to_thread(_fill, folder, task.get("files"))
            yield folder
        finally:
            await asyncio.to_thread(_remove, root)


def reward_of(ended: Ended, program: str) -> Reward:
    """Return the reward in a program's last marked line: a number, or a JSON object of numbers by name.

    None: it has no such line.

    Args:
        program: what ended, for an error.

    Raises:
        ProgramFailed: if the line has anything else.
    """
    if ended.marked is None:
        return None
    try:
        value = json.loads(ended.marked.removeprefix(MARK))
        if not named_rewards(value):
            raise TypeError("no number")
    except (TypeError, ValueError, RecursionError):
        raise ProgramFailed(
            f"the {program} printed '{ended.marked:.200}', which is not a reward: print a number, as in "
            f"'{MARK} 0.5', or numbers by name as JSON"
        ) from None
    reward: Reward = value
    return reward


def verdict_of(ended: Ended) -> Reward:
    """Return a check's reward: its last marked line, else 1 if it exited with 0, and 0 if with 1.

    Raises:
        ProgramFailed: if it exited otherwise, or its marked line is not a reward.
    """
    if ended.status not in (0, 1):
        raise ProgramFailed(f"the check {_how(ended)}")
    marked = reward_of(ended, "check")
    return 1.0 - ended.status if marked is None else marked


def variables() -> dict[str, str]:
    """Return the environment for user code: ours, without the store's variables or a proxy for localhost."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
    local = ",".join([*filter(None, [ours.get("NO_PROXY")]), "127.0.0.1", "localhost"])
    return ours | {"NO_PROXY": local, "no_proxy": local}


def _words(key: str, command: str, is_fresh: bool) -> list[str]:
    """Split a command into words, with {start} filled in.

    Raises:
        ConfigError: if the program does not exist, or a word names a file that a fresh folder does not have.
    """
    problem = f"explorer.workflow.{key} '{command:.200}'"
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ConfigError(f"{problem}: {error}.") from None
    for number, word in enumerate(words if is_fresh else ()):
        if "/" in word if number == 0 else os.path.isfile(word) and not word.startswith("./"):
            if word.startswith(("/", f"{{{START}}}")):
                continue
            attempts = f", or ./{word} for a file of the attempt" if number else ""
            raise ConfigError(
                f"{problem}: it runs in a fresh folder, and '{word:.200}' is where the explorer starts: "
                f"write {{{START}}}/{word.removeprefix('./')}{attempts}."
            )
    words = [word.replace(f"{{{START}}}", str(Path.cwd())) for word in words]
    if not words or shutil.which(words[0]) is None:
        raise ConfigError(f"{problem}: program '{''.join(words[:1]):.200}' not found on the PATH.")
    return words


def _all_filled(words: Sequence[str], task: Mapping[str, Any]) -> Iterator[str]:
    """Yield the words of a command with their fields filled in.

    Raises:
        ProgramFailed: as `_filled`, or if a text of the task would be an option of the program, which could
            name code to run: the task may be a stranger's.
    """
    for number, word in enumerate(words):
        filled = _filled(word, task)
        if FIELD.match(word) and OPTION.match(filled) and END_OF_OPTIONS not in words[:number]:
            raise ProgramFailed(
                f"'{word:.100}' is '{filled:.40}' with this task, which the program would read as an option: "
                "put -- before it, or let the program read TRINITY_TASK"
            )
        yield filled


def _filled(word: str, task: Mapping[str, Any]) -> str:
    """Replace each field {NAME} of a word by the task's column, and {{NAME}} by {NAME}.

    Raises:
        ProgramFailed: if the task has no such text or number, or it is too long for an argument.
    """

    def value(field: re.Match[str]) -> str:
        if (name := field[1]).startswith("{"):
            return name
        value = task.get(name)
        if not isinstance(value, str | int | float):
            raise ProgramFailed(
                f"the command has {{{name}}}, and the task has no text or number under '{name}'; write "
                f"{{{{{name}}}}} if no column is meant"
            )
        return value if isinstance(value, str) else json.dumps(value)

    filled = FIELD.sub(value, word)
    if len(filled.encode()) > WORD_BYTES:
        raise ProgramFailed(
            f"'{word:.100}' has {len(filled.encode())} bytes with this task, and an argument at most "
            f"{WORD_BYTES}: let the program read TRINITY_TASK_FILE"
        )
    return filled


def _fill(folder: AttemptFolder, files: Any) -> None:
    """Create the folders of an attempt, and write the task's files.

    Raises:
        ProgramFailed: if a path leaves the folder, or a file is not a text.
    """
    folder.work.mkdir()
    folder.home.mkdir()
    if not isinstance(files or {}, dict):
        raise ProgramFailed("the task's files must be texts by path")
    for path, text in (files or {}).items():
        parts = PurePosixPath(path)
        if parts.is_absolute() or ".." in parts.parts or not isinstance(text, str):
            raise ProgramFailed(f"the task's file '{path:.200}' is not a text below the attempt's folder")
        (folder.work / parts).parent.mkdir(parents=True, exist_ok=True)
        (folder.work / parts).write_text(text, encoding="utf-8")


def _remove(root: Path) -> None:
    """Remove a folder with all that programs left in it, also in read-only folders, such as Go's cache."""
    shutil.rmtree(root, ignore_errors=True)
    if not root.exists():
        return
    for folder, names, _ in os.walk(root):  # it enters a folder after this loop's body
        for path in (Path(folder, name) for name in names):
            if not path.is_symlink():
                path.chmod(0o700)
    shutil.rmtree(root, ignore_errors=True)


def _how(ended: Ended) -> str:
    how = f"with status {ended.status}" if ended.status > 0 else f"by signal {-ended.status}"
    lines = [line for line in ended.errors if line.strip(UNDERLINE)]
    errors = " | ".join(lines[-ERROR_LINES:])
    return f"ended {how}{f': {errors}' if errors else ''}"


def _variables_of(address: Address) -> dict[str, str]:
    return {
        "OPENAI_BASE_URL": f"{address.url}/v1",
        "OPENAI_API_KEY": address.key,
        "ANTHROPIC_BASE_URL": address.url,
        "ANTHROPIC_API_KEY": address.key,
    }


@contextmanager
def _environment(task: Mapping[str, Any] | None, folder: AttemptFolder | None) -> Iterator[dict[str, str]]:
    """Yield a program's environment variables, with the task and the attempt's folders, if any."""
    environment = variables()
    if folder is not None:
        kept = {name: value for name, value in environment.items() if not name.startswith(FOLDERS)}
        environment = kept | {"HOME": str(folder.home), "PWD": str(folder.work)}
    text = json.dumps(task, ensure_ascii=False)
    if task is None:
        yield environment
    elif len(text.encode()) <= TASK_BYTES:
        yield {**environment, "TRINITY_TASK": text}
    else:
        with tempfile.TemporaryDirectory(prefix="trinity-db-task-") as scratch:
            path = Path(scratch) / "task.json"
            path.write_text(text, encoding="utf-8")
            yield {**environment, "TRINITY_TASK_FILE": str(path)}
