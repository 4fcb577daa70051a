"""Tasksets, their tasks, and the counts of each run for each task."""

from datetime import datetime
from typing import Any

from sqlalchemy import CheckConstraint, Double, ForeignKey, Integer, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from trinity_db.schema.base import Base, Id, Now


class Taskset(Base):
    """A collection of tasks. Written by import; shared by runs."""

    __tablename__ = "taskset"

    id: Mapped[Id] = mapped_column(comment="Number of the taskset, never used again")
    name: Mapped[str] = mapped_column(Text, unique=True, comment="Name of the taskset")
    created_at: Mapped[Now] = mapped_column(comment="Time of the first import")


class Task(Base):
    """One prompt or environment. Written by import."""

    __tablename__ = "task"

    id: Mapped[Id] = mapped_column(comment="Number of the task, never used again")
    taskset_id: Mapped[int] = mapped_column(
        ForeignKey("taskset.id", ondelete="CASCADE"), comment="The taskset that it belongs to"
    )
    key: Mapped[str] = mapped_column(
        Text, comment="Made from the content, so that importing the same file again adds nothing"
    )
    payload: Mapped[dict[str, Any]] = mapped_column(
        comment="Prompt or messages, answer, tools and other arguments"
    )
    created_at: Mapped[Now] = mapped_column(comment="Time of the import")

    __table_args__ = (
        UniqueConstraint("taskset_id", "key"),
        # An explorer could not attempt a task without one.
        CheckConstraint("payload ? 'prompt' OR payload ? 'messages'", "has_prompt"),
    )


class TaskStat(Base):
    """How often a run issued and solved a task. Written by explorers and the group processor.

    Explorers choose tasks by it, so that a resumed run goes on where it was.
    """

    __tablename__ = "task_stat"

    run_id: Mapped[int] = mapped_column(
        ForeignKey("run.id", ondelete="CASCADE"), primary_key=True, comment="The run that attempts the task"
    )
    task_id: Mapped[int] = mapped_column(
        ForeignKey("task.id", ondelete="CASCADE"), primary_key=True, comment="The task"
    )
    issued: Mapped[int] = mapped_column(
        Integer, server_default="0", comment="How many rollout groups were started on it"
    )
    scored: Mapped[int] = mapped_column(
        Integer, server_default="0", comment="Rollouts on it that have a reward"
    )
    solved: Mapped[int] = mapped_column(
        Integer,
        server_default="0",
        comment="Rollouts on it whose reward is at least the run's processors.group.solved_reward",
    )
    alpha: Mapped[float] = mapped_column(
        Double,
        server_default="1",
        comment="Alpha of the Beta posterior of the chance to solve it, from a uniform prior",
    )
    beta: Mapped[float] = mapped_column(Double, server_default="1", comment="Beta of the same posterior")
    issued_at: Mapped[datetime | None] = mapped_column(
        comment="Time at which it was last issued; NULL before"
    )

    __table_args__ = (CheckConstraint("solved <= scored", "solved_within_scored"),)
