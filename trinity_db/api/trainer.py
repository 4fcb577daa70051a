"""The trainer of a run as a program sees it: batches of rows, commits, versions and checkpoints."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, SupportsFloat

import numpy as np
from numpy.typing import NDArray

from trinity_db.api.joining import join_run
from trinity_db.errors import ConfigError, LeaseLost, TrinityError
from trinity_db.schema.states import RunKind
from trinity_db.store import batches
from trinity_db.store.batches import SetBack

if TYPE_CHECKING:
    from trinity_db.trainer.external import ExternalTrainer

__all__ = ["Batch", "LeaseLost", "Row", "SetBack", "Trainer", "open_trainer"]


@dataclass(frozen=True, eq=False)
class Row:
    """A row of a batch: a sequence of n tokens, of which k are trained. The arrays are read-only."""

    id: int
    """Id of the experience."""
    group_id: int | None
    pair_id: int | None
    """Id of the pair, whose chosen response is followed by the rejected one. None: draws is not pairs."""
    token_ids: NDArray[np.int32]
    """[n] Tokens of the prompt and the response."""
    action_mask: NDArray[np.bool_]
    """[n] True for trained tokens."""
    logprobs: NDArray[np.float32] | None
    """[k] Log-probability of each trained token when it was sampled. None: no policy sampled them."""
    versions: NDArray[np.int32] | None
    """[k] Policy version that sampled each trained token; -1: a policy of another run."""
    temperatures: NDArray[np.float32] | None
    """[k] Temperature at which each trained token was sampled. None: `Trainer.temperature` for all."""
    reward: float | None
    advantage: float | None
    """Reward compared with the group's, by the run's `algorithm.advantage`. None: draws is not groups."""
    weight: float
    """Factor of the row's loss."""
    staleness: int | None
    """Number of versions by which the row's policy lags behind the newest one."""


class Batch(Sequence[Row]):
    """The rows of a step. Nothing is held in the store while the program works, except their lease."""

    def __init__(self, trainer: "ExternalTrainer", batch: batches.Batch, rows: Sequence[Row]) -> None:
        self._trainer = trainer
        self._batch = batch
        self._rows = rows
        self._is_committed = False

    @property
    def id(self) -> int:
        """Id of the batch, for `trinity-db replay`."""
        return self._batch.id

    @property
    def step(self) -> int:
        """Step of the run that a commit completes, counted from 1."""
        return self._batch.step

    def commit(self, metrics: Mapping[str, SupportsFloat] | None = None) -> bool:
        """Count the use of the rows, with the step's metrics. Return False if that was done before.

        Commit a batch after the update that uses it: a checkpoint includes all committed batches. If the
        program dies before the next checkpoint, the rows are drawn again.

        Raises:
            LeaseLost: if the batch was given back, or another trainer has taken over the run.
            SetBack: if the server has lost steps that were committed.
        """
        if self._is_committed:
            return False
        values = {name: float(value) for name, value in (metrics or {}).items()}
        with _explained():
            self._trainer.commit(self._batch, values)
        self._is_committed = True
        return True

    def give_back(self) -> None:
        """Make the rows ready again, without a step. No effect after a commit."""
        with _explained():
            self._trainer.give_back(self._batch)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> Any:
        return self._rows[index]

    def __repr__(self) -> str:
        return f"<trinity_db.Batch: step {self.step}, {len(self)} rows>"


