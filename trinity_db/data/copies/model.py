"""Exports a version of a run as a whole model, to a folder that other programs can load."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trinity_db.data.copies import folder as folders
from trinity_db.errors import ConfigError, TrinityError
from trinity_db.models import check_libraries, load_model, load_tokenizer
from trinity_db.models.adapter_folder import is_adapter
from trinity_db.models.canary import FILE as CANARY
from trinity_db.postgres.connection import Database
from trinity_db.store import policies, runs
from trinity_db.weights import cache
from trinity_db.weights.recorded_places import RecordedPlaces

TENSORS = {".safetensors", ".bin", ".pt", ".pth", ".gguf"}
"""Suffixes of files with tensors. A checkpoint has some that only the trainer reads."""


def export_model(database: Database, name: str, target: Path, version: int | None) -> int:
    """Write a version of a run to a new folder, merged if it is an adapter. Returns its number.

    A whole model is copied. A merged adapter is written in the number format of `trainer.publish_dtype`,
    where auto is float32.

    Args:
        version: None: the newest.

    Raises:
        ConfigError: if the run has no such version, its files are missing or in a folder without a trainer's
            mark, or the target exists and is not empty.
        NotFound: if the run does not exist.
        TrinityError: if the disk cannot be written, or the files differ from the published ones.
    """
    check_libraries("torch", "transformers")
    with database.transaction(read_only=True) as tx:
        run = runs.find(tx, name)
        recorded = policies.with_checkpoint(tx, run.id)
    policy = next(
        (policy_version for policy_version in recorded if version in (None, policy_version.version)), None
    )
    if policy is None:
        missing = "a version" if version is None else f"version {version}"
        there = ", ".join(str(policy_version.version) for policy_version in reversed(recorded)) or "none"
        raise ConfigError(f"Run '{name}' has no files of {missing}; available: {there}.")
    RecordedPlaces().check_folder(policy)
    with folders.appearing(target) as partial:
        try:
            folder = cache.whole(policy.checkpoint, policy.version, policy.checkpoint_hash)
        except ConfigError as error:
            raise TrinityError(
                f"Version {policy.version}: its files in {policy.checkpoint} differ from the published ones, "
                f"or are being deleted ({error}); restore them, or name another version."
            ) from error
        _write(folder, partial, run.config)
    return policy.version


def _write(folder: Path, target: Path, config: Mapping[str, Any]) -> None:
    from trinity_db.models.lazy_weights import weight_files  # imports torch

    weights = set() if is_adapter(folder) else weight_files(folder)
    if weights:
        for path in folder.iterdir():
            if path in weights or (path.is_file() and path.suffix not in TENSORS and path.name != CANARY):
                shutil.copyfile(path, target / path.name)
        return
    import torch

    from trinity_db.models import model_folder

    dtypes = {"bfloat16": torch.bfloat16, "float16": torch.float16}
    dtype = dtypes.get(config.get("trainer", {}).get("publish_dtype", "float32"), torch.float32)
    model = load_model(folder, "cpu")
    model_folder.write_with_tokenizer(model, model.state_dict(), target, dtype, load_tokenizer(folder))
