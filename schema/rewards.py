"""Statements about how good a rollout was. Never changed, only followed by another."""

from typing import Any

from sqlalchemy import CheckConstraint, Double, ForeignKey, Index, Text
from sqlalchemy.orm import Mapped, mapped_column

from trinity_db.schema.base import CURRENT_XACT, Base, Id, Now


class RewardEvent(Base):
    """One statement about a rollout or an experience. Written by explorer, score processor, import, people.

    Of each name the latest counts; the reward is the sum of their values times weights.
    """

    __tablename__ = "reward_event"

    id: Mapped[Id]
    run_id: Mapped[int] = mapped_column(ForeignKey("run.id", ondelete="CASCADE"))
    rollout_id: Mapped[int | None] = mapped_column(ForeignKey("rollout.id", ondelete="CASCADE"))
    experience_id: Mapped[int | None] = mapped_column(ForeignKey("experience.id", ondelete="CASCADE"))
    source: Mapped[str] = mapped_column(Text)
    name: Mapped[str] = mapped_column(Text)
    value: Mapped[float] = mapped_column(Double)
    weight: Mapped[float] = mapped_column(Double, server_default="1")
    created_by: Mapped[str | None] = mapped_column(Text)
    detail: Mapped[dict[str, Any] | None]
    created_at: Mapped[Now]
    xact: Mapped[int] = mapped_column(server_default=CURRENT_XACT)

    __table_args__ = (
        CheckConstraint("num_nonnulls(rollout_id, experience_id) = 1", "about_one_thing"),
        # Postgres sorts NaN above Infinity, so this refuses it too.
        CheckConstraint("value > '-Infinity' AND value < 'Infinity'", "value_finite"),
        CheckConstraint("weight > '-Infinity' AND weight < 'Infinity'", "weight_finite"),
        Index(None, "rollout_id", "name", "id"),
        Index(None, "experience_id", "name", "id"),
    )
