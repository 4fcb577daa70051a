"""How much disk the versions and checkpoints of a run need, computed without torch before the run exists."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trinity_db.trainer.config import LoraConfig, TrainerConfig

STATE_BYTES = {"adamw": 8, "adamw_8bit": 2, "adafactor": 0, "sgd": 0, "muon": 8, "own": 8}
"""Bytes of the optimizer's state for each trained parameter. Of `own` it is that of AdamW."""

SAMPLE = 1 << 20
"""Weights of the starting model that a checkpoint has; see `learner/visible_updates.py`."""

OLDER_SHARE = 0.06
"""Disk of an older version in 16 bits as a share of a whole one, measured at a learning rate of 1e-5: a delta
takes 0.02, and one of 27 versions is whole."""

Shapes = Mapping[str, Sequence[int]]
"""The shape of each tensor of a model, by name."""


@dataclass(frozen=True)
class DiskNeed:
    """Bytes of one version and of one checkpoint, and the most of each that are on disk at a time."""

    version: int
    checkpoint: int
    num_versions: int
    num_checkpoints: int
    deltas: int
    """Bytes of older versions in 16 bits, as deltas and the whole ones that these are based on. They take no
    more than `trainer.keep_deltas` allows, and therefore do not count to the total."""

    @property
    def total(self) -> int:
        """Bytes at most, without the deltas."""
        return self.version * self.num_versions + self.checkpoint * self.num_checkpoints


def shapes_of(model: Path) -> Shapes:
    """The shapes in the safetensors files of a folder. Empty if it has none."""
    from safetensors import SafetensorError, safe_open

    shapes: dict[str, Sequence[int]] = {}
    try:
        for file in sorted(model.glob("model*.safetensors")):
            with safe_open(file, "np") as opened:
                shapes |= {name: opened.get_slice(name).get_shape() for name in opened.keys()}  # noqa: SIM118
    except (OSError, SafetensorError):  # loading the model reports the cause
        return {}
    return shapes


def estimate(shapes: Shapes, config: TrainerConfig, publish_every: int, copies_start: bool) -> DiskNeed:
    """The need of a run.

    Args:
        shapes: of its starting model.
        config: `publish` is set if the run has an adapter.
        publish_every: steps between two versions.
        copies_start: whether the folder of checkpoints also gets a copy of the starting model.
    """
    whole = sum(map(math.prod, shapes.values()))
    trained = whole if config.lora is None else _adapter(shapes, config.lora)
    width = 2 if config.publish_dtype in ("bfloat16", "float16") else 4
    adapter = 0 if config.lora is None else 4 * trained
    version = adapter if config.publish == "adapter" else width * whole + adapter
    checkpoint = trained * (4 + _state_bytes(config))
    if config.lora is None and config.publish_dtype != "float32":
        checkpoint += 4 * min(whole, SAMPLE)
    if config.reference.name == "synchronised":
        checkpoint += 4 * whole
    versions, checkpoints = _most_at_a_time(config, publish_every)
    deltas = 0
    if config.publish != "adapter" and config.publish_dtype != "float32" and config.steps is not None:
        older = max(0, config.steps // publish_every - versions)
        deltas = int(older * OLDER_SHARE * (2 * whole + adapter)) if config.keep_deltas else 0
    return DiskNeed(version, checkpoint, versions + copies_start, checkpoints, deltas)


def _most_at_a_time(config: TrainerConfig, publish_every: int) -> tuple[int, int]:
    """Versions and checkpoints: the kept ones, one that is being written, and one that a stop may still need.

    Versions with a checkpoint are kept apart from the newest ones if not all have one.
    """
    keep, every = config.keep_checkpoints, config.checkpoint_every
    are_apart = every == "auto" or every > publish_every
    versions = (2 if are_apart else 1) * keep + 3 + (config.keep_best is not None)
    checkpoints = keep + 2
    if config.steps is None:
        return versions, checkpoints
    if config.keep_every is not None:
        versions += config.steps // config.keep_every
    most = math.ceil(config.steps / publish_every) + 1
    return min(versions, most), min(checkpoints, most)


def _state_bytes(config: TrainerConfig) -> int:
    optimizer = config.optimizer
    has_momentum = optimizer.name == "sgd" and optimizer.momentum > 0
    return 4 if has_momentum else STATE_BYTES[optimizer.name]


def _adapter(shapes: Shapes, lora: LoraConfig) -> int:
    """The number of parameters of an adapter: for each matrix, `rank` rows and columns."""
    matrices = {name.removesuffix(".weight"): shape for name, shape in shapes.items() if len(shape) == 2}
    return sum(
        lora.rank * sum(shape)
        for name, shape in matrices.items()
        if (
            name.endswith(tuple(lora.targets))
            if lora.targets != ("all-linear",)
            else not name.endswith(("embed_tokens", "lm_head", "wte", "wpe"))
        )
    )
