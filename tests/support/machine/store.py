"""The model of an online run: groups on their way from the explorers through the processors to the trainer.

Each verb has a method that does the same to dictionaries and returns what the verb should return.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tests.support.machine.history import Batch, Group, History, Name, Row, Table
from trinity_db.arrays.codec import encode
from trinity_db.schema.states import Outcome
from trinity_db.store import groups, processing

UNPROCESSED = {"clean": ("raw", "clean"), "score": ("clean", "scored")}  # the states each stage moves between
LIVE = ("open", "complete", "ready", "leased")
DRAWABLE = ("ready", "leased", "trained")


@dataclass
class Task:
    """How the run fares with a task."""

    issued: int = 0
    scored: int = 0
    solved: int = 0


class Store(History):
    """An online run: groups on their way from the explorers through the processors to the trainer."""

    def __init__(self, tasks: Iterable[int], pace: groups.Pace, group_size: int, max_uses: int) -> None:
        super().__init__(max_uses)
        assert pace.max_staleness is not None
        self.max_staleness = pace.max_staleness
        self.max_ahead = (pace.max_staleness + 1) * pace.per_version
        self.group_size = group_size
        self.tasks = {task: Task() for task in tasks}
        self.groups: dict[int, Group] = {}
        self.rollouts: dict[Name, tuple[str, int]] = {}
        """State and worker."""
        self.processing: dict[tuple[int, str, int], tuple[str, str | None]] = {}
        """The outcome for a row at a processor in an attempt, and the step that it is by."""
        self.drops: dict[tuple[str, int], tuple[str, str | None, str]] = {}
        """Stage, step and reason, of a row or a group."""

    def ahead(self, version: int) -> int:
        """Groups that were started and are neither dropped nor in a version up to this one."""
        trained = (batch for batch in self.batches.values() if batch.state == "committed")
        return len(self.groups_in(*LIVE)) + sum(
            len(b.groups) for b in trained if b.included is None or b.included > version
        )

    def groups_in(self, *states: str) -> list[Group]:
        return [group for group in self.groups.values() if group.state in states]

    def unprocessed(self) -> list[Row]:
        """Rows that a processor may claim."""
        return [row for row in self.rows.values() if row.state in ("raw", "clean") and row.holder is None]

    def holders(self) -> set[int]:
        """Explorers and processors that hold something."""
        held = {row.holder for row in self.rows.values() if row.state in ("raw", "clean")}
        held |= {group.holder for group in self.groups_in("open")}
        return {holder for holder in held if holder is not None}

    def claim(self, worker: int, version: int, limit: int) -> tuple[dict[int, list[int]], list[int]]:
        """The missing members of the groups that are taken over, and the tasks of those to start."""
        abandoned = [k for k, g in self.groups.items() if g.state == "open" and g.holder is None][:limit]
        for group in map(self.groups.__getitem__, abandoned):
            group.holder, group.attempt = worker, group.attempt + 1
        room = max(0, min(limit - len(abandoned), self.max_ahead - self.ahead(version)))
        issued = sum(task.issued for task in self.tasks.values())
        tasks = [list(self.tasks)[(issued + number) % len(self.tasks)] for number in range(room)]
        return {
            key: [n for n in range(self.group_size) if n not in self.groups[key].members] for key in abandoned
        }, tasks

    def start(self, group_id: int, task: int, worker: int) -> None:
        self.tasks[task].issued += 1
        self.groups[group_id] = Group(task, self.group_size, worker)

    def holds(self, worker: int, claimed: groups.ClaimedGroup) -> bool:
        group = self.groups[claimed.id]
        return (group.state, group.holder, group.attempt) == ("open", worker, claimed.attempt)

    def write(self, worker: int, rollouts: Sequence[groups.Rollout], ids: Mapping[Name, int | None]) -> int:
        """In time they are members, late they are kept aside; returns how many of these there are."""
        known = [self.rollouts[name_of(r)][0] for r in rollouts if name_of(r) in self.rollouts]
        fresh = [r for r in rollouts if name_of(r) not in self.rollouts]
        in_time = [self.holds(worker, rollout.group) for rollout in fresh]
        for rollout, is_member in zip(fresh, in_time, strict=True):
            name = name_of(rollout)
            row = self._new_row(name, rollout, ids[name])
            if is_member:
                self.groups[rollout.group.id].take(rollout.member, row)
                self.rollouts[name] = ("failed" if rollout.error else "finished", worker)
            else:
                self.rollouts[name] = ("refused", worker)
                if row is not None:
                    self._drop(row, "dropped", "explore", "late")
        return in_time.count(False) + known.count("refused")

    def claim_rows(
        self, stage: processing.Stage, worker: int, limit: int, max_attempts: int
    ) -> list[tuple[int, int]]:
        """Ids and attempts of the oldest rows; one whose claims brought no verdict comes last, and alone."""
        state, _ = UNPROCESSED[stage.processor]
        free = [row for row in self.unprocessed() if row.state == state]
        trusted = [row for row in free if self._unanswered(row) < max(max_attempts - 1, 1)]
        chosen = trusted[:limit] or free[:1]
        for row in chosen:
            row.holder, row.attempt = worker, row.attempt + 1
        return [(row.id, row.attempt) for row in chosen]

    def finish(
        self,
        stage: processing.Stage,
        worker: int,
        verdicts: Sequence[processing.StepVerdict],
        max_attempts: int,
    ) -> set[int]:
        """The rows that were still the worker's; of the others it is only noted that they came late."""
        before, after = UNPROCESSED[stage.processor]
        held = set()
        for verdict in verdicts:
            row, name = self.rows[verdict.id], (verdict.id, stage.processor, verdict.attempt)
            if (row.state, row.holder, row.attempt) != (before, worker, verdict.attempt):
                self.processing.setdefault(name, ("refused", None))
                continue
            held.add(row.id)
            row.holder = None
            self.processing[name] = (verdict.outcome.value, verdict.step)
            if verdict.outcome == Outcome.PASSED:
                row.state = after
            elif verdict.outcome == Outcome.DROPPED:
                self._drop(row, "dropped", stage.processor, str(verdict.reason), verdict.step)
            elif self._failures(row, stage) >= max_attempts:
                self._drop(row, "dropped", stage.processor, f"{stage.processor}_failed", verdict.step)
        return held

    def reward(self, row: Row, name: str, part: float, solved_reward: float) -> None:
        """Another reward of a row. If its group is settled, the counts of its task follow."""
        had_solved = row.reward is not None and row.reward >= solved_reward
        row.parts[name] = part
        has_solved = row.reward is not None and row.reward >= solved_reward
        for group in self.groups_in(*DRAWABLE):
            if any(row is member for member in group.rows(*DRAWABLE)):
                self.tasks[group.task].solved += has_solved - had_solved

    def settle(self, min_group_size: int, drop_equal_rewards: bool, solved_reward: float) -> int:
        """Complete groups without a member that is being processed are ready, or dropped with a reason."""
        whole = {k: g for k, g in self.groups.items() if g.state == "complete" and not g.rows("raw", "clean")}
        for key, group in whole.items():
            scored, task = group.rows("scored"), self.tasks[group.task]
            task.scored += len(scored)
            task.solved += sum(row.reward is not None and row.reward >= solved_reward for row in scored)
            reason = None
            if len(scored) < min_group_size:
                reason = "group_too_small"
            elif drop_equal_rewards and len({row.reward for row in scored}) == 1:
                reason = "equal_rewards"
            group.state = "ready" if reason is None else "dropped"
            for row in scored:
                row.state = "ready"
                if reason is not None:
                    self._drop(row, "dropped", "group", reason)
            if reason is not None:
                self.drops["group", key] = ("group", None, reason)
        return len(whole)

    def release(self, workers: set[int]) -> tuple[int, int]:
        """Give back what workers hold, batches apart: how many rows, how many groups."""
        free = [r for r in self.rows.values() if r.holder in workers and r.state in ("raw", "clean")]
        abandoned = [g for g in self.groups.values() if g.holder in workers and g.state == "open"]
        for row in free:
            row.holder = None
        for group in abandoned:
            group.holder = None
        return len(free), len(abandoned)

    def draw(self, worker: int, step: int, size: int) -> Batch | None:
        """Expire what is too stale; then the oldest groups, whole, with their rewards as they are now."""
        version = self.with_checkpoint()[0]
        for group in self.groups_in("ready"):
            if self._staleness(version, group) > self.max_staleness:
                group.state = "dropped"
                for row in group.rows("ready"):
                    self._drop(row, "expired", "draw", "stale")
        chosen = self.groups_in("ready")[:size]
        if len(chosen) < size:
            return None
        batch = Batch(step, worker, version, [], [], chosen)
        for group in chosen:
            members = group.rows("ready")
            mean = statistics.fmean(row.reward or 0.0 for row in members)
            batch.rows += members
            batch.numbers += [
                (row.reward, (row.reward or 0.0) - mean, self._staleness(version, row)) for row in members
            ]
        return batch

    def tables(self) -> dict[str, Table]:
        members = {key: list(group.members.values()) for key, group in self.groups.items()}
        return super().tables() | {
            "rows": {
                k: (*(r.rollout or ()), r.reward, r.oldest, r.response, r.data) for k, r in self.rows.items()
            },
            "groups": {
                key: (
                    group.task,
                    group.state,
                    group.holder,
                    group.attempt,
                    group.expected,
                    sum(row is not None for row in members[key]),
                    sum(row is None for row in members[key]),
                    group.oldest,
                    group.newest,
                    group.uses,
                )
                for key, group in self.groups.items()
            },
            "statistics": {
                key: summary([row.reward for row in group.rows(*DRAWABLE) if row.reward is not None])
                for key, group in self.groups.items()
                if group.state in DRAWABLE
            },
            "rollouts": dict(self.rollouts),
            "processing": dict(self.processing),
            "drops": dict(self.drops),
            "tasks": {
                key: (task.issued, task.scored, task.solved, 1 + task.solved, 1 + task.scored - task.solved)
                for key, task in self.tasks.items()
                if task.issued
            },
        }

    def _new_row(self, name: Name, rollout: groups.Rollout, row_id: int | None) -> Row | None:
        if rollout.error is not None:
            return None
        [step] = rollout.steps
        payload = step.payload
        assert payload.versions is not None
        assert row_id is not None, "the rollout has no experience"
        oldest, newest, data = int(payload.versions.min()), int(payload.versions.max()), encode(payload)
        row = Row(
            row_id, "raw", oldest=oldest, newest=newest, rollout=name, response=step.response, data=data
        )
        self.rows[row_id] = row
        return row

    def _drop(self, row: Row, state: str, stage: str, reason: str, step: str | None = None) -> None:
        row.state = state
        self.drops["row", row.id] = (stage, step, reason)

    def _unanswered(self, row: Row) -> int:
        """Claims since the last that brought a verdict."""
        return row.attempt - max((attempt for key, _, attempt in self.processing if key == row.id), default=0)

    def _failures(self, row: Row, stage: processing.Stage) -> int:
        found = (k for k, (outcome, _) in self.processing.items() if outcome == "failed")
        return sum((row_id, processor) == (row.id, stage.processor) for row_id, processor, _ in found)

    def _staleness(self, version: int, sampled: Row | Group) -> int:
        """Of the versions that sampled a row or a group, how far the one farthest from a version is."""
        return max(self.distance(version, end or 0) for end in (sampled.oldest, sampled.newest))


def name_of(rollout: groups.Rollout) -> Name:
    return rollout.group.id, rollout.member, rollout.group.attempt


def summary(values: Sequence[float]) -> tuple[int, float | None, float | None]:
    """Count, mean and sample variance, as far as there are any."""
    mean = statistics.fmean(values) if values else None
    return len(values), mean, statistics.variance(values) if len(values) > 1 else None