class Trainer:
    """The only trainer of a run, from the start of a `with` block to its end.

    One thread may call its methods; another one sends heartbeats, so that a step may take any time. If the
    block ends without an error after the last step, and a checkpoint includes it, the run is finished. If the
    loop ended for an upgrade of the store, the block raises StoreUpgraded: start the program again after it.
    """

    def __init__(self, open: Callable[[], "ExternalTrainer"]) -> None:
        self._open = open
        self._opened: ExternalTrainer | None = None

    @property
    def _inner(self) -> "ExternalTrainer":
        if self._opened is None:
            raise TrinityError("The run has no trainer yet: use `with store.trainer(run) as trainer`.")
        return self._opened

    @property
    def step(self) -> int:
        """Last committed step; 0 before the first."""
        return self._inner.step

    @property
    def version(self) -> int:
        """Newest policy version. Explorers sample from it."""
        return self._inner.policy.version

    @property
    def model_folder(self) -> Path:
        """Files of the newest version; those of version 0 are the starting model."""
        return self._inner.policy.checkpoint

    @property
    def start_folder(self) -> Path:
        """Files of version 0, the starting model, for a program that compares the policy with it."""
        return self._inner.first_model

    @property
    def resume_folder(self) -> Path | None:
        """Files of the newest checkpoint, from which the program continues. None before the first."""
        saved = self._inner.saved
        return None if saved is None else saved.folder

    @property
    def is_saved(self) -> bool:
        """Whether a checkpoint includes all committed steps."""
        return self._inner.is_saved

    @property
    def has_ended(self) -> bool:
        """Whether `draw` returns None from now on: after the last step, or if the run is to stop."""
        return self._inner.has_ended

    @property
    def is_version_due(self) -> bool:
        """Whether the run's `trainer.publish_every` asks for a version that includes the last step."""
        return self._inner.is_version_due

    @property
    def steps(self) -> int:
        """Number of steps of the run, including those done. A run over imported rows may have fewer."""
        return self._inner.steps

    @property
    def temperature(self) -> float:
        """Temperature of the run's explorers, at which log-probabilities were computed."""
        return self._inner.temperature

    def draw(self, wait: float | None = None) -> Batch | None:
        """Lease the rows of the next step. A batch that is not committed yet is given back.

        Waits until there are enough rows within the run's `max_staleness`. Returns None after the last step,
        or if the run was asked to stop, or the store is being upgraded; save a checkpoint then.

        Args:
            wait: seconds after which to return None too. None: no limit.

        Raises:
            TrinityError: if the run limits the staleness, and the newest version is `trainer.publish_every`
                steps old.
            LeaseLost: if another trainer has taken over the run.
            SetBack: if the server has lost steps that were committed.
        """
        with _explained():
            drawn = self._inner.draw(wait)
        if drawn is None:
            return None
        batch, rows = drawn
        return Batch(self._inner, batch, [_row(row) for row in rows])

    def publish(self) -> AbstractContextManager[Path]:
        """Publish a version. The block writes the model and its tokenizer to the folder that it gets.

        At the end of the block the files are flushed, and the version, with all committed steps, is recorded.
        Explorers then load it. If the block raises, nothing is published.
        """
        return _explaining(self._inner.publish())

    def checkpoint(self) -> AbstractContextManager[Path]:
        """Save a checkpoint. The block writes to the folder that it gets what the program resumes from.

        If the last step is not published, the same files become its version: an online run needs the model
        and its tokenizer in it.
        """
        return _explaining(self._inner.checkpoint())

    def __enter__(self) -> Self:
        self._opened = self._open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with _explained():
            self._inner.close(is_complete=kind is None)


def open_trainer(
    url: str | None, name: str, checkpoints: str | Path | None, from_start: bool, from_version: int | None
) -> "ExternalTrainer":
    """Take a run's place for a trainer; see `Store.trainer`."""
    from trinity_db.models import check_libraries

    check_libraries("torch", "transformers")  # before the imports: it names a missing extra
    from trinity_db.config import base
    from trinity_db.run.configuration import RunConfig
    from trinity_db.run.trainer_setup import trainer_setup
    from trinity_db.trainer.checkpoints.recovery import Allowed
    from trinity_db.trainer.external import ExternalTrainer

    database, run = join_run(url, name)
    with ExitStack() as undo:
        undo.callback(database.close)
        algorithm = run.config.get("algorithm") if run.kind == RunKind.TRAIN else None
        if not isinstance(algorithm, dict) or algorithm.get("name") != "external":
            raise ConfigError(f"'{name}' is no run with algorithm: external, so no program trains it.")
        config = base.validate(RunConfig, run.config, f"The configuration of run '{name}'", base.STORED)
        setup = trainer_setup(config, Allowed(from_start, from_version))
        if checkpoints is not None:
            setup = replace(setup, checkpoints=Path(checkpoints).expanduser().absolute() / name)
        trainer = ExternalTrainer(database, run, setup)
        trainer.open()
        undo.pop_all()
    return trainer


def _row(row: batches.Row) -> Row:
    payload = row.payload
    arrays = (
        payload.token_ids,
        payload.action_mask,
        payload.logprobs,
        payload.versions,
        payload.temperatures,
    )
    for array in arrays:
        if array is not None:
            array.flags.writeable = False
    return Row(
        id=row.experience_id,
        group_id=row.group_id,
        pair_id=row.preference_id,
        token_ids=payload.token_ids,
        action_mask=payload.action_mask,
        logprobs=payload.logprobs,
        versions=payload.versions,
        temperatures=payload.temperatures,
        reward=row.reward,
        advantage=row.advantage,
        weight=row.weight,
        staleness=row.staleness,
    )


@contextmanager
def _explained() -> Iterator[None]:
    """Tell the program what to do after an error."""
    try:
        yield
    except LeaseLost as error:
        raise LeaseLost(f"{error} Stop this program: it must save nothing more.") from error
    except SetBack as error:
        raise SetBack(
            "leave the block of store.trainer, enter it again, and continue from its resume_folder."
        ) from error


@contextmanager
def _explaining(folder: AbstractContextManager[Path]) -> Iterator[Path]:
    with _explained(), folder as path:
        yield path
