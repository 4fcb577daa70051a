"""An explorer of a run as a program sees it: rollout groups to sample, with their tasks."""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trinity_db.api.joining import join_run
from trinity_db.arrays.codec import Payload
from trinity_db.errors import ConfigError, LeaseLost, TrinityError
from trinity_db.postgres.connection import Database
from trinity_db.schema.states import RunKind
from trinity_db.store import groups, runs
from trinity_db.store.policies import PolicyVersion, TooStale

if TYPE_CHECKING:
    from trinity_db.explorer.external import ExternalExplorer

__all__ = ["Explorer", "Group", "LeaseLost", "Rollout", "TooStale", "open_explorer"]


@dataclass(frozen=True, eq=False, kw_only=True)
class Rollout:
    """An attempt at a group's task: a sequence of n tokens, of which the policy sampled k."""

    token_ids: ArrayLike
    """[n] Tokens of the prompt and the response."""
    action_mask: ArrayLike
    """[n] True for sampled tokens."""
    logprobs: ArrayLike
    """[k] Log-probability of each sampled token, at the run's `explorer.temperature`."""
    version: ArrayLike
    """Policy version that sampled the tokens, or [k] the version of each."""
    prompt: str
    """Text of the prompt."""
    response: str
    """Text of the response, which processing steps judge."""
    reward: groups.Reward = None
    """A number, or numbers by name. None: only processing steps give rewards."""
    finish_reason: Literal["stop", "length"] = "stop"
    """Whether the response ended by itself, or at its greatest length."""


class Group:
    """A task and its rollouts, which are compared with one another. Leased until they are written."""

    def __init__(
        self,
        explorer: "ExternalExplorer",
        policy: PolicyVersion,
        claimed: groups.ClaimedGroup,
        needs_reward: bool,
    ) -> None:
        self._explorer = explorer
        self._policy = policy
        self._claimed = claimed
        self._claimed_at = datetime.now(UTC)
        self._needs_reward = needs_reward
        self.task: dict[str, Any] = copy.deepcopy(claimed.task)
        """Columns of the task as imported."""

    @property
    def id(self) -> int:
        return self._claimed.id

    @property
    def size(self) -> int:
        """Number of rollouts to write."""
        return len(self._claimed.members)

    @property
    def version(self) -> int:
        """Newest policy version at the claim."""
        return self._policy.version

    @property
    def model_folder(self) -> Path:
        """Files of this version: the model and its tokenizer.

        Raises:
            ConfigError: if they are not on this machine, or damaged.
        """
        return self._explorer.folder(self._policy)

    def write(self, rollouts: Sequence[Rollout | Exception]) -> None:
        """Write all rollouts in one transaction, which ends the lease. After an error nothing is written.

        An exception in place of a rollout records a failed attempt.

        Raises:
            ConfigError: if a rollout is wrong, or its version does not exist.
            TooStale: if a version is farther behind the newest than `max_staleness`.
            TrinityError: if the group was written or given back before.
            LeaseLost: if the group went to another explorer. The rollouts are kept, and not trained on.
        """
        if len(rollouts) != self.size:
            raise ConfigError(
                f"Group {self.id} has {self.size} rollouts, and {len(rollouts)} were passed: write all at "
                "once, with an exception in place of each failed attempt."
            )
        made = [self._made(number, rollout) for number, rollout in enumerate(rollouts)]
        with _explained():
            self._explorer.write(self._claimed, made)

    def give_back(self) -> None:
        """Let any explorer of the run claim the group. No effect after it was written."""
        with _explained():
            self._explorer.give_back(self._claimed)

    def __repr__(self) -> str:
        return f"<trinity_db.Group: {self.id}, {self.size} rollouts, version {self.version}>"

    def _made(self, number: int, rollout: Rollout | Exception) -> groups.Rollout:
        from trinity_db.config.user_functions import describe_error

        origin = (self._claimed, self._claimed.members[number], self._claimed_at, datetime.now(UTC))
        if isinstance(rollout, Exception):
            return groups.Rollout(*origin, error=describe_error(rollout))
        try:
            if rollout.reward is None and self._needs_reward:
                raise ValueError("it has no reward, and no step under processors.score gives one")
            if rollout.finish_reason not in ("stop", "length"):
                raise ValueError(f"finish_reason is {rollout.finish_reason!r:.100}, not stop or length")
            step = groups.Step(rollout.prompt, rollout.response, _payload(rollout), rollout.reward)
        except (TypeError, ValueError) as error:
            problem = str(error).rstrip(".")
            raise ConfigError(f"Rollout {number} of group {self.id}: {problem}.") from error
        return groups.Rollout(*origin, rollout.finish_reason, steps=[step])


