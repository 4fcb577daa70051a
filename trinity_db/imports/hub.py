"""Data sets of the Hugging Face Hub, into a folder that an import reads.

This is the one module of the imports that reaches the network, and only `trinity-db download` calls it. The
library `datasets` knows which files a subset has, and keeps what is downloaded in its own cache: a download
that was cut short goes on from there. The folder appears when it is whole, with a record of the revision.
"""

import json
import os
import shutil
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from trinity_db.errors import ConfigError, MissingExtra, TrinityError
from trinity_db.imports.files import one_line

RECORD = "source.json"
"""In the folder: which data set it is, and of which revision."""


@dataclass(frozen=True)
class Source:
    """What was asked of the Hub."""

    dataset: str
    """OWNER/NAME."""
    revision: str
    """The commit that a branch, a tag or a shortened commit stood for."""
    subset: str | None
    split: str | None


def download(
    dataset: str, folder: Path, revision: str | None, subset: str | None, split: str | None
) -> tuple[Source, bool]:
    """Make a folder of the data set; says what it has, and whether it was there already.

    Raises:
        ConfigError: the folder is there, and is something else.
        MissingExtra: `datasets` is not installed.
        TrinityError: the Hub does not answer, or has no such data set, revision, subset or split.
    """
    try:
        import datasets
        from huggingface_hub import HfApi
    except ImportError as error:
        raise MissingExtra("hub", "datasets") from error
    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    try:
        commit = HfApi().dataset_info(dataset, revision=revision).sha
        source = Source(dataset, str(commit), subset, split)
        if folder.exists():
            return _found(folder, source), True
        data = datasets.load_dataset(dataset, subset, split=split, revision=commit)
    except TrinityError:
        raise
    except Exception as error:  # half a dozen libraries below `datasets` raise their own
        raise TrinityError(f"{dataset} cannot be downloaded: {one_line(error):.400}") from error
    try:
        _save(data, folder, source)
    except OSError as error:
        raise TrinityError(f"{folder}: cannot be written: {error.strerror or error}") from error
    return source, False


def _found(folder: Path, source: Source) -> Source:
    try:
        there = Source(**json.loads((folder / RECORD).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        raise ConfigError(f"{folder} is there and was not downloaded; name another folder by --to.") from None
    if there != source:
        other = ", ".join(
            str(one) for one in (there.dataset, there.subset, there.split, there.revision) if one
        )
        raise ConfigError(f"{folder} has something else ({other}); name another folder by --to.")
    return there


def _save(data: object, folder: Path, source: Source) -> None:
    """Write a folder that appears under its name only when it is whole."""
    partial = folder.with_name(f".{folder.name}.{os.getpid()}.part")
    try:
        data.save_to_disk(partial)  # type: ignore[attr-defined]
        (partial / RECORD).write_text(json.dumps(asdict(source), indent=2) + "\n", encoding="utf-8")
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
