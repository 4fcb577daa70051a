"""Tasks that a package makes from a name and a seed, as a file that can be imported."""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trinity_db.errors import ImportFileError
from trinity_db.imports import reasoning_tasks


@contextmanager
def written(source: str, size: int, seed: int, python: str | None) -> Iterator[Path]:
    """A file with the tasks of a data set, for as long as it is needed.

    Args:
        source: reasoning-gym:NAME.
        python: the interpreter that has the package; None: this one.

    Raises:
        ImportFileError: the package or the data set is not there, or cannot make the tasks.
    """
    name = source.partition(":")[2]
    with tempfile.TemporaryDirectory(prefix="trinity-db-import-") as folder:
        path = Path(folder) / f"{name}.jsonl"
        program = [
            python or sys.executable,
            "-P",
            reasoning_tasks.__file__,
            name,
            str(size),
            str(seed),
            str(path),
        ]
        try:
            ended = subprocess.run(program, stderr=subprocess.PIPE, text=True)
        except OSError as error:
            raise ImportFileError(f"{source}: cannot start {python}: {error}") from error
        if ended.returncode != 0:
            *_, last = ["it ended without a word", *ended.stderr.strip().splitlines()]
            raise ImportFileError(f"{source}: {last}.")
        yield path
