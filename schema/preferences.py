"""Pairs of a better and a worse experience, and the groups in which there may be more of them."""

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

from trinity_db.schema.base import CURRENT_XACT, HOT_TABLE, TRANSACTION, Base, Id, Now, enum, refers_to
from trinity_db.schema.states import ExperienceState


class Preference(Base):
    """A chosen and a rejected experience for one prompt. Written by import, the pair processor and people."""

    __tablename__ = "preference"

    id: Mapped[Id] = mapped_column(comment="Number of the pair, never used again")
    run_id: Mapped[int] = mapped_column(
        ForeignKey("run.id", ondelete="CASCADE"), comment="The run that the row belongs to"
    )
    chosen_id: Mapped[int] = mapped_column(
        ForeignKey("experience.id", ondelete="CASCADE"), comment="The better experience"
    )
    rejected_id: Mapped[int] = mapped_column(
        ForeignKey("experience.id", ondelete="CASCADE"), comment="The worse experience"
    )
    source: Mapped[str] = mapped_column(
        Text,
        comment=(
            "Where the pair comes from: pair for one that was derived from rewards, human or another source "
            "of verdicts for one that people compared, otherwise what the import says"
        ),
    )
    margin: Mapped[float | None] = mapped_column(
        Double, comment="Reward of the chosen row less that of the rejected one; NULL where one has none"
    )
    state: Mapped[ExperienceState] = mapped_column(
        enum(ExperienceState, "experience_state"),
        server_default="ready",
        comment="ready, leased, trained, dropped or expired",
    )
    held_out: Mapped[bool] = mapped_column(
        Boolean, server_default="false", comment="Whether it is kept for evaluation and never drawn"
    )
    use_count: Mapped[int] = mapped_column(
        Integer, server_default="0", comment="How many committed batches used it"
    )
    worker_id: Mapped[int | None] = mapped_column(
        comment="The trainer that holds the lease on it; NULL while no worker does", info=refers_to("worker")
    )
    attempt: Mapped[int] = mapped_column(
        Integer,
        server_default="0",
        comment="How many times the row was leased; a write that carries an older number is refused",
    )
    extra: Mapped[dict[str, Any] | None] = mapped_column(
        comment=("Columns of an imported row that have no place of their own; an export gives them back")
    )
    created_at: Mapped[Now] = mapped_column(comment="Time at which it was written")
    ready_xact: Mapped[int] = mapped_column(
        server_default=CURRENT_XACT, comment="Transaction that made it ready to be drawn", info=TRANSACTION
    )
    origin_id: Mapped[int | None] = mapped_column(
        comment=(
            "The imported experience that the chosen one was adopted from; the chosen one itself if "
            "it was not adopted"
        ),
        info=refers_to("experience"),
    )
    seed: Mapped[int | None] = mapped_column(
        comment=(
            "The run's seed; NULL in a pair that is held out, that its rewards or people contradict, or of a "
            "data set"
        )
    )
    # Set once, with the pair. If older pairs began to give labels, draws of before could not be repeated.
    gives_labels: Mapped[bool] = mapped_column(
        Boolean,
        server_default="false",
        comment=(
            "Whether its chosen row is good and its rejected one bad where they have no reward: in runs that "
            "learn from labels, unless the pair was derived from rewards"
        ),
    )
    upheld: Mapped[bool | None] = mapped_column(
        Boolean,
        comment=(
            "Whether people found the chosen row better: then rewards do not matter; false: they did not; "
            "NULL: no verdict of theirs counts"
        ),
    )
    place: Mapped[int | None] = mapped_column(
        Computed("hashint8extended(origin_id, seed + use_count)", persisted=True),
        comment=(
            "Its place in the shuffled order of a pass over data; each use gives it another. "
            "NULL if it cannot be drawn"
        ),
    )

    __table_args__ = (
        # An import or an adoption that is repeated adds no pair twice.
        UniqueConstraint("run_id", "chosen_id", "rejected_id"),
        CheckConstraint("chosen_id <> rejected_id", "two_experiences"),
        # A leased pair without a worker would never be drawn again.
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
    """A group that may have other pairs now: one row for each change, in runs that derive pairs from rewards.

    The transaction that makes rows ready, rewards them or drops them writes it. The pair processor removes it
    in the transaction that writes the pairs.
    """

    __tablename__ = "pairing"

    run_id: Mapped[int] = mapped_column(
        ForeignKey("run.id", ondelete="CASCADE"),
        primary_key=True,
        comment="The run whose pairs may change; a run adopts groups of data sets",
    )
    id: Mapped[int] = mapped_column(
        Identity(always=True),
        primary_key=True,
        comment="Number of the change, in the order in which changes were written",
    )
    # No foreign key, which would lock the group: a group that is gone has no pairs.
    group_id: Mapped[int] = mapped_column(
        comment="The rollout group that changed", info=refers_to("rollout_group")
    )

    __table_args__ = ({"postgresql_with": HOT_TABLE},)
