"""The explorer: claims tasks as far as the pace allows, samples rollouts, writes them.

It owns the engine and the groups it claimed. It reads tasks and policy versions and writes
rollouts, each in the moment it ends; it never speaks to a processor or the trainer.
"""

import logging
import time
from collections.abc import Iterator

import numpy as np

from trinity_db.database import Database
from trinity_db.errors import ConfigError, TrinityError
from trinity_db.explorer.config import ExplorerConfig
from trinity_db.explorer.engine import Engine
from trinity_db.explorer.workflow import WORKFLOWS, Workflow
from trinity_db.functions import describe_error
from trinity_db.models import folder_digest
from trinity_db.schema.states import WorkerRole
from trinity_db.service import Service
from trinity_db.store import groups, policies, runs
from trinity_db.store.metrics import record_metrics

logger = logging.getLogger(__name__)

FAILURES_IN_A_ROW = 256  # rollouts; by then the setup is at fault, not a task


class Explorer(Service):
    """One explorer with one engine.

    Args:
        greedy: each group has one more member, sampled at temperature 0, as the algorithm asks for.
    """

    role = WorkerRole.EXPLORE

    def __init__(
        self,
        database: Database,
        run: runs.Run,
        config: ExplorerConfig,
        workflow: Workflow,
        engine: Engine,
        pace: groups.Pace,
        selection: groups.Selection,
        prompt_template: str,
        greedy: bool = False,
    ) -> None:
        super().__init__(database, run)
        self._config = config
        self._workflow = workflow
        self._engine = engine
        self._pace = pace
        self._selection = selection
        self._template = prompt_template
        self._greedy = greedy
        self._loaded: tuple[int, str] | None = None
        """Version and hash."""
        self._unusable: policies.PolicyVersion | None = None
        self._failures_in_a_row = 0

    def work(self) -> bool:
        """Explore one batch of groups with the newest policy version."""
        with self.database.transaction() as tx:
            if runs.is_finished(tx, self.run.id):
                return False
            policy = policies.newest(tx, self.run.id)
        if policy is None or not self._load(policy):
            return False
        with self.database.transaction() as tx:
            claimed = groups.claim(
                tx,
                self.run.id,
                self.worker_id,
                policy.version,
                self._pace,
                self._selection,
                self._config.group_size,
                self._config.batch_size,
                self._greedy,
            )
        if claimed:
            self._explore(claimed)
        return bool(claimed)

    def _load(self, policy: policies.PolicyVersion) -> bool:
        """Use a version; False when its files are gone, damaged, or not those that were published.

        Another version follows then: the trainer prunes old ones, and at its start it withdraws damaged ones.

        Raises:
            ConfigError: there is no starting model.
        """
        # By the hash too: after a setback of the server the same number may stand for other weights.
        if self._loaded == (policy.version, policy.checkpoint_hash):
            return True
        try:
            if not folder_digest.verify(policy.checkpoint, policy.checkpoint_hash):
                raise ConfigError(
                    f"{policy.checkpoint}: its files are not those that were published; restore them."
                )
            self._engine.load(policy.checkpoint, policy.version)
        except (ConfigError, OSError) as error:
            if policy.version == 0:
                raise
            if policy != self._unusable:
                logger.warning("version %d cannot be used: %s", policy.version, error)
            self._unusable = policy
            return False
        logger.info("using policy version %d", policy.version)
        self._loaded = policy.version, policy.checkpoint_hash
        return True

    def _explore(self, claimed: list[groups.ClaimedGroup]) -> None:
        seed = np.random.SeedSequence([self._selection.seed, claimed[0].id, claimed[0].attempt])
        rollouts = self._attempt(claimed, int(seed.generate_state(1)[0]))
        missing = {(group.id, member) for group in claimed for member in group.members}
        started, num_tokens = time.monotonic(), 0
        for finished in rollouts:
            self._tick_off(finished, missing)
            self._write(finished)
            num_tokens += sum(step.payload.num_trained for r in finished for step in r.all_steps)
        if missing and not self.stopping:
            raise TrinityError(
                f"Workflow '{self._config.workflow}' ended without {len(missing)} of the rollouts it was to "
                "yield; one that failed for good is yielded with its error."
            )
        elapsed = time.monotonic() - started
        with self.database.transaction() as tx:
            values = {"explore/tokens_per_second": num_tokens / elapsed, "explore/seconds": elapsed}
            record_metrics(tx, self.run.id, self.role, self._engine.version, values)

    def _attempt(self, claimed: list[groups.ClaimedGroup], seed: int) -> Iterator[list[groups.Rollout]]:
        """What the workflow yields. A message about an error in the user's own names its place."""
        try:
            yield from self._workflow(
                self._engine,
                claimed,
                template=self._template,
                config=self._config,
                seed=seed,
                should_stop=lambda: self.stopping,
            )
        except Exception as error:
            if isinstance(error, TrinityError) or self._config.workflow in WORKFLOWS:
                raise
            what = f"Workflow '{self._config.workflow}' raised {describe_error(error)}"
            raise TrinityError(what) from error

    def _tick_off(self, finished: list[groups.Rollout], missing: set[tuple[int, int]]) -> None:
        if not isinstance(finished, list) or not all(isinstance(r, groups.Rollout) for r in finished):
            raise TrinityError(
                f"Workflow '{self._config.workflow}' yielded {type(finished).__name__}, "
                "not a list of rollouts."
            )
        for rollout in finished:
            if (rollout.group.id, rollout.member) not in missing:
                raise TrinityError(
                    f"Workflow '{self._config.workflow}' yielded member {rollout.member} of group "
                    f"{rollout.group.id}, which it was not asked for, or yielded before."
                )
            missing.remove((rollout.group.id, rollout.member))

    def _write(self, finished: list[groups.Rollout]) -> None:
        def write() -> groups.Unwanted:
            with self.database.transaction() as tx:
                return groups.write_rollouts(tx, self.run.id, self.worker_id, finished)

        unwanted = self.database.retry(write, give_up=lambda: self.stopping)
        if unwanted.refused:
            logger.warning("%d rollouts came too late: another explorer has their groups", unwanted.refused)
        if unwanted.lost:
            logger.warning(
                "%d rollouts could not be written: the store has no such groups, since the server lost their "
                "start, as after a failover to a replica behind; their tasks come again",
                unwanted.lost,
            )
        self._watch_failures(finished)

    def _watch_failures(self, finished: list[groups.Rollout]) -> None:
        for rollout in finished:
            if rollout.error is None:
                self._failures_in_a_row = 0
                continue
            if self._failures_in_a_row == 0:
                logger.warning("group %d failed: %s", rollout.group.id, rollout.error)
            self._failures_in_a_row += 1
        if self._failures_in_a_row >= FAILURES_IN_A_ROW:
            raise TrinityError(
                f"{self._failures_in_a_row} rollouts failed in a row, the last with: {finished[-1].error}"
            )
