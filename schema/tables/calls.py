"""Agents that call the policy over HTTP, and each of their calls."""

from datetime import datetime
from typing import Any

from sqlalchemy import CheckConstraint, ForeignKey, Index, Integer, LargeBinary, SmallInteger, Text, text
from sqlalchemy.orm import Mapped, mapped_column

from trinity_db.schema.tables.base import LOCAL, Base, Id, Now, refers_to


class Agent(Base):
    """A program that makes one attempt at a task and calls the policy over HTTP. Written by the explorer."""

    __tablename__ = "agent"

    id: Mapped[Id] = mapped_column(comment="Id of the agent, never reused")
    # Copied from its group, whose foreign key guarantees that the run exists.
    run_id: Mapped[int] = mapped_column(comment="Run of its group", info=refers_to("run"))
    group_id: Mapped[int] = mapped_column(
        ForeignKey("rollout_group.id", ondelete="CASCADE"), comment="Group whose task it attempts"
    )
    ordinal: Mapped[int] = mapped_column(SmallInteger, comment="Member of the group that it makes, from 0")
    attempt: Mapped[int] = mapped_column(Integer, comment="Attempt of the group's lease under which it began")
    retry: Mapped[int] = mapped_column(
        SmallInteger,
        comment="Number of failed agents of the same lease for the same member before it, from 0",
    )
    worker_id: Mapped[int] = mapped_column(
        comment="Explorer that answers it, or last did; no other explorer stores its calls",
        info=refers_to("worker"),
    )
    key_hash: Mapped[bytes | None] = mapped_column(
        LargeBinary, comment="SHA-256 of its key; NULL in a copy of the run", info=LOCAL
    )
    rewards: Mapped[dict[str, Any] | None] = mapped_column(
        comment="Rewards that it reported, by name; NULL without any"
    )
    started_at: Mapped[Now] = mapped_column(comment="Time at which it got its key")
    ended_at: Mapped[datetime | None] = mapped_column(
        comment="Time from which its calls are refused; NULL while it may call"
    )

    __table_args__ = (
        # A key identifies one attempt; its calls must never count for another.
        Index("agent_key_hash_key", "key_hash", unique=True),
        # Two agents for the same member would sample it twice.
        Index(
            "agent_live_member_key",
            "group_id",
            "ordinal",
            unique=True,
            postgresql_where=text("ended_at IS NULL"),
        ),
        # Finds the agents of a member and, for deletion, all agents of a group.
        Index(None, "group_id", "ordinal"),
    )


class Call(Base):
    """One request of an agent to the policy, stored before it was answered. Written by the explorer.

    When a rollout is written, its calls are deleted: the payloads of its experiences contain their tokens.
    Calls with replaced options are kept, without prompt and tokens. Calls that are left out of training, and
    those of failed or aborted attempts, are kept, since no other row contains them.
    """

    __tablename__ = "call"

    agent_id: Mapped[int] = mapped_column(
        ForeignKey("agent.id", ondelete="CASCADE"), primary_key=True, comment="Calling agent"
    )
    number: Mapped[int] = mapped_column(
        Integer, primary_key=True, autoincrement=False, comment="Position among the agent's calls, from 0"
    )
    digest: Mapped[bytes] = mapped_column(
        LargeBinary, comment="Digest of the request, by which a repeated request gets the same answer"
    )
    path: Mapped[str | None] = mapped_column(
        Text, comment="Path of the request, such as /v1/messages; NULL if the workflow itself asked"
    )
    model: Mapped[str | None] = mapped_column(
        Text, comment="Model name in the request; NULL if the workflow itself asked"
    )
    prompt: Mapped[str] = mapped_column(Text, comment="Prompt as sent to the model")
    codec: Mapped[str] = mapped_column(Text, comment="Encoding of data")
    num_tokens: Mapped[int] = mapped_column(Integer, comment="Number of tokens, prompt and response together")
    # STORAGE EXTERNAL (set in the migration), like payload.data.
    data: Mapped[bytes | None] = mapped_column(
        LargeBinary,
        comment=(
            "Packed token ids of prompt and response, mask of sampled tokens, and their log-probabilities "
            "and policy versions"
        ),
    )
    finish_reason: Mapped[str] = mapped_column(Text, comment="Reason why the response ended: stop or length")
    replaced: Mapped[dict[str, Any] | None] = mapped_column(
        comment=(
            "Values of options that the request gave and the call did not follow, by their place in the "
            "request; NULL without any"
        )
    )
    left_out: Mapped[str | None] = mapped_column(
        Text,
        comment=(
            "Why its tokens are left out of training: model or repeated; NULL if they are not, or before the "
            "rollout is written"
        ),
    )
    created_at: Mapped[Now] = mapped_column(comment="Time at which it was stored, just before the answer")

    __table_args__ = (CheckConstraint("number >= 0 AND num_tokens > 0", "has_tokens"),)
