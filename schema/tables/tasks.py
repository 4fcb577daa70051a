"""Tasksets, their tasks, each run's position in them, and its counts per task."""

from datetime import datetime
from typing import Any

from sqlalchemy import (
    CheckConstraint,
    Computed,
    Double,
    ForeignKey,
    Index,
    Integer,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.orm import Mapped, mapped_column

from trinity_db.schema.tables.base import Base, Id, Now


class Taskset(Base):
    """A collection of tasks. Written by import; shared by runs."""

    __tablename__ = "taskset"

    id: Mapped[Id] = mapped_column(comment="Id of the taskset, never reused")
    name: Mapped[str] = mapped_column(Text, unique=True, comment="Name of the taskset")
    created_at: Mapped[Now] = mapped_column(comment="Time of the first import")


class Task(Base):
    """One prompt or environment. Written by import."""

    __tablename__ = "task"

    id: Mapped[Id] = mapped_column(comment="Id of the task, never reused")
    taskset_id: Mapped[int] = mapped_column(
        ForeignKey("taskset.id", ondelete="CASCADE"), comment="Its taskset"
    )
    key: Mapped[str] = mapped_column(
        Text, comment="Derived from the content, so that importing the same file again adds nothing"
    )
    payload: Mapped[dict[str, Any]] = mapped_column(
        comment="Prompt or messages, answer, tools and other arguments"
    )
    created_at: Mapped[Now] = mapped_column(comment="Time of the import")
    # Explorers walk over a taskset by these numbers: the cost of a claim is independent of its size.
    ordinal: Mapped[int] = mapped_column(
        Integer, comment="Number in its taskset, from 0, in order of import; deleted tasks leave gaps"
    )
    # Computed by the writer: the server's letter classes depend on its locale.
    prompt_digest: Mapped[bytes] = mapped_column(
        comment="MD5 of the prompt without case and spaces, by which duplicates are detected"
    )
    # JSON numbers may exceed a double, such as 10^400. From 10^15 on they do not count as a level.
    level: Mapped[float | None] = mapped_column(
        Double,
        Computed(
            "CASE WHEN jsonb_typeof(payload -> 'level'::text) IS DISTINCT FROM 'number'::text"
            " THEN NULL::double precision"
            " WHEN abs((payload -> 'level'::text)::numeric) < '1000000000000000'::numeric"
            " THEN round((payload -> 'level'::text)::numeric, 15)::double precision"
            " ELSE NULL::double precision END",
            persisted=True,
        ),
        comment="Difficulty, if its key `level` is a number; used by easy_to_hard",
    )

    __table_args__ = (
        UniqueConstraint("taskset_id", "key"),
        UniqueConstraint("taskset_id", "ordinal"),
        # For easy_to_hard. Tasks without a level come last.
        Index(
            "task_level_idx",
            "taskset_id",
            text("COALESCE(level, 'Infinity'::double precision)"),
            "ordinal",
        ),
        # Finds the prompt of a made task.
        Index(None, "taskset_id", "prompt_digest"),
        # An explorer cannot attempt a task without one.
        CheckConstraint("payload ? 'prompt' OR payload ? 'messages'", "has_prompt"),
    )


class TaskPass(Base):
    """Position of a run in its pass over a taskset. Written by explorers.

    A pass walks over stretches of task.ordinal: first all tasks that existed at its start, then the tasks
    imported meanwhile. Explorers move the row in the transaction that starts the groups, so that a resumed
    run continues at the exact position.
    """

    __tablename__ = "task_pass"

    run_id: Mapped[int] = mapped_column(
        ForeignKey("run.id", ondelete="CASCADE"), primary_key=True, comment="Run that attempts the tasks"
    )
    taskset_id: Mapped[int] = mapped_column(
        ForeignKey("taskset.id", ondelete="CASCADE"), primary_key=True, comment="Taskset"
    )
    issued: Mapped[int] = mapped_column(
        Integer,
        server_default="0",
        comment="Number of rollout groups started on its tasks; used for the shares",
    )
    walk: Mapped[str] = mapped_column(
        Text, comment="Order of the pass: shuffled, sequential or easy_to_hard; another one begins a new pass"
    )
    number: Mapped[int] = mapped_column(
        Integer, server_default="0", comment="Number of the pass, from 0; each pass is shuffled differently"
    )
    first: Mapped[int] = mapped_column(
        Integer, server_default="0", comment="First task.ordinal of the current stretch"
    )
    size: Mapped[int] = mapped_column(Integer, comment="Number of ordinals in the stretch")
    position: Mapped[int] = mapped_column(
        Integer,
        server_default="0",
        comment=(
            "Number of completed places of the stretch; for easy_to_hard: the ordinal after its last task"
        ),
    )
    level: Mapped[float | None] = mapped_column(
        Double, comment="Level of the last task of easy_to_hard; NULL at the start of a pass"
    )

    __table_args__ = (
        CheckConstraint("walk IN ('shuffled', 'sequential', 'easy_to_hard')", "known_walk"),
        # A negative position would issue a task twice in a pass.
        CheckConstraint("number >= 0 AND first >= 0 AND size >= 0 AND position >= 0", "place_in_order"),
    )


class TaskStat(Base):
    """Counts of a run's attempts and solutions of a task. Written by explorers, processors and people.

    A group counts when it becomes ready or is dropped. A later change of a ready group's reward updates the
    counts in the same transaction. Explorers use it to choose tasks by difficulty.
    """

    __tablename__ = "task_stat"

    run_id: Mapped[int] = mapped_column(
        ForeignKey("run.id", ondelete="CASCADE"), primary_key=True, comment="Run that attempts the task"
    )
    task_id: Mapped[int] = mapped_column(
        ForeignKey("task.id", ondelete="CASCADE"), primary_key=True, comment="Task"
    )
    issued: Mapped[int] = mapped_column(
        Integer, server_default="0", comment="Number of rollout groups started on it"
    )
    scored: Mapped[int] = mapped_column(
        Integer, server_default="0", comment="Number of its rollouts with a reward"
    )
    solved: Mapped[int] = mapped_column(
        Integer,
        server_default="0",
        comment="Number of its rollouts with at least the reward processors.group.solved_reward of the run",
    )
    alpha: Mapped[float] = mapped_column(
        Double,
        server_default="1",
        comment="Alpha of the Beta posterior of its success rate, from a uniform prior",
    )
    beta: Mapped[float] = mapped_column(Double, server_default="1", comment="Beta of the same posterior")
    issued_at: Mapped[datetime | None] = mapped_column(
        comment="Time at which a group was last started on it; NULL before"
    )

    __table_args__ = (CheckConstraint("solved <= scored", "solved_within_scored"),)
