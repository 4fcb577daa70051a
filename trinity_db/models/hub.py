"""Models by name: repositories of the Hugging Face Hub or of ModelScope, as folders on this machine.

Only this module downloads models. Names come from the command line and the caller's configuration, never from
the database (see `trinity_db.run.trust`).

Downloads are kept in the cache of the hub's own library, which other programs share and extend. So each model
gets a folder of links to exactly the files it needs, whose digest stays the same.
"""

import importlib
import json
import logging
import os
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

from trinity_db.errors import ConfigError, MissingExtra, TrinityError

logger = logging.getLogger(__name__)

VARIABLE = "TRINITY_DB_HUB"
_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*", re.ASCII)
_WITH_COMMIT = re.compile(r"(?:(.+)@)?([0-9a-f]{40})")
_SETTINGS = (
    *("config.json", "generation_config.json", "adapter_config.json", "*processor_config.json"),
    *("tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab*", "merges.txt", "spiece.model"),
    *("sentencepiece*", "chat_template*", "additional_chat_templates/*"),
    *("modules.json", "*sentence_*.json", "1_Pooling/config.json"),
)
"""Files other than weights."""
_WEIGHTS = (
    ("model.safetensors", "model.safetensors.index.json", "model-*.safetensors", "value_head.safetensors"),
    ("adapter_model.safetensors",),
    ("pytorch_model.bin", "pytorch_model.bin.index.json", "pytorch_model-*.bin"),
)
"""Weight files: the first kind that a repository has is downloaded."""


def is_name(path: Path) -> bool:
    """Return whether a path names a repository: OWNER/NAME, and no folder of that name exists."""
    return _NAME.fullmatch(str(path)) is not None and not path.is_dir()


def names_commit(revision: str | None) -> bool:
    """Return whether a revision is a commit, or a branch or tag with one."""
    return _WITH_COMMIT.fullmatch(revision or "") is not None


def requested(revision: str | None) -> str:
    """Return the branch, tag or commit that the user requested, without the recorded commit."""
    match = _WITH_COMMIT.fullmatch(revision or "")
    return (match[1] or match[2]) if match else revision or _hub().branch


def pin(name: str, revision: str | None) -> str:
    """Return a revision with its commit, such as main@0123...; a commit is unchanged.

    Configuration and tokenizer are downloaded. If the hub is unreachable, the commit in the cache is used.

    Raises:
        ConfigError: if the repository or revision does not exist, or may not be read.
        TrinityError: if the hub is unreachable and the cache does not have the model.
    """
    if names_commit(revision):
        return str(revision)
    branch = requested(revision)
    return f"{branch}@{_hub().commit(name, branch)}"


def folder(path: Path, revision: str | None = None, with_weights: bool = True) -> Path:
    """Return the folder of a model, downloading a repository if this machine does not have its files.

    Args:
        path: a folder, or the name of a repository.
        revision: revision with commit, as `pin` returns it. A name without a commit counts as a missing
            folder: only `pin` resolves branches.
        with_weights: False downloads only configuration and tokenizer.

    Raises:
        ConfigError: if the folder, repository or revision does not exist, or the repository has no weights.
        TrinityError: if the hub is unreachable and the cache does not have the model.
    """
    if not is_name(path):
        if revision is not None:
            raise ConfigError(
                f"{path}: revision {revision} is for a model of the Hub, OWNER/NAME; a folder has none."
            )
        return path.expanduser()
    match = _WITH_COMMIT.fullmatch(revision or "")
    if match is None:
        raise ConfigError(f"{path}: no such model folder.")
    name, commit = str(path), match[2]
    links = _links_of(name, commit)
    if any(_is_whole(links, weights[0]) for weights in _WEIGHTS):
        return links
    if not with_weights:
        return _hub().download(name, commit, _SETTINGS)
    logger.info("downloading %s at %s", name, commit)
    for weights in _WEIGHTS:
        source = _hub().download(name, commit, (*_SETTINGS, *weights))
        if _is_whole(source, weights[0]):
            _link(source, links, (*_SETTINGS, *weights))
            return links
    raise ConfigError(
        f"{name}: has no weights at {commit} that can be loaded: neither model.safetensors nor "
        "pytorch_model.bin."
    )


def cached(name: str) -> Path:
    """Return the library's folder of a downloaded model, to copy to another machine."""
    return _hub().cached(name)


def _links_of(name: str, commit: str) -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trinity-db" / "models"
    return cache / f"{_hub_name()}--{name.replace('/', '--')}" / commit


def _is_whole(folder: Path, single: str) -> bool:
    """Whether a folder has a single weight file, or all files listed in the index of that name."""
    index = folder / f"{single}.index.json"
    if not index.is_file():
        return (folder / single).is_file()
    try:
        files = set(json.loads(index.read_bytes())["weight_map"].values())
        return all((folder / file).is_file() for file in files)
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return False


def _link(source: Path, links: Path, patterns: Sequence[str]) -> None:
    """Create a folder of links to files, atomically."""
    aside = links.with_name(f"{links.name}.{uuid4().hex[:8]}.tmp")
    try:
        for file in {file for pattern in patterns for file in source.glob(pattern) if file.is_file()}:
            link = aside / file.relative_to(source)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(file.resolve())
        shutil.rmtree(links, ignore_errors=True)  # links into a cache that was emptied
        aside.rename(links)
    except OSError as error:
        shutil.rmtree(aside, ignore_errors=True)
        if not links.is_dir():  # no other process has created it
            raise TrinityError(f"{links}: cannot be written: {error.strerror or error}") from error


