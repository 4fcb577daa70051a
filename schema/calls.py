"""What programs asked of the policy: who they are, and each of their calls."""

from datetime import datetime
from typing import Any

from sqlalchemy import CheckConstraint, ForeignKey, Index, Integer, LargeBinary, SmallInteger, Text, text
from sqlalchemy.orm import Mapped, mapped_column

from trinity_db.schema.base import LOCAL, Base, Id, Now, refers_to


class Agent(Base):
    """A program that makes one attempt at a task, and asks the policy over HTTP. Written by the explorer."""

    __tablename__ = "agent"

    id: Mapped[Id] = mapped_column(comment="Number of the agent, never used again")
    # Copied from its group, whose foreign key makes sure that the run exists.
    run_id: Mapped[int] = mapped_column(comment="The run of its group", info=refers_to("run"))
    group_id: Mapped[int] = mapped_column(
        ForeignKey("rollout_group.id", ondelete="CASCADE"), comment="The group whose task it attempts"
    )
    ordinal: Mapped[int] = mapped_column(SmallInteger, comment="Which member of the group it makes, from 0")
    attempt: Mapped[int] = mapped_column(Integer, comment="Attempt of the group's lease under which it began")
    retry: Mapped[int] = mapped_column(
        SmallInteger,
        comment="How many agents of the same lease attempted the same before it and failed, from 0",
    )
    worker_id: Mapped[int] = mapped_column(
        comment="The explorer that answers it, or did last; no other one stores calls of it",
        info=refers_to("worker"),
    )
    key_hash: Mapped[bytes | None] = mapped_column(
        LargeBinary, comment="SHA-256 of the key by which it asks; NULL in a copy of the run", info=LOCAL
    )
    rewards: Mapped[dict[str, Any] | None] = mapped_column(
        comment="What it said to have earned, a number for each name; NULL while it said nothing"
    )
    started_at: Mapped[Now] = mapped_column(comment="Time at which it was given its key")
    ended_at: Mapped[datetime | None] = mapped_column(
        comment="Time from which on no call of it is taken; NULL while it may call"
    )

    __table_args__ = (
        # A key names one attempt: a call of it must never count for another.
        Index("agent_key_hash_key", "key_hash", unique=True),
        # Two agents that make the same member would sample it twice.
        Index(
            "agent_live_member_key",
            "group_id",
            "ordinal",
            unique=True,
            postgresql_where=text("ended_at IS NULL"),
        ),
        # Finds the agents of a member and, when a group is deleted, all of its agents.
        Index(None, "group_id", "ordinal"),
    )


class Call(Base):
    """One request that an agent made of the policy, stored before it was answered. Written by the explorer.

    When a rollout is written, the calls that it consists of go: the payloads of its experiences have their
    tokens. Those of attempts that failed or were broken off stay, since no other row has them.
    """

    __tablename__ = "call"

    agent_id: Mapped[int] = mapped_column(
        ForeignKey("agent.id", ondelete="CASCADE"), primary_key=True, comment="The agent that asked"
    )
    number: Mapped[int] = mapped_column(
        Integer, primary_key=True, autoincrement=False, comment="Its place among the agent's calls, from 0"
    )
    digest: Mapped[bytes] = mapped_column(
        LargeBinary, comment="Digest of the request, by which a repeated one is answered with the same row"
    )
    prompt: Mapped[str] = mapped_column(Text, comment="Prompt as the model was given it")
    codec: Mapped[str] = mapped_column(Text, comment="How data is packed")
    num_tokens: Mapped[int] = mapped_column(Integer, comment="Number of tokens, prompt and response together")
    # STORAGE EXTERNAL (set in the migration), as payload.data is.
    data: Mapped[bytes | None] = mapped_column(
        LargeBinary,
        comment=(
            "Token ids of prompt and response, which of them were sampled, log-probabilities and policy "
            "versions of those, packed"
        ),
    )
    finish_reason: Mapped[str] = mapped_column(Text, comment="Why the response ended: stop or length")
    created_at: Mapped[Now] = mapped_column(
        comment="Time at which it was stored, just before it was answered"
    )

    __table_args__ = (CheckConstraint("number >= 0 AND num_tokens > 0", "has_tokens"),)
