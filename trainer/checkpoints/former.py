"""Checkpoints of runs that began before checkpoints had folders of their own.

Such a checkpoint lies in the folder of its version. The weights are the version's, or, where those are
rounded, in a file beside them. An adapter and a reference that follows are in folders there.
"""

from pathlib import Path

from trinity_db.errors import ConfigError
from trinity_db.trainer.distribution.parts import Parts
from trinity_db.trainer.learner.adapter import ADAPTER_FOLDER
from trinity_db.trainer.learner.learner import Learner

_EXACT_FILE = "trained_weights.safetensors"
_REFERENCE_FILE = "reference/model.safetensors"


def is_one(folder: Path, tensors: str) -> bool:
    """Whether a checkpoint is of this kind. Later ones have a file of tensors, or parts with one each."""
    return not any(folder.glob(f"**/{tensors}"))


def load(folder: Path, learner: Learner) -> None:
    """Load the weights into a learner that was built from the version.

    Raises:
        ConfigError: the reference cannot be read so.
    """
    policy = learner.policy
    if policy.adapter is not None:
        within = folder / ADAPTER_FOLDER
        policy.adapter.load(within if within.is_dir() else folder)
    trained = policy.trained()
    for file, prefix in ((_EXACT_FILE, "model."), (_REFERENCE_FILE, "reference.")):
        if not (folder / file).is_file():
            continue
        parts = Parts([folder / file])
        tensors = {name.removeprefix(prefix): one for name, one in trained.items() if name.startswith(prefix)}
        if not tensors.keys() <= parts.names:
            raise ConfigError(
                f"{folder / file}: has other names than the model; "
                "finish this run with the version of trinity-db that began it."
            )
        for name, tensor in tensors.items():
            parts.copy_into(name, tensor)
