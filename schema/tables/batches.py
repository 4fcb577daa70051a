"""Batches: the rows drawn by the trainer, in order and with the numbers used."""

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

from trinity_db.schema.states import BatchState
from trinity_db.schema.tables.base import LOCAL, Base, Id, Now, enum, lies_among, refers_to


class Batch(Base):
    """One draw for one trainer step. Written by the trainer."""

    __tablename__ = "batch"

    id: Mapped[Id] = mapped_column(comment="Id of the batch, never reused")
    run_id: Mapped[int] = mapped_column(ForeignKey("run.id", ondelete="CASCADE"), comment="Run of the row")
    step: Mapped[int] = mapped_column(Integer, comment="Trainer step of the batch, from 1")
    state: Mapped[BatchState] = mapped_column(
        enum(BatchState, "batch_state"), server_default="leased", comment="leased, committed or reopened"
    )
    worker_id: Mapped[int] = mapped_column(ForeignKey("worker.id"), comment="Trainer that drew it")
    setting_id: Mapped[int] = mapped_column(comment="The run_setting used for its step")
    policy_version: Mapped[int] = mapped_column(
        Integer, comment="Latest published policy version at the draw"
    )
    versions_ahead: Mapped[int] = mapped_column(
        Integer,
        server_default="0",
        comment=(
            "Versions from policy_version to the one that the weights of the step are: 1 while that was "
            "being written, else 0"
        ),
    )
    included_version: Mapped[int | None] = mapped_column(
        Integer, comment="First policy version that includes the step; NULL until it is published"
    )
    size: Mapped[int] = mapped_column(
        Integer, comment="Number of drawn groups, rows or pairs (see run.draws)"
    )
    epoch: Mapped[int] = mapped_column(
        Integer,
        server_default="0",
        comment="Completed passes over adopted data before this batch; 0 in an online run",
    )
    sampler: Mapped[str] = mapped_column(Text, comment="Name of the sampler that drew it")
    seed: Mapped[int] = mapped_column(comment="Seed of the draw; with the step it determines all randomness")
    query: Mapped[str] = mapped_column(Text, comment="SQL of the draw")
    snapshot: Mapped[str | None] = mapped_column(
        Text, comment="Snapshot of the draw, a pg_snapshot as text", info=LOCAL
    )
    max_staleness: Mapped[int | None] = mapped_column(
        Integer, comment="Staleness limit of the draw, in policy versions; NULL without a limit"
    )
    parameters: Mapped[dict[str, Any] | None] = mapped_column(
        comment="Other inputs and choices of the sampler, so that the draw can be rerun"
    )
    # No group below it will become live again, unless this batch is reopened, so statements that search for
    # live groups start here.
    floor: Mapped[int | None] = mapped_column(
        comment="Lowest id of an unfinished rollout group at the draw; NULL in an offline run",
        info=lies_among("rollout_group"),
    )
    created_at: Mapped[Now] = mapped_column(comment="Time of the draw")
    committed_at: Mapped[datetime | None] = mapped_column(
        comment="Time at which the trainer step was committed; NULL before"
    )
    reopened_at: Mapped[datetime | None] = mapped_column(
        comment="Time at which the rows were returned for drawing; NULL otherwise"
    )

    __table_args__ = (
        ForeignKeyConstraint(["run_id", "setting_id"], ["run_setting.run_id", "run_setting.id"]),
        ForeignKeyConstraint(
            ["run_id", "policy_version"], ["policy_version.run_id", "policy_version.version"]
        ),
        ForeignKeyConstraint(
            ["run_id", "included_version"], ["policy_version.run_id", "policy_version.version"]
        ),
        # One batch per step; reopened batches are kept as a record.
        Index("batch_step_key", "run_id", "step", unique=True, postgresql_where=text("state <> 'reopened'")),
        CheckConstraint("included_version IS NULL OR state = 'committed'", "included_only_if_committed"),
        CheckConstraint("(state = 'reopened') = (reopened_at IS NOT NULL)", "reopened_at_iff_reopened"),
        CheckConstraint("size > 0", "not_empty"),
    )


class BatchItem(Base):
    """One row of a batch with the numbers used in training. Written by the trainer."""

    __tablename__ = "batch_item"

    batch_id: Mapped[int] = mapped_column(
        ForeignKey("batch.id", ondelete="CASCADE"),
        primary_key=True,
        comment="Batch of the row",
    )
    ordinal: Mapped[int] = mapped_column(Integer, primary_key=True, comment="Position in the batch, from 0")
    # No foreign key: the draw guarantees that the row exists, and both are deleted with the run.
    experience_id: Mapped[int] = mapped_column(comment="Drawn experience", info=refers_to("experience"))
    preference_id: Mapped[int | None] = mapped_column(
        ForeignKey("preference.id", ondelete="CASCADE"),
        comment=(
            "Pair with which it was drawn: the chosen row has an even ordinal, the rejected one the next; "
            "NULL without a pair"
        ),
    )
    probability: Mapped[float | None] = mapped_column(
        Double,
        comment="Probability of drawing this row, from 0 to 1; NULL if the sampler is not random",
    )
    weight: Mapped[float] = mapped_column(
        Double,
        server_default="1",
        comment="Weight of the row in the loss; 0 for a row that is only a baseline for others",
    )
    reward: Mapped[float | None] = mapped_column(
        Double, comment="Reward used by the step; NULL if it used none"
    )
    advantage: Mapped[float | None] = mapped_column(
        Double, comment="Advantage used by the step; NULL if the algorithm has none"
    )
    staleness: Mapped[int | None] = mapped_column(
        Integer,
        comment=(
            "Staleness at the draw: publications between the version that the weights of the step are, or "
            "will be once they are written, and the farthest that sampled any of the row's tokens. For the "
            "current staleness see experience_view.staleness_now"
        ),
    )

    __table_args__ = (
        Index(None, "experience_id"),
        # For deleting a run: finds the items of each of its pairs.
        Index(
            "batch_item_preference_idx", "preference_id", postgresql_where=text("preference_id IS NOT NULL")
        ),
    )
