"""Checkpoints on disk: what a trainer goes on from, in a folder each, apart from the weights of its version.

A checkpoint has what training has changed, as the trainer has it: weights, value head, a reference that
follows, and the optimizer's state; with counters and random state. Where ranks have parts of the weights,
each writes its own part. So no rank gathers them, and any number of ranks goes on from the parts.

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

from trinity_db import durable
from trinity_db.errors import ConfigError, TrinityError
from trinity_db.models import folder_digest
from trinity_db.models.weights_file import DTYPES
from trinity_db.trainer.checkpoints import former, writing
from trinity_db.trainer.distribution.parts import Parts, own_part
from trinity_db.trainer.learner.learner import Learner

STATE_FILE = "trainer_state.pt"
TENSORS_FILE = "tensors.safetensors"
_PLACE = "in " + TENSORS_FILE
"""The key that stands in the state for a tensor in the other file, with the tensor's name there."""

_OF_ITS_OWN = "start a run of its own from it, as model: {run: NAME} does."


@dataclass(frozen=True)
class Outcome:
    """What became of one rank's part."""

    digest: str | None
    """None: the rank has none."""
    error: str | None = None


class _Content:
    """A small file whose bytes are in memory."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self.size = len(content)

    def blocks(self) -> Iterator[memoryview]:
        yield memoryview(self._content)


def num_bytes(learner: Learner) -> int:
    """The size of a checkpoint, of all parts. Before the first step it lacks the optimizer's state."""
    tensors = learner.policy.trained()
    _outside({"optimizer": learner.optimizer.state_dict()}, tensors)
    sample = learner.policy.visible.state_bytes if learner.policy.visible else 0
    return sample + sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


def begin_part(folder: Path, aside: Path, learner: Learner) -> writing.Writing | None:
    """Have a thread write this rank's part of the learner's state while the learner keeps working.

    The thread reads the learner's own tensors. Before the learner changes tensors, it copies the unwritten
    ones into the memory of the CPU: with AdamW at most 12 bytes a trained parameter of the part, and 4
    for each frozen one.

    Args:
        folder: of the checkpoint, once all parts are written.
        aside: the temporary folder, which the thread makes.

    Returns:
        None if the rank has no part, as the first rank writes all.

    Raises:
        ConfigError: the state has what `load_state` does not read. Nothing is written then.
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
    """Give a checkpoint its name when all ranks have written their parts. Returns its hash.

    Raises:
        TrinityError: a rank could not write its part, or the folder exists. The temporary folder is gone.
    """
    with writing.or_nothing(folder, aside):
        if errors := [one.error for one in outcomes if one.error is not None]:
            raise TrinityError(errors[0])
        durable.flush(aside)
        writing.rename(aside, folder)
    return folder_digest.together([one.digest for one in outcomes if one.digest is not None])


def load_state(folder: Path, learner: Learner) -> None:
    """Make a learner that was built from the weights of this version go on as the one that was saved.

    Raises:
        ConfigError: the folder is no checkpoint, or lacks something that the learner trains, or the
            optimizer's state is of other weights.
    """
    parts = folder_digest.parts_of(folder)
    if not (parts[0] / STATE_FILE).is_file():
        raise ConfigError(f"{folder}: is no checkpoint to go on from, it has no {STATE_FILE}.")
    state = torch.load(parts[0] / STATE_FILE, map_location="cpu", weights_only=True)
    is_former = former.is_one(folder, TENSORS_FILE)
    tensors = Parts([] if is_former else [part / TENSORS_FILE for part in parts])
    trained = learner.policy.trained()
    if not is_former and (missing := trained.keys() - tensors.names):
        what = "values" if all(name.startswith("value_head.") for name in missing) else min(missing)
        raise ConfigError(f"{folder}: was trained without {what}; {_OF_ITS_OWN}")
    if not learner.optimizer.fits(state["optimizer"]):
        raise ConfigError(
            f"{folder}: its optimizer's state is of other weights than those that are trained now, because "
            f"an earlier version of trinity-db or of its libraries chose them; {_OF_ITS_OWN}"
        )
    if is_former:
        former.load(folder, learner)
    else:
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
    """A learner's state without the optimizer's tensors, which are added to `tensors`.

    Single numbers stay, and tensors of dtypes that a file of safetensors does not hold.
    """

    def of(place: int) -> Any:
        def take(path: Any, leaf: Any) -> Any:
            if not isinstance(leaf, DTensor) and (
                not isinstance(leaf, Tensor) or leaf.numel() <= 1 or leaf.dtype not in DTYPES
            ):
                return leaf
            name = f"optimizer.{place}{keystr(path)}"
            tensors[name] = leaf
            return {_PLACE: name}

        return take

    optimizer = state["optimizer"]
    outside = {place: tree_map_with_path(of(place), values) for place, values in optimizer["state"].items()}
    return state | {"optimizer": optimizer | {"state": outside}}


def _inside(state: Mapping[int, Any], tensors: Parts, learner: Learner) -> dict[int, Any]:
    """The optimizer's state with its tensors, each shared among ranks as its parameter is."""
    parameters = learner.policy.parameters()

    def is_named(leaf: Any) -> bool:
        return isinstance(leaf, dict) and _PLACE in leaf

    def put(place: int) -> Any:
        return lambda leaf: tensors.read(leaf[_PLACE], parameters[place]) if is_named(leaf) else leaf

    return {place: tree_map(put(place), values, is_leaf=is_named) for place, values in state.items()}


def _serialised(state: dict[str, Any]) -> bytes:
    """The content of the state's file.

    Raises:
        ConfigError: the state has objects that are not loaded, since loading them may run code.
    """
    content = io.BytesIO()
    torch.save(state, content)
    content.seek(0)
    if unread := torch.serialization.get_unsafe_globals_in_checkpoint(content):
        raise ConfigError(
            f"trainer.optimizer: its state has {', '.join(unread)}, with which no checkpoint is read again; "
            "keep tensors, numbers, texts, and lists and dicts of these in it."
        )
    return content.getvalue()
