"""Evaluations: attempts at tasks that are counted and never trained on."""

from datetime import datetime

from sqlalchemy import (
    CheckConstraint,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    SmallInteger,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.orm import Mapped, mapped_column

from trinity_db.schema.tables.base import Base, Id, Now


class Evaluation(Base):
    """Attempts of one policy version at all tasks of a taskset. Written by the trainer and the command line.

    Its rollout groups are in the states evaluating and evaluated, which are never drawn and not counted by
    the pace.
    """

    __tablename__ = "evaluation"

    id: Mapped[Id] = mapped_column(comment="Id of the evaluation, never reused")
    run_id: Mapped[int] = mapped_column(ForeignKey("run.id", ondelete="CASCADE"), comment="Run of the row")
    taskset_id: Mapped[int] = mapped_column(ForeignKey("taskset.id"), comment="Attempted tasks")
    version: Mapped[int] = mapped_column(
        Integer, comment="Policy version that samples every token of every attempt"
    )
    samples: Mapped[int] = mapped_column(SmallInteger, comment="Attempts per task")
    temperature: Mapped[float] = mapped_column(Double, comment="Sampling temperature; 0: greedy")
    max_new_tokens: Mapped[int] = mapped_column(Integer, comment="Longest response in tokens")
    seed: Mapped[int] = mapped_column(
        comment="Seed of the attempts: with it, the task and the member another evaluation samples the same"
    )
    solved_reward: Mapped[float] = mapped_column(
        Double, comment="An attempt with at least this reward solved its task"
    )
    setting_id: Mapped[int] = mapped_column(
        comment="The run_setting under which it was begun: its workflow and reward functions"
    )
    created_at: Mapped[Now] = mapped_column(comment="Time at which it was begun")
    finished_at: Mapped[datetime | None] = mapped_column(
        comment="Time at which the last attempt had ended and was judged, or it was given up; NULL before"
    )
    error: Mapped[str | None] = mapped_column(Text, comment="Reason why it was given up; NULL otherwise")

    __table_args__ = (
        ForeignKeyConstraint(["run_id", "version"], ["policy_version.run_id", "policy_version.version"]),
        ForeignKeyConstraint(["run_id", "setting_id"], ["run_setting.run_id", "run_setting.id"]),
        # A repeated request resumes the evaluation instead of starting a second one.
        Index(
            "evaluation_once_key",
            "run_id",
            "version",
            "taskset_id",
            "samples",
            "temperature",
            "max_new_tokens",
            "seed",
            unique=True,
        ),
        # Rollout groups refer to both columns, so that none has tokens of another version.
        UniqueConstraint("id", "version"),
        CheckConstraint("samples > 0 AND temperature >= 0 AND max_new_tokens > 0", "positive"),
        CheckConstraint("error IS NULL OR finished_at IS NOT NULL", "given_up_is_finished"),
        Index("evaluation_open_idx", "run_id", "id", postgresql_where=text("finished_at IS NULL")),
    )