class _Hub(Protocol):
    """A hub, accessed with its own library."""

    branch: str
    """Default revision."""

    def commit(self, name: str, revision: str) -> str:
        """Return the current commit of a branch or tag."""

    def download(self, name: str, revision: str, patterns: Sequence[str]) -> Path:
        """Download the matching files of a commit; return their folder, which may contain others."""

    def cached(self, name: str) -> Path: ...


class _HuggingFace:
    """The Hugging Face Hub. Its library reads HF_HOME, HF_ENDPOINT, HF_HUB_OFFLINE and tokens."""

    branch = "main"

    def __init__(self) -> None:
        try:
            self._library: Any = importlib.import_module("huggingface_hub")
            self._constants: Any = importlib.import_module("huggingface_hub.constants")
            self._errors: Any = importlib.import_module("huggingface_hub.errors")
            utils: Any = importlib.import_module("huggingface_hub.utils")
        except ImportError as error:
            raise MissingExtra("train", "huggingface_hub") from error
        if not sys.stderr.isatty():
            utils.disable_progress_bars()

    def commit(self, name: str, revision: str) -> str:
        return self.download(name, revision, _SETTINGS).name

    def download(self, name: str, revision: str, patterns: Sequence[str]) -> Path:
        errors = self._errors
        try:
            folder = self._library.snapshot_download(name, revision=revision, allow_patterns=[*patterns])
        except errors.RevisionNotFoundError as error:
            raise ConfigError(f"{name}: the Hub has no revision '{revision}' of it.") from error
        except errors.GatedRepoError as error:
            raise ConfigError(
                f"{name}: its owner must give you access: ask on its Hub page, and set HF_TOKEN."
            ) from error
        except errors.RepositoryNotFoundError as error:
            raise ConfigError(
                f"{name}: there is no such folder, and no such model on the Hub that this account may read; "
                "correct the name, or set HF_TOKEN."
            ) from error
        except Exception as error:  # errors of a network that is down depend on the version
            is_offline = self._constants.HF_HUB_OFFLINE
            cause = "HF_HUB_OFFLINE is set" if is_offline else error.__cause__ or error
            raise _unreachable(name, cause, self.cached(name)) from error
        return Path(folder)

    def cached(self, name: str) -> Path:
        return Path(self._constants.HF_HUB_CACHE) / f"models--{name.replace('/', '--')}"


class _ModelScope:
    """ModelScope. Its library reads MODELSCOPE_CACHE and MODELSCOPE_API_TOKEN."""

    branch = "master"

    def __init__(self) -> None:
        try:
            self._library = importlib.import_module("modelscope")
        except ImportError as error:
            raise TrinityError(
                f"{VARIABLE}=modelscope needs the package modelscope: pip install modelscope"
            ) from error

    def commit(self, name: str, revision: str) -> str:
        """Return the commit that last changed a file; the library does not report the branch's commit."""
        client = importlib.import_module("modelscope_hub").HubApi().legacy
        try:
            files = client.list_repo_files(name, "model", revision=revision)
        except Exception as error:  # its own errors, and those of requests
            raise _unreachable(name, error, self.cached(name)) from error
        newest: dict[str, Any] = max(files, key=lambda file: file.get("CommittedDate") or 0, default={})
        if not _WITH_COMMIT.fullmatch(str(newest.get("Revision"))):
            raise TrinityError(
                f"{name}: ModelScope names no commit of '{revision}'; set revision to a commit of 40 digits."
            )
        return str(newest["Revision"])

    def download(self, name: str, revision: str, patterns: Sequence[str]) -> Path:
        try:
            folder = self._library.snapshot_download(name, revision=revision, allow_patterns=[*patterns])
        except Exception as error:
            raise _unreachable(name, error, self.cached(name)) from error
        return Path(folder)

    def cached(self, name: str) -> Path:
        root = Path(os.environ.get("MODELSCOPE_CACHE") or Path.home() / ".cache" / "modelscope" / "hub")
        return root / "models" / name.replace("/", "--")


def _unreachable(name: str, cause: BaseException | str, cached: Path) -> TrinityError:
    why = " ".join(str(cause).split())
    return TrinityError(
        f"{name}: there is no such folder here, the cache has no whole copy of the model, and the hub cannot "
        f"be reached ({why:.300}). On a machine that reaches it, run trinity-db download --model {name}, and "
        f"copy the folder that it names to {cached} here."
    )


def _hub() -> _Hub:
    """Return the hub named by TRINITY_DB_HUB.

    Raises:
        ConfigError: if the name is unknown.
        TrinityError: if its library is not installed.
    """
    name = _hub_name()
    if name not in _HUBS:
        raise ConfigError(f"{VARIABLE} is '{name:.100}'; known: {', '.join(_HUBS)}")
    return _HUBS[name]()


def _hub_name() -> str:
    return os.environ.get(VARIABLE) or "huggingface"


_HUBS: dict[str, type[_HuggingFace] | type[_ModelScope]] = {
    "huggingface": _HuggingFace,
    "modelscope": _ModelScope,
}
