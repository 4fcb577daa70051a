"""Starts runs on the machine of the page, each as a separate process that outlives the page.

Configurations are written into the folder in which the page was started. Commands run there too, as if a
person had typed them.
"""

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from io import SEEK_END
from os.path import lexists
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread

import yaml

from trinity_db.config.base import MAX_BYTES, home
from trinity_db.config.yaml_text import one_line, parsed
from trinity_db.errors import ConfigError, TrinityError
from trinity_db.insight.words import printable
from trinity_db.run import starting_file

CHECK_SECONDS = 120.0  # it may load torch, on a busy machine
FILES = 100  # files per run; after that a person has to look into the folder
NEWEST = 3  # newest files of a run that are read: a long one takes a second
WORDS = 2_000  # bytes shown from the end of a log


@dataclass(frozen=True)
class Started:
    """A run that was started from this page."""

    run: str
    command: str
    """Equivalent command line."""
    log: Path
    begins: int
    """Offset of this start's output in the log, which keeps that of earlier starts."""
    process: "subprocess.Popen[bytes]"

    @property
    def code(self) -> int | None:
        """Exit code of the process; None while it runs."""
        return self.process.poll()

    def last_words(self) -> str:
        """End of the process's output; "" if the log is gone."""
        try:
            with self.log.open("rb") as log:
                end = log.seek(0, SEEK_END)
                log.seek(max(self.begins, end - WORDS))
                output = log.read(WORDS).decode("utf-8", "replace")
        except OSError:
            return ""
        return printable(output).strip()


class Launcher:
    """Checks configurations and starts runs.

    Processes get the priority that this process had when the launcher was created: on Linux each thread has
    its priority, so the page may lower that of its other threads afterwards.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._started: dict[str, Started] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="launcher")
        self._thread.submit(int).result()  # starts the thread now

    def check(self, text: str) -> list[str]:
        """Run `trinity-db config check`, and return a line for each mistake. Takes seconds.

        Raises:
            TrinityError: if the check takes too long, or the text is not the configuration of a named run.
        """
        name = name_of(text)
        with TemporaryDirectory(prefix="trinity-db-check-") as folder:
            path = Path(folder) / f"{name}.yaml"
            path.write_text(text, encoding="utf-8")
            try:
                done = subprocess.run(
                    _program(["config", "check", str(path)]),
                    cwd=self.folder,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    timeout=CHECK_SECONDS,
                )
            except subprocess.TimeoutExpired:
                raise TrinityError(
                    f"The check took longer than {CHECK_SECONDS:.0f} s and was cancelled."
                ) from None
        lines = done.stderr.decode("utf-8", "replace").replace(str(path), path.name).splitlines()
        mistakes = [line for line in lines if line.startswith("error: ")] or lines[-1:]
        return [printable(line) for line in mistakes] if done.returncode else []

    def start(self, text: str, change: bool, has_begun: Callable[[], bool] = lambda: True) -> Started:
        """Write a configuration into a new file, and start its run.

        Args:
            change: whether the run exists and continues with this configuration.
            has_begun: whether the run began to work. Called in a thread if the command fails: if it did not,
                the file that was written for it is removed.

        Raises:
            ConfigError: if a run started here is still running, or the text has no valid run name.
            TrinityError: if the file or the process cannot be created.
        """
        return self._thread.submit(self._start, text, change, has_begun).result()

    def started(self, run: str) -> Started | None:
        """Return the last start of a run from this page."""
        return self._started.get(run)

    def file_of(self, text: str) -> Path:
        """Path for a configuration: the run's first file that does not exist yet or already has this text.

        Raises:
            ConfigError: if the text has no run name, or the run has too many files.
        """
        name = name_of(text)
        for path in self._paths(name):
            if not lexists(path) or _holds(path, text):
                return path
        raise ConfigError(f"{self.folder} has {FILES} files of run '{name}': remove some.")

    def files_of(self, run: str) -> list[Path]:
        """Newest files that may describe a run, newest first."""
        return [path for path in self._paths(run) if path.is_file()][: -NEWEST - 1 : -1]

    def _paths(self, run: str) -> Iterator[Path]:
        """Possible paths of a run's files. A valid run name contains no folder."""
        starting_file.check_name(run)
        for number in range(1, FILES + 1):
            yield self.folder / (f"{run}.yaml" if number == 1 else f"{run}-{number}.yaml")

    def _start(self, text: str, change: bool, has_begun: Callable[[], bool]) -> Started:
        path = self.file_of(text)
        name = name_of(text)
        before = self._started.get(name)
        if before is not None and before.code is None:
            raise ConfigError(f"Run '{name}' was started here and is running: stop it first.")
        written = None if lexists(path) else path
        if written is not None:
            starting_file.write(text, written)
        arguments = command_of(path, change)
        log = home() / "logs" / name / "run.log"
        try:
            log.parent.mkdir(parents=True, exist_ok=True)
            with log.open("ab") as out:
                begins = out.tell()  # read before the process writes to the log
                process = subprocess.Popen(
                    _program(arguments),
                    cwd=self.folder,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    start_new_session=True,
                )
        except OSError as error:
            _remove(written, text)
            raise TrinityError(f"Run '{name}' cannot be started: {error}") from error

        def wait() -> None:
            """Reap the process when it ends, so that no zombie stays."""
            if process.wait() and written is not None and not has_begun():
                _remove(written, text)

        Thread(target=wait, name=f"wait for {name}", daemon=True).start()
        started = Started(name, f"trinity-db {' '.join(arguments)}", log, begins, process)
        self._started[name] = started
        return started


def command_of(path: Path, change: bool) -> list[str]:
    """Arguments of `trinity-db` that start the run of a file. Run names need no quotes."""
    return ["run", path.name, *(["--change"] if change else [])]


def name_of(text: str) -> str:
    """Name of the run that a configuration describes.

    Raises:
        ConfigError: if the name is missing or invalid, or the text is too long or not YAML.
    """
    if len(text.encode("utf-8", "replace")) > MAX_BYTES:
        raise ConfigError(f"The file is longer than {MAX_BYTES // 1024} KiB.")
    try:
        content = parsed(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"The file is not YAML: {one_line(error)}") from error
    if not isinstance(content, dict):
        raise ConfigError("The file must hold keys and values, for example 'name: first-run'.")
    return starting_file.check_name(content.get("name"))


def _remove(path: Path | None, text: str) -> None:
    """Remove a file that was written for a start, unless it was edited since."""
    if path is not None and _holds(path, text):
        path.unlink(missing_ok=True)


def _holds(path: Path, text: str) -> bool:
    try:
        return path.read_bytes() == text.encode()
    except OSError:
        return False


def _program(arguments: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "trinity_db", *arguments]
