"""Estimates the disk space for versions and checkpoints of a run, without torch, before the run exists."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trinity_db.trainer.config import LoraConfig, TrainerConfig

STATE_BYTES = {"adamw": 8, "adamw_8bit": 2, "adafactor": 0, "sgd": 0, "muon": 8, "own": 8}
"""Bytes of optimizer state per trained parameter. `own` is estimated like AdamW."""

SAMPLE = 1 << 20
"""Weights of the starting model in a checkpoint; see `learner/visible_updates.py`."""

OLDER_SHARE = 0.06
"""Disk space of an older 16-bit version relative to a full one, measured at a learning rate of 1e-5: a delta
takes 0.02, and one of 27 versions is full."""

Shapes = Mapping[str, Sequence[int]]
"""Shape of each tensor of a model, by name."""


@dataclass(frozen=True)
class DiskNeed:
    """Bytes of one version and of one checkpoint, and the maximum number of each on disk at a time."""

    version: int
    checkpoint: int
    num_versions: int
    num_checkpoints: int
    deltas: int
    """Bytes of older 16-bit versions, as deltas and the full versions that they are based on. They are
    limited by `trainer.keep_deltas`, and therefore not part of the total."""

    @property
    def total(self) -> int:
        """Maximum bytes, without the deltas."""
        return self.version * self.num_versions + self.checkpoint * self.num_checkpoints


def shapes_of(model: Path) -> Shapes:
    """Return the shapes in the safetensors files of a folder; empty without such files."""
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
    """Estimate the disk space of a run.

    Args:
        shapes: Shapes of its starting model.
        config: Settings, with `publish` set if the run has an adapter.
        publish_every: Steps between two versions.
        copies_start: Whether the folder of checkpoints also gets a copy of the starting model.
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
    """Return the maximum numbers of versions and checkpoints: kept ones, one being written, and one for a
    stop.

    Unless every version has a checkpoint, versions with one are kept in addition to the newest versions.
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
    """Return the number of parameters of an adapter: for each matrix, `rank` rows and columns."""
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
