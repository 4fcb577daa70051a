"""Attempts at tasks: groups that are compared with each other, and their members."""

from datetime import datetime

from sqlalchemy import (
    Boolean,
    CheckConstraint,
    Computed,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    SmallInteger,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.orm import Mapped, mapped_column

from trinity_db.schema.states import GroupState, RolloutState
from trinity_db.schema.tables.base import HOT_TABLE, TRANSACTION, Base, Id, Now, enum, refers_to


class RolloutGroup(Base):
    """The attempts at one task. Written by the explorer, moved by the group processor and the trainer."""

    __tablename__ = "rollout_group"

    id: Mapped[Id] = mapped_column(comment="Id of the group, never reused")
    run_id: Mapped[int] = mapped_column(ForeignKey("run.id", ondelete="CASCADE"), comment="Run of the row")
    task_id: Mapped[int] = mapped_column(ForeignKey("task.id"), comment="Task of its members")
    # No cascade: a run cannot be deleted while other runs have adopted its groups.
    source_id: Mapped[int | None] = mapped_column(
        ForeignKey("rollout_group.id"),
        comment=(
            "Group of a data set or another run from which this one was adopted; NULL if it was not adopted"
        ),
    )
    state: Mapped[GroupState] = mapped_column(
        enum(GroupState, "group_state"),
        server_default="open",
        comment="open, complete, ready, leased, trained or dropped; evaluating or evaluated in an evaluation",
    )
    evaluation_id: Mapped[int | None] = mapped_column(
        ForeignKey("evaluation.id"), comment="Its evaluation; NULL if it is for training"
    )
    expected: Mapped[int] = mapped_column(SmallInteger, comment="Number of planned members")
    arrived: Mapped[int] = mapped_column(
        SmallInteger, server_default="0", comment="Number of members that have arrived"
    )
    failed: Mapped[int] = mapped_column(
        SmallInteger,
        server_default="0",
        comment="Number of members that failed permanently; they complete the group at a smaller size",
    )
    version_min: Mapped[int | None] = mapped_column(
        Integer,
        comment=(
            "Oldest policy version that sampled any token of any member; NULL if no policy of this run did"
        ),
    )
    version_max: Mapped[int | None] = mapped_column(
        Integer,
        comment=(
            "Newest policy version that sampled any token of any member; NULL if no policy of this run did"
        ),
    )
    # Updated in the transaction that changes a reward.
    reward_count: Mapped[int] = mapped_column(
        Integer, server_default="0", comment="Number of members with a reward"
    )
    reward_mean: Mapped[float | None] = mapped_column(
        Double, comment="Mean of the members' rewards; NULL without any"
    )
    reward_variance: Mapped[float | None] = mapped_column(
        Double, comment="Variance of the members' rewards; NULL without any"
    )
    # Changes within an octave touch no index, so the new row version stays on its page (HOT).
    priority: Mapped[float] = mapped_column(
        Double,
        server_default="1",
        comment="Weight in the prioritized sampler; 0: never drawn by that sampler",
    )
    octave: Mapped[int] = mapped_column(
        SmallInteger,
        Computed(
            "COALESCE(ceil(ln(NULLIF(priority, 0::double precision)) / ln(2::double precision)),"
            " '-60'::double precision)::smallint",
            persisted=True,
        ),
        comment="Smallest integer with priority <= 2^octave, from -59 to 60; -60 for priority 0",
    )
    worker_id: Mapped[int | None] = mapped_column(
        ForeignKey("worker.id"), comment="Explorer that holds its lease; NULL without a lease"
    )
    attempt: Mapped[int] = mapped_column(
        Integer,
        server_default="1",
        comment="Number of leases; a write with an older number is refused",
    )
    created_at: Mapped[Now] = mapped_column(comment="Time at which it was started")
    completed_at: Mapped[datetime | None] = mapped_column(
        comment="Time at which the last member arrived or failed; NULL before"
    )
    ready_xact: Mapped[int | None] = mapped_column(
        comment="Transaction that made it ready; unchanged by draws and reopening",
        info=TRANSACTION,
    )
    ready_at: Mapped[datetime | None] = mapped_column(
        comment="Time at which it was made ready; unchanged by draws and reopening"
    )
    use_count: Mapped[int] = mapped_column(
        Integer, server_default="0", comment="Number of committed batches that used it"
    )
    seed: Mapped[int | None] = mapped_column(
        comment=(
            "The run's seed, in an adopted group whose rows have tokens; NULL in others, which are in no pass"
        )
    )
    place: Mapped[int | None] = mapped_column(
        Computed("hashint8extended(source_id, seed + use_count)", persisted=True),
        comment=(
            "Position in the shuffled order of a pass over adopted groups; changes with each use. NULL if "
            "it is in no pass"
        ),
    )

    __table_args__ = (
        # A group with more members than expected was written twice.
        CheckConstraint("expected > 0 AND arrived + failed <= expected", "members_within_expected"),
        CheckConstraint("version_min <= version_max", "versions_in_order"),
        # The group processor finds complete groups by state, people by time: both must agree.
        # As text here and below: a migration cannot use an enum value that it has just added.
        CheckConstraint(
            "(state::text = ANY (ARRAY['open', 'evaluating'])) = (completed_at IS NULL)",
            "completed_at_iff_not_open",
        ),
        # Its state excludes a group of an evaluation from draws, pace and expiry.
        CheckConstraint(
            "(state::text = ANY (ARRAY['evaluating', 'evaluated'])) = (evaluation_id IS NOT NULL)",
            "evaluated_iff_of_an_evaluation",
        ),
        # Every token of an evaluation is from its version. No cost for training groups.
        ForeignKeyConstraint(["evaluation_id", "version_min"], ["evaluation.id", "evaluation.version"]),
        ForeignKeyConstraint(["evaluation_id", "version_max"], ["evaluation.id", "evaluation.version"]),
        # Finds the groups of an evaluation, all or only those still to be attempted.
        Index(
            "rollout_group_evaluation_idx",
            "evaluation_id",
            "completed_at",
            "id",
            postgresql_where=text("evaluation_id IS NOT NULL"),
        ),
        # For the pace, the group processor and draws. Finished groups are not in it.
        Index(
            "rollout_group_live_idx",
            "run_id",
            "state",
            "id",
            postgresql_where=text("state IN ('open', 'complete', 'ready', 'leased')"),
        ),
        # For random draws: a cell of an octave is an interval of this index. The included columns are needed
        # for groups that a draw skips.
        Index(
            "rollout_group_chance_idx",
            "run_id",
            "octave",
            text("hashint8extended(id, 0)"),
            postgresql_include=["id", "version_min", "version_max"],
            postgresql_where=text("state = 'ready'"),
        ),
        # Finds groups that are too stale. The id lets it skip groups below the floor without reading rows.
        Index(
            "rollout_group_version_idx",
            "run_id",
            "version_min",
            "id",
            postgresql_where=text("state = 'ready'"),
        ),
        # For draws in passes over adopted groups.
        Index(
            "rollout_group_place_idx",
            "run_id",
            "use_count",
            "place",
            "id",
            postgresql_where=text("state = 'ready' AND place IS NOT NULL"),
        ),
        # A repeated adoption adds no group twice. A reward finds the adopted groups to update.
        Index(
            "rollout_group_source_key",
            "source_id",
            "run_id",
            unique=True,
            postgresql_where=text("source_id IS NOT NULL"),
        ),
        # Octaves are numbered from -59 to 60; -60 means priority 0.
        CheckConstraint("priority = 0 OR priority BETWEEN 1e-18 AND 1e18", "priority_in_range"),
        Index("rollout_group_worker_idx", "worker_id", postgresql_where=text("worker_id IS NOT NULL")),
        Index(None, "run_id", "task_id"),
        {"postgresql_with": HOT_TABLE},
    )


class Rollout(Base):
    """One attempt at a task by one worker; failed ones are kept. Written by the explorer."""

    __tablename__ = "rollout"

    id: Mapped[Id] = mapped_column(comment="Id of the rollout, never reused")
    # Copied from its group, whose foreign key guarantees that the run exists. A second foreign key would cost
    # a look-up per write.
    run_id: Mapped[int] = mapped_column(comment="Run of its group", info=refers_to("run"))
    group_id: Mapped[int] = mapped_column(
        ForeignKey("rollout_group.id", ondelete="CASCADE"), comment="Its group"
    )
    ordinal: Mapped[int] = mapped_column(SmallInteger, comment="Number of the member in its group, from 0")
    attempt: Mapped[int] = mapped_column(Integer, comment="Attempt of the group's lease at that time")
    greedy: Mapped[bool] = mapped_column(
        Boolean,
        server_default="false",
        comment=(
            "Whether it was sampled at temperature 0, as a baseline for its group that is not trained on"
        ),
    )
    state: Mapped[RolloutState] = mapped_column(
        enum(RolloutState, "rollout_state"), comment="finished, failed or refused"
    )
    # No foreign key: the worker held the group when it wrote the rollout, so it exists.
    worker_id: Mapped[int | None] = mapped_column(
        comment="Explorer that made it; NULL for an imported one", info=refers_to("worker")
    )
    model: Mapped[str | None] = mapped_column(
        Text, comment="Model that sampled it; NULL if a policy version of this run did"
    )
    version_min: Mapped[int | None] = mapped_column(
        Integer,
        comment="Oldest policy version that sampled any of its tokens; NULL if no policy of this run did",
    )
    version_max: Mapped[int | None] = mapped_column(
        Integer,
        comment="Newest policy version that sampled any of its tokens; NULL if no policy of this run did",
    )
    finish_reason: Mapped[str | None] = mapped_column(
        Text,
        comment=(
            "Reason why it ended, such as stop or length. For a refused rollout: the error, if it had "
            "failed; spare, if its group was complete without it; given back, with the reason, if it did "
            "not begin"
        ),
    )
    error: Mapped[str | None] = mapped_column(Text, comment="Error message; NULL unless it failed")
    output: Mapped[str | None] = mapped_column(
        Text, comment="Last lines that its program wrote to standard output and error; NULL without any"
    )
    started_at: Mapped[datetime | None] = mapped_column(comment="Start of the attempt; NULL if unknown")
    finished_at: Mapped[Now] = mapped_column(comment="End of the attempt")
    shares_reward: Mapped[bool] = mapped_column(
        Boolean,
        server_default="false",
        comment=(
            "Whether it has several sequences, each with the reward of the whole attempt, which counts once; "
            "otherwise the rewards of its steps add up"
        ),
    )

    __table_args__ = (
        # A repeated write is a no-op.
        UniqueConstraint("group_id", "ordinal", "attempt"),
        # One accepted rollout per member, whatever the number of attempts.
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
