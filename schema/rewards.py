"""Statements about how good a rollout was. Never changed, only followed by another."""

from typing import Any

from sqlalchemy import CheckConstraint, Double, ForeignKey, Index, Text
from sqlalchemy.orm import Mapped, mapped_column

from trinity_db.schema.base import CURRENT_XACT, TRANSACTION, Base, Id, Now


class RewardEvent(Base):
    """One statement about a rollout or an experience. Written by explorer, score processor, import, people.

    Of each name the latest counts; the reward is the sum of their values times weights.
    """

    __tablename__ = "reward_event"

    id: Mapped[Id] = mapped_column(
        comment="Number of the event; of each name the one with the highest number counts"
    )
    run_id: Mapped[int] = mapped_column(
        ForeignKey("run.id", ondelete="CASCADE"), comment="The run that the row belongs to"
    )
    rollout_id: Mapped[int | None] = mapped_column(
        ForeignKey("rollout.id", ondelete="CASCADE"),
        comment="The rollout that it is about; NULL where it is about one experience",
    )
    experience_id: Mapped[int | None] = mapped_column(
        ForeignKey("experience.id", ondelete="CASCADE"),
        comment="The experience that it is about; NULL where it is about a rollout",
    )
    source: Mapped[str] = mapped_column(
        Text, comment="Who says it: explore, score, import or a person's source"
    )
    name: Mapped[str] = mapped_column(Text, comment="What it judges, as the name of a reward function")
    value: Mapped[float] = mapped_column(Double, comment="The value, finite")
    weight: Mapped[float] = mapped_column(
        Double, server_default="1", comment="What the value is multiplied by in the reward"
    )
    created_by: Mapped[str | None] = mapped_column(
        Text, comment="The person or program that said it, where known"
    )
    detail: Mapped[dict[str, Any] | None] = mapped_column(comment="What else was said, as JSON")
    created_at: Mapped[Now] = mapped_column(comment="Time at which it was said")
    xact: Mapped[int] = mapped_column(
        server_default=CURRENT_XACT,
        comment="Transaction that wrote it; with a batch's snapshot it tells what a draw could see",
        info=TRANSACTION,
    )

    __table_args__ = (
        CheckConstraint("num_nonnulls(rollout_id, experience_id) = 1", "about_one_thing"),
        # Postgres sorts NaN above Infinity, so this refuses it too.
        CheckConstraint("value > '-Infinity' AND value < 'Infinity'", "value_finite"),
        CheckConstraint("weight > '-Infinity' AND weight < 'Infinity'", "weight_finite"),
        Index(None, "rollout_id", "name", "id"),
        Index(None, "experience_id", "name", "id"),
        # A copy takes a statement along with what it is about: somebody may have said it of a data set's row
        # by way of another run that adopted it.
        {"info": {"goes_with": ("rollout_id", "experience_id")}},
    )
