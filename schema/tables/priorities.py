"""Priorities of rollout groups computed by processing steps: due ones, and their history."""

from datetime import datetime

from sqlalchemy import CheckConstraint, Double, ForeignKey, Index, Integer, Text, text
from sqlalchemy.orm import Mapped, mapped_column

from trinity_db.schema.tables.base import HOT_TABLE, LOCAL, TRANSACTION, Base, Id, Now, refers_to


class GroupPriority(Base):
    """A priority of a rollout group: due, computed, or given up. Kept, so that draws can be rerun.

    Written by the transaction that makes a group ready or changes its rewards. A processor computes it.
    """

    __tablename__ = "group_priority"

    id: Mapped[Id] = mapped_column(comment="Id of the priority; the group has that of its highest id")
    # Copied from its group, whose foreign key guarantees that the run exists.
    run_id: Mapped[int] = mapped_column(comment="Run of the group", info=refers_to("run"))
    group_id: Mapped[int] = mapped_column(
        ForeignKey("rollout_group.id", ondelete="CASCADE"), comment="Rollout group"
    )
    attempt: Mapped[int] = mapped_column(
        Integer, server_default="0", comment="Number of times that a processor began to compute it"
    )
    taken_at: Mapped[datetime | None] = mapped_column(
        comment="Time at which a processor claimed it for some seconds; NULL: free",
        info=LOCAL,
    )
    priority: Mapped[float | None] = mapped_column(
        Double, comment="Result of the steps; NULL while it is due, or if they failed"
    )
    processor_version: Mapped[int | None] = mapped_column(
        Integer, comment="Version of the list of steps, as in step_list; NULL until it is computed"
    )
    policy_version: Mapped[int | None] = mapped_column(
        Integer, comment="Newest policy version of the run at that time; NULL before the first"
    )
    computed_xact: Mapped[int | None] = mapped_column(
        comment="Transaction that wrote the priority; NULL before", info=TRANSACTION
    )
    experience_id: Mapped[int | None] = mapped_column(
        comment="Row on which a step failed at the last attempt; NULL without a failure",
        info=refers_to("experience"),
    )
    step: Mapped[str | None] = mapped_column(
        Text, comment="Step that failed at the last attempt; NULL without a failure"
    )
    error: Mapped[str | None] = mapped_column(Text, comment="Error message; NULL without a failure")
    failed_at: Mapped[datetime | None] = mapped_column(
        comment="Time at which it was given up; NULL otherwise"
    )
    created_at: Mapped[Now] = mapped_column(comment="Time from which it was due")

    __table_args__ = (
        # A rerun draw uses the transaction to tell which priorities were computed.
        CheckConstraint("(priority IS NULL) = (computed_xact IS NULL)", "computed_by_a_transaction"),
        # As in rollout_group, to which it is copied.
        CheckConstraint("priority = 0 OR priority BETWEEN 1e-18 AND 1e18", "priority_in_range"),
        CheckConstraint(
            "failed_at IS NULL OR priority IS NULL AND error IS NOT NULL", "failed_with_an_error"
        ),
        # Finds the priorities to compute.
        Index(
            "group_priority_due_idx",
            "run_id",
            "id",
            postgresql_where=text("priority IS NULL AND failed_at IS NULL"),
        ),
        # Finds a group's current and earlier priorities.
        Index(None, "group_id", "id"),
        {"postgresql_with": HOT_TABLE},
    )
