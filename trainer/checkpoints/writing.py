"""Writes folders that appear whole or not at all: into a temporary folder, flushed, and then renamed.

No folder is overwritten: if one of that name exists, it stays as it is, and that is an error.
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

from trinity_db import durable
from trinity_db.errors import TrinityError
from trinity_db.models.folder_digest import Unwritten, complete


class Writing:
    """Files that a thread writes, while the trainer makes its next steps.

    Args:
        name: of the thread.
        write: writes the files, here or in an object store. Returns their digest, or their address there.
    """

    def __init__(self, name: str, write: Callable[[], str]) -> None:
        self._digest = ""
        self.seconds = 0.0
        """How long the thread took, once it has ended."""
        self._error: Exception | None = None
        # A daemon: a trainer that ends by an error does not wait, and the next start removes the files.
        self._thread = threading.Thread(target=self._run, args=(write,), name=name, daemon=True)
        self._thread.start()

    @property
    def has_ended(self) -> bool:
        """Whether `digest` returns, or raises, at once."""
        return not self._thread.is_alive()

    def wait(self) -> None:
        """Wait until the thread has ended."""
        self._thread.join()

    def digest(self) -> str:
        """Wait until the files survive a power cut, and return what `write` returned.

        Raises:
            TrinityError: the disk is full or cannot be written, or the folder exists. The files are gone.
        """
        self.wait()
        if self._error is not None:
            raise self._error
        return self._digest

    def _run(self, write: Callable[[], str]) -> None:
        begun = time.monotonic()
        try:
            self._digest = write()
        except Exception as error:  # `digest` raises it in the trainer's own thread
            self._error = error
        self.seconds = time.monotonic() - begun


def write_folder(folder: Path, write: Callable[[Path], None]) -> str:
    """Let `write` fill a temporary folder, then rename it to `folder`. Returns its digest.

    When this returns, the files survive a power cut.

    Raises:
        TrinityError: the disk is full or cannot be written, or `folder` exists. The temporary folder is gone.
    """
    aside = aside_of(folder)
    with or_nothing(folder, aside):
        aside.mkdir(parents=True)
        write(aside)
    return finish(folder, aside, {})


def aside_of(folder: Path) -> Path:
    """A name for the temporary folder of a folder.

    It is random, to keep out a replaced trainer that still runs and writes the same folder.
    """
    return folder.with_name(f"{folder.name}.{uuid4().hex[:8]}.tmp")


def finish(folder: Path, aside: Path, unwritten: Mapping[Path, Unwritten]) -> str:
    """Write what a temporary folder still lacks, and give it its name. Returns its digest."""
    with or_nothing(folder, aside):
        written = complete(aside, unwritten)
        durable.flush_all(aside)
        rename(aside, folder)
    return written


def rename(aside: Path, folder: Path) -> None:
    """Give a temporary folder whose files are flushed its name, and flush that."""
    aside.rename(folder)
    durable.flush(folder.parent)


@contextmanager
def or_nothing(folder: Path, aside: Path) -> Iterator[None]:
    """Remove the temporary folder if this `with` fails, and name the cause of an error of the disk."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        shutil.rmtree(aside, ignore_errors=True)
        raise unwritable(f"Checkpoint {folder}", error) from error
    except TrinityError:
        shutil.rmtree(aside, ignore_errors=True)
        raise


def copy(found: Path, is_whole: Callable[[Path], bool], folder: Path) -> None:
    """Copy a folder by `write_folder`.

    Args:
        is_whole: whether the copy has the files that were recorded.

    Raises:
        TrinityError: it has others. Probably their owner is deleting them.
    """

    def write(aside: Path) -> None:
        try:
            shutil.copytree(found, aside, dirs_exist_ok=True)
        except shutil.Error as error:
            raise TrinityError(f"{found} cannot be copied: {error.args[0][0][2]}; start again.") from error
        if not is_whole(aside):
            raise TrinityError(f"{found} changed while it was copied; start again.")

    write_folder(folder, write)


def unwritable(what: str, error: Exception) -> TrinityError:
    """The error that names the cause and a remedy."""
    cause = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    # Errors of safetensors and tokenizers have no error number, so the text is compared.
    is_full = any(os.strerror(number) in cause for number in (errno.ENOSPC, errno.EDQUOT))
    remedy = "Free space there, or name" if is_full else "Name"
    return TrinityError(
        f"{what} cannot be written: {cause}. "
        f"{remedy} another folder with trainer.checkpoints, and start again."
    )
