"""Attempts at tasks: groups that are compared with one another, and their members."""

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

from trinity_db.schema.base import HOT_TABLE, TRANSACTION, Base, Id, Now, enum, refers_to
from trinity_db.schema.states import GroupState, RolloutState


class RolloutGroup(Base):
    """The attempts at one task. Written by the explorer; the group processor and the trainer move it."""

    __tablename__ = "rollout_group"

    id: Mapped[Id] = mapped_column(comment="Number of the group, never used again")
    run_id: Mapped[int] = mapped_column(
        ForeignKey("run.id", ondelete="CASCADE"), comment="The run that the row belongs to"
    )
    task_id: Mapped[int] = mapped_column(ForeignKey("task.id"), comment="The task that its members attempt")
    # No cascade: a run cannot be deleted while another run has adopted its groups.
    source_id: Mapped[int | None] = mapped_column(
        ForeignKey("rollout_group.id"),
        comment="The group of a data set or another run that a run adopted as this one; NULL for others",
    )
    state: Mapped[GroupState] = mapped_column(
        enum(GroupState, "group_state"),
        server_default="open",
        comment="open, complete, ready, leased, trained or dropped; evaluating or evaluated in an evaluation",
    )
    evaluation_id: Mapped[int | None] = mapped_column(
        ForeignKey("evaluation.id"), comment="The evaluation that it is a part of; NULL if it is for training"
    )
    expected: Mapped[int] = mapped_column(SmallInteger, comment="How many members it is to have")
    arrived: Mapped[int] = mapped_column(SmallInteger, server_default="0", comment="How many members arrived")
    failed: Mapped[int] = mapped_column(
        SmallInteger,
        server_default="0",
        comment="How many members failed for good; they complete the group at a smaller size",
    )
    version_min: Mapped[int | None] = mapped_column(
        Integer,
        comment=(
            "Oldest policy version that wrote any token of any member; NULL where no policy of this run did"
        ),
    )
    version_max: Mapped[int | None] = mapped_column(
        Integer,
        comment=(
            "Newest policy version that wrote any token of any member; NULL where no policy of this run did"
        ),
    )
    # Kept in the transaction that changes a reward.
    reward_count: Mapped[int] = mapped_column(
        Integer, server_default="0", comment="How many members have a reward"
    )
    reward_mean: Mapped[float | None] = mapped_column(
        Double, comment="Mean of the members' rewards; NULL without any"
    )
    reward_variance: Mapped[float | None] = mapped_column(
        Double, comment="Variance of the members' rewards; NULL without any"
    )
    # A change within an octave touches no index, so the new version of the row stays on its page (HOT).
    priority: Mapped[float] = mapped_column(
        Double,
        server_default="1",
        comment="Priority by which the prioritized sampler weighs it; 0: never drawn by that sampler",
    )
    octave: Mapped[int] = mapped_column(
        SmallInteger,
        Computed(
            "COALESCE(ceil(ln(NULLIF(priority, 0::double precision)) / ln(2::double precision)),"
            " '-60'::double precision)::smallint",
            persisted=True,
        ),
        comment=(
            "Smallest whole number with priority <= 2^octave, from -59 to 60; -60 where the priority is 0"
        ),
    )
    worker_id: Mapped[int | None] = mapped_column(
        ForeignKey("worker.id"), comment="The explorer that holds the lease on it; NULL while no worker does"
    )
    attempt: Mapped[int] = mapped_column(
        Integer,
        server_default="1",
        comment="How many times the row was leased; a write that carries an older number is refused",
    )
    created_at: Mapped[Now] = mapped_column(comment="Time at which it was started")
    completed_at: Mapped[datetime | None] = mapped_column(
        comment="Time at which the last member arrived or failed; NULL before"
    )
    ready_xact: Mapped[int | None] = mapped_column(
        comment="Transaction that made it ready to be drawn; a draw and a reopening leave it as it is",
        info=TRANSACTION,
    )
    ready_at: Mapped[datetime | None] = mapped_column(
        comment=("Time at which it was made ready to be drawn; a draw and a reopening leave it as it is")
    )
    use_count: Mapped[int] = mapped_column(
        Integer, server_default="0", comment="How many committed batches used it"
    )
    seed: Mapped[int | None] = mapped_column(
        comment=(
            "The run's seed, in an adopted group whose rows have tokens; NULL in others, which are in no pass"
        )
    )
    place: Mapped[int | None] = mapped_column(
        Computed("hashint8extended(source_id, seed + use_count)", persisted=True),
        comment=(
            "Its place in the shuffled order of a pass over adopted groups; each use gives it another. "
            "NULL if it is in no pass"
        ),
    )

    __table_args__ = (
        # A group that claims more members than it expects was written twice.
        CheckConstraint("expected > 0 AND arrived + failed <= expected", "members_within_expected"),
        CheckConstraint("version_min <= version_max", "versions_in_order"),
        # The group processor looks for complete groups by state, people by time: both must say the same.
        # As texts here and below: a migration cannot name a value of an enum that it has just added.
        CheckConstraint(
            "(state::text = ANY (ARRAY['open', 'evaluating'])) = (completed_at IS NULL)",
            "completed_at_iff_not_open",
        ),
        # By its state a group of an evaluation is in no draw, no pace and no expiry.
        CheckConstraint(
            "(state::text = ANY (ARRAY['evaluating', 'evaluated'])) = (evaluation_id IS NOT NULL)",
            "evaluated_iff_of_an_evaluation",
        ),
        # Every token of an evaluation is of its version. They cost nothing where the group is for training.
        ForeignKeyConstraint(["evaluation_id", "version_min"], ["evaluation.id", "evaluation.version"]),
        ForeignKeyConstraint(["evaluation_id", "version_max"], ["evaluation.id", "evaluation.version"]),
        # Finds the groups of an evaluation that are still to be attempted, and all of them.
        Index(
            "rollout_group_evaluation_idx",
            "evaluation_id",
            "completed_at",
            "id",
            postgresql_where=text("evaluation_id IS NOT NULL"),
        ),
        # Serves the pace, the group processor and the draw. Finished groups are not in it.
        Index(
            "rollout_group_live_idx",
            "run_id",
            "state",
            "id",
            postgresql_where=text("state IN ('open', 'complete', 'ready', 'leased')"),
        ),
        # Serves draws by chance: a cell of an octave is an interval of this index. The included columns are
        # those that a draw needs of the groups that it skips.
        Index(
            "rollout_group_chance_idx",
            "run_id",
            "octave",
            text("hashint8extended(id, 0)"),
            postgresql_include=["id", "version_min", "version_max"],
            postgresql_where=text("state = 'ready'"),
        ),
        # Finds the groups that are too stale. By the id it skips those below the floor without reading rows.
        Index(
            "rollout_group_version_idx",
            "run_id",
            "version_min",
            "id",
            postgresql_where=text("state = 'ready'"),
        ),
        # Serves draws in passes over adopted groups.
        Index(
            "rollout_group_place_idx",
            "run_id",
            "use_count",
            "place",
            "id",
            postgresql_where=text("state = 'ready' AND place IS NOT NULL"),
        ),
        # An adoption that is repeated adds no group twice. A reward finds the adopted groups that follow it.
        Index(
            "rollout_group_source_key",
            "source_id",
            "run_id",
            unique=True,
            postgresql_where=text("source_id IS NOT NULL"),
        ),
        # Octaves are numbered from -59 to 60, and -60 stands for a priority of 0.
        CheckConstraint("priority = 0 OR priority BETWEEN 1e-18 AND 1e18", "priority_in_range"),
        Index("rollout_group_worker_idx", "worker_id", postgresql_where=text("worker_id IS NOT NULL")),
        Index(None, "run_id", "task_id"),
        {"postgresql_with": HOT_TABLE},
    )


