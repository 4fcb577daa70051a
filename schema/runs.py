"""Runs, the workers that serve them, the policy versions they publish, what they measure."""

from datetime import datetime
from typing import Any, get_args

from sqlalchemy import (
    Boolean,
    CheckConstraint,
    Computed,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.orm import Mapped, mapped_column

from trinity_db.schema.base import LOCAL, Base, Id, Now, enum, refers_to
from trinity_db.schema.states import Draws, RunKind, RunState, WorkerRole


class Run(Base):
    """One training effort, or one imported data set. Written by the command line."""

    __tablename__ = "run"

    id: Mapped[Id] = mapped_column(comment="Number of the run, never used again")
    name: Mapped[str] = mapped_column(Text, unique=True, comment="Name of the run or data set")
    kind: Mapped[RunKind] = mapped_column(
        enum(RunKind, "run_kind"), comment="train for a training effort, data for an imported data set"
    )
    state: Mapped[RunState] = mapped_column(
        enum(RunState, "run_state"), server_default="active", comment="active or finished"
    )
    config: Mapped[dict[str, Any]] = mapped_column(comment="The resolved configuration")
    # What statements need of the configuration stands in columns of its own.
    seed: Mapped[int] = mapped_column(
        Computed("COALESCE((config ->> 'seed'::text)::bigint, 0::bigint)", persisted=True),
        comment="Seed of its draws and of its passes over data, from the configuration",
    )
    derives_pairs: Mapped[bool] = mapped_column(
        Boolean,
        Computed("(config #>> '{processors,pair}'::text[]) IS NOT NULL", persisted=True),
        comment="Whether a processor derives pairs from its groups, from the configuration",
    )
    # The statements know no algorithm by its name: the command line says what the algorithm draws. A run that
    # draws rows passes by those that are known to be bad. One that draws labels takes good and bad rows, and
    # none without a reward.
    draws: Mapped[str | None] = mapped_column(
        Text,
        comment=(
            "What its batches are made of: groups (its own rollout groups), rows (imported ones to "
            "imitate), labels (imported ones that their reward calls good or bad) or pairs; NULL for a "
            "data set"
        ),
    )
    created_at: Mapped[Now] = mapped_column(comment="Time at which it was made")
    finished_at: Mapped[datetime | None] = mapped_column(
        comment="Time at which the configured work was done; NULL before"
    )
    deleting_at: Mapped[datetime | None] = mapped_column(
        comment="Time at which its deletion began; from then on no role serves it or adopts its rows"
    )
    # Never cleared: a worker that starts after it works on.
    stop_asked_at: Mapped[datetime | None] = mapped_column(
        comment="Time of the last `trinity-db stop`; workers that started before it end. NULL: none so far",
        info=LOCAL,
    )

    __table_args__ = (
        CheckConstraint("(state = 'finished') = (finished_at IS NOT NULL)", "finished_at_iff_finished"),
        # A run that did not say what it draws would adopt rows without the places that its draws look for.
        CheckConstraint("(kind = 'train') = (draws IS NOT NULL)", "draws_iff_train"),
        CheckConstraint(f"draws IN ({', '.join(map(repr, get_args(Draws)))})", "known_draws"),
    )


class RunSetting(Base):
    """The configuration of a run from one moment on. The command line adds a row with each change.

    The newest row has the configuration of the run; rows are never changed. Every worker and every batch
    names the row under which it works or was drawn.
    """

    __tablename__ = "run_setting"

    id: Mapped[Id] = mapped_column(comment="Number of the setting, never used again")
    run_id: Mapped[int] = mapped_column(
        ForeignKey("run.id", ondelete="CASCADE"), comment="The run that the row belongs to"
    )
    config: Mapped[dict[str, Any]] = mapped_column(comment="The resolved configuration")
    created_at: Mapped[Now] = mapped_column(comment="Time from which on the run has it")
    created_by: Mapped[str | None] = mapped_column(
        Text,
        server_default=text("SESSION_USER"),
        comment="Login that made the change; NULL where the run is older than such rows",
    )
    host: Mapped[str | None] = mapped_column(
        Text, comment="Machine on which the change was made; NULL where the run is older than such rows"
    )

    # Workers and batches refer to both columns, so that none can name the setting of another run.
    __table_args__ = (UniqueConstraint("run_id", "id"),)


class Worker(Base):
    """One process in a role. Leases are alive while its heartbeat is. Written by every role."""

    __tablename__ = "worker"

    id: Mapped[Id] = mapped_column(comment="Number of the worker, never used again")
    run_id: Mapped[int] = mapped_column(
        ForeignKey("run.id", ondelete="CASCADE"), comment="The run that the row belongs to"
    )
    role: Mapped[WorkerRole] = mapped_column(
        enum(WorkerRole, "worker_role"), comment="explore, process or train"
    )
    setting_id: Mapped[int] = mapped_column(
        comment="The run_setting that it has read; settings do not change while a worker is alive"
    )
    host: Mapped[str] = mapped_column(Text, comment="Name of its machine")
    pid: Mapped[int] = mapped_column(Integer, comment="Its process id on that machine")
    login: Mapped[str] = mapped_column(
        Text, server_default=text("session_user"), comment="Its login to the server"
    )
    started_at: Mapped[Now] = mapped_column(comment="Time at which it started")
    heartbeat_at: Mapped[Now] = mapped_column(
        comment="Time of its last sign of life; 30 s later its leases end"
    )
    stopped_at: Mapped[datetime | None] = mapped_column(
        comment="Time at which it stopped or was taken for gone; NULL while it works"
    )
    exclusive: Mapped[bool] = mapped_column(
        server_default=text("false"),
        comment="Whether it is the only worker of its role in the run",
    )
    session_pid: Mapped[int | None] = mapped_column(
        Integer,
        comment="Process of the server that answers its heartbeats; NULL behind a pooler",
    )

    staged_version: Mapped[int | None] = mapped_column(
        Integer,
        comment=(
            "The version that its machine fetched last, from an object store or by broadcast; NULL if it has "
            "fetched none. Of explorers"
        ),
    )
    broken_weights: Mapped[str | None] = mapped_column(
        Text,
        comment=(
            "Address of a version in an object store whose objects it found missing or damaged, for the "
            "trainer to upload again; NULL if it could fetch the last one"
        ),
        info=LOCAL,
    )

    broadcast_at: Mapped[str | None] = mapped_column(
        Text,
        CheckConstraint("broadcast_at IS NULL OR role = 'train'", name="is_of_a_trainer"),
        comment=(
            "Host and port where explorers ask it to broadcast a version; NULL if it broadcasts none. Of "
            "trainers"
        ),
        info=LOCAL,
    )
    # The trainer rounds versions to it. A format that it does not know would end the trainer.
    engine_dtype: Mapped[str | None] = mapped_column(
        Text,
        CheckConstraint(
            "engine_dtype IS NULL OR role = 'explore' AND engine_dtype IN ('float32', 'bfloat16', 'float16')",
            name="dtype_of_an_explorer",
        ),
        comment=(
            "Number format of its engine's weights: float32, bfloat16 or float16; NULL if unknown, such as "
            "with the engine endpoint. Explorers only"
        ),
    )

    __table_args__ = (
        ForeignKeyConstraint(["run_id", "setting_id"], ["run_setting.run_id", "run_setting.id"]),
        Index(
            "worker_exclusive_idx",
            "run_id",
            "role",
            unique=True,
            postgresql_where=text("exclusive AND stopped_at IS NULL"),
        ),
        Index("worker_running_idx", "run_id", "id", postgresql_where=text("stopped_at IS NULL")),
        # A heartbeat rewrites the row: leave room for it on its own page.
        {"postgresql_with": {"fillfactor": "50"}},
    )


class PolicyVersion(Base):
    """Weights that explorers may use, and where their files lie. Written by the trainer."""

    __tablename__ = "policy_version"

    run_id: Mapped[int] = mapped_column(
        ForeignKey("run.id", ondelete="CASCADE"), primary_key=True, comment="The run that the row belongs to"
    )
    version: Mapped[int] = mapped_column(
        Integer, primary_key=True, comment="Number of the version; 0 is the starting model"
    )
    step: Mapped[int] = mapped_column(Integer, comment="Trainer step after which it was published")
    checkpoint: Mapped[str | None] = mapped_column(
        Text, comment="Where its weights lie; NULL once they were removed", info=LOCAL
    )
    checkpoint_hash: Mapped[str] = mapped_column(Text, comment="Hash of the files in that folder")
    weights: Mapped[str | None] = mapped_column(
        Text,
        comment=(
            "Address of the same files in an object store, for machines that do not see the folder; NULL if "
            "they are in the folder alone, or once they were removed"
        ),
        info=LOCAL,
    )
    published_at: Mapped[Now] = mapped_column(comment="Time at which it was published")
    resume_from: Mapped[str | None] = mapped_column(
        Text,
        comment=(
            "Where the checkpoint lies that a trainer goes on from at this version; NULL if there is none, "
            "or once it was removed"
        ),
        info=LOCAL,
    )
    resume_hash: Mapped[str | None] = mapped_column(
        Text, comment="Hash of the checkpoint's files; NULL if this version never had one"
    )
    resume_address: Mapped[str | None] = mapped_column(
        Text,
        comment=(
            "Address of the same checkpoint in an object store, for a trainer on another machine; NULL if "
            "it is in the folder alone, or once it was removed"
        ),
        info=LOCAL,
    )
    withdrawn_at: Mapped[datetime | None] = mapped_column(
        comment="Time at which the run went back behind it; NULL while it is on the run's line"
    )
    # By a default, so that a trainer of before may publish.
    skipped: Mapped[int] = mapped_column(
        Integer,
        server_default=text("0"),
        comment=(
            "Numbers below its own of versions that it does not come from: they were withdrawn or lost "
            "before. version - skipped is its place on the run's line"
        ),
    )

    __table_args__ = (
        CheckConstraint("version >= 0 AND step >= 0", "not_negative"),
        CheckConstraint("skipped >= 0 AND skipped <= version", "skips_numbers_below"),
        CheckConstraint("withdrawn_at IS NULL OR checkpoint IS NULL", "withdrawn_has_no_files"),
        # The objects go once no version names them: explorers would ask for what is not there.
        CheckConstraint("weights IS NULL OR checkpoint IS NOT NULL", "weights_are_kept"),
        # Without the weights of its version, explorers could not sample where the trainer goes on.
        CheckConstraint(
            "resume_from IS NULL OR checkpoint IS NOT NULL AND resume_hash IS NOT NULL",
            "checkpoint_has_weights",
        ),
        # The objects go once no version names the checkpoint: a trainer would ask for what is not there.
        CheckConstraint("resume_address IS NULL OR resume_from IS NOT NULL", "uploaded_is_kept"),
    )


class Metric(Base):
    """One measured number. Written by every role."""

    __tablename__ = "metric"

    id: Mapped[Id] = mapped_column(comment="Number of the measurement, never used again")
    run_id: Mapped[int] = mapped_column(
        ForeignKey("run.id", ondelete="CASCADE"), comment="The run that the row belongs to"
    )
    role: Mapped[WorkerRole] = mapped_column(
        enum(WorkerRole, "worker_role"), comment="The role that measured it: explore, process or train"
    )
    step: Mapped[int] = mapped_column(
        Integer, comment="Trainer step; for an explorer the policy version that it had"
    )
    name: Mapped[str] = mapped_column(
        Text, comment="Name of the metric; docs/reference/metrics.md has its meaning and unit"
    )
    value: Mapped[float] = mapped_column(Double, comment="The number, in the unit of the metric")
    created_at: Mapped[Now] = mapped_column(comment="Time at which it was written")

    __table_args__ = (Index(None, "run_id", "name", "step"),)


class Setback(Base):
    """Steps and versions that a server has lost, and where the run went on. Written by the trainer."""

    __tablename__ = "setback"

    id: Mapped[Id] = mapped_column(comment="Number of the setback, never used again")
    run_id: Mapped[int] = mapped_column(
        ForeignKey("run.id", ondelete="CASCADE"), comment="The run that the row belongs to"
    )
    worker_id: Mapped[int] = mapped_column(comment="The trainer that noticed it", info=refers_to("worker"))
    known_version: Mapped[int] = mapped_column(Integer, comment="Newest version that the store still knew")
    known_step: Mapped[int] = mapped_column(Integer, comment="Last committed step that the store still knew")
    last_step: Mapped[int] = mapped_column(Integer, comment="Last step that was lost")
    num_rows: Mapped[int | None] = mapped_column(
        Integer,
        comment="Rows of the lost steps, which are drawn again; NULL if no trainer was left to count them",
    )
    first_version: Mapped[int | None] = mapped_column(
        Integer, comment="First version that was lost; NULL if none was. Its number is not used again"
    )
    last_version: Mapped[int | None] = mapped_column(
        Integer, comment="Last version that was lost; NULL where none was"
    )
    resumed_version: Mapped[int] = mapped_column(Integer, comment="The version that the run went on from")
    adopted_version: Mapped[int | None] = mapped_column(
        Integer,
        comment="The lost version whose checkpoint the run went on from; NULL if that version was not lost",
    )
    created_at: Mapped[Now] = mapped_column(comment="Time at which it was noticed")

    __table_args__ = (
        Index(None, "run_id"),
        CheckConstraint("(first_version IS NULL) = (last_version IS NULL)", "versions_together"),
        CheckConstraint("last_step > known_step OR last_version IS NOT NULL", "lost_something"),
    )
