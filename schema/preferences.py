"""Pairs of experiences of which one is better."""

from typing import Any

from sqlalchemy import (
    Boolean,
    CheckConstraint,
    Double,
    ForeignKey,
    Index,
    Integer,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.orm import Mapped, mapped_column

from trinity_db.schema.base import CURRENT_XACT, HOT_TABLE, Base, Id, Now, enum
from trinity_db.schema.states import ExperienceState


class Preference(Base):
    """A chosen and a rejected experience for one prompt. Written by import and the pair processor."""

    __tablename__ = "preference"

    id: Mapped[Id]
    run_id: Mapped[int] = mapped_column(ForeignKey("run.id", ondelete="CASCADE"))
    chosen_id: Mapped[int] = mapped_column(ForeignKey("experience.id", ondelete="CASCADE"))
    rejected_id: Mapped[int] = mapped_column(ForeignKey("experience.id", ondelete="CASCADE"))
    source: Mapped[str] = mapped_column(Text)
    # Reward of the chosen less that of the rejected, where both have one.
    margin: Mapped[float | None] = mapped_column(Double)
    state: Mapped[ExperienceState] = mapped_column(
        enum(ExperienceState, "experience_state"), server_default="ready"
    )
    held_out: Mapped[bool] = mapped_column(Boolean, server_default="false")
    use_count: Mapped[int] = mapped_column(Integer, server_default="0")
    worker_id: Mapped[int | None] = mapped_column(ForeignKey("worker.id"))
    attempt: Mapped[int] = mapped_column(Integer, server_default="0")
    # Columns of an imported row that have no place of their own; an export gives them back.
    extra: Mapped[dict[str, Any] | None]
    created_at: Mapped[Now]
    ready_xact: Mapped[int] = mapped_column(server_default=CURRENT_XACT)
    # As an experience's: a hash of run seed, the chosen row's origin and use_count.
    place: Mapped[int | None]

    __table_args__ = (
        UniqueConstraint("run_id", "chosen_id", "rejected_id"),
        CheckConstraint("chosen_id <> rejected_id", "two_experiences"),
        CheckConstraint("state <> 'leased' OR worker_id IS NOT NULL", "leased_by_a_worker"),
        Index(
            "preference_place_idx",
            "run_id",
            "use_count",
            "place",
            "id",
            postgresql_where=text("state = 'ready' AND place IS NOT NULL"),
        ),
        Index("preference_ready_idx", "run_id", "id", postgresql_where=text("state = 'ready'")),
        Index(None, "rejected_id"),
        Index("preference_worker_idx", "worker_id", postgresql_where=text("worker_id IS NOT NULL")),
        {"postgresql_with": HOT_TABLE},
    )
