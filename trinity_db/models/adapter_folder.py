"""A policy version that is an adapter: a folder that peft loads onto its base.

    adapter_config.json, adapter_model.safetensors   peft's: which layers have an adapter, and its matrices
    base.json                                        where the base lies, and the digest of its files

The base is version 0 of the run. It may move after the adapter was written, so it is known by its digest.
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
    """The model that an adapter lies on."""

    path: Path
    """Its folder, when the adapter was written."""
    digest: str

    @property
    def content(self) -> str:
        """What `base.json` has in it."""
        return json.dumps({"path": str(self.path.absolute()), "digest": self.digest})


def is_adapter(folder: Path) -> bool:
    """Whether a folder holds an adapter alone, and no whole model."""
    return (folder / CONFIG_FILE).is_file() and not (folder / "config.json").is_file()


def read_base(folder: Path) -> Base:
    """The base that the `base.json` in a folder names.

    Raises:
        ConfigError: there is none, as in an adapter that no trainer of ours has written.
    """
    try:
        found = json.loads((folder / BASE_FILE).read_bytes())
        return Base(Path(found["path"]), str(found["digest"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{folder}: is an adapter without a readable {BASE_FILE}, which says on which model it lies; "
            "merge it into its model, and name the folder of that."
        ) from error


def whole_model(folder: Path) -> Path:
    """The folder with the configuration and the tokenizer of a version: an adapter's base, or itself.

    Raises:
        ConfigError: the base has changed or is gone.
    """
    return base_folder(folder) if is_adapter(folder) else folder


def base_folder(folder: Path) -> Path:
    """Where the base of an adapter lies now.

    That is the folder in its `base.json`, or in the one of the run's folder, which the trainer writes at each
    start, or version 0 beside it, as in a copied run.

    Raises:
        ConfigError: no model there has the digest of the base.
    """
    base = read_base(folder)
    places = [base.path]
    if (folder.parent / BASE_FILE).is_file():
        places.append(read_base(folder.parent).path)
    places += sorted(folder.parent.glob("version-000000*"))
    for place in dict.fromkeys(places):
        if _is_whole(place, base.digest):
            return place
    raise ConfigError(
        f"{folder}: is an adapter on the model in {base.path}, which has changed or is gone; restore it."
    )


def _is_whole(place: Path, digest: str) -> bool:
    try:
        _check(place, digest)
    except ConfigError:
        return False
    return True


@lru_cache
def _check(place: Path, digest: str) -> None:
    """Raise ConfigError unless the model in a folder has this digest. A process reads a whole one once."""
    if not verify(place, digest):
        raise ConfigError(f"{place} has another digest.")
