"""Runs, their workers, their policy versions, and their metrics."""

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

from trinity_db.schema.states import Draws, RunKind, RunState, WorkerRole
from trinity_db.schema.tables.base import LOCAL, Base, Id, Now, enum, refers_to


class Run(Base):
    """One training effort, or one imported data set. Written by the command line."""

    __tablename__ = "run"

    id: Mapped[Id] = mapped_column(comment="Id of the run, never reused")
    name: Mapped[str] = mapped_column(Text, unique=True, comment="Name of the run or data set")
    kind: Mapped[RunKind] = mapped_column(
        enum(RunKind, "run_kind"), comment="train for a training effort, data for an imported data set"
    )
    state: Mapped[RunState] = mapped_column(
        enum(RunState, "run_state"), server_default="active", comment="active or finished"
    )
    config: Mapped[dict[str, Any]] = mapped_column(comment="The resolved configuration")
    # Parts of the configuration that statements need are separate columns.
    seed: Mapped[int] = mapped_column(
        Computed("COALESCE((config ->> 'seed'::text)::bigint, 0::bigint)", persisted=True),
        comment="Seed of its draws and of its passes over data, from the configuration",
    )
    derives_pairs: Mapped[bool] = mapped_column(
        Boolean,
        Computed("(config #>> '{processors,pair}'::text[]) IS NOT NULL", persisted=True),
        comment="Whether a processor derives pairs from its groups, from the configuration",
    )
    # Statements do not know algorithms by name: the command line sets what the algorithm draws. A run that
    # draws rows skips rows known to be bad. A run that draws labels takes good and bad rows, and none without
    # a reward.
    draws: Mapped[str | None] = mapped_column(
        Text,
        comment=(
            "Unit of its batches: groups (its own rollout groups), rows (imported ones to imitate), "
            "labels (imported ones that their reward labels as good or bad) or pairs; NULL for a data set"
        ),
    )
    created_at: Mapped[Now] = mapped_column(comment="Time at which it was created")
    finished_at: Mapped[datetime | None] = mapped_column(
        comment="Time at which the configured work was complete; NULL before"
    )
    deleting_at: Mapped[datetime | None] = mapped_column(
        comment="Time at which its deletion began; from then on no role serves it or adopts its rows"
    )
    # Never cleared: workers that start later ignore it.
    stop_asked_at: Mapped[datetime | None] = mapped_column(
        comment="Time of the last `trinity-db stop`; workers that started before it exit. NULL: never",
        info=LOCAL,
    )

    __table_args__ = (
        CheckConstraint("(state = 'finished') = (finished_at IS NOT NULL)", "finished_at_iff_finished"),
        # Without it, a run would adopt rows without the places that its draws search for.
        CheckConstraint("(kind = 'train') = (draws IS NOT NULL)", "draws_iff_train"),
        CheckConstraint(f"draws IN ({', '.join(map(repr, get_args(Draws)))})", "known_draws"),
    )


class RunSetting(Base):
    """The configuration of a run from a given time. The command line adds a row for each change.

    The newest row is the current configuration; rows never change. Every worker and batch refers to its
    row.
    """

    __tablename__ = "run_setting"

    id: Mapped[Id] = mapped_column(comment="Id of the setting, never reused")
    run_id: Mapped[int] = mapped_column(ForeignKey("run.id", ondelete="CASCADE"), comment="Run of the row")
    config: Mapped[dict[str, Any]] = mapped_column(comment="The resolved configuration")
    created_at: Mapped[Now] = mapped_column(comment="Time from which it applies")
    created_by: Mapped[str] = mapped_column(
        Text, server_default=text("SESSION_USER"), comment="Login that made the change"
    )
    host: Mapped[str | None] = mapped_column(
        Text, comment="Host on which the change was made; NULL if unknown"
    )

    # Workers and batches refer to both columns, so that none can use another run's setting.
    __table_args__ = (UniqueConstraint("run_id", "id"),)


