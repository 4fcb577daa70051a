"""Rows and pairs queued for verdicts of people, the verdicts, and decisions on pairs."""

from datetime import datetime

from sqlalchemy import (
    Boolean,
    CheckConstraint,
    Double,
    ForeignKey,
    Index,
    Integer,
    SmallInteger,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.orm import Mapped, mapped_column

from trinity_db.schema.states import LabelState
from trinity_db.schema.tables.base import CURRENT_XACT, TRANSACTION, Base, Id, Now, enum


class Review(Base):
    """A row, or a pair of rows, that waits for verdicts of people. Written when it is queued.

    All reviews of a run are its queue. A review is closed while it has the wanted number of verdicts.
    """

    __tablename__ = "review"

    id: Mapped[Id] = mapped_column(comment="Id of the review, never reused")
    run_id: Mapped[int] = mapped_column(ForeignKey("run.id", ondelete="CASCADE"), comment="Run of the row")
    experience_id: Mapped[int] = mapped_column(
        ForeignKey("experience.id", ondelete="CASCADE"),
        comment="Row to judge, or first row of the pair",
    )
    other_id: Mapped[int | None] = mapped_column(
        ForeignKey("experience.id", ondelete="CASCADE"),
        comment="Second row of the pair; NULL for a single row",
    )
    source: Mapped[str] = mapped_column(
        Text, comment="Source of the resulting reward events or preference, such as human"
    )
    name: Mapped[str] = mapped_column(Text, comment="Name of the resulting reward events")
    weight: Mapped[float] = mapped_column(
        Double, comment="Factor of the verdicts in the reward; 0: recorded without changing it"
    )
    wanted: Mapped[int] = mapped_column(Integer, comment="Number of verdicts, each from a different person")
    lowest: Mapped[int] = mapped_column(
        SmallInteger, comment="Lowest value of a verdict: 0 is bad, or the worst grade; -1 for a pair"
    )
    highest: Mapped[int] = mapped_column(
        SmallInteger, comment="Highest value of a verdict: 1 is good if the lowest is 0; 1 for a pair"
    )
    created_at: Mapped[Now] = mapped_column(comment="Time at which it was queued")
    closed_at: Mapped[datetime | None] = mapped_column(
        comment="Time of the last wanted verdict; NULL while verdicts are missing"
    )

    __table_args__ = (
        # Queued twice, a row has one review; otherwise people would judge it twice.
        Index(
            "review_row_key",
            "experience_id",
            "source",
            "name",
            unique=True,
            postgresql_where=text("other_id IS NULL"),
        ),
        Index(
            "review_pair_key",
            "experience_id",
            "other_id",
            unique=True,
            postgresql_where=text("other_id IS NOT NULL"),
        ),
        # In one order only, so that a pair has one review. label.swapped is the order shown to a person.
        CheckConstraint("other_id > experience_id", "pair_in_order"),
        CheckConstraint("wanted >= 1", "wants_a_verdict"),
        CheckConstraint("lowest < highest", "scale_in_order"),
        CheckConstraint("other_id IS NULL OR lowest = -1 AND highest = 1", "scale_of_a_pair"),
        CheckConstraint("weight > '-Infinity' AND weight < 'Infinity'", "weight_finite"),
        # The queue of a run.
        Index("review_open_idx", "run_id", "id", postgresql_where=text("closed_at IS NULL")),
        # For deleting a run: finds the reviews of each of its rows, on either side.
        Index(None, "run_id"),
        Index(None, "experience_id"),
        Index(None, "other_id"),
    )


class Label(Base):
    """One person's answer to a review: a claim first, then a verdict. Written by people."""

    __tablename__ = "label"

    id: Mapped[Id] = mapped_column(comment="Id of the label, never reused")
    review_id: Mapped[int] = mapped_column(ForeignKey("review.id", ondelete="CASCADE"), comment="Review")
    author: Mapped[str] = mapped_column(Text, comment="Person")
    state: Mapped[LabelState] = mapped_column(
        enum(LabelState, "label_state"),
        server_default="draft",
        comment="draft, submitted, discarded or skipped",
    )
    value: Mapped[int | None] = mapped_column(
        SmallInteger,
        comment=(
            "Verdict, from review.lowest to highest; for a pair 1: the first row is better, -1: the "
            "second, 0: neither. NULL unless submitted"
        ),
    )
    swapped: Mapped[bool | None] = mapped_column(
        Boolean, comment="Whether the person saw the second row of the pair as A; NULL for a single row"
    )
    blind: Mapped[bool | None] = mapped_column(
        Boolean, comment="Whether the rewards were hidden from the person before the verdict; NULL if unknown"
    )
    seconds: Mapped[float | None] = mapped_column(
        Double, comment="Time that the person took, in seconds; NULL if unknown"
    )
    attempt: Mapped[int] = mapped_column(
        Integer,
        server_default="1",
        comment="Number of claims; a verdict with an older number is refused",
    )
    leased_until: Mapped[datetime | None] = mapped_column(
        comment="Time at which the claim expires unless renewed; NULL unless it is a draft"
    )
    created_at: Mapped[Now] = mapped_column(comment="Time of the first claim")
    decided_at: Mapped[datetime | None] = mapped_column(
        comment="Time of the verdict; NULL while it is a draft"
    )

    __table_args__ = (
        # One verdict per person and review; a further one replaces the first.
        UniqueConstraint("review_id", "author"),
        CheckConstraint("(state = 'submitted') = (value IS NOT NULL)", "value_iff_submitted"),
        # A draft without an expiry would block the row for everybody else.
        CheckConstraint("(state = 'draft') = (leased_until IS NOT NULL)", "leased_iff_draft"),
        CheckConstraint("(state = 'draft') = (decided_at IS NULL)", "decided_iff_no_draft"),
        CheckConstraint("seconds >= 0 AND seconds < 'Infinity'", "seconds_finite"),
        # Finds a person's last verdict, for undo.
        Index(None, "author", "decided_at"),
    )


class Decision(Base):
    """People's decision on a pair, one row per change. Written with the verdict that changed it.

    A replay derives from it which preferences could be drawn at which time.
    """

    __tablename__ = "decision"

    id: Mapped[Id] = mapped_column(comment="Id of the decision; the highest one counts")
    review_id: Mapped[int] = mapped_column(
        ForeignKey("review.id", ondelete="CASCADE"), comment="Review of the pair"
    )
    side: Mapped[int | None] = mapped_column(
        SmallInteger,
        comment="1: the first row is better, -1: the second, 0: neither; NULL: all verdicts were taken back",
    )
    created_at: Mapped[Now] = mapped_column(comment="Time of the decision")
    xact: Mapped[int] = mapped_column(
        server_default=CURRENT_XACT,
        comment="Transaction that wrote it; with a batch's snapshot it determines what a draw could see",
        info=TRANSACTION,
    )

    __table_args__ = (
        CheckConstraint("side IN (-1, 0, 1)", "known_side"),
        Index(None, "review_id", "id"),
    )
