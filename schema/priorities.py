"""Priorities of rollout groups where processing steps compute them: when they are due, and what they were."""

from datetime import datetime

from sqlalchemy import CheckConstraint, Double, ForeignKey, Index, Integer, Text, text
from sqlalchemy.orm import Mapped, mapped_column

from trinity_db.schema.base import HOT_TABLE, LOCAL, TRANSACTION, Base, Id, Now, refers_to


class GroupPriority(Base):
    """A priority of a rollout group: due, computed, or given up. Kept, so that a draw can be run again.

    The transaction that makes a group ready or changes its rewards writes it. A processor computes it.
    """

    __tablename__ = "group_priority"

    id: Mapped[Id] = mapped_column(comment="Number of the priority; the group has that of its highest one")
    # Copied from its group, whose foreign key makes sure that the run exists.
    run_id: Mapped[int] = mapped_column(comment="The run of the group", info=refers_to("run"))
    group_id: Mapped[int] = mapped_column(
        ForeignKey("rollout_group.id", ondelete="CASCADE"), comment="The rollout group"
    )
    attempt: Mapped[int] = mapped_column(
        Integer, server_default="0", comment="How many times a processor began to compute it"
    )
    taken_at: Mapped[datetime | None] = mapped_column(
        comment="Time at which a processor took it, to which it is left for some seconds; NULL: free",
        info=LOCAL,
    )
    priority: Mapped[float | None] = mapped_column(
        Double, comment="What the steps say; NULL while it is due and where they failed"
    )
    processor_version: Mapped[int | None] = mapped_column(
        Integer, comment="Version of the list of steps, as in step_list; NULL until it is computed"
    )
    policy_version: Mapped[int | None] = mapped_column(
        Integer, comment="Newest policy version of the run when it was computed; NULL before the first"
    )
    computed_xact: Mapped[int | None] = mapped_column(
        comment="Transaction that wrote the priority; NULL until then", info=TRANSACTION
    )
    experience_id: Mapped[int | None] = mapped_column(
        comment="The row that a step failed on at the last attempt; NULL where none did",
        info=refers_to("experience"),
    )
    step: Mapped[str | None] = mapped_column(
        Text, comment="The step that failed at the last attempt; NULL where none did"
    )
    error: Mapped[str | None] = mapped_column(Text, comment="What it said; NULL where none failed")
    failed_at: Mapped[datetime | None] = mapped_column(
        comment="Time at which it was given up; NULL where it was not"
    )
    created_at: Mapped[Now] = mapped_column(comment="Time from which it was due")

    __table_args__ = (
        # A draw that is run again takes a priority for computed by its transaction.
        CheckConstraint("(priority IS NULL) = (computed_xact IS NULL)", "computed_by_a_transaction"),
        # As rollout_group has it, where it is copied to.
        CheckConstraint("priority = 0 OR priority BETWEEN 1e-18 AND 1e18", "priority_in_range"),
        CheckConstraint(
            "failed_at IS NULL OR priority IS NULL AND error IS NOT NULL", "failed_with_an_error"
        ),
        # Finds what a processor has to compute.
        Index(
            "group_priority_due_idx",
            "run_id",
            "id",
            postgresql_where=text("priority IS NULL AND failed_at IS NULL"),
        ),
        # Finds what the priority of a group is now, and was.
        Index(None, "group_id", "id"),
        {"postgresql_with": HOT_TABLE},
    )
