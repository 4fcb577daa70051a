"""Checkpoints on disk: folders from which a trainer resumes, separate from the weights of their versions.

A checkpoint contains what training has changed, in the trainer's precision: weights, value head, a reference
that follows, and the optimizer's state; with counters and random state. If the weights are sharded, each rank
writes its own part, so that no rank gathers them, and any number of ranks can resume from the parts.

    checkpoint-000012/{tensors.safetensors,trainer_state.pt}             of one process
    checkpoint-000014/part-00000/{tensors.safetensors,trainer_state.pt}  of the first of several ranks
    checkpoint-000014/part-00001/tensors.safetensors                     of the second
"""

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils._pytree import keystr, tree_map, tree_map_with_path

from trinity_db.errors import ConfigError, TrinityError
from trinity_db.io import durable
from trinity_db.models import folder_digest
from trinity_db.models.weights_file import DTYPES
from trinity_db.trainer.checkpoints import writing
from trinity_db.trainer.distribution.parts import Parts, own_part
from trinity_db.trainer.learner.learner import Learner

STATE_FILE = "trainer_state.pt"
TENSORS_FILE = "tensors.safetensors"
_PLACE = "in " + TENSORS_FILE
"""Key in the state for a tensor in the other file, with the tensor's name there."""

_OF_ITS_OWN = "start a run of its own from it, as model: {run: NAME} does."


@dataclass(frozen=True)
class Outcome:
    """Result of writing one rank's part."""

    digest: str | None
    """Digest of the part; None if the rank has none."""
    error: str | None = None


class _Content:
    """A small file whose content is in memory."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self.size = len(content)

    def blocks(self) -> Iterator[memoryview]:
        yield memoryview(self._content)


def num_bytes(learner: Learner) -> int:
    """Return the size of a checkpoint, of all parts. Before the first step it lacks the optimizer's state."""
    tensors = learner.policy.trained()
    _outside({"optimizer": learner.optimizer.state_dict()}, tensors)
    sample = learner.policy.visible.state_bytes if learner.policy.visible else 0
    return sample + sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


def begin_part(folder: Path, aside: Path, learner: Learner) -> writing.Writing | None:
    """Start a thread that writes this rank's part of the learner's state while the learner continues.

    The thread reads the learner's own tensors. Before the learner changes tensors, it copies the unwritten
    ones to CPU memory: with AdamW at most 12 bytes per trained parameter of the part, and 4 per frozen
    parameter.

    Args:
        folder: Folder of the checkpoint, once all parts are written.
        aside: Temporary folder, created by the thread.

    Returns:
        None if the rank has no part, because the first rank writes everything.

    Raises:
        ConfigError: if the state contains something that `load_state` does not read. Then nothing is written.
    """
    ranks, is_sharded = learner.ranks, learner.policy.is_sharded
    if ranks.rank > 0 and not is_sharded:
        return None
    tensors = learner.policy.trained()
    state = _outside(learner.state_dict(), tensors)
    file = own_part(tensors, ranks)
    files: dict[Path, folder_digest.Unwritten] = {Path(TENSORS_FILE): file}
    if ranks.rank == 0:
        files[Path(STATE_FILE)] = _Content(_serialised(state))
    learner.copy_before_change(file)
    part = aside / f"{folder_digest.PART}{ranks.rank:05d}" if is_sharded else aside
    return writing.Writing("checkpoint", lambda: _write(folder, part, files))


def outcome(part: writing.Writing | None) -> Outcome:
    """Wait for this rank's part."""
    try:
        return Outcome(None if part is None else part.digest())
    except TrinityError as error:
        return Outcome(None, str(error))


def finish(folder: Path, aside: Path, outcomes: Sequence[Outcome]) -> str:
    """Rename a checkpoint to its final name when all ranks have written their parts. Return its hash.

    Raises:
        TrinityError: if a rank failed to write its part, or the folder exists. The temporary folder is
            deleted.
    """
    with writing.or_nothing(folder, aside):
        if errors := [outcome.error for outcome in outcomes if outcome.error is not None]:
            raise TrinityError(errors[0])
        durable.flush(aside)
        writing.rename(aside, folder)
    return folder_digest.together([outcome.digest for outcome in outcomes if outcome.digest is not None])


