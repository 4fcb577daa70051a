"""Writes folders atomically: into a temporary folder, flushed, and then renamed.

No folder is overwritten: an existing folder of that name is left unchanged, and is an error.
"""

import errno
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from safetensors import SafetensorError

from trinity_db.errors import TrinityError
from trinity_db.io import durable
from trinity_db.models.folder_digest import Unwritten, complete


class Writing:
    """A thread that writes files while the trainer computes its next steps.

    Args:
        name: Name of the thread.
        write: Writes the files, here or in an object store. Returns their digest, or their address there.
    """

    def __init__(self, name: str, write: Callable[[], str]) -> None:
        self._digest = ""
        self.seconds = 0.0
        """Duration of the thread, once it has ended."""
        self._error: Exception | None = None
        # A daemon thread: a trainer that fails does not wait, and the next start removes the files.
        self._thread = threading.Thread(target=self._run, args=(write,), name=name, daemon=True)
        self._thread.start()

    @property
    def has_ended(self) -> bool:
        """Whether `digest` returns, or raises, immediately."""
        return not self._thread.is_alive()

    def wait(self) -> None:
        """Wait until the thread has ended."""
        self._thread.join()

    def digest(self) -> str:
        """Wait until the files are durable, and return the result of `write`.

        Raises:
            TrinityError: if the disk is full or not writable, or the folder exists. The files are deleted.
        """
        self.wait()
        if self._error is not None:
            raise self._error
        return self._digest

    def _run(self, write: Callable[[], str]) -> None:
        begun = time.monotonic()
        try:
            self._digest = write()
        except Exception as error:  # `digest` raises it in the trainer's main thread
            self._error = error
        self.seconds = time.monotonic() - begun


def write_folder(folder: Path, write: Callable[[Path], None]) -> str:
    """Let `write` fill a temporary folder, then rename it to `folder`. Return its digest.

    The files are durable when this returns.

    Raises:
        TrinityError: if the disk is full or not writable, or `folder` exists. The temporary folder is
            deleted.
    """
    aside = aside_of(folder)
    with or_nothing(folder, aside):
        aside.mkdir(parents=True)
        write(aside)
    return finish(folder, aside, {})


def aside_of(folder: Path) -> Path:
    """Return a name for the temporary folder of a folder.

    It is random, to avoid conflicts with a replaced trainer that still runs and writes the same folder.
    """
    return folder.with_name(f"{folder.name}.{uuid4().hex[:8]}.tmp")


def finish(folder: Path, aside: Path, unwritten: Mapping[Path, Unwritten]) -> str:
    """Complete a temporary folder, and rename it to its final name. Return its digest."""
    with or_nothing(folder, aside):
        written = complete(aside, unwritten)
        durable.flush_all(aside)
        rename(aside, folder)
    return written


def rename(aside: Path, folder: Path) -> None:
    """Rename a flushed temporary folder to its final name, and flush the rename."""
    aside.rename(folder)
    durable.flush(folder.parent)


@contextmanager
def or_nothing(folder: Path, aside: Path) -> Iterator[None]:
    """Remove the temporary folder if this `with` fails, and report the cause of a disk error."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        shutil.rmtree(aside, ignore_errors=True)
        raise unwritable(f"Checkpoint {folder}", error) from error
    except TrinityError:
        shutil.rmtree(aside, ignore_errors=True)
        raise


def copy(source: Path, is_whole: Callable[[Path], bool], folder: Path) -> None:
    """Copy a folder with `write_folder`.

    Args:
        is_whole: Whether the copy has the recorded files.

    Raises:
        TrinityError: if it has other files. Probably their owner is deleting them.
    """

    def write(aside: Path) -> None:
        try:
            shutil.copytree(source, aside, dirs_exist_ok=True)
        except shutil.Error as error:
            raise TrinityError(f"{source} cannot be copied: {error.args[0][0][2]}; start again.") from error
        if not is_whole(aside):
            raise TrinityError(f"{source} changed while it was copied; start again.")

    write_folder(folder, write)


def unwritable(title: str, error: Exception) -> TrinityError:
    """Return an error with the cause and a remedy."""
    cause = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    # Errors of safetensors and tokenizers have no error number, so the text is compared.
    is_full = any(os.strerror(number) in cause for number in (errno.ENOSPC, errno.EDQUOT))
    remedy = "Free space there, or name" if is_full else "Name"
    return TrinityError(
        f"{title} cannot be written: {cause}. "
        f"{remedy} another folder with trainer.checkpoints, and start again."
    )