class Worker(Base):
    """One process in a role. Its leases are valid while its heartbeats continue. Written by every role."""

    __tablename__ = "worker"

    id: Mapped[Id] = mapped_column(comment="Id of the worker, never reused")
    run_id: Mapped[int] = mapped_column(ForeignKey("run.id", ondelete="CASCADE"), comment="Run of the row")
    role: Mapped[WorkerRole] = mapped_column(
        enum(WorkerRole, "worker_role"), comment="explore, process or train"
    )
    setting_id: Mapped[int] = mapped_column(
        comment="The run_setting that it has read; settings do not change while a worker is alive"
    )
    host: Mapped[str] = mapped_column(Text, comment="Name of its host")
    pid: Mapped[int] = mapped_column(Integer, comment="Its process id on that host")
    login: Mapped[str] = mapped_column(
        Text, server_default=text("session_user"), comment="Its login to the server"
    )
    started_at: Mapped[Now] = mapped_column(comment="Time at which it started")
    heartbeat_at: Mapped[Now] = mapped_column(
        comment="Time of its last heartbeat; its leases expire 30 s later"
    )
    stopped_at: Mapped[datetime | None] = mapped_column(
        comment="Time at which it stopped or was marked as gone; NULL while it works"
    )
    exclusive: Mapped[bool] = mapped_column(
        server_default=text("false"),
        comment="Whether it is the only worker of its role in the run",
    )
    session_pid: Mapped[int | None] = mapped_column(
        Integer,
        comment="Server process that answers its heartbeats; NULL behind a pooler",
    )

    staged_version: Mapped[int | None] = mapped_column(
        Integer,
        comment=(
            "Version that its node last fetched, from an object store or by broadcast; NULL without any. "
            "Explorers only"
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
            "Host and port from which explorers request the broadcast of a version; NULL if it broadcasts "
            "none. Trainers only"
        ),
        info=LOCAL,
    )
    # The trainer rounds versions to it, and would exit with an unknown format.
    engine_dtype: Mapped[str | None] = mapped_column(
        Text,
        CheckConstraint(
            "engine_dtype IS NULL OR role = 'explore' AND engine_dtype IN ('float32', 'bfloat16', 'float16')",
            name="dtype_of_an_explorer",
        ),
        comment=(
            "Number format of its engine's weights: float32, bfloat16 or float16; NULL if unknown, for "
            "example with the engine endpoint. Explorers only"
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
        # Heartbeats rewrite the row: leave room on its page.
        {"postgresql_with": {"fillfactor": "50"}},
    )


class PolicyVersion(Base):
    """Weights for explorers, and the place of their files. Written by the trainer."""

    __tablename__ = "policy_version"

    run_id: Mapped[int] = mapped_column(
        ForeignKey("run.id", ondelete="CASCADE"), primary_key=True, comment="Run of the row"
    )
    version: Mapped[int] = mapped_column(
        Integer, primary_key=True, comment="Number of the version; 0 is the starting model"
    )
    step: Mapped[int] = mapped_column(Integer, comment="Trainer step after which it was published")
    checkpoint: Mapped[str | None] = mapped_column(
        Text, comment="Folder of its weights; NULL once they are deleted", info=LOCAL
    )
    checkpoint_hash: Mapped[str] = mapped_column(Text, comment="Hash of the files in that folder")
    weights: Mapped[str | None] = mapped_column(
        Text,
        comment=(
            "Address of the same files in an object store, for nodes that cannot access the folder; NULL "
            "if they are only in the folder, or once they are deleted"
        ),
        info=LOCAL,
    )
    published_at: Mapped[Now] = mapped_column(comment="Time at which it was published")
    resume_from: Mapped[str | None] = mapped_column(
        Text,
        comment=(
            "Folder of the checkpoint from which a trainer resumes at this version; NULL without one, or "
            "once it is deleted"
        ),
        info=LOCAL,
    )
    resume_hash: Mapped[str | None] = mapped_column(
        Text, comment="Hash of the checkpoint's files; NULL if this version never had one"
    )
    resume_address: Mapped[str | None] = mapped_column(
        Text,
        comment=(
            "Address of the same checkpoint in an object store, for a trainer on another node; NULL if it "
            "is only in the folder, or once it is deleted"
        ),
        info=LOCAL,
    )
    withdrawn_at: Mapped[datetime | None] = mapped_column(
        comment="Time at which the run went back behind it; NULL while it is on the run's line"
    )
    skipped: Mapped[int] = mapped_column(
        Integer,
        server_default=text("0"),
        comment=(
            "Number of lower versions that are not its ancestors: withdrawn or lost before. version - "
            "skipped is its position on the run's line"
        ),
    )

    __table_args__ = (
        CheckConstraint("version >= 0 AND step >= 0", "not_negative"),
        CheckConstraint("skipped >= 0 AND skipped <= version", "skips_numbers_below"),
        CheckConstraint("withdrawn_at IS NULL OR checkpoint IS NULL", "withdrawn_has_no_files"),
        # Objects are deleted once no version refers to them; explorers would request missing objects.
        CheckConstraint("weights IS NULL OR checkpoint IS NOT NULL", "weights_are_kept"),
        # Without its version's weights, explorers could not sample when the trainer resumes.
        CheckConstraint(
            "resume_from IS NULL OR checkpoint IS NOT NULL AND resume_hash IS NOT NULL",
            "checkpoint_has_weights",
        ),
        # Objects are deleted once no version refers to them; a trainer would request missing objects.
        CheckConstraint("resume_address IS NULL OR resume_from IS NOT NULL", "uploaded_is_kept"),
    )


class Metric(Base):
    """One measured number. Written by every role."""

    __tablename__ = "metric"

    id: Mapped[Id] = mapped_column(comment="Id of the measurement, never reused")
    run_id: Mapped[int] = mapped_column(ForeignKey("run.id", ondelete="CASCADE"), comment="Run of the row")
    role: Mapped[WorkerRole] = mapped_column(
        enum(WorkerRole, "worker_role"), comment="Role that measured it: explore, process or train"
    )
    step: Mapped[int] = mapped_column(Integer, comment="Trainer step; for an explorer, its policy version")
    name: Mapped[str] = mapped_column(
        Text, comment="Name of the metric; docs/reference/metrics.md has its meaning and unit"
    )
    value: Mapped[float] = mapped_column(Double, comment="The number, in the unit of the metric")
    created_at: Mapped[Now] = mapped_column(comment="Time at which it was written")

    __table_args__ = (Index(None, "run_id", "name", "step"),)


class Setback(Base):
    """Steps and versions that a server has lost, and where the run continued. Written by the trainer."""

    __tablename__ = "setback"

    id: Mapped[Id] = mapped_column(comment="Id of the setback, never reused")
    run_id: Mapped[int] = mapped_column(ForeignKey("run.id", ondelete="CASCADE"), comment="Run of the row")
    worker_id: Mapped[int] = mapped_column(comment="Trainer that detected it", info=refers_to("worker"))
    known_version: Mapped[int] = mapped_column(Integer, comment="Newest version that the store still had")
    known_step: Mapped[int] = mapped_column(Integer, comment="Last committed step that the store still had")
    last_step: Mapped[int] = mapped_column(Integer, comment="Last lost step")
    num_rows: Mapped[int | None] = mapped_column(
        Integer,
        comment="Rows of the lost steps, which are drawn again; NULL if no trainer was left to count them",
    )
    first_version: Mapped[int | None] = mapped_column(
        Integer, comment="First lost version; NULL without any. Its number is not reused"
    )
    last_version: Mapped[int | None] = mapped_column(Integer, comment="Last lost version; NULL without any")
    resumed_version: Mapped[int] = mapped_column(Integer, comment="Version from which the run continued")
    adopted_version: Mapped[int | None] = mapped_column(
        Integer,
        comment="Lost version from whose checkpoint the run continued; NULL if that version was not lost",
    )
    created_at: Mapped[Now] = mapped_column(comment="Time at which it was detected")

    __table_args__ = (
        Index(None, "run_id"),
        CheckConstraint("(first_version IS NULL) = (last_version IS NULL)", "versions_together"),
        CheckConstraint("last_step > known_step OR last_version IS NOT NULL", "lost_something"),
    )
