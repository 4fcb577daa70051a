"""What there is to attempt: tasksets, their tasks, and how each run fares with them."""

from datetime import datetime
from typing import Any

from sqlalchemy import CheckConstraint, Double, ForeignKey, Integer, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from trinity_db.schema.base import Base, Id, Now


class Taskset(Base):
    """A collection of tasks. Written by import; shared by runs."""

    __tablename__ = "taskset"

    id: Mapped[Id]
    name: Mapped[str] = mapped_column(Text, unique=True)
    created_at: Mapped[Now]


class Task(Base):
    """One prompt or environment. Written by import."""

    __tablename__ = "task"

    id: Mapped[Id]
    taskset_id: Mapped[int] = mapped_column(ForeignKey("taskset.id", ondelete="CASCADE"))
    # Made from the content, so that importing the same file again adds nothing.
    key: Mapped[str] = mapped_column(Text)
    payload: Mapped[dict[str, Any]]
    created_at: Mapped[Now]

    __table_args__ = (
        UniqueConstraint("taskset_id", "key"),
        CheckConstraint("payload ? 'prompt' OR payload ? 'messages'", "has_prompt"),
    )


class TaskStat(Base):
    """How often a run issued a task and what came of it. Written by explorers and the group processor.

    Selectors read it, so that a resumed run goes on where it was.
    """

    __tablename__ = "task_stat"

    run_id: Mapped[int] = mapped_column(ForeignKey("run.id", ondelete="CASCADE"), primary_key=True)
    task_id: Mapped[int] = mapped_column(ForeignKey("task.id", ondelete="CASCADE"), primary_key=True)
    issued: Mapped[int] = mapped_column(Integer, server_default="0")
    # Rollouts with a reward, and how many of those solved the task: with a reward of at least the run's
    # processors.group.solved_reward.
    scored: Mapped[int] = mapped_column(Integer, server_default="0")
    solved: Mapped[int] = mapped_column(Integer, server_default="0")
    # Beta posterior of the chance to solve it, from a uniform prior.
    alpha: Mapped[float] = mapped_column(Double, server_default="1")
    beta: Mapped[float] = mapped_column(Double, server_default="1")
    issued_at: Mapped[datetime | None]

    __table_args__ = (CheckConstraint("solved <= scored", "solved_within_scored"),)
