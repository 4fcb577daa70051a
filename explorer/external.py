"""The explorer of a run whose rollouts are sampled by a program outside of trinity-db.

It claims, writes and gives back groups with the statements of the built-in explorer, and samples nothing.
Each method is one or more whole transactions; none stays open while the program works.
"""

import math
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from trinity_db.errors import LeaseLost, TrinityError
from trinity_db.postgres.connection import Database
from trinity_db.schema.states import WorkerRole
from trinity_db.store import groups, policies, runs, workers
from trinity_db.weights import cache
from trinity_db.weights.recorded_places import RecordedPlaces
from trinity_db.worker.service import POLL_SECONDS, Pulse, Service


class ExternalExplorer(Service):
    """An explorer for a program that calls its methods instead of `serve`.

    A thread sends heartbeats from `open` to `close`.

    Args:
        places: the folders that versions may be read from.
    """

    role = WorkerRole.EXPLORE

    def __init__(
        self, database: Database, run: runs.Run, plan: groups.GroupPlan, places: RecordedPlaces
    ) -> None:
        super().__init__(database, run)
        self._plan = plan
        self._places = places
        self._pulse = Pulse(self)
        self._claimed: set[int] = set()
        """Ids of the groups that are neither written nor given back."""
        self._folder: tuple[str, Path] | None = None
        """Hash and folder of the version that was looked up last."""

    def open(self) -> None:
        """Join the run."""
        self.worker_id = self._claim_place()
        self._pulse.start()

    def held(self) -> workers.Held:
        """Return the groups that the program explores."""
        return workers.Held(groups=self._claimed)

    def claim(
        self, limit: int, seconds: float | None
    ) -> tuple[policies.PolicyVersion, list[groups.ClaimedGroup]] | None:
        """Claim groups as the pace allows. Return them with the newest version, which shall sample them.

        Return None if the run is finished, or was asked to stop, or the store is being upgraded, or after so
        many seconds.

        Raises:
            LeaseLost: if this worker was taken for dead.
        """
        deadline = math.inf if seconds is None else time.monotonic() + seconds
        while True:
            self._news.clear()
            self._check()
            if self.stopping or self._retry(self._is_over):
                return None
            policy, claimed = self._retry(partial(self._claim, limit))
            if policy is not None and claimed:
                return policy, claimed
            if (left := deadline - time.monotonic()) <= 0:
                return None
            self._news.wait(min(left, POLL_SECONDS))

    def write(self, group: groups.ClaimedGroup, rollouts: Sequence[groups.Rollout]) -> None:
        """Write all rollouts of a group in one transaction.

        Raises:
            TrinityError: if the group was written or given back before.
            ConfigError: if the run has no such version. TooStale: if one is too far behind the newest. Then
                nothing is written.
            LeaseLost: if the group went to another explorer; its rollouts are stored as late.
        """
        self._check()
        if group.id not in self._claimed:
            raise TrinityError(f"Group {group.id} was written or given back before: claim another one.")
        # A separate transaction: if the reply to the commit is lost, the repeated write must not be refused.
        self._retry(partial(self._check_versions, rollouts))
        unwanted = self._retry(partial(self._write, rollouts))
        self._claimed.remove(group.id)
        if unwanted.lost:
            raise LeaseLost(f"The server has lost the start of group {group.id}.")
        if unwanted.refused:
            raise LeaseLost(
                f"Group {group.id} is no longer leased to this explorer, which was silent for too long; its "
                "rollouts are stored as late."
            )

    def give_back(self, group: groups.ClaimedGroup) -> None:
        """Let any explorer claim a group. No effect after it was written or given back."""
        if group.id in self._claimed:
            self._retry(partial(self._give_back, group))
            self._claimed.remove(group.id)

    def folder(self, policy: policies.PolicyVersion) -> Path:
        """Return a folder with the files of a version.

        Raises:
            ConfigError: if they are not on this machine, or damaged, or in a folder that is not read.
        """
        if self._folder is None or self._folder[0] != policy.checkpoint_hash:
            self._places.check_folder(policy)
            folder = cache.whole(policy.checkpoint, policy.version, policy.checkpoint_hash)
            self._folder = policy.checkpoint_hash, folder
        return self._folder[1]

    def close(self, *, is_complete: bool = False) -> None:
        """Give back all groups and leave the run.

        Args:
            is_complete: Whether the caller's loop ended without an error.

        Raises:
            StoreUpgraded: if the loop ended because the store is being upgraded.
        """
        self._pulse.stop()
        self._sign_off()
        self.database.close()
        if is_complete and self._upgrade is not None:
            raise self._upgrade

    def _check(self) -> None:
        """Raise the error that ended the heartbeats, if any."""
        if self._pulse.failure is not None:
            raise self._pulse.failure

    def _is_over(self) -> bool:
        with self.database.transaction() as tx:
            return runs.is_finished(tx, self.run.id)

    def _claim(self, limit: int) -> tuple[policies.PolicyVersion | None, list[groups.ClaimedGroup]]:
        claimed: list[groups.ClaimedGroup] = []
        with self._claims_known(), self.database.transaction() as tx:
            policy = policies.newest(tx, self.run.id)
            if policy is not None:
                claimed = groups.claim(tx, self.run.id, self.worker_id, self._plan, policy.version, limit)
        self._claimed |= {group.id for group in claimed}
        return policy, claimed

    def _check_versions(self, rollouts: Sequence[groups.Rollout]) -> None:
        sampled = [step.payload.versions for rollout in rollouts for step in rollout.steps]
        versions = {int(version) for values in sampled if values is not None for version in np.unique(values)}
        if versions:
            with self.database.transaction(read_only=True) as tx:
                policies.check_sampled(tx, self.run.id, sorted(versions), self._plan.pace.max_staleness)

    def _write(self, rollouts: Sequence[groups.Rollout]) -> groups.Unwanted:
        with self.database.transaction() as tx:
            return groups.write_rollouts(tx, self.run.id, self.worker_id, rollouts)

    def _give_back(self, group: groups.ClaimedGroup) -> None:
        with self.database.transaction() as tx:
            groups.give_back(tx, self.run.id, self.worker_id, [], [group.id])
