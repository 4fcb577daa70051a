"""Batches: the rows that the trainer drew, in order and with the numbers that it used."""

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

from trinity_db.schema.base import LOCAL, Base, Id, Now, enum, lies_among, refers_to
from trinity_db.schema.states import BatchState


class Batch(Base):
    """One draw for one trainer step. Written by the trainer."""

    __tablename__ = "batch"

    id: Mapped[Id] = mapped_column(comment="Number of the batch, never used again")
    run_id: Mapped[int] = mapped_column(
        ForeignKey("run.id", ondelete="CASCADE"), comment="The run that the row belongs to"
    )
    step: Mapped[int] = mapped_column(Integer, comment="Trainer step that the batch is for, from 1")
    state: Mapped[BatchState] = mapped_column(
        enum(BatchState, "batch_state"), server_default="leased", comment="leased, committed or reopened"
    )
    worker_id: Mapped[int] = mapped_column(ForeignKey("worker.id"), comment="The trainer that drew it")
    setting_id: Mapped[int] = mapped_column(comment="The run_setting under which its step was made")
    policy_version: Mapped[int] = mapped_column(
        Integer, comment="Latest published policy version when the batch was drawn"
    )
    included_version: Mapped[int | None] = mapped_column(
        Integer, comment="First policy version that includes the step; NULL until it is published"
    )
    size: Mapped[int] = mapped_column(
        Integer, comment="How many groups, rows or pairs were drawn, as run.draws says"
    )
    epoch: Mapped[int] = mapped_column(
        Integer,
        server_default="0",
        comment="Passes over adopted data that were finished before this batch; 0 in an online run",
    )
    sampler: Mapped[str] = mapped_column(Text, comment="Name of the sampler that drew it")
    seed: Mapped[int] = mapped_column(comment="Seed of the draw: with the step, all chance follows from it")
    query: Mapped[str] = mapped_column(Text, comment="SQL of the draw")
    snapshot: Mapped[str | None] = mapped_column(
        Text, comment="The snapshot that the draw saw, a pg_snapshot as text", info=LOCAL
    )
    max_staleness: Mapped[int | None] = mapped_column(
        Integer, comment="Staleness limit that the draw was held to, in policy versions; NULL without a limit"
    )
    parameters: Mapped[dict[str, Any] | None] = mapped_column(
        comment="The sampler's other inputs and choices, so that the draw can be run again"
    )
    # No group below it will ever be live again, unless this batch is reopened. So statements that look for
    # live groups begin here.
    floor: Mapped[int | None] = mapped_column(
        comment="Lowest id of a rollout group that was not finished with at the draw; NULL in an offline run",
        info=lies_among("rollout_group"),
    )
    created_at: Mapped[Now] = mapped_column(comment="Time of the draw")
    committed_at: Mapped[datetime | None] = mapped_column(
        comment="Time at which the trainer step was recorded; NULL before"
    )
    reopened_at: Mapped[datetime | None] = mapped_column(
        comment="Time at which the rows were given back to be drawn again; NULL otherwise"
    )

    __table_args__ = (
        ForeignKeyConstraint(["run_id", "setting_id"], ["run_setting.run_id", "run_setting.id"]),
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

    batch_id: Mapped[int] = mapped_column(
        ForeignKey("batch.id", ondelete="CASCADE"),
        primary_key=True,
        comment="The batch that the row was drawn for",
    )
    ordinal: Mapped[int] = mapped_column(
        Integer, primary_key=True, comment="Place of the row in the batch, from 0"
    )
    # Of the batch's run, and gone with it: the draw knows that it is there.
    experience_id: Mapped[int] = mapped_column(
        comment="The experience that was drawn", info=refers_to("experience")
    )
    preference_id: Mapped[int | None] = mapped_column(
        ForeignKey("preference.id", ondelete="CASCADE"),
        comment=(
            "The pair it was drawn with: the chosen row has an even ordinal, the rejected one the"
            " next; NULL without a pair"
        ),
    )
    probability: Mapped[float | None] = mapped_column(
        Double,
        comment="Chance of this row at the draw, from 0 to 1; NULL if the sampler does not draw by chance",
    )
    weight: Mapped[float] = mapped_column(
        Double,
        server_default="1",
        comment="Weight of the row in the loss; 0 for a row that others are only compared with",
    )
    reward: Mapped[float | None] = mapped_column(
        Double, comment="Reward of the row that the step used; NULL where it used none"
    )
    advantage: Mapped[float | None] = mapped_column(
        Double, comment="Advantage that the step used; NULL where the algorithm has none"
    )
    staleness: Mapped[int | None] = mapped_column(
        Integer,
        comment=(
            "Staleness at the draw, in policy versions: how many publications lay between the latest "
            "version and the farthest that wrote any of the row's tokens. "
            "experience_view.staleness_now says how stale the row is now"
        ),
    )

    __table_args__ = (
        Index(None, "experience_id"),
        # Deleting a run looks for the items of each of its pairs.
        Index(
            "batch_item_preference_idx", "preference_id", postgresql_where=text("preference_id IS NOT NULL")
        ),
    )
