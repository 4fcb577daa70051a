"""The installed command as real processes, and the store as they leave it.

A Store is a database and a home of its own. It starts commands on them, asks what became of the rows,
and ends what it started: no process that it did not start, itself or by `trinity-db run`, gets a signal.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import yaml
from psycopg.rows import dict_row

from tests.support.postgres import new_database
from tests.support.waiting import WAIT_SECONDS, wait_until

COMMAND = Path(sys.executable).with_name("trinity-db")
# Starts a command that finds the folder empty which is named first. It needs the right to make namespaces.
WITHOUT = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs none "$1" && shift && exec "$@"', "sh")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone")  # a port of its own

MODEL = {
    "scratch": {"alphabet": "01234=", "hidden_size": 16, "layers": 1, "heads": 2, "context": 16},
    "prompt_template": "{prompt}=",
}

END_SECONDS = 240.0  # three processes that load torch, and a short run, on a busy machine
_numbers = count(1)


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    stdout: str
    stderr: str

    @property
    def error_lines(self) -> list[str]:
        """What it wrote to stderr apart from its log."""
        return [line for line in self.stderr.splitlines() if line and not line[:2].isdigit()]


class Process:
    """A command that was started."""

    def __init__(self, command: Sequence[str | Path], environment: Mapping[str, str], folder: Path) -> None:
        self._output, self._errors = folder / "stdout", folder / "stderr"
        with self._output.open("wb") as output, self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                env=environment,
                cwd=folder,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    @property
    def output(self) -> str:
        """What it has written to stdout so far."""
        return self._output.read_text()

    @property
    def errors(self) -> str:
        """What it has written to stderr so far."""
        return self._errors.read_text()

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def wait(self, timeout: float = END_SECONDS) -> Ended:
        """Wait for its end; TimeoutExpired when it does not come."""
        code = self._process.wait(timeout)
        return Ended(code, self.output, self.errors)

    def kill(self) -> Ended:
        """End it as a power cut would."""
        self._process.kill()
        return self.wait()

    def clear_away(self) -> None:
        """Stop it, kindly at first, so that a supervisor takes its roles with it."""
        if self.running:
            self._process.terminate()
            try:
                self._process.wait(WAIT_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


@dataclass
class Store:
    """A database at `url`, everything else of it in `folder`."""

    url: str
    folder: Path
    leads_to: tuple[str, ...] = ()
    """What comes before each command, where it is to run on another host."""
    environment: dict[str, str] = field(init=False)
    _processes: list[Process] = field(default_factory=list)

    def __post_init__(self) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("TRINITY_DB_")}
        # One thread: as fast for models this small, and additions happen in one order.
        self.environment = kept | {
            "TRINITY_DB_URL": self.url,
            "TRINITY_DB_HOME": str(self.home),
            "OMP_NUM_THREADS": "1",
        }

    @property
    def home(self) -> Path:
        return self.folder / "home"

    def start(self, *arguments: str | Path, **environment: str) -> Process:
        """Start a command."""
        return self._start([COMMAND, *arguments], environment)

    def start_elsewhere(self, *arguments: str | Path, **environment: str) -> Process:
        """Start a command that has a home of its own and finds this one empty, as another machine would."""
        home = {"TRINITY_DB_HOME": str(self.folder / "elsewhere")}
        return self._start([*WITHOUT, self.home, COMMAND, *arguments], home | environment)

    def start_ranks(self, count: int, *arguments: str | Path) -> Process:
        """Start it by torchrun, as several processes."""
        return self._start([*TORCHRUN, "--nproc-per-node", str(count), "-m", "trinity_db", *arguments], {})

    def start_python(self, *arguments: str | Path, **environment: str) -> Process:
        """Start a Python program of a user's."""
        return self._start([sys.executable, *arguments], environment)

    def _start(self, command: Sequence[str | Path], environment: Mapping[str, str]) -> Process:
        folder = self.folder / f"command-{next(_numbers)}"
        folder.mkdir()
        process = Process([*self.leads_to, *command], {**self.environment, **environment}, folder)
        self._processes.append(process)
        return process

    def run(self, *arguments: str | Path, **environment: str) -> Ended:
        """Run a command to its end."""
        return self.start(*arguments, **environment).wait()

    def import_rows(self, name: str, kind: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Import rows by the command."""
        path = self.folder / f"{name}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        ended = self.run("import", path, "--as", kind, "--name", name)
        assert ended.code == 0, ended.stderr

    def config(self, name: str, **content: Any) -> Path:
        """Write the configuration of a run."""
        path = self.folder / f"{name}.yaml"
        path.write_text(yaml.safe_dump({"name": name, "model": MODEL} | content))
        return path

    def log(self, run: str, role: str) -> str:
        """What a supervised role wrote."""
        return (self.home / "logs" / run / f"{role}.log").read_text()

    def rows(self, statement: str, **values: Any) -> list[dict[str, Any]]:
        """What a statement finds; the tables need no schema before their names."""
        options = "-c search_path=trinity"
        with closing(
            psycopg.connect(self.url, autocommit=True, row_factory=dict_row, options=options)
        ) as connection:
            return connection.execute(statement.encode(), values).fetchall()

    def value(self, statement: str, **values: Any) -> Any:
        """The one value that a statement finds."""
        (row,) = self.rows(statement, **values)
        (found,) = row.values()
        return found

    def wait_for(self, statement: str, *alive: Process, **values: Any) -> None:
        """Wait until a statement finds true, for as long as the processes live."""

        def found() -> bool:
            for process in alive:
                assert process.running, f"ended meanwhile: {process.wait()}"
            return bool(self.value(statement, **values))

        wait_until(found, f"{statement} {values}")

    def clear_away(self) -> None:
        """End every process that was started here."""
        for process in reversed(self._processes):
            process.clear_away()


@contextmanager
def new_store(server: str, template: str, folder: Path) -> Iterator[Store]:
    """A store on a copy of a template database. Its processes end before the database goes."""
    with new_database(server, template) as url:
        store = Store(url, folder)
        try:
            yield store
        finally:
            store.clear_away()


def reversals(length: int) -> list[dict[str, str]]:
    """All numbers of so many digits, with their reversals as answers: what the tests' models learn."""
    numbers = [""]
    for _ in range(length):
        numbers = [number + digit for number in numbers for digit in "01234"]
    return [{"prompt": number, "answer": number[::-1]} for number in numbers]


def reversing(steps: int, batch_size: int, explored: int = 2, **trainer: int) -> dict[str, Any]:
    """The configuration of a run that learns to reverse digits and explores so many groups at a time."""
    return {
        "taskset": "reverse",
        "max_staleness": 1,
        "algorithm": "grpo",
        "explorer": {"group_size": 4, "concurrency": 4 * explored, "max_new_tokens": 4},
        "processors": {"score": ["position_match"]},
        "trainer": {"steps": steps, "batch_size": batch_size, "learning_rate": 1e-3, **trainer},
    }
