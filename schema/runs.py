"""Runs, the workers that serve them, the policy versions they publish, what they measure."""

from datetime import datetime
from typing import Any

from sqlalchemy import Boolean, CheckConstraint, Computed, Double, ForeignKey, Index, Integer, Text, text
from sqlalchemy.orm import Mapped, mapped_column

from trinity_db.schema.base import Base, Id, Now, enum
from trinity_db.schema.states import RunKind, RunState, WorkerRole


class Run(Base):
    """One training effort, or one imported data set. Written by the command line."""

    __tablename__ = "run"

    id: Mapped[Id]
    name: Mapped[str] = mapped_column(Text, unique=True)
    kind: Mapped[RunKind] = mapped_column(enum(RunKind, "run_kind"))
    state: Mapped[RunState] = mapped_column(enum(RunState, "run_state"), server_default="active")
    config: Mapped[dict[str, Any]]
    # What statements ask of the configuration. What shuffles its passes over data:
    seed: Mapped[int] = mapped_column(
        Computed("COALESCE((config ->> 'seed'::text)::bigint, 0::bigint)", persisted=True)
    )
    # Whether a processor derives pairs from its groups.
    derives_pairs: Mapped[bool] = mapped_column(
        Boolean, Computed("(config #>> '{processors,pair}'::text[]) IS NOT NULL", persisted=True)
    )
    # Whether it learns from good rows and from bad ones, by their rewards, and from none without a reward;
    # otherwise it passes by those that are known to be bad.
    draws_labels: Mapped[bool] = mapped_column(
        Boolean,
        Computed(
            """config @> '{"algorithm": {"name": "kto"}}'::jsonb"""
            """ OR config @> '{"algorithm": "kto"}'::jsonb""",
            persisted=True,
        ),
    )
    created_at: Mapped[Now]
    finished_at: Mapped[datetime | None]

    __table_args__ = (
        CheckConstraint("(state = 'finished') = (finished_at IS NOT NULL)", "finished_at_iff_finished"),
    )


class Worker(Base):
    """One process in a role. Leases are alive while its heartbeat is. Written by every role."""

    __tablename__ = "worker"

    id: Mapped[Id]
    run_id: Mapped[int] = mapped_column(ForeignKey("run.id", ondelete="CASCADE"))
    role: Mapped[WorkerRole] = mapped_column(enum(WorkerRole, "worker_role"))
    host: Mapped[str] = mapped_column(Text)
    pid: Mapped[int] = mapped_column(Integer)
    started_at: Mapped[Now]
    heartbeat_at: Mapped[Now]
    stopped_at: Mapped[datetime | None]

    __table_args__ = (
        Index("worker_running_idx", "run_id", postgresql_where=text("stopped_at IS NULL")),
        # A heartbeat rewrites the row: leave room for it on its own page.
        {"postgresql_with": {"fillfactor": "50"}},
    )


class PolicyVersion(Base):
    """Weights that explorers may use, and the checkpoint that holds them. Written by the trainer."""

    __tablename__ = "policy_version"

    run_id: Mapped[int] = mapped_column(ForeignKey("run.id", ondelete="CASCADE"), primary_key=True)
    version: Mapped[int] = mapped_column(Integer, primary_key=True)
    step: Mapped[int] = mapped_column(Integer)
    # Where the files lie; NULL once they were pruned.
    checkpoint: Mapped[str | None] = mapped_column(Text)
    checkpoint_hash: Mapped[str] = mapped_column(Text)
    published_at: Mapped[Now]

    __table_args__ = (CheckConstraint("version >= 0 AND step >= 0", "not_negative"),)


class Metric(Base):
    """One measured number. Written by every role."""

    __tablename__ = "metric"

    id: Mapped[Id]
    run_id: Mapped[int] = mapped_column(ForeignKey("run.id", ondelete="CASCADE"))
    role: Mapped[WorkerRole] = mapped_column(enum(WorkerRole, "worker_role"))
    step: Mapped[int] = mapped_column(Integer)
    name: Mapped[str] = mapped_column(Text)
    value: Mapped[float] = mapped_column(Double)
    created_at: Mapped[Now]

    __table_args__ = (Index(None, "run_id", "name", "step"),)
