"""Parked attempts, which wait without using an explorer's capacity, and their answers."""

from datetime import datetime
from typing import Any

from sqlalchemy import CheckConstraint, ForeignKey, Index, Integer, Text, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from trinity_db.schema.tables.base import Base, Id, Now, refers_to


class Park(Base):
    """A point from which an attempt's workflow is called again, and the answer for which it waits.

    Written by the explorer; a person or a program gives the answer.
    """

    __tablename__ = "park"

    id: Mapped[Id] = mapped_column(comment="Ticket: the number with which it is answered")
    # Copied from its agent, whose group guarantees that the run exists.
    run_id: Mapped[int] = mapped_column(comment="Run of its attempt", info=refers_to("run"))
    agent_id: Mapped[int] = mapped_column(
        ForeignKey("agent.id", ondelete="CASCADE"),
        comment="The attempt: its group, its member, and its calls so far",
    )
    created_at: Mapped[Now] = mapped_column(comment="Time at which the ticket was created")
    parked_at: Mapped[datetime | None] = mapped_column(
        comment="Time from which the attempt uses no capacity of an explorer; NULL: not parked yet"
    )
    state: Mapped[Any | None] = mapped_column(JSONB, comment="State from the workflow, passed to it again")
    record: Mapped[dict[str, Any] | None] = mapped_column(
        comment=(
            "Data to resume the policy: the number of calls, which of them are rollout steps, and the "
            "lease attempt that seeds its random numbers"
        )
    )
    version_min: Mapped[int | None] = mapped_column(
        Integer, comment="Oldest policy version that sampled a token of it; NULL without sampled tokens"
    )
    wake_at: Mapped[datetime | None] = mapped_column(
        comment="Time at which the attempt resumes without an answer; NULL: it waits for an answer"
    )
    answer: Mapped[Any | None] = mapped_column(JSONB, comment="Answer, passed to the workflow")
    answered_at: Mapped[datetime | None] = mapped_column(comment="Time of the answer; NULL without one")
    answered_by: Mapped[str | None] = mapped_column(
        Text, comment="Person or program that answered; NULL if unknown"
    )
    resumed_at: Mapped[datetime | None] = mapped_column(
        comment="Time at which an explorer last called the workflow again; NULL if none has"
    )
    resumed_attempt: Mapped[int | None] = mapped_column(
        Integer, comment="Attempt of the group's lease at that time; NULL if none"
    )
    left_at: Mapped[datetime | None] = mapped_column(
        comment="Time at which the attempt parked again, so that it will not resume from here; NULL before"
    )

    __table_args__ = (
        # An attempt resumes from one point; from two it would be made twice.
        Index(
            "park_current_key",
            "agent_id",
            unique=True,
            postgresql_where=text("parked_at IS NOT NULL AND left_at IS NULL"),
        ),
        # One ticket at a time: a workflow that is called again gets the same one.
        Index("park_ticket_key", "agent_id", unique=True, postgresql_where=text("parked_at IS NULL")),
        # Without both, the attempt could not be resumed.
        CheckConstraint(
            "(parked_at IS NULL) = (state IS NULL) AND (parked_at IS NULL) = (record IS NULL)",
            "parked_with_state",
        ),
        CheckConstraint("(answered_at IS NULL) = (answer IS NULL)", "answer_iff_answered"),
        # An attempt that has not parked is in progress; resuming it would make it twice.
        CheckConstraint(
            "resumed_at IS NULL OR (parked_at IS NOT NULL AND resumed_attempt IS NOT NULL)",
            "resumed_from_a_park",
        ),
        CheckConstraint("left_at IS NULL OR resumed_at IS NOT NULL", "left_after_it_was_resumed"),
        # Finds the parks of an attempt, for reading and deletion.
        Index(None, "agent_id"),
        # Lists the parks of a run.
        Index(None, "run_id", "id"),
    )
