"""What the trainer drew, in which order and with which numbers."""

from datetime import datetime
from typing import Any

from sqlalchemy import (
    CheckConstraint,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    Text,
    text,
)
from sqlalchemy.orm import Mapped, mapped_column

from trinity_db.schema.base import Base, Id, Now, enum
from trinity_db.schema.states import BatchState


class Batch(Base):
    """One draw for one trainer step. Written by the trainer."""

    __tablename__ = "batch"

    id: Mapped[Id]
    run_id: Mapped[int] = mapped_column(ForeignKey("run.id", ondelete="CASCADE"))
    step: Mapped[int] = mapped_column(Integer)
    state: Mapped[BatchState] = mapped_column(enum(BatchState, "batch_state"), server_default="leased")
    worker_id: Mapped[int] = mapped_column(ForeignKey("worker.id"))
    # The latest published version when it was drawn, and the first one that includes it.
    policy_version: Mapped[int] = mapped_column(Integer)
    included_version: Mapped[int | None] = mapped_column(Integer)
    # In units of the configured batch size: groups, rows or pairs.
    size: Mapped[int] = mapped_column(Integer)
    # Passes over the data that were finished before this batch; 0 online.
    epoch: Mapped[int] = mapped_column(Integer, server_default="0")
    sampler: Mapped[str] = mapped_column(Text)
    seed: Mapped[int]
    query: Mapped[str] = mapped_column(Text)
    # What the draw could see (a pg_snapshot), and the limit it was held to: with them it can be run again.
    snapshot: Mapped[str | None] = mapped_column(Text)
    max_staleness: Mapped[int | None] = mapped_column(Integer)
    # What else the sampler was given and found, so that the draw can be run again.
    parameters: Mapped[dict[str, Any] | None]
    # The lowest id of a group that was not finished with at the draw: none below it will ever be live again,
    # unless this batch is reopened. Whoever looks for live groups begins here, past all that is behind.
    floor: Mapped[int | None]
    created_at: Mapped[Now]
    committed_at: Mapped[datetime | None]
    reopened_at: Mapped[datetime | None]

    __table_args__ = (
        ForeignKeyConstraint(
            ["run_id", "policy_version"], ["policy_version.run_id", "policy_version.version"]
        ),
        ForeignKeyConstraint(
            ["run_id", "included_version"], ["policy_version.run_id", "policy_version.version"]
        ),
        # A step has one batch; batches that were reopened stay as a record.
        Index("batch_step_key", "run_id", "step", unique=True, postgresql_where=text("state <> 'reopened'")),
        CheckConstraint("included_version IS NULL OR state = 'committed'", "included_only_if_committed"),
        CheckConstraint("(state = 'reopened') = (reopened_at IS NOT NULL)", "reopened_at_iff_reopened"),
        CheckConstraint("size > 0", "not_empty"),
    )


class BatchItem(Base):
    """One row of a batch with the numbers it was trained with. Written by the trainer."""

    __tablename__ = "batch_item"

    batch_id: Mapped[int] = mapped_column(ForeignKey("batch.id", ondelete="CASCADE"), primary_key=True)
    ordinal: Mapped[int] = mapped_column(Integer, primary_key=True)
    # Of the batch's run, and gone with it: the draw knows that it is there.
    experience_id: Mapped[int]
    # The pair it was drawn with: the chosen one has an even ordinal, the rejected one the next.
    preference_id: Mapped[int | None] = mapped_column(ForeignKey("preference.id", ondelete="CASCADE"))
    # Chance of this row at the draw, where chance took part, and its weight in the loss.
    probability: Mapped[float | None] = mapped_column(Double)
    weight: Mapped[float] = mapped_column(Double, server_default="1")
    reward: Mapped[float | None] = mapped_column(Double)
    advantage: Mapped[float | None] = mapped_column(Double)
    # At the draw: the policy version that was the latest then, less the oldest that wrote any of the row's
    # tokens. How stale the row is now, experience_view.staleness_now says.
    staleness: Mapped[int | None] = mapped_column(Integer)

    __table_args__ = (
        Index(None, "experience_id"),
        # Deleting a run looks for the items of each of its pairs.
        Index(
            "batch_item_preference_idx", "preference_id", postgresql_where=text("preference_id IS NOT NULL")
        ),
    )