def load_state(folder: Path, learner: Learner) -> None:
    """Restore the saved state into a learner that was built from the weights of this version.

    Raises:
        ConfigError: if the folder is not a checkpoint, or lacks something that the learner trains, or the
            optimizer's state belongs to other weights.
    """
    parts = folder_digest.parts_of(folder)
    if not (parts[0] / STATE_FILE).is_file():
        raise ConfigError(f"{folder}: is not a checkpoint to resume from, it has no {STATE_FILE}.")
    state = torch.load(parts[0] / STATE_FILE, map_location="cpu", weights_only=True)
    tensors = Parts([part / TENSORS_FILE for part in parts])
    trained = learner.policy.trained()
    if missing := trained.keys() - tensors.names:
        missing_part = "values" if all(name.startswith("value_head.") for name in missing) else min(missing)
        raise ConfigError(f"{folder}: was trained without {missing_part}; {_OF_ITS_OWN}")
    if not learner.optimizer.fits(state["optimizer"]):
        raise ConfigError(
            f"{folder}: its optimizer's state belongs to other weights than those being trained, because "
            f"an earlier version of trinity-db or of its libraries chose them; {_OF_ITS_OWN}"
        )
    for name, tensor in trained.items():
        tensors.copy_into(name, tensor)
    state["optimizer"]["state"] = _inside(state["optimizer"]["state"], tensors, learner)
    learner.load_state_dict(state)


def _write(folder: Path, part: Path, files: Mapping[Path, folder_digest.Unwritten]) -> str:
    try:
        part.mkdir(parents=True)
        written = folder_digest.complete(part, files)
        durable.flush_all(part)
    except OSError as error:
        raise writing.unwritable(f"Checkpoint {folder}", error) from error
    return written


def _outside(state: dict[str, Any], tensors: dict[str, Tensor]) -> dict[str, Any]:
    """Return a learner's state without the optimizer's tensors, which are added to `tensors`.

    Scalars, and tensors with dtypes that safetensors does not support, stay in the state.
    """

    def of(index: int) -> Any:
        def take(path: Any, leaf: Any) -> Any:
            if not isinstance(leaf, DTensor) and (
                not isinstance(leaf, Tensor) or leaf.numel() <= 1 or leaf.dtype not in DTYPES
            ):
                return leaf
            name = f"optimizer.{index}{keystr(path)}"
            tensors[name] = leaf
            return {_PLACE: name}

        return take

    optimizer = state["optimizer"]
    outside = {index: tree_map_with_path(of(index), values) for index, values in optimizer["state"].items()}
    return state | {"optimizer": optimizer | {"state": outside}}


def _inside(state: Mapping[int, Any], tensors: Parts, learner: Learner) -> dict[int, Any]:
    """Return the optimizer's state with its tensors, each sharded like its parameter."""
    parameters = learner.policy.parameters()

    def is_named(leaf: Any) -> bool:
        return isinstance(leaf, dict) and _PLACE in leaf

    def put(index: int) -> Any:
        return lambda leaf: tensors.read(leaf[_PLACE], parameters[index]) if is_named(leaf) else leaf

    return {index: tree_map(put(index), values, is_leaf=is_named) for index, values in state.items()}


def _serialised(state: dict[str, Any]) -> bytes:
    """Serialise the state for its file.

    Raises:
        ConfigError: if the state has objects that are not loaded, because loading them may run code.
    """
    content = io.BytesIO()
    torch.save(state, content)
    content.seek(0)
    if unread := torch.serialization.get_unsafe_globals_in_checkpoint(content):
        raise ConfigError(
            f"trainer.optimizer: its state has {', '.join(unread)}, which a checkpoint cannot restore; "
            "use only tensors, numbers, strings, and lists and dicts of these."
        )
    return content.getvalue()
