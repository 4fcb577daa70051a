"""Experiences in three tables: the narrow hot row, the text for people, the arrays for the trainer."""

import uuid
from datetime import datetime
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
    UniqueConstraint,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from trinity_db.schema.states import ExperienceState
from trinity_db.schema.tables.base import (
    HOT_TABLE,
    LOCAL,
    OF_THE_STORE,
    TRANSACTION,
    Base,
    Id,
    Now,
    enum,
    refers_to,
)

IS_UNJUDGED = "state = ANY (ARRAY['raw'::trinity.experience_state, 'clean'::trinity.experience_state])"
# A row without tokens has no place. Without labels, neither has a row with a reward of zero or less; with
# labels, a row without a reward. trinity.is_learned_from is the same rule for statements.
HAS_PLACE = (
    "prompt_length IS NOT NULL AND (reward > 0::double precision OR (reward IS NOT NULL) = draws_labels)"
)


class Experience(Base):
    """One trainable token sequence: the hot row. Written by explorer and import, moved by later roles.

    A training run adopts imported rows, or rows of another run: it copies the hot row and shares text and
    rollout with the row in `source_id`, so that several runs can use one data set, each with separate states
    and use counts.
    """

    __tablename__ = "experience"

    id: Mapped[Id] = mapped_column(comment="Id of the experience, never reused")
    run_id: Mapped[int] = mapped_column(ForeignKey("run.id", ondelete="CASCADE"), comment="Run of the row")
    # Copied from its rollout, whose foreign key guarantees that the group exists.
    group_id: Mapped[int | None] = mapped_column(
        comment="Rollout group of its rollout; NULL for an imported row without a group",
        info=refers_to("rollout_group"),
    )
    # No cascade: a data set or run cannot be deleted while other runs have adopted its rows.
    rollout_id: Mapped[int | None] = mapped_column(
        ForeignKey("rollout.id"),
        comment="Its attempt; NULL for an imported row without one",
    )
    source_id: Mapped[int | None] = mapped_column(
        ForeignKey("experience.id"),
        comment=(
            "Experience of a data set or another run from which this one was adopted; NULL if it was not "
            "adopted"
        ),
    )
    step: Mapped[int] = mapped_column(
        SmallInteger,
        server_default="0",
        comment="Position in its rollout, from 0; a single-turn rollout has one step",
    )
    state: Mapped[ExperienceState] = mapped_column(
        enum(ExperienceState, "experience_state"),
        comment="raw, clean, scored, ready, leased, trained, dropped or expired; evaluated in an evaluation",
    )
    held_out: Mapped[bool] = mapped_column(
        Boolean, server_default="false", comment="Whether it is held out for evaluation and never drawn"
    )
    version_min: Mapped[int | None] = mapped_column(
        Integer,
        comment="Oldest policy version that sampled any of its tokens; NULL if no policy of this run did",
    )
    version_max: Mapped[int | None] = mapped_column(
        Integer,
        comment="Newest policy version that sampled any of its tokens; NULL if no policy of this run did",
    )
    reward: Mapped[float | None] = mapped_column(
        Double,
        comment=(
            "Weighted sum of the latest reward event of each name; without events, 1 or 0 from pairs in a "
            "run that learns from labels (label_in); NULL without a reward"
        ),
    )
    priority: Mapped[float] = mapped_column(
        Double,
        server_default="0",
        comment="Priority from steps. Samplers weigh each group by the mean of its rows",
    )
    use_count: Mapped[int] = mapped_column(
        Integer, server_default="0", comment="Number of committed batches that used it"
    )
    prompt_length: Mapped[int | None] = mapped_column(
        Integer, comment="Length of the prompt in tokens; NULL until the row has a payload"
    )
    response_length: Mapped[int | None] = mapped_column(
        Integer, comment="Length of the response in tokens; NULL until the row has a payload"
    )
    # No foreign key: only existing workers claim rows.
    worker_id: Mapped[int | None] = mapped_column(
        comment="Worker that holds its lease; NULL without a lease", info=refers_to("worker")
    )
    attempt: Mapped[int] = mapped_column(
        Integer,
        server_default="0",
        comment="Number of leases; a write with an older number is refused",
    )
    import_key: Mapped[uuid.UUID | None] = mapped_column(
        comment="Derived from an imported row's content, so that importing it again adds nothing"
    )
    created_at: Mapped[Now] = mapped_column(comment="Time at which it was written")
    ready_xact: Mapped[int | None] = mapped_column(
        comment=(
            "Transaction that adopted it, then the one that added its tokens; NULL for a row of a live "
            "group, which is drawn with its group"
        ),
        info=TRANSACTION,
    )
    seed: Mapped[int | None] = mapped_column(
        comment=(
            "The run's seed, in a row that passes over data may use; NULL in a row that is live, held out "
            "or the worse one of a pair"
        )
    )
    draws_labels: Mapped[bool] = mapped_column(
        Boolean,
        server_default="false",
        comment="Whether its run learns from good and bad rows, copied at the adoption",
    )
    place: Mapped[int | None] = mapped_column(
        Computed(
            f"CASE WHEN {HAS_PLACE} THEN hashint8extended(source_id, seed + use_count) ELSE NULL::bigint END",
            persisted=True,
        ),
        comment=(
            "Position in the shuffled order of a pass over data; changes with each use. NULL if it cannot "
            "be drawn now"
        ),
    )
    # No index contains the state, the lease or the uses, or tests them: indexes use these columns instead. So
    # a move that leaves these unchanged, such as from scored to ready, to leased and to trained, writes no
    # index entries (HOT).
    to_judge: Mapped[ExperienceState | None] = mapped_column(
        enum(ExperienceState, "experience_state"),
        Computed(
            f"CASE WHEN {IS_UNJUDGED} THEN state ELSE NULL::trinity.experience_state END",
            persisted=True,
        ),
        comment="raw or clean while processors still have to judge it; NULL afterwards",
    )
    judge_id: Mapped[int | None] = mapped_column(
        Computed(
            f"CASE WHEN {IS_UNJUDGED} THEN worker_id ELSE NULL::bigint END",
            persisted=True,
        ),
        comment="Processor that holds its lease; NULL without one",
        info=refers_to("worker"),
    )
    is_offered: Mapped[bool] = mapped_column(
        Boolean,
        Computed("state = 'ready'::trinity.experience_state AND version_min IS NULL", persisted=True),
        comment="Whether it is ready, and imported or adopted: not sampled by its run",
    )
    pass_number: Mapped[int | None] = mapped_column(
        Integer,
        Computed(
            f"CASE WHEN state = 'ready'::trinity.experience_state AND {HAS_PLACE}"
            " AND source_id IS NOT NULL AND seed IS NOT NULL THEN use_count ELSE NULL::integer END",
            persisted=True,
        ),
        comment="Pass over data in which it is drawn next, from 0; NULL if it cannot be drawn now",
    )

    __table_args__ = (
        # With only one of them, a row would be in a group for some statements and not for others.
        CheckConstraint("(group_id IS NULL) = (rollout_id IS NULL)", "group_iff_rollout"),
        # A leased row without a worker would never be drawn again.
        CheckConstraint("state <> 'leased' OR worker_id IS NOT NULL", "leased_by_a_worker"),
        # One infinite reward would make the advantages of its whole group infinite or NaN.
        CheckConstraint("reward > '-Infinity' AND reward < 'Infinity'", "reward_finite"),
        CheckConstraint("version_min <= version_max", "versions_in_order"),
        # Rows of evaluations are scored and never trained on. Held-out adopted rows stay ready.
        CheckConstraint(
            "source_id IS NOT NULL OR NOT held_out"
            " OR state::text = ANY (ARRAY['clean', 'evaluated', 'dropped'])",
            "evaluated_in_place_of_trained",
        ),
        CheckConstraint("held_out OR state::text <> 'evaluated'", "only_held_out_are_evaluated"),
        Index(
            "experience_import_key",
            "run_id",
            "import_key",
            unique=True,
            postgresql_where=text("import_key IS NOT NULL"),
        ),
        # Their first columns find adopted rows whose reward follows, or which block a deletion.
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
            "to_judge",
            "id",
            postgresql_where=text("to_judge IS NOT NULL"),
        ),
        Index(
            "experience_place_idx",
            "run_id",
            "pass_number",
            "place",
            "id",
            postgresql_where=text("pass_number IS NOT NULL"),
        ),
        Index("experience_ready_idx", "run_id", "id", postgresql_where=text("is_offered")),
        Index("experience_group_idx", "group_id", postgresql_where=text("group_id IS NOT NULL")),
        Index("experience_judge_idx", "judge_id", postgresql_where=text("judge_id IS NOT NULL")),
        {"postgresql_with": HOT_TABLE},
    )


