"""Pairs of a better and a worse experience, and groups to check for more pairs."""

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

from trinity_db.schema.states import ExperienceState
from trinity_db.schema.tables.base import CURRENT_XACT, HOT_TABLE, TRANSACTION, Base, Id, Now, enum, refers_to


class Preference(Base):
    """A chosen and a rejected experience for one prompt. Written by import, the pair processor and people."""

    __tablename__ = "preference"

    id: Mapped[Id] = mapped_column(comment="Id of the pair, never reused")
    run_id: Mapped[int] = mapped_column(ForeignKey("run.id", ondelete="CASCADE"), comment="Run of the row")
    chosen_id: Mapped[int] = mapped_column(
        ForeignKey("experience.id", ondelete="CASCADE"), comment="Better experience"
    )
    rejected_id: Mapped[int] = mapped_column(
        ForeignKey("experience.id", ondelete="CASCADE"), comment="Worse experience"
    )
    source: Mapped[str] = mapped_column(
        Text,
        comment=(
            "Origin of the pair: pair if derived from rewards, human or another source of verdicts if "
            "people compared the rows, otherwise given by the import"
        ),
    )
    margin: Mapped[float | None] = mapped_column(
        Double, comment="Reward of the chosen row minus that of the rejected one; NULL if one has none"
    )
    state: Mapped[ExperienceState] = mapped_column(
        enum(ExperienceState, "experience_state"),
        server_default="ready",
        comment="ready, leased, trained, dropped or expired",
    )
    held_out: Mapped[bool] = mapped_column(
        Boolean, server_default="false", comment="Whether it is held out for evaluation and never drawn"
    )
    use_count: Mapped[int] = mapped_column(
        Integer, server_default="0", comment="Number of committed batches that used it"
    )
    worker_id: Mapped[int | None] = mapped_column(
        comment="Trainer that holds its lease; NULL without a lease", info=refers_to("worker")
    )
    attempt: Mapped[int] = mapped_column(
        Integer,
        server_default="0",
        comment="Number of leases; a write with an older number is refused",
    )
    extra: Mapped[dict[str, Any] | None] = mapped_column(
        comment="Further columns of an imported row; exports include them"
    )
    created_at: Mapped[Now] = mapped_column(comment="Time at which it was written")
    ready_xact: Mapped[int] = mapped_column(
        server_default=CURRENT_XACT, comment="Transaction that made it ready", info=TRANSACTION
    )
    origin_id: Mapped[int | None] = mapped_column(
        comment=(
            "Imported experience from which the chosen one was adopted; the chosen one itself if it was "
            "not adopted"
        ),
        info=refers_to("experience"),
    )
    seed: Mapped[int | None] = mapped_column(
        comment=(
            "The run's seed; NULL in a pair that is held out, contradicted by its rewards or people, or "
            "of a data set"
        )
    )
    # Set once, with the pair, so that draws can be rerun.
    gives_labels: Mapped[bool] = mapped_column(
        Boolean,
        server_default="false",
        comment=(
            "Whether its chosen row is good and its rejected one bad if they have no reward: in runs that "
            "learn from labels, unless the pair was derived from rewards"
        ),
    )
    upheld: Mapped[bool | None] = mapped_column(
        Boolean,
        comment=(
            "true: people found the chosen row better, whatever the rewards; false: they did not; NULL: "
            "no verdict counts"
        ),
    )
    place: Mapped[int | None] = mapped_column(
        Computed("hashint8extended(origin_id, seed + use_count)", persisted=True),
        comment=(
            "Position in the shuffled order of a pass over data; changes with each use. NULL if it cannot "
            "be drawn"
        ),
    )

    __table_args__ = (
        # A repeated import or adoption adds no pair twice.
        UniqueConstraint("run_id", "chosen_id", "rejected_id"),
        CheckConstraint("chosen_id <> rejected_id", "two_experiences"),
        # Without a worker, a leased pair would never be drawn again.
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
        # For deleting a run: finds the pairs of each of its rows, on either side.
        Index(None, "chosen_id"),
        Index(None, "rejected_id"),
        Index("preference_worker_idx", "worker_id", postgresql_where=text("worker_id IS NOT NULL")),
        {"postgresql_with": HOT_TABLE},
    )


class Pairing(Base):
    """A group to check for new pairs: one row per change, in runs that derive pairs from rewards.

    Written by the transaction that makes rows ready, rewards them or drops them. The pair processor deletes
    it in the transaction that writes the pairs.
    """

    __tablename__ = "pairing"

    run_id: Mapped[int] = mapped_column(
        ForeignKey("run.id", ondelete="CASCADE"),
        primary_key=True,
        comment="Run whose pairs may change; it may have adopted the group from a data set",
    )
    id: Mapped[int] = mapped_column(
        Identity(always=True),
        primary_key=True,
        comment="Number of the change, in order of writing",
    )
    # No foreign key, which would lock the group; a deleted group has no pairs.
    group_id: Mapped[int] = mapped_column(comment="Changed rollout group", info=refers_to("rollout_group"))

    __table_args__ = ({"postgresql_with": HOT_TABLE},)
