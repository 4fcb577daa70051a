"""The steps of processors, the verdicts that they gave on rows, and rows that will not be trained on."""

from typing import Any

from sqlalchemy import CheckConstraint, ForeignKey, Identity, Index, Integer, Text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from trinity_db.schema.base import HOT_TABLE, OF_THE_STORE, Base, Id, Now, enum, refers_to
from trinity_db.schema.states import Outcome


class StepList(Base):
    """A list of steps that a processor of a run worked by. Written by processors when they start.

    A list that differs from all earlier ones, in a step's options, in the version of its code or in the code,
    gets the next version.
    """

    __tablename__ = "step_list"

    run_id: Mapped[int] = mapped_column(
        ForeignKey("run.id", ondelete="CASCADE"), primary_key=True, comment="The run"
    )
    processor: Mapped[str] = mapped_column(
        Text, primary_key=True, comment="Which processor: clean, score, priority or synthesis"
    )
    version: Mapped[int] = mapped_column(
        Integer,
        primary_key=True,
        autoincrement=False,
        comment="Which of the lists that the processor had in this run, from 1",
    )
    steps: Mapped[list[dict[str, Any]]] = mapped_column(
        JSONB,
        comment=(
            "The steps in order, each with its name, the version of its code, the digest of the files with "
            "its code, its weight and its options"
        ),
    )
    created_at: Mapped[Now] = mapped_column(comment="Time at which a processor first worked by it")


class Processing(Base):
    """One pass of a processor over a row. Written by processors; the last failure is the dead letter."""

    __tablename__ = "processing"

    # No index of its own: all that asks for passes asks for those of a row.
    id: Mapped[int] = mapped_column(Identity(always=False), comment="Number of the pass, never used again")
    # A verdict that is sent twice counts once.
    experience_id: Mapped[int] = mapped_column(
        ForeignKey("experience.id", ondelete="CASCADE"),
        primary_key=True,
        comment="The experience that was looked at",
    )
    processor: Mapped[str] = mapped_column(
        Text,
        primary_key=True,
        comment="Which processor: clean or score; rescore where a row was judged again",
    )
    processor_version: Mapped[int] = mapped_column(
        Integer,
        primary_key=True,
        comment="Version of the list of steps, as in step_list; that of score where it is rescore",
    )
    attempt: Mapped[int] = mapped_column(
        Integer,
        primary_key=True,
        comment=(
            "Attempt of the row's lease under which the processor looked at it; where it was judged again, "
            "how often it was by this version"
        ),
    )
    outcome: Mapped[Outcome] = mapped_column(
        enum(Outcome, "processing_outcome"), comment="passed, dropped, failed or refused"
    )
    step: Mapped[str | None] = mapped_column(
        Text, comment="The step that dropped the row or failed; NULL where no single step did"
    )
    error: Mapped[str | None] = mapped_column(
        Text, comment="What went wrong; NULL unless the outcome is failed"
    )
    detail: Mapped[dict[str, Any] | None] = mapped_column(
        comment="What clean steps found in a row that they passed, by the step's name; NULL if nothing"
    )
    created_at: Mapped[Now] = mapped_column(comment="Time at which the processor was done with the row")

    __table_args__ = (CheckConstraint("(outcome = 'failed') = (error IS NOT NULL)", "error_iff_failed"),)


class Rescore(Base):
    """A rollout group whose rows are being judged again, or were when their worker died. Written by rescore.

    The lease of the rows themselves is not touched: they may be drawn and trained on meanwhile.
    """

    __tablename__ = "rescore"

    group_id: Mapped[int] = mapped_column(
        ForeignKey("rollout_group.id", ondelete="CASCADE"), primary_key=True, comment="The rollout group"
    )
    # No foreign key: the claim is made by a worker that exists.
    worker_id: Mapped[int | None] = mapped_column(
        comment="The worker that holds it; NULL if the worker died before its verdict",
        info=refers_to("worker"),
    )
    attempt: Mapped[int] = mapped_column(
        Integer,
        server_default="1",
        comment="How many times it was leased since its last verdict; an older holder's verdict is refused",
    )

    __table_args__ = (
        # Gives back what a dead worker held.
        Index(None, "worker_id"),
        # Leases, which end soon. A copy of a run has no workers.
        {"postgresql_with": HOT_TABLE, "info": OF_THE_STORE},
    )


class Drop(Base):
    """A row that will not be trained on. Written in the transaction that changes the state of the row."""

    __tablename__ = "drop"

    id: Mapped[Id] = mapped_column(comment="Number of the drop, never used again")
    run_id: Mapped[int] = mapped_column(
        ForeignKey("run.id", ondelete="CASCADE"), comment="The run that the row belongs to"
    )
    experience_id: Mapped[int | None] = mapped_column(
        ForeignKey("experience.id", ondelete="CASCADE"),
        unique=True,
        comment="The experience that is dropped; NULL where it is a pair or a group",
    )
    preference_id: Mapped[int | None] = mapped_column(
        ForeignKey("preference.id", ondelete="CASCADE"),
        unique=True,
        comment="The pair that is dropped; NULL where it is a row or a group",
    )
    group_id: Mapped[int | None] = mapped_column(
        ForeignKey("rollout_group.id", ondelete="CASCADE"),
        unique=True,
        comment=(
            "The rollout group that is dropped, which has no row left to train on; NULL where it is a "
            "row or a pair"
        ),
    )
    stage: Mapped[str] = mapped_column(
        Text, comment="Where it was dropped: explore, a processor's name, encode or draw"
    )
    step: Mapped[str | None] = mapped_column(
        Text, comment="The processing step that dropped it or failed; NULL where no single step did"
    )
    reason: Mapped[str] = mapped_column(Text, comment="Why, in one word")
    detail: Mapped[dict[str, Any] | None] = mapped_column(comment="Numbers that belong to the reason")
    created_at: Mapped[Now] = mapped_column(comment="Time of the drop")

    __table_args__ = (
        # A drop of two things would be counted twice.
        CheckConstraint("num_nonnulls(experience_id, preference_id, group_id) = 1", "about_one_row"),
        Index(None, "run_id", "reason"),
    )
