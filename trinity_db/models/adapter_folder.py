"""Policy versions that are adapters: folders that peft loads onto a base model.

    adapter_config.json, adapter_model.safetensors   written by peft: adapted layers and their matrices
    base.json                                        folder of the base, and the digest of its files

The base is version 0 of the run. It may be moved later, so it is identified by its digest.
"""

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from trinity_db.errors import ConfigError
from trinity_db.models.folder_digest import verify

CONFIG_FILE, WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors"  # peft's names
BASE_FILE = "base.json"


@dataclass(frozen=True)
class Base:
    """The base model of an adapter."""

    path: Path
    """Folder of the base when the adapter was written."""
    digest: str

    @property
    def content(self) -> str:
        """Return the content of `base.json`."""
        return json.dumps({"path": str(self.path.absolute()), "digest": self.digest})


def is_adapter(folder: Path) -> bool:
    """Whether a folder contains only an adapter rather than a whole model."""
    return (folder / CONFIG_FILE).is_file() and not (folder / "config.json").is_file()


def read_base(folder: Path) -> Base:
    """Read the base from the `base.json` in a folder.

    Raises:
        ConfigError: if it is missing, for example because another program wrote the adapter.
    """
    try:
        content = json.loads((folder / BASE_FILE).read_bytes())
        return Base(Path(content["path"]), str(content["digest"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{folder}: is an adapter without a readable {BASE_FILE}, which names its base model; "
            "merge it into its model, and name the folder of that."
        ) from error


def whole_model(folder: Path) -> Path:
    """Return the folder with a version's configuration and tokenizer: an adapter's base, or the folder
    itself.

    Raises:
        ConfigError: if the base has changed or is missing.
    """
    return base_folder(folder) if is_adapter(folder) else folder


def base_folder(folder: Path) -> Path:
    """Find the current folder of an adapter's base.

    Candidates are the folder in its own `base.json`, the one in the run folder's `base.json`, which the
    trainer writes at each start, and version 0 next to it, for example in a copied run.

    Raises:
        ConfigError: if no model there has the digest of the base.
    """
    base = read_base(folder)
    candidates = [base.path]
    if (folder.parent / BASE_FILE).is_file():
        candidates.append(read_base(folder.parent).path)
    candidates += sorted(folder.parent.glob("version-000000*"))
    for candidate in dict.fromkeys(candidates):
        if _is_whole(candidate, base.digest):
            return candidate
    raise ConfigError(
        f"{folder}: is an adapter on the model in {base.path}, which has changed or is gone; restore it."
    )


def _is_whole(folder: Path, digest: str) -> bool:
    try:
        _check(folder, digest)
    except ConfigError:
        return False
    return True


@lru_cache
def _check(folder: Path, digest: str) -> None:
    """Raise ConfigError unless the model in a folder has this digest. Each process reads a whole model
    once."""
    if not verify(folder, digest):
        raise ConfigError(f"{folder} has another digest.")
