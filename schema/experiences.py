"""What is trained on: the narrow hot row, the text for people, the arrays for the trainer."""

import uuid
from typing import Any

from sqlalchemy import (
    Boolean,
    CheckConstraint,
    Computed,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    SmallInteger,
    Text,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from trinity_db.schema.base import HOT_TABLE, Base, Id, Now, enum
from trinity_db.schema.states import ExperienceState


class Experience(Base):
    """One trainable token sequence: the hot row. Explorer or import write it, processors and trainer move it.

    A training run adopts imported rows: it copies the hot row and shares text and rollout
    with the row that `source_id` names, so that several runs can use one data set, each
    with states and use counts of its own.
    """

    __tablename__ = "experience"

    id: Mapped[Id]
    run_id: Mapped[int] = mapped_column(ForeignKey("run.id", ondelete="CASCADE"))
    # That of its rollout, which holds it to a group that exists.
    group_id: Mapped[int | None]
    # No cascade: a data set cannot be deleted while a run has adopted its rows.
    rollout_id: Mapped[int | None] = mapped_column(ForeignKey("rollout.id"))
    source_id: Mapped[int | None] = mapped_column(ForeignKey("experience.id"))
    step: Mapped[int] = mapped_column(SmallInteger, server_default="0")
    state: Mapped[ExperienceState] = mapped_column(enum(ExperienceState, "experience_state"))
    # Kept for evaluation: never drawn.
    held_out: Mapped[bool] = mapped_column(Boolean, server_default="false")
    version_min: Mapped[int | None] = mapped_column(Integer)
    version_max: Mapped[int | None] = mapped_column(Integer)
    reward: Mapped[float | None] = mapped_column(Double)
    priority: Mapped[float] = mapped_column(Double, server_default="0")
    # Committed uses.
    use_count: Mapped[int] = mapped_column(Integer, server_default="0")
    # In tokens; NULL until the row has a payload.
    prompt_length: Mapped[int | None] = mapped_column(Integer)
    response_length: Mapped[int | None] = mapped_column(Integer)
    # The lease, and its fencing token. The claim knows that the worker is there.
    worker_id: Mapped[int | None]
    attempt: Mapped[int] = mapped_column(Integer, server_default="0")
    # Made from an imported row's content, so that importing it again adds nothing.
    import_key: Mapped[uuid.UUID | None]
    created_at: Mapped[Now]
    # The transaction that adopted it, then the one that gave it tokens. A row of a live group has none: it
    # is drawn with its group.
    ready_xact: Mapped[int | None]
    # The run's, in a row that passes over the data may use: not in one that is live, held out or the worse
    # one of a pair.
    seed: Mapped[int | None]
    # The run's, in a row that it adopted.
    draws_labels: Mapped[bool] = mapped_column(Boolean, server_default="false")
    # Where it stands in the shuffled order of its pass: another one after each use. NULL where it cannot be
    # drawn now: a row without tokens, or with a reward of zero or less. Where the run learns from labels, one
    # without tokens or without a reward.
    place: Mapped[int | None] = mapped_column(
        Computed(
            "CASE WHEN prompt_length IS NOT NULL"
            " AND (reward > 0::double precision OR (reward IS NOT NULL) = draws_labels)"
            " THEN hashint8extended(source_id, seed + use_count) ELSE NULL::bigint END",
            persisted=True,
        )
    )

    __table_args__ = (
        CheckConstraint("(group_id IS NULL) = (rollout_id IS NULL)", "group_iff_rollout"),
        # A row in a batch that nobody holds would never be drawn again.
        CheckConstraint("state <> 'leased' OR worker_id IS NOT NULL", "leased_by_a_worker"),
        CheckConstraint("reward > '-Infinity' AND reward < 'Infinity'", "reward_finite"),
        CheckConstraint("version_min <= version_max", "versions_in_order"),
        Index(
            "experience_import_key",
            "run_id",
            "import_key",
            unique=True,
            postgresql_where=text("import_key IS NOT NULL"),
        ),
        # Their first columns find the adopted rows that follow a reward, or hold up a deletion.
        Index(
            "experience_source_key",
            "source_id",
            "run_id",
            unique=True,
            postgresql_where=text("source_id IS NOT NULL"),
        ),
        Index(
            "experience_rollout_key",
            "rollout_id",
            "step",
            "run_id",
            unique=True,
            postgresql_where=text("rollout_id IS NOT NULL"),
        ),
        Index(
            "experience_open_idx",
            "run_id",
            "state",
            "id",
            postgresql_where=text("state IN ('raw', 'clean', 'scored') AND worker_id IS NULL"),
        ),
        Index(
            "experience_place_idx",
            "run_id",
            "use_count",
            "place",
            "id",
            postgresql_where=text("state = 'ready' AND place IS NOT NULL"),
        ),
        Index("experience_ready_idx", "run_id", "id", postgresql_where=text("state = 'ready'")),
        Index("experience_group_idx", "group_id", postgresql_where=text("group_id IS NOT NULL")),
        Index("experience_worker_idx", "worker_id", postgresql_where=text("worker_id IS NOT NULL")),
        {"postgresql_with": HOT_TABLE},
    )


class ExperienceText(Base):
    """Prompt and response for people and search; immutable. Written by explorer and import."""

    __tablename__ = "experience_text"

    experience_id: Mapped[int] = mapped_column(
        ForeignKey("experience.id", ondelete="CASCADE"), primary_key=True
    )
    prompt: Mapped[str] = mapped_column(Text)
    response: Mapped[str] = mapped_column(Text)
    # The prompt as a conversation, where it was one.
    messages: Mapped[list[dict[str, str]] | None] = mapped_column(JSONB)
    # Columns of an imported row that have no place of their own; an export gives them back.
    extra: Mapped[dict[str, Any] | None]
    # Of the environment that the response is an action in, where the workflow says it; otherwise the prompt
    # is. Here and not in the hot row: it is as long as a prompt, costs nothing where there is none, and is
    # read where the prompt would be.
    state: Mapped[str | None] = mapped_column(Text)

    # Bytes. Texts are compressed where two rows do not fit a page: to do it for all of them costs a write
    # more time than the fewer bytes save.
    __table_args__ = ({"postgresql_with": {"toast_tuple_target": "4080"}},)


class Payload(Base):
    """An experience's arrays, packed as in trinity_db.arrays; immutable. Written by explorer and trainer.

    The archiver moves the bytes to Lance and leaves their row's id there.
    """

    __tablename__ = "payload"

    experience_id: Mapped[int] = mapped_column(
        ForeignKey("experience.id", ondelete="CASCADE"), primary_key=True
    )
    codec: Mapped[str] = mapped_column(Text)
    num_tokens: Mapped[int] = mapped_column(Integer)
    # STORAGE EXTERNAL (set in the migration): such bytes gain nothing from compression.
    data: Mapped[bytes | None] = mapped_column(LargeBinary)
    # Row id in the Lance table of the experience's run. Such ids are stable: compaction keeps them.
    archive_row: Mapped[int | None]

    __table_args__ = (
        CheckConstraint("num_tokens > 0", "has_tokens"),
        CheckConstraint("num_nonnulls(data, archive_row) = 1", "in_one_place"),
        # What was archived leaves its bytes behind in the TOAST table; a few gigabytes are used again soon.
        {"postgresql_with": {"toast.autovacuum_vacuum_scale_factor": "0.05"}},
    )


class Archive(Base):
    """The Lance table of a run's archived payloads, and who may write it. Written by the archiver.

    One row a run that archives.
    """

    __tablename__ = "archive"

    run_id: Mapped[int] = mapped_column(ForeignKey("run.id", ondelete="CASCADE"), primary_key=True)
    # The lease, and its fencing token: one writer at a time, and nothing of an earlier one counts.
    worker_id: Mapped[int | None] = mapped_column(ForeignKey("worker.id"))
    attempt: Mapped[int] = mapped_column(Integer, server_default="0")
    # What was archived in all.
    num_rows: Mapped[int] = mapped_column(server_default="0")
    num_bytes: Mapped[int] = mapped_column(server_default="0")
    created_at: Mapped[Now]