class ExperienceText(Base):
    """Prompt and response for people and search; immutable. Written by explorer and import."""

    __tablename__ = "experience_text"

    experience_id: Mapped[int] = mapped_column(
        ForeignKey("experience.id", ondelete="CASCADE"),
        primary_key=True,
        comment="Experience of the text",
    )
    prompt: Mapped[str] = mapped_column(Text, comment="Prompt as sent to the model")
    response: Mapped[str] = mapped_column(Text, comment="Response as text")
    messages: Mapped[list[dict[str, Any]] | None] = mapped_column(
        JSONB, comment="The prompt as a conversation; NULL if it is plain text"
    )
    tools: Mapped[list[dict[str, Any]] | None] = mapped_column(
        JSONB,
        comment=(
            "Tools available to the model in an imported conversation, as JSON schemas; NULL without any"
        ),
    )
    reply: Mapped[list[dict[str, Any]] | None] = mapped_column(
        JSONB,
        comment=(
            "An imported response as messages, if it is more than text, for example with tool calls or "
            "several turns; NULL if response is complete"
        ),
    )
    extra: Mapped[dict[str, Any] | None] = mapped_column(
        comment="Further columns of an imported row; exports include them"
    )
    requests: Mapped[list[dict[str, Any]] | None] = mapped_column(
        JSONB,
        comment=(
            "Requests of programs that the row answers: path, model and number of calls of each kind; NULL "
            "if the workflow itself asked"
        ),
    )
    # It is here and not in the hot row: it is as long as a prompt, costs nothing if NULL, and is read in
    # place of the prompt.
    state: Mapped[str | None] = mapped_column(
        Text,
        comment=(
            "State of the environment in which the response is an action, if named by the workflow; NULL: "
            "the prompt is the state"
        ),
    )

    # In bytes. Only texts so long that two rows do not fit a page are compressed: compressing all of them
    # would cost each write more time than the saved bytes are worth.
    __table_args__ = ({"postgresql_with": {"toast_tuple_target": "4080"}},)