class Explorer:
    """An explorer of a run, from the start of a `with` block to its end. A run may have several.

    One thread may call its methods and those of its groups; another one sends heartbeats, so that sampling
    may take any time. Groups that are not written when the block ends go back to the queue.
    """

    def __init__(self, open: "Callable[[], tuple[ExternalExplorer, bool]]") -> None:
        self._open = open
        self._opened: ExternalExplorer | None = None
        self._needs_reward = False

    @property
    def _inner(self) -> "ExternalExplorer":
        if self._opened is None:
            raise TrinityError("The run has no explorer yet: use `with store.explorer(run) as explorer`.")
        return self._opened

    def claim(self, most: int = 1, wait: float | None = None) -> list[Group]:
        """Lease up to `most` rollout groups to explore, first those that other explorers left.

        Waits until the run has a version, and explorers may start another group (`max_staleness`, or
        `explorer.backlog`). Returns none when the run is finished or was asked to stop, or the store is being
        upgraded.

        Args:
            wait: seconds after which to return none, too. None: no limit.

        Raises:
            LeaseLost: if the program was silent for so long that it was taken for dead.
        """
        if most < 1:
            raise ConfigError(f"explorer.claim({most}): claim at least one group.")
        with _explained():
            claimed = self._inner.claim(most, wait)
        if claimed is None:
            return []
        policy, new = claimed
        return [Group(self._inner, policy, group, self._needs_reward) for group in new]

    def __enter__(self) -> Self:
        self._opened, self._needs_reward = self._open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._inner.close(is_complete=kind is None)


def open_explorer(
    url: str | None, name: str, checkpoints: str | Path | None
) -> "tuple[ExternalExplorer, bool]":
    """Join a run as an explorer; see `Store.explorer`. Also return whether each rollout needs a reward."""
    from trinity_db.config import base
    from trinity_db.explorer.config import EXTERNAL
    from trinity_db.explorer.external import ExternalExplorer
    from trinity_db.explorer.loop import tasks
    from trinity_db.run.checks import check_members
    from trinity_db.run.configuration import RunConfig
    from trinity_db.run.explore import pace_of
    from trinity_db.weights.recorded_places import RecordedPlaces

    database, run = join_run(url, name)
    with ExitStack() as undo:
        undo.callback(database.close)
        explorer = run.config.get("explorer") if run.kind == RunKind.TRAIN else None
        if not isinstance(explorer, dict) or explorer.get("workflow") != EXTERNAL:
            raise ConfigError(
                f"'{name}' is no run with explorer.workflow: external, so no program explores it."
            )
        config = base.validate(RunConfig, run.config, f"The configuration of run '{name}'", base.STORED)
        check_members(config)
        shares = database.retry(partial(_shares, database, config.tasksets))
        selection = tasks.selection(config.explorer.tasks, shares, config.seed)
        plan = groups.GroupPlan(pace_of(config), selection, config.explorer.group_size)
        folder = None if checkpoints is None else Path(checkpoints)
        opened = ExternalExplorer(database, run, plan, RecordedPlaces(folder, config.model.path))
        opened.open()
        undo.pop_all()
    return opened, config.attempts_need_reward


def _shares(database: Database, tasksets: Mapping[str, float]) -> dict[int, float]:
    with database.transaction() as tx:
        return {runs.find_taskset(tx, name): share for name, share in tasksets.items()}


def _payload(rollout: Rollout) -> Payload:
    """Return the arrays of a rollout.

    Raises:
        TypeError, ValueError: naming what is wrong.
    """
    token_ids = _whole_numbers("token_ids", rollout.token_ids)
    mask = np.asarray(rollout.action_mask)
    if token_ids.ndim != 1 or mask.shape != token_ids.shape:
        raise ValueError(
            f"token_ids has the shape {token_ids.shape} and action_mask {mask.shape}; both have n entries"
        )
    if not np.isin(mask, (0, 1)).all():
        raise ValueError("action_mask has other entries than true and false")
    sampled = mask.astype(np.bool_)
    count = int(np.count_nonzero(sampled))
    if count == 0:
        raise ValueError("action_mask marks no sampled token")
    with np.errstate(over="ignore"):  # it becomes infinite, and is refused below
        logprobs = np.asarray(rollout.logprobs).astype(np.float32)
    if logprobs.shape != (count,):
        raise ValueError(
            f"logprobs has the shape {logprobs.shape}, and action_mask marks {count} sampled tokens"
        )
    if not np.isfinite(logprobs).all():
        at = int(np.flatnonzero(~np.isfinite(logprobs))[0])
        raise ValueError(f"logprobs[{at}] is {logprobs[at]}, not a finite number")
    versions = _whole_numbers("version", rollout.version)
    if versions.shape not in ((), (count,)):
        raise ValueError(f"version has the shape {versions.shape}; pass one, or one for each sampled token")
    return Payload(token_ids, sampled, logprobs, np.array(np.broadcast_to(versions, (count,))))


def _whole_numbers(name: str, values: ArrayLike) -> NDArray[np.int32]:
    numbers = np.asarray(values)
    if numbers.dtype.kind not in "iu":
        raise TypeError(f"{name} has entries that are not whole numbers ({numbers.dtype})")
    if numbers.size and not 0 <= numbers.min() <= numbers.max() < 2**31:
        raise ValueError(f"{name} has an entry below 0, or of 2^31 or more")
    return numbers.astype(np.int32)


@contextmanager
def _explained() -> Iterator[None]:
    """Tell the program what to do after an error."""
    try:
        yield
    except LeaseLost as error:
        raise LeaseLost(
            f"{error} Leave the block of store.explorer, and enter it again; its tasks are attempted again."
        ) from error
    except TooStale as error:
        raise TooStale(f"{error} Sample again from the newest version, or give the group back.") from error
