"""Reward events of rollouts and experiences. They never change; later events replace earlier ones."""

from typing import Any

from sqlalchemy import CheckConstraint, Double, ForeignKey, Index, Integer, Text, text
from sqlalchemy.orm import Mapped, mapped_column

from trinity_db.schema.tables.base import CURRENT_XACT, TRANSACTION, Base, Id, Now


class RewardEvent(Base):
    """One reward of a rollout or an experience. Written by explorer, score processor, import and people.

    The latest event of each name counts. The reward is the weighted sum of their values; reward_part_view
    defines the rule.
    """

    __tablename__ = "reward_event"

    id: Mapped[Id] = mapped_column(comment="Id of the event; of each name the highest one counts")
    run_id: Mapped[int] = mapped_column(ForeignKey("run.id", ondelete="CASCADE"), comment="Run of the row")
    rollout_id: Mapped[int | None] = mapped_column(
        ForeignKey("rollout.id", ondelete="CASCADE"),
        comment="Rollout of the event; NULL if it is about one experience",
    )
    experience_id: Mapped[int | None] = mapped_column(
        ForeignKey("experience.id", ondelete="CASCADE"),
        comment="Experience of the event; NULL if it is about a rollout",
    )
    source: Mapped[str] = mapped_column(
        Text, comment="Origin: explore, score, rescore, import or a source named by a person"
    )
    name: Mapped[str] = mapped_column(Text, comment="Name of the reward, such as that of a reward function")
    value: Mapped[float] = mapped_column(Double, comment="The value, finite")
    weight: Mapped[float] = mapped_column(
        Double, server_default="1", comment="Factor of the value in the reward"
    )
    created_by: Mapped[str | None] = mapped_column(
        Text, comment="Person or program that gave it; NULL if unknown"
    )
    processor_version: Mapped[int | None] = mapped_column(
        Integer,
        comment=(
            "Version of the list of scoring steps, as in step_list of the processor score; NULL if not "
            "from a step"
        ),
    )
    detail: Mapped[dict[str, Any] | None] = mapped_column(comment="Further details, as JSON")
    created_at: Mapped[Now] = mapped_column(comment="Time at which it was recorded")
    xact: Mapped[int] = mapped_column(
        server_default=CURRENT_XACT,
        comment="Transaction that wrote it; with a batch's snapshot it determines what a draw could see",
        info=TRANSACTION,
    )

    __table_args__ = (
        # With both or neither, it would be undefined which rewards depend on the event.
        CheckConstraint("num_nonnulls(rollout_id, experience_id) = 1", "about_one_thing"),
        # Postgres sorts NaN above Infinity, so this rejects it, too.
        CheckConstraint("value > '-Infinity' AND value < 'Infinity'", "value_finite"),
        CheckConstraint("weight > '-Infinity' AND weight < 'Infinity'", "weight_finite"),
        # Each event has an entry in one of them.
        Index(None, "rollout_id", "name", "id", postgresql_where=text("rollout_id IS NOT NULL")),
        Index(None, "experience_id", "name", "id", postgresql_where=text("experience_id IS NOT NULL")),
        # A copy includes an event with the row that it is about. An event about a data set's row may also
        # come with another run that adopted the row.
        {"info": {"goes_with": ("rollout_id", "experience_id")}},
    )
