"""Tasks and responses that processing steps make from a run's rows, and their sources."""

from datetime import datetime
from typing import Any

from sqlalchemy import CheckConstraint, ForeignKey, Index, Integer, Text, UniqueConstraint, text
from sqlalchemy.orm import Mapped, mapped_column

from trinity_db.schema.tables.base import HOT_TABLE, Base, Id, Now, refers_to


class Synthesis(Base):
    """A settled rollout group from which steps make tasks or responses: due, done or given up.

    Written by the transaction that settles the group. A processor leases it, runs the steps, and ends it in
    the transaction that writes their results, so nothing is made twice, whatever is killed.
    """

    __tablename__ = "synthesis"

    id: Mapped[Id] = mapped_column(comment="Id of the synthesis, never reused")
    # Copied from its group, whose foreign key guarantees that the run exists.
    run_id: Mapped[int] = mapped_column(comment="Run of the group", info=refers_to("run"))
    group_id: Mapped[int] = mapped_column(
        ForeignKey("rollout_group.id", ondelete="CASCADE"), unique=True, comment="Rollout group"
    )
    experience_id: Mapped[int | None] = mapped_column(
        comment="Its row with the highest reward, which the steps received; NULL before",
        info=refers_to("experience"),
    )
    # No foreign key: only existing workers claim groups.
    worker_id: Mapped[int | None] = mapped_column(
        comment="Live processor that holds it; NULL without one",
        info=refers_to("worker"),
    )
    attempt: Mapped[int] = mapped_column(
        Integer,
        server_default="0",
        comment="Number of leases; an older holder's results are refused",
    )
    processor_version: Mapped[int | None] = mapped_column(
        Integer, comment="Version of the list of steps, as in step_list; NULL until it ended"
    )
    refused: Mapped[dict[str, Any] | None] = mapped_column(
        comment="Reasons why results are not kept, with the count of each; NULL: all are kept"
    )
    step: Mapped[str | None] = mapped_column(
        Text, comment="Step that failed at the last attempt; NULL without a failure"
    )
    error: Mapped[str | None] = mapped_column(Text, comment="Error message; NULL without a failure")
    failed_at: Mapped[datetime | None] = mapped_column(
        comment="Time at which it was given up; NULL otherwise"
    )
    finished_at: Mapped[datetime | None] = mapped_column(
        comment="Time at which the steps' results were written; NULL before"
    )
    created_at: Mapped[Now] = mapped_column(comment="Time from which it was due")

    __table_args__ = (
        CheckConstraint("failed_at IS NULL OR error IS NOT NULL", "failed_with_an_error"),
        CheckConstraint("failed_at IS NULL OR finished_at IS NULL", "ended_once"),
        # Finds the due groups.
        Index(
            "synthesis_due_idx",
            "run_id",
            "id",
            postgresql_where=text("finished_at IS NULL AND failed_at IS NULL"),
        ),
        {"postgresql_with": HOT_TABLE},
    )


class Origin(Base):
    """A task or a response made by a step, and its source. Written by processors.

    For a row of a run, the row's task, or the row from which it was adopted, leads to the source.
    """

    __tablename__ = "origin"

    id: Mapped[Id] = mapped_column(comment="Id of the result, never reused")
    synthesis_id: Mapped[int] = mapped_column(
        ForeignKey("synthesis.id", ondelete="CASCADE"), comment="Synthesis that made it"
    )
    run_id: Mapped[int] = mapped_column(comment="Run of the source", info=refers_to("run"))
    source_task_id: Mapped[int] = mapped_column(comment="Task of the source", info=refers_to("task"))
    task_id: Mapped[int | None] = mapped_column(
        ForeignKey("task.id", ondelete="CASCADE"), comment="Made task; NULL for a response"
    )
    experience_id: Mapped[int | None] = mapped_column(
        ForeignKey("experience.id", ondelete="CASCADE"),
        comment="Made response, an imported row; NULL for a task",
    )
    step: Mapped[str] = mapped_column(Text, comment="Processing step that made it")
    digest: Mapped[str] = mapped_column(
        Text, comment="MD5 of the result, without case and spaces, by which duplicates are detected"
    )
    detail: Mapped[dict[str, Any] | None] = mapped_column(
        comment="Further information from the step, such as the model and the tokens used"
    )
    created_at: Mapped[Now] = mapped_column(comment="Time at which it was made")

    __table_args__ = (
        # An origin without a result would count towards the cap.
        CheckConstraint("num_nonnulls(task_id, experience_id) = 1", "of_one_thing"),
        # Two processors that make the same result concurrently write it once.
        UniqueConstraint("run_id", "digest"),
        Index(None, "source_task_id"),
        Index(None, "synthesis_id"),
        Index(None, "task_id", postgresql_where=text("task_id IS NOT NULL")),
        Index(None, "experience_id", postgresql_where=text("experience_id IS NOT NULL")),
    )
