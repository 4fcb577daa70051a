"""Tasks and responses that processing steps make from a run's rows, and what they were made from."""

from datetime import datetime
from typing import Any

from sqlalchemy import CheckConstraint, ForeignKey, Index, Integer, Text, UniqueConstraint, text
from sqlalchemy.orm import Mapped, mapped_column

from trinity_db.schema.base import HOT_TABLE, Base, Id, Now, refers_to


class Synthesis(Base):
    """A settled rollout group that steps make tasks or responses from: due, done or given up.

    The transaction that settles the group writes it. A processor leases it, asks the steps, and ends it in
    the transaction that writes what they made. So nothing is made twice, whatever is killed.
    """

    __tablename__ = "synthesis"

    id: Mapped[Id] = mapped_column(comment="Number of the synthesis, never used again")
    # Copied from its group, whose foreign key makes sure that the run exists.
    run_id: Mapped[int] = mapped_column(comment="The run of the group", info=refers_to("run"))
    group_id: Mapped[int] = mapped_column(
        ForeignKey("rollout_group.id", ondelete="CASCADE"), unique=True, comment="The rollout group"
    )
    experience_id: Mapped[int | None] = mapped_column(
        comment="Its row with the highest reward, which the steps were shown; NULL before",
        info=refers_to("experience"),
    )
    # No foreign key: the claim is made by a worker that exists.
    worker_id: Mapped[int | None] = mapped_column(
        comment="The processor that holds it, as long as that lives; NULL while none does",
        info=refers_to("worker"),
    )
    attempt: Mapped[int] = mapped_column(
        Integer,
        server_default="0",
        comment="How many times it was leased; an older holder's answer is refused",
    )
    processor_version: Mapped[int | None] = mapped_column(
        Integer, comment="Version of the list of steps, as in step_list; NULL until it ended"
    )
    refused: Mapped[dict[str, Any] | None] = mapped_column(
        comment="Why things that the steps made are not kept, with the count of each reason; NULL: all are"
    )
    step: Mapped[str | None] = mapped_column(
        Text, comment="The step that failed at the last attempt; NULL where none did"
    )
    error: Mapped[str | None] = mapped_column(Text, comment="What it said; NULL where none failed")
    failed_at: Mapped[datetime | None] = mapped_column(
        comment="Time at which it was given up; NULL where it was not"
    )
    finished_at: Mapped[datetime | None] = mapped_column(
        comment="Time at which the steps' answers were written; NULL before"
    )
    created_at: Mapped[Now] = mapped_column(comment="Time from which it was due")

    __table_args__ = (
        CheckConstraint("failed_at IS NULL OR error IS NOT NULL", "failed_with_an_error"),
        CheckConstraint("failed_at IS NULL OR finished_at IS NULL", "ended_once"),
        # Finds what a processor has to ask about.
        Index(
            "synthesis_due_idx",
            "run_id",
            "id",
            postgresql_where=text("finished_at IS NULL AND failed_at IS NULL"),
        ),
        {"postgresql_with": HOT_TABLE},
    )


class Origin(Base):
    """A task or a response that a step made, and what from. Written by processors.

    From a row of a run it leads by the row's task, or by the row that it was adopted from, to the source.
    """

    __tablename__ = "origin"

    id: Mapped[Id] = mapped_column(comment="Number of the made thing, never used again")
    synthesis_id: Mapped[int] = mapped_column(
        ForeignKey("synthesis.id", ondelete="CASCADE"), comment="The synthesis that made it"
    )
    run_id: Mapped[int] = mapped_column(comment="The run of the source", info=refers_to("run"))
    source_task_id: Mapped[int] = mapped_column(comment="The task of the source", info=refers_to("task"))
    task_id: Mapped[int | None] = mapped_column(
        ForeignKey("task.id", ondelete="CASCADE"), comment="The made task; NULL where it is a response"
    )
    experience_id: Mapped[int | None] = mapped_column(
        ForeignKey("experience.id", ondelete="CASCADE"),
        comment="The made response, an imported row; NULL where it is a task",
    )
    step: Mapped[str] = mapped_column(Text, comment="The processing step that made it")
    digest: Mapped[str] = mapped_column(
        Text, comment="MD5 of what was made, without case and spaces, by which the same is made once"
    )
    detail: Mapped[dict[str, Any] | None] = mapped_column(
        comment="What else the step says, as the model and the tokens that it took"
    )
    created_at: Mapped[Now] = mapped_column(comment="Time at which it was made")

    __table_args__ = (
        # An origin of nothing would count in the cap.
        CheckConstraint("num_nonnulls(task_id, experience_id) = 1", "of_one_thing"),
        # Two processors that make the same at once write one.
        UniqueConstraint("run_id", "digest"),
        Index(None, "source_task_id"),
        Index(None, "synthesis_id"),
        Index(None, "task_id", postgresql_where=text("task_id IS NOT NULL")),
        Index(None, "experience_id", postgresql_where=text("experience_id IS NOT NULL")),
    )
