"""Reward events: statements about how good a rollout was. None is ever changed, only followed by another."""

from typing import Any

from sqlalchemy import CheckConstraint, Double, ForeignKey, Index, Integer, Text, text
from sqlalchemy.orm import Mapped, mapped_column

from trinity_db.schema.base import CURRENT_XACT, TRANSACTION, Base, Id, Now


class RewardEvent(Base):
    """One statement about a rollout or an experience. Written by explorer, score processor, import, people.

    The latest of each name counts. A reward is the sum of their values, each times its weight;
    reward_part_view has the rule.
    """

    __tablename__ = "reward_event"

    id: Mapped[Id] = mapped_column(
        comment="Number of the event; the one with the highest number counts of each name"
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
        Text, comment="Where it comes from: explore, score, rescore, import or a source that a person named"
    )
    name: Mapped[str] = mapped_column(
        Text, comment="Name under which it counts, such as that of a reward function"
    )
    value: Mapped[float] = mapped_column(Double, comment="The value, finite")
    weight: Mapped[float] = mapped_column(
        Double, server_default="1", comment="Factor of the value in the reward"
    )
    created_by: Mapped[str | None] = mapped_column(
        Text, comment="The person or program that gave it; NULL if unknown"
    )
    processor_version: Mapped[int | None] = mapped_column(
        Integer,
        comment=(
            "Version of the list of scoring steps that judged, as in step_list of the processor score; "
            "NULL where no step did"
        ),
    )
    detail: Mapped[dict[str, Any] | None] = mapped_column(comment="Further details, as JSON")
    created_at: Mapped[Now] = mapped_column(comment="Time at which it was recorded")
    xact: Mapped[int] = mapped_column(
        server_default=CURRENT_XACT,
        comment="Transaction that wrote it; with a batch's snapshot it tells what a draw could see",
        info=TRANSACTION,
    )

    __table_args__ = (
        # An event about both, or about neither, would leave open which rewards follow from it.
        CheckConstraint("num_nonnulls(rollout_id, experience_id) = 1", "about_one_thing"),
        # Postgres sorts NaN above Infinity, so this refuses it too.
        CheckConstraint("value > '-Infinity' AND value < 'Infinity'", "value_finite"),
        CheckConstraint("weight > '-Infinity' AND weight < 'Infinity'", "weight_finite"),
        # Each event is about one thing, so it has an entry in one of them.
        Index(None, "rollout_id", "name", "id", postgresql_where=text("rollout_id IS NOT NULL")),
        Index(None, "experience_id", "name", "id", postgresql_where=text("experience_id IS NOT NULL")),
        # A copy takes an event along with the row that it is about. An event about a data set's row may have
        # come by way of another run, which adopted the row.
        {"info": {"goes_with": ("rollout_id", "experience_id")}},
    )
