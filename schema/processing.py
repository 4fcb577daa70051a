"""What processors did with rows, and which rows will not be trained on."""

from typing import Any

from sqlalchemy import CheckConstraint, ForeignKey, Index, Integer, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from trinity_db.schema.base import Base, Id, Now, enum
from trinity_db.schema.states import Outcome


class Processing(Base):
    """One pass of a processor over a row. Written by processors; the last failure is the dead letter."""

    __tablename__ = "processing"

    id: Mapped[Id]
    experience_id: Mapped[int] = mapped_column(ForeignKey("experience.id", ondelete="CASCADE"))
    processor: Mapped[str] = mapped_column(Text)
    processor_version: Mapped[int] = mapped_column(Integer)
    attempt: Mapped[int] = mapped_column(Integer)
    outcome: Mapped[Outcome] = mapped_column(enum(Outcome, "processing_outcome"))
    error: Mapped[str | None] = mapped_column(Text)
    created_at: Mapped[Now]

    __table_args__ = (
        # By the rule its name would be longer than Postgres allows.
        UniqueConstraint(
            "experience_id", "processor", "processor_version", "attempt", name="processing_attempt_key"
        ),
        CheckConstraint("(outcome = 'failed') = (error IS NOT NULL)", "error_iff_failed"),
    )


class Drop(Base):
    """A row that will not be trained on. Written by whoever drops it, with the state in one transaction."""

    __tablename__ = "drop"

    id: Mapped[Id]
    run_id: Mapped[int] = mapped_column(ForeignKey("run.id", ondelete="CASCADE"))
    experience_id: Mapped[int | None] = mapped_column(
        ForeignKey("experience.id", ondelete="CASCADE"), unique=True
    )
    preference_id: Mapped[int | None] = mapped_column(
        ForeignKey("preference.id", ondelete="CASCADE"), unique=True
    )
    # A group of which nothing is left to train on.
    group_id: Mapped[int | None] = mapped_column(
        ForeignKey("rollout_group.id", ondelete="CASCADE"), unique=True
    )
    stage: Mapped[str] = mapped_column(Text)
    reason: Mapped[str] = mapped_column(Text)
    detail: Mapped[dict[str, Any] | None]
    created_at: Mapped[Now]

    __table_args__ = (
        CheckConstraint("num_nonnulls(experience_id, preference_id, group_id) = 1", "about_one_row"),
        Index(None, "run_id", "reason"),
    )
