"""Tasksets, their tasks, how far each run is in them, and its counts for each task."""

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
    # Explorers walk over a taskset by these numbers: a claim costs the same however many tasks there are.
    ordinal: Mapped[int] = mapped_column(
        Integer, comment="Its number in its taskset, from 0, in the order of import; deleted tasks leave gaps"
    )
    # Computed by the writer: the server's idea of letters depends on its locale.
    prompt_digest: Mapped[bytes | None] = mapped_column(
        comment="MD5 of the prompt without case and spaces, by which the same is made once; NULL until a step"
        " makes a task for the taskset, where the task was written without one"
    )
    # JSON has numbers that no double holds, as 10^400. From 10^15 on they count as no level.
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
        comment="How hard it is, where its key `level` is a number; easy_to_hard goes by it",
    )

    __table_args__ = (
        UniqueConstraint("taskset_id", "key"),
        UniqueConstraint("taskset_id", "ordinal"),
        # Serves easy_to_hard. Tasks that say no level come last.
        Index(
            "task_level_idx",
            "taskset_id",
            text("COALESCE(level, 'Infinity'::double precision)"),
            "ordinal",
        ),
        # Finds the prompt of a made task, and tasks whose digest is missing.
        Index(None, "taskset_id", "prompt_digest"),
        # An explorer could not attempt a task without one.
        CheckConstraint("payload ? 'prompt' OR payload ? 'messages'", "has_prompt"),
    )


class TaskPass(Base):
    """How far a run is in its pass over a taskset. Written by explorers.

    A pass walks over stretches of task.ordinal: first all tasks that were there at its start, then those that
    were imported meanwhile. Explorers move the row in the transaction that starts the groups, so that a
    resumed run goes on exactly here.
    """

    __tablename__ = "task_pass"

    run_id: Mapped[int] = mapped_column(
        ForeignKey("run.id", ondelete="CASCADE"), primary_key=True, comment="The run that attempts the tasks"
    )
    taskset_id: Mapped[int] = mapped_column(
        ForeignKey("taskset.id", ondelete="CASCADE"), primary_key=True, comment="The taskset"
    )
    issued: Mapped[int] = mapped_column(
        Integer,
        server_default="0",
        comment="How many rollout groups were started on its tasks; shares go by it",
    )
    walk: Mapped[str] = mapped_column(
        Text, comment="Order of the pass: shuffled, sequential or easy_to_hard; another one begins a new pass"
    )
    number: Mapped[int] = mapped_column(
        Integer, server_default="0", comment="Number of the pass, from 0; each one is shuffled anew"
    )
    first: Mapped[int] = mapped_column(
        Integer, server_default="0", comment="First task.ordinal of the stretch that the pass is in"
    )
    size: Mapped[int] = mapped_column(Integer, comment="How many ordinals the stretch has")
    position: Mapped[int] = mapped_column(
        Integer,
        server_default="0",
        comment="How many places of the stretch are done; of easy_to_hard: the ordinal behind its last task",
    )
    level: Mapped[float | None] = mapped_column(
        Double, comment="Level of the last task of easy_to_hard; NULL at the start of a pass"
    )

    __table_args__ = (
        CheckConstraint("walk IN ('shuffled', 'sequential', 'easy_to_hard')", "known_walk"),
        # A place before the first would issue a task twice in a pass.
        CheckConstraint("number >= 0 AND first >= 0 AND size >= 0 AND position >= 0", "place_in_order"),
    )


class TaskStat(Base):
    """How often a run issued and solved a task. Written by explorers, processors and people.

    A group counts when it becomes ready or is dropped. A reward of a ready one that changes later moves the
    counts in the same transaction. Explorers choose tasks by difficulty with it.
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
