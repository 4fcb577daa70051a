"""Pairs of experiences of which one is better, and where more of them may be found."""

from typing import Any

from sqlalchemy import (
    Boolean,
    CheckConstraint,
    Computed,
    Double,
    ForeignKey,
    Identity,
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
    worker_id: Mapped[int | None]
    attempt: Mapped[int] = mapped_column(Integer, server_default="0")
    # Columns of an imported row that have no place of their own; an export gives them back.
    extra: Mapped[dict[str, Any] | None]
    created_at: Mapped[Now]
    ready_xact: Mapped[int] = mapped_column(server_default=CURRENT_XACT)
    # The row of a data set that the chosen one was adopted from, or the chosen one.
    origin_id: Mapped[int | None]
    # As an experience's: NULL in a pair that is held out, that its rewards contradict, or of a data set.
    seed: Mapped[int | None]
    place: Mapped[int | None] = mapped_column(
        Computed("hashint8extended(origin_id, seed + use_count)", persisted=True)
    )

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
        # Deleting a run looks for the pairs of each of its rows, on either side.
        Index(None, "chosen_id"),
        Index(None, "rejected_id"),
        Index("preference_worker_idx", "worker_id", postgresql_where=text("worker_id IS NOT NULL")),
        {"postgresql_with": HOT_TABLE},
    )


class Pairing(Base):
    """A group that changed since it was last looked at for pairs: one row a change, in runs that derive any.

    Written with the change, by whoever makes rows ready, rewards or drops them; the pair processor removes
    what it has looked at, in the transaction that writes the pairs.
    """

    __tablename__ = "pairing"

    # Whose pairs: a run adopts groups of data sets.
    run_id: Mapped[int] = mapped_column(ForeignKey("run.id", ondelete="CASCADE"), primary_key=True)
    id: Mapped[int] = mapped_column(Identity(always=True), primary_key=True)
    # No foreign key, which would lock the group: of one that is gone there is nothing to pair.
    group_id: Mapped[int]

    __table_args__ = ({"postgresql_with": HOT_TABLE},)