class Payload(Base):
    """Arrays of an experience, packed by trinity_db.arrays.codec; immutable. Written by explorer and trainer.

    The archiver moves the bytes to Lance and stores the id of their Lance row here. A pruned payload has no
    bytes.
    """

    __tablename__ = "payload"

    experience_id: Mapped[int] = mapped_column(
        ForeignKey("experience.id", ondelete="CASCADE"),
        primary_key=True,
        comment="Experience of the arrays",
    )
    codec: Mapped[str] = mapped_column(Text, comment="Encoding of data")
    num_tokens: Mapped[int] = mapped_column(Integer, comment="Number of tokens, prompt and response together")
    # STORAGE EXTERNAL (set in the migration): the bytes are not compressible.
    data: Mapped[bytes | None] = mapped_column(
        LargeBinary,
        comment=(
            "Packed token ids, action mask, log-probabilities and policy versions; NULL once archived or "
            "pruned"
        ),
    )
    # These ids are stable under compaction.
    archive_row: Mapped[int | None] = mapped_column(
        comment="Row id in a Lance table of the experience's run; NULL while the bytes are here, or pruned",
        info=LOCAL,
    )
    archive_number: Mapped[int] = mapped_column(
        SmallInteger,
        server_default="0",
        comment="Number of the archive with that table; undefined while the bytes are here, or pruned",
    )
    pruned_at: Mapped[datetime | None] = mapped_column(
        comment="Time at which trinity-db prune deleted the arrays permanently; NULL otherwise"
    )

    __table_args__ = (
        CheckConstraint("num_tokens > 0", "has_tokens"),
        CheckConstraint("num_nonnulls(data, archive_row, pruned_at) = 1", "in_one_place"),
        # Archived bytes leave free space in the TOAST table; a few gigabytes of it are reused soon.
        {"postgresql_with": {"toast.autovacuum_vacuum_scale_factor": "0.05"}},
    )


class Archive(Base):
    """A Lance table of a run's archived payloads, and its writer. Written by the archiver.

    One row per run and store that archives it. A copied store reads its original's table and has a separate
    table.
    """

    __tablename__ = "archive"

    run_id: Mapped[int] = mapped_column(
        ForeignKey("run.id", ondelete="CASCADE"), primary_key=True, comment="Run of the row"
    )
    number: Mapped[int] = mapped_column(
        SmallInteger,
        primary_key=True,
        autoincrement=False,
        comment="Number among the run's archives, from 0",
    )
    store: Mapped[uuid.UUID] = mapped_column(
        Uuid, comment="Store instance that writes the table; others only read it"
    )
    name: Mapped[str] = mapped_column(Text, comment="Name of the Lance table")
    worker_id: Mapped[int | None] = mapped_column(
        ForeignKey("worker.id"),
        comment="Worker that may write the table; NULL without one",
    )
    attempt: Mapped[int] = mapped_column(
        Integer,
        server_default="0",
        comment="Number of leases; later writes of an earlier holder are refused",
    )
    num_rows: Mapped[int] = mapped_column(
        server_default="0", comment="Archived payloads, minus those pruned since"
    )
    num_bytes: Mapped[int] = mapped_column(
        server_default="0", comment="Bytes of these payloads; after a prune, in proportion to their number"
    )
    created_at: Mapped[Now] = mapped_column(comment="Time at which the run's archive was created")

    __table_args__ = (
        UniqueConstraint("run_id", "store"),
        # The name is part of a path, and must not match another run's table.
        CheckConstraint("name ~ ('^[A-Za-z0-9_-]+_' || run_id || '_[0-9]+(_[0-9a-f]{32})?$')", "of_the_run"),
        # A run that was copied individually has all its payloads in Postgres until it is archived.
        {"info": OF_THE_STORE},
    )
