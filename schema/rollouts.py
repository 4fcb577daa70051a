"""Attempts at tasks: groups that are compared with one another, and their members."""

from datetime import datetime

from sqlalchemy import (
    Boolean,
    CheckConstraint,
    Computed,
    Double,
    ForeignKey,
    Index,
    Integer,
    SmallInteger,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.orm import Mapped, mapped_column

from trinity_db.schema.base import HOT_TABLE, Base, Id, Now, enum
from trinity_db.schema.states import GroupState, RolloutState


class RolloutGroup(Base):
    """The attempts at one task. Written by the explorer; the group processor and the trainer move it."""

    __tablename__ = "rollout_group"

    id: Mapped[Id]
    run_id: Mapped[int] = mapped_column(ForeignKey("run.id", ondelete="CASCADE"))
    task_id: Mapped[int] = mapped_column(ForeignKey("task.id"))
    state: Mapped[GroupState] = mapped_column(enum(GroupState, "group_state"), server_default="open")
    expected: Mapped[int] = mapped_column(SmallInteger)
    arrived: Mapped[int] = mapped_column(SmallInteger, server_default="0")
    # Members that failed for good: they complete the group at a smaller size.
    failed: Mapped[int] = mapped_column(SmallInteger, server_default="0")
    # The oldest version that wrote any token of any member; NULL where no policy of this run did.
    version_min: Mapped[int | None] = mapped_column(Integer)
    # Kept in the transaction that changes a reward.
    reward_count: Mapped[int] = mapped_column(Integer, server_default="0")
    reward_mean: Mapped[float | None] = mapped_column(Double)
    reward_variance: Mapped[float | None] = mapped_column(Double)
    # What the prioritized sampler weighs it by; 0 is never drawn by it. Changing it within an octave touches
    # no index, so the new version of the row stays on its page (HOT).
    priority: Mapped[float] = mapped_column(Double, server_default="1")
    # The smallest whole number with priority <= 2^octave, from -59 to 60; -60 where the priority is 0.
    octave: Mapped[int] = mapped_column(
        SmallInteger,
        Computed(
            "COALESCE(ceil(ln(NULLIF(priority, 0::double precision)) / ln(2::double precision)),"
            " '-60'::double precision)::smallint",
            persisted=True,
        ),
    )
    # The explorer's lease, and its fencing token.
    worker_id: Mapped[int | None] = mapped_column(ForeignKey("worker.id"))
    attempt: Mapped[int] = mapped_column(Integer, server_default="1")
    created_at: Mapped[Now]
    completed_at: Mapped[datetime | None]
    # The transaction that made it ready, and when that was. A draw and a reopening leave both as they are.
    ready_xact: Mapped[int | None]
    ready_at: Mapped[datetime | None]

    __table_args__ = (
        # A group that claims more members than it expects was written twice.
        CheckConstraint("expected > 0 AND arrived + failed <= expected", "members_within_expected"),
        CheckConstraint("(state = 'open') = (completed_at IS NULL)", "completed_at_iff_not_open"),
        # What the pace counts and the group processor and the draw look for; finished groups are not in it.
        Index(
            "rollout_group_live_idx",
            "run_id",
            "state",
            "id",
            postgresql_where=text("state IN ('open', 'complete', 'ready', 'leased')"),
        ),
        # Where a draw by chance looks: an interval of this order holds groups picked by the hash of their id.
        # What it asks of those it passes over is included.
        Index(
            "rollout_group_chance_idx",
            "run_id",
            "octave",
            text("hashint8extended(id, 0)"),
            postgresql_include=["id", "version_min"],
            postgresql_where=text("state = 'ready'"),
        ),
        # What is too stale expires. The id lets it pass by what lies behind without looking at the rows.
        Index(
            "rollout_group_version_idx",
            "run_id",
            "version_min",
            "id",
            postgresql_where=text("state = 'ready'"),
        ),
        CheckConstraint("priority = 0 OR priority BETWEEN 1e-18 AND 1e18", "priority_in_range"),
        Index("rollout_group_worker_idx", "worker_id", postgresql_where=text("worker_id IS NOT NULL")),
        Index(None, "run_id", "task_id"),
        {"postgresql_with": HOT_TABLE},
    )


class Rollout(Base):
    """One attempt at a task, by one worker; failed ones are kept. Written by the explorer."""

    __tablename__ = "rollout"

    id: Mapped[Id]
    # That of its group, which also holds it to a run that exists: each reference costs every write a look-up.
    run_id: Mapped[int]
    group_id: Mapped[int] = mapped_column(ForeignKey("rollout_group.id", ondelete="CASCADE"))
    ordinal: Mapped[int] = mapped_column(SmallInteger)
    attempt: Mapped[int] = mapped_column(Integer)
    # Sampled at temperature 0, for others of its group to be compared with; not trained on.
    greedy: Mapped[bool] = mapped_column(Boolean, server_default="false")
    state: Mapped[RolloutState] = mapped_column(enum(RolloutState, "rollout_state"))
    # Whoever held the group then, which had to be a worker.
    worker_id: Mapped[int | None]
    # Who wrote it, where it was no policy version of this run.
    model: Mapped[str | None] = mapped_column(Text)
    version_min: Mapped[int | None] = mapped_column(Integer)
    version_max: Mapped[int | None] = mapped_column(Integer)
    finish_reason: Mapped[str | None] = mapped_column(Text)
    error: Mapped[str | None] = mapped_column(Text)
    started_at: Mapped[datetime | None]
    finished_at: Mapped[Now]

    __table_args__ = (
        # A repeated write is a no-op.
        UniqueConstraint("group_id", "ordinal", "attempt"),
        # One accepted rollout a member, whatever the number of attempts.
        Index(
            "rollout_finished_member_key",
            "group_id",
            "ordinal",
            unique=True,
            postgresql_where=text("state = 'finished'"),
        ),
        CheckConstraint("(state = 'failed') = (error IS NOT NULL)", "error_iff_failed"),
        CheckConstraint("version_min <= version_max", "versions_in_order"),
    )