class Rollout(Base):
    """One attempt at a task, by one worker; failed ones are kept. Written by the explorer."""

    __tablename__ = "rollout"

    id: Mapped[Id] = mapped_column(comment="Number of the rollout, never used again")
    # Copied from its group, whose foreign key makes sure that the run exists. A second one would cost every
    # write a look-up.
    run_id: Mapped[int] = mapped_column(comment="The run of its group", info=refers_to("run"))
    group_id: Mapped[int] = mapped_column(
        ForeignKey("rollout_group.id", ondelete="CASCADE"), comment="The group that it is a member of"
    )
    ordinal: Mapped[int] = mapped_column(SmallInteger, comment="Which member of its group it is, from 0")
    attempt: Mapped[int] = mapped_column(
        Integer, comment="Attempt of the group's lease under which it was made"
    )
    greedy: Mapped[bool] = mapped_column(
        Boolean,
        server_default="false",
        comment=(
            "Whether it was sampled at temperature 0: others of its group are compared with it, and it "
            "is not trained on"
        ),
    )
    state: Mapped[RolloutState] = mapped_column(
        enum(RolloutState, "rollout_state"), comment="finished, failed or refused"
    )
    # No foreign key: the worker held the group when it wrote the rollout, so it exists.
    worker_id: Mapped[int | None] = mapped_column(
        comment="The explorer that made it; NULL for an imported one", info=refers_to("worker")
    )
    model: Mapped[str | None] = mapped_column(
        Text, comment="Model that wrote it; NULL if a policy version of this run did"
    )
    version_min: Mapped[int | None] = mapped_column(
        Integer,
        comment=("Oldest policy version that wrote any of its tokens; NULL where no policy of this run did"),
    )
    version_max: Mapped[int | None] = mapped_column(
        Integer,
        comment=("Newest policy version that wrote any of its tokens; NULL where no policy of this run did"),
    )
    finish_reason: Mapped[str | None] = mapped_column(
        Text,
        comment=(
            "Why it ended, such as stop or length. Of a refused rollout the error, if it had failed; spare, "
            "if its group was complete without it; given back, with the reason, if it did not begin"
        ),
    )
    error: Mapped[str | None] = mapped_column(Text, comment="What went wrong; NULL unless it failed")
    started_at: Mapped[datetime | None] = mapped_column(
        comment="Time at which the attempt began; NULL where not known"
    )
    finished_at: Mapped[Now] = mapped_column(comment="Time at which the attempt ended")

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
