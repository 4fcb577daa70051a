"""Download of Hugging Face Hub data sets into a folder that can be imported.

Only this module of the imports uses the network, and only `trinity-db download` calls it. The library
`datasets` resolves the files of a subset and keeps downloads in its cache, so an interrupted download
resumes. The folder appears once complete, with a record of the revision.
"""

import json
import os
import shutil
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from trinity_db.data.files.files import one_line
from trinity_db.errors import ConfigError, MissingExtra, TrinityError

RECORD = "source.json"
"""File in the folder that records the data set and its revision."""


@dataclass(frozen=True)
class Source:
    """A request to the Hub."""

    dataset: str
    """Name of the data set, OWNER/NAME."""
    revision: str
    """Commit to which a branch, a tag or an abbreviated commit resolved."""
    subset: str | None
    split: str | None


def download(
    dataset: str, folder: Path, revision: str | None, subset: str | None, split: str | None
) -> tuple[Source, bool]:
    """Download the data set into a folder; return its source, and whether it existed already.

    Raises:
        ConfigError: if the folder exists with other content.
        MissingExtra: if `datasets` is not installed.
        TrinityError: if the Hub does not answer, or has no such data set, revision, subset or split.
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
            return _recorded_source(folder, source), True
        data = datasets.load_dataset(dataset, subset, split=split, revision=commit)
    except TrinityError:
        raise
    except Exception as error:  # the libraries that `datasets` uses raise their own errors
        raise TrinityError(f"{dataset} cannot be downloaded: {one_line(error):.400}") from error
    try:
        _save(data, folder, source)
    except OSError as error:
        raise TrinityError(f"{folder}: cannot be written: {error.strerror or error}") from error
    return source, False


def _recorded_source(folder: Path, source: Source) -> Source:
    try:
        there = Source(**json.loads((folder / RECORD).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        raise ConfigError(f"{folder} exists and is not a download; name another folder with --to.") from None
    if there != source:
        recorded = ", ".join(
            str(part) for part in (there.dataset, there.subset, there.split, there.revision) if part
        )
        raise ConfigError(f"{folder} has another download ({recorded}); name another folder with --to.")
    return there


def _save(data: object, folder: Path, source: Source) -> None:
    """Write a folder that is renamed to its final name once complete."""
    partial = folder.with_name(f".{folder.name}.{os.getpid()}.part")
    try:
        data.save_to_disk(partial)  # type: ignore[attr-defined]
        (partial / RECORD).write_text(json.dumps(asdict(source), indent=2) + "\n", encoding="utf-8")
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
