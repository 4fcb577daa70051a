"""Attempts that wait without a place in an explorer, and the answers that they wait for."""

from datetime import datetime
from typing import Any

from sqlalchemy import CheckConstraint, ForeignKey, Index, Integer, Text, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from trinity_db.schema.base import Base, Id, Now, refers_to


class Park(Base):
    """A point of an attempt from which its workflow is called again, and the answer that it waits for.

    Written by the explorer; a person or a program gives the answer.
    """

    __tablename__ = "park"

    id: Mapped[Id] = mapped_column(comment="The ticket: by this number an answer is given")
    # Copied from its agent, whose group makes sure that the run exists.
    run_id: Mapped[int] = mapped_column(comment="The run of its attempt", info=refers_to("run"))
    agent_id: Mapped[int] = mapped_column(
        ForeignKey("agent.id", ondelete="CASCADE"),
        comment="The attempt: its group, its member, and its calls so far",
    )
    created_at: Mapped[Now] = mapped_column(comment="Time at which the ticket was given")
    parked_at: Mapped[datetime | None] = mapped_column(
        comment="Time from which on the attempt has no place in an explorer; NULL: it has not parked yet"
    )
    state: Mapped[Any | None] = mapped_column(JSONB, comment="What the workflow gave, and gets again")
    record: Mapped[dict[str, Any] | None] = mapped_column(
        comment=(
            "What the policy goes on from: how many calls there were, which of them are rollout steps, and "
            "the attempt of the lease that its random numbers follow from"
        )
    )
    version_min: Mapped[int | None] = mapped_column(
        Integer, comment="Oldest policy version that sampled a token of it; NULL where nothing was sampled"
    )
    wake_at: Mapped[datetime | None] = mapped_column(
        comment="Time at which the attempt goes on without an answer; NULL: it waits for one"
    )
    answer: Mapped[Any | None] = mapped_column(JSONB, comment="The answer, which the workflow gets")
    answered_at: Mapped[datetime | None] = mapped_column(
        comment="Time of the answer; NULL while there is none"
    )
    answered_by: Mapped[str | None] = mapped_column(Text, comment="Who or what answered; NULL where not said")
    resumed_at: Mapped[datetime | None] = mapped_column(
        comment="Time at which an explorer last called the workflow again; NULL while none did"
    )
    resumed_attempt: Mapped[int | None] = mapped_column(
        Integer, comment="Attempt of the group's lease under which it did; NULL while none did"
    )
    left_at: Mapped[datetime | None] = mapped_column(
        comment="Time at which the attempt parked anew, and will not go on from here; NULL before"
    )

    __table_args__ = (
        # An attempt goes on from one point: from two it would be made twice.
        Index(
            "park_current_key",
            "agent_id",
            unique=True,
            postgresql_where=text("parked_at IS NOT NULL AND left_at IS NULL"),
        ),
        # One ticket at a time: a workflow that is called again asks for it again, and gets the same.
        Index("park_ticket_key", "agent_id", unique=True, postgresql_where=text("parked_at IS NULL")),
        # Without both, the attempt could not go on.
        CheckConstraint(
            "(parked_at IS NULL) = (state IS NULL) AND (parked_at IS NULL) = (record IS NULL)",
            "parked_with_state",
        ),
        CheckConstraint("(answered_at IS NULL) = (answer IS NULL)", "answer_iff_answered"),
        # An attempt that has not parked is under way: to go on with it would make it twice.
        CheckConstraint(
            "resumed_at IS NULL OR (parked_at IS NOT NULL AND resumed_attempt IS NOT NULL)",
            "resumed_from_a_park",
        ),
        CheckConstraint("left_at IS NULL OR resumed_at IS NOT NULL", "left_after_it_was_resumed"),
        # Finds all of an attempt, and those that go with it.
        Index(None, "agent_id"),
        # Lists those of a run.
        Index(None, "run_id", "id"),
    )
