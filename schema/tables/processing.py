"""Lists of processing steps, processors' verdicts on rows, and rows that will not be trained on."""

from typing import Any

from sqlalchemy import CheckConstraint, ForeignKey, Identity, Index, Integer, Text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from trinity_db.schema.states import Outcome
from trinity_db.schema.tables.base import HOT_TABLE, OF_THE_STORE, Base, Id, Now, enum, refers_to


class StepList(Base):
    """A version of a processor's list of steps in a run. Written by processors when they start.

    A list that differs from all earlier ones, in a step's options, code version or code, gets the next
    version.
    """

    __tablename__ = "step_list"

    run_id: Mapped[int] = mapped_column(
        ForeignKey("run.id", ondelete="CASCADE"), primary_key=True, comment="Run"
    )
    processor: Mapped[str] = mapped_column(
        Text, primary_key=True, comment="Processor: clean, score, priority or synthesis"
    )
    version: Mapped[int] = mapped_column(
        Integer,
        primary_key=True,
        autoincrement=False,
        comment="Number of the list among the processor's lists in this run, from 1",
    )
    steps: Mapped[list[dict[str, Any]]] = mapped_column(
        JSONB,
        comment="Steps in order, each with name, code version, digest of its code files, weight and options",
    )
    created_at: Mapped[Now] = mapped_column(comment="Time at which a processor first used it")


class Processing(Base):
    """One pass of a processor over a row. Written by processors; the last failure is the dead letter."""

    __tablename__ = "processing"

    # No index on the id: passes are always read by row.
    id: Mapped[int] = mapped_column(Identity(always=False), comment="Id of the pass, never reused")
    # A verdict sent twice counts once.
    experience_id: Mapped[int] = mapped_column(
        ForeignKey("experience.id", ondelete="CASCADE"),
        primary_key=True,
        comment="Processed experience",
    )
    processor: Mapped[str] = mapped_column(
        Text,
        primary_key=True,
        comment="Processor: clean or score; rescore if a row was rescored",
    )
    processor_version: Mapped[int] = mapped_column(
        Integer,
        primary_key=True,
        comment="Version of the list of steps, as in step_list; for rescore that of score",
    )
    attempt: Mapped[int] = mapped_column(
        Integer,
        primary_key=True,
        comment=(
            "Attempt of the row's lease at that pass; for rescore, the number of rescores with this version"
        ),
    )
    outcome: Mapped[Outcome] = mapped_column(
        enum(Outcome, "processing_outcome"), comment="passed, dropped, failed or refused"
    )
    step: Mapped[str | None] = mapped_column(
        Text, comment="Step that dropped the row or failed; NULL without such a step"
    )
    error: Mapped[str | None] = mapped_column(
        Text, comment="Error message; NULL unless the outcome is failed"
    )
    detail: Mapped[dict[str, Any] | None] = mapped_column(
        comment="Findings of clean steps in a row that passed, by step name; NULL without any"
    )
    created_at: Mapped[Now] = mapped_column(comment="Time at which the processor finished the row")

    __table_args__ = (CheckConstraint("(outcome = 'failed') = (error IS NOT NULL)", "error_iff_failed"),)


class Rescore(Base):
    """A rollout group whose rows are being rescored, or were when their worker died. Written by rescore.

    The lease of the rows themselves is not used: they may be drawn and trained on meanwhile.
    """

    __tablename__ = "rescore"

    group_id: Mapped[int] = mapped_column(
        ForeignKey("rollout_group.id", ondelete="CASCADE"), primary_key=True, comment="Rollout group"
    )
    # No foreign key: only existing workers claim groups.
    worker_id: Mapped[int | None] = mapped_column(
        comment="Worker that holds it; NULL if the worker died before its verdict",
        info=refers_to("worker"),
    )
    attempt: Mapped[int] = mapped_column(
        Integer,
        server_default="1",
        comment="Number of leases since the last verdict; an older holder's verdict is refused",
    )

    __table_args__ = (
        # Finds the leases of a dead worker.
        Index(None, "worker_id"),
        # Short-lived leases. A copy of a run has no workers.
        {"postgresql_with": HOT_TABLE, "info": OF_THE_STORE},
    )


class Drop(Base):
    """A row that will not be trained on. Written in the transaction that changes the state of the row."""

    __tablename__ = "drop"

    id: Mapped[Id] = mapped_column(comment="Id of the drop, never reused")
    run_id: Mapped[int] = mapped_column(ForeignKey("run.id", ondelete="CASCADE"), comment="Run of the row")
    experience_id: Mapped[int | None] = mapped_column(
        ForeignKey("experience.id", ondelete="CASCADE"),
        unique=True,
        comment="Dropped experience; NULL for a pair or a group",
    )
    preference_id: Mapped[int | None] = mapped_column(
        ForeignKey("preference.id", ondelete="CASCADE"),
        unique=True,
        comment="Dropped pair; NULL for a row or a group",
    )
    group_id: Mapped[int | None] = mapped_column(
        ForeignKey("rollout_group.id", ondelete="CASCADE"),
        unique=True,
        comment="Dropped rollout group, without rows left to train on; NULL for a row or a pair",
    )
    stage: Mapped[str] = mapped_column(
        Text, comment="Stage that dropped it: explore, a processor's name, encode or draw"
    )
    step: Mapped[str | None] = mapped_column(
        Text, comment="Processing step that dropped it or failed; NULL without such a step"
    )
    reason: Mapped[str] = mapped_column(Text, comment="Reason in one word")
    detail: Mapped[dict[str, Any] | None] = mapped_column(comment="Numbers for the reason")
    created_at: Mapped[Now] = mapped_column(comment="Time of the drop")

    __table_args__ = (
        # A drop of two things would count twice.
        CheckConstraint("num_nonnulls(experience_id, preference_id, group_id) = 1", "about_one_row"),
        Index(None, "run_id", "reason"),
    )
