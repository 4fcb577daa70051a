"""Rows and pairs that people are asked about, what they said, and what they decided of pairs."""

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

from trinity_db.schema.base import CURRENT_XACT, TRANSACTION, Base, Id, Now, enum
from trinity_db.schema.states import LabelState


class Review(Base):
    """A row, or a pair of rows, that waits for verdicts of people. Written when people are asked.

    All reviews of a run are its queue. A review is closed while it has as many verdicts as it is to have.
    """

    __tablename__ = "review"

    id: Mapped[Id] = mapped_column(comment="Number of the review, never used again")
    run_id: Mapped[int] = mapped_column(
        ForeignKey("run.id", ondelete="CASCADE"), comment="The run that the row belongs to"
    )
    experience_id: Mapped[int] = mapped_column(
        ForeignKey("experience.id", ondelete="CASCADE"),
        comment="The row that is judged, or the first one of the pair",
    )
    other_id: Mapped[int | None] = mapped_column(
        ForeignKey("experience.id", ondelete="CASCADE"),
        comment="The second row of the pair; NULL where one row is judged",
    )
    source: Mapped[str] = mapped_column(
        Text, comment="Source of the reward events or the preference that follow from it, such as human"
    )
    name: Mapped[str] = mapped_column(Text, comment="What is judged: the name of these reward events")
    weight: Mapped[float] = mapped_column(
        Double, comment="Factor of the verdicts in the reward; 0: they stand beside it"
    )
    wanted: Mapped[int] = mapped_column(
        Integer, comment="How many verdicts it is to have, each by another person"
    )
    lowest: Mapped[int] = mapped_column(
        SmallInteger, comment="Least value of a verdict: 0 is bad, or the worst grade; -1 in a pair"
    )
    highest: Mapped[int] = mapped_column(
        SmallInteger, comment="Greatest value of a verdict: 1 is good where the least is 0; 1 in a pair"
    )
    created_at: Mapped[Now] = mapped_column(comment="Time at which people were asked")
    closed_at: Mapped[datetime | None] = mapped_column(
        comment="Time of the verdict that was the last to be wanted; NULL while one is missing"
    )

    __table_args__ = (
        # Who asks twice gets one review: otherwise a person would judge the same row twice.
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
        # In one order only, so that a pair has one review. label.swapped says which row a person sees first.
        CheckConstraint("other_id > experience_id", "pair_in_order"),
        CheckConstraint("wanted >= 1", "wants_a_verdict"),
        CheckConstraint("lowest < highest", "scale_in_order"),
        CheckConstraint("other_id IS NULL OR lowest = -1 AND highest = 1", "scale_of_a_pair"),
        CheckConstraint("weight > '-Infinity' AND weight < 'Infinity'", "weight_finite"),
        # The queue of a run.
        Index("review_open_idx", "run_id", "id", postgresql_where=text("closed_at IS NULL")),
        # Deleting a run looks for the reviews of each of its rows, on either side.
        Index(None, "run_id"),
        Index(None, "experience_id"),
        Index(None, "other_id"),
    )


class Label(Base):
    """What one person made of a review: a claim first, then a verdict. Written by people."""

    __tablename__ = "label"

    id: Mapped[Id] = mapped_column(comment="Number of the label, never used again")
    review_id: Mapped[int] = mapped_column(
        ForeignKey("review.id", ondelete="CASCADE"), comment="The review that it is about"
    )
    author: Mapped[str] = mapped_column(Text, comment="The person")
    state: Mapped[LabelState] = mapped_column(
        enum(LabelState, "label_state"),
        server_default="draft",
        comment="draft, submitted, discarded or skipped",
    )
    value: Mapped[int | None] = mapped_column(
        SmallInteger,
        comment=(
            "The verdict, between review.lowest and highest; in a pair 1: the first row is better, -1: the "
            "second, 0: neither. NULL unless submitted"
        ),
    )
    swapped: Mapped[bool | None] = mapped_column(
        Boolean, comment="Whether the person saw the second row of the pair as A; NULL where it is one row"
    )
    blind: Mapped[bool | None] = mapped_column(
        Boolean, comment="Whether the person saw no rewards before the verdict; NULL if unknown"
    )
    seconds: Mapped[float | None] = mapped_column(
        Double, comment="How long the person looked at it, in seconds; NULL if unknown"
    )
    attempt: Mapped[int] = mapped_column(
        Integer,
        server_default="1",
        comment="How many times the person was given it; a verdict that carries an older number is refused",
    )
    leased_until: Mapped[datetime | None] = mapped_column(
        comment="Time at which the claim ends if it is not renewed; NULL unless it is a draft"
    )
    created_at: Mapped[Now] = mapped_column(comment="Time of the first claim")
    decided_at: Mapped[datetime | None] = mapped_column(
        comment="Time of the verdict; NULL while it is a draft"
    )

    __table_args__ = (
        # A person judges a row once. Another verdict of the same person takes the place of the first.
        UniqueConstraint("review_id", "author"),
        CheckConstraint("(state = 'submitted') = (value IS NOT NULL)", "value_iff_submitted"),
        # A draft without an end would keep the row from everybody else.
        CheckConstraint("(state = 'draft') = (leased_until IS NOT NULL)", "leased_iff_draft"),
        CheckConstraint("(state = 'draft') = (decided_at IS NULL)", "decided_iff_no_draft"),
        CheckConstraint("seconds >= 0 AND seconds < 'Infinity'", "seconds_finite"),
        # Finds the last verdict of a person, to take it back.
        Index(None, "author", "decided_at"),
    )


class Decision(Base):
    """What people have decided of a pair, each time that it changed. Written with the verdict that did so.

    It says to a replay which preferences could be drawn at which time.
    """

    __tablename__ = "decision"

    id: Mapped[Id] = mapped_column(comment="Number of the decision; the one with the highest number counts")
    review_id: Mapped[int] = mapped_column(
        ForeignKey("review.id", ondelete="CASCADE"), comment="The review of the pair"
    )
    side: Mapped[int | None] = mapped_column(
        SmallInteger,
        comment="1: the first row is better, -1: the second, 0: neither; NULL: all verdicts were taken back",
    )
    created_at: Mapped[Now] = mapped_column(comment="Time of the decision")
    xact: Mapped[int] = mapped_column(
        server_default=CURRENT_XACT,
        comment="Transaction that wrote it; with a batch's snapshot it tells what a draw could see",
        info=TRANSACTION,
    )

    __table_args__ = (
        CheckConstraint("side IN (-1, 0, 1)", "known_side"),
        Index(None, "review_id", "id"),
    )
