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

from trinity_db.schema.base import HOT_TABLE, LOCAL, OF_THE_STORE, TRANSACTION, Base, Id, Now, enum, refers_to
from trinity_db.schema.states import ExperienceState

IS_UNJUDGED = "state = ANY (ARRAY['raw'::trinity.experience_state, 'clean'::trinity.experience_state])"
# A row without tokens has no place. Without labels a row with a reward of zero or less has none; with
# labels, a row without a reward. trinity.is_learned_from says the same for statements.
HAS_PLACE = (
    "prompt_length IS NOT NULL AND (reward > 0::double precision OR (reward IS NOT NULL) = draws_labels)"
)


class Experience(Base):
    """One trainable token sequence: the hot row. Explorer or import write it, processors and trainer move it.

    A training run adopts imported rows, or those of another run: it copies the hot row and shares text and
    rollout with the row that `source_id` names, so that several runs can use one data set, each
    with states and use counts of its own.
    """

    __tablename__ = "experience"

    id: Mapped[Id] = mapped_column(comment="Number of the experience, never used again")
    run_id: Mapped[int] = mapped_column(
        ForeignKey("run.id", ondelete="CASCADE"), comment="The run that the row belongs to"
    )
    # Copied from its rollout, whose foreign key makes sure that the group exists.
    group_id: Mapped[int | None] = mapped_column(
        comment="Rollout group of its rollout; NULL for an imported row without a group",
        info=refers_to("rollout_group"),
    )
    # No cascade: a data set or run cannot be deleted while another run has adopted its rows.
    rollout_id: Mapped[int | None] = mapped_column(
        ForeignKey("rollout.id"),
        comment="The attempt that it is a part of; NULL for an imported row without one",
    )
    source_id: Mapped[int | None] = mapped_column(
        ForeignKey("experience.id"),
        comment="The experience of a data set or another run that a run adopted as this one; NULL for others",
    )
    step: Mapped[int] = mapped_column(
        SmallInteger,
        server_default="0",
        comment="Which step of its rollout it is, from 0; a single-turn rollout has one",
    )
    state: Mapped[ExperienceState] = mapped_column(
        enum(ExperienceState, "experience_state"),
        comment="raw, clean, scored, ready, leased, trained, dropped or expired; evaluated in an evaluation",
    )
    held_out: Mapped[bool] = mapped_column(
        Boolean, server_default="false", comment="Whether it is kept for evaluation and never drawn"
    )
    version_min: Mapped[int | None] = mapped_column(
        Integer,
        comment=("Oldest policy version that wrote any of its tokens; NULL where no policy of this run did"),
    )
    version_max: Mapped[int | None] = mapped_column(
        Integer,
        comment=("Newest policy version that wrote any of its tokens; NULL where no policy of this run did"),
    )
    reward: Mapped[float | None] = mapped_column(
        Double,
        comment=(
            "Weighted sum of the latest reward event of each name; without one, 1 or 0 as pairs say in a run "
            "that learns from labels (label_in); NULL where nothing is said"
        ),
    )
    priority: Mapped[float] = mapped_column(
        Double,
        server_default="0",
        comment="What priority steps say of it. Samplers weigh groups, each by the mean of its rows",
    )
    use_count: Mapped[int] = mapped_column(
        Integer, server_default="0", comment="How many committed batches used it"
    )
    prompt_length: Mapped[int | None] = mapped_column(
        Integer, comment="Length of the prompt in tokens; NULL until the row has a payload"
    )
    response_length: Mapped[int | None] = mapped_column(
        Integer, comment="Length of the response in tokens; NULL until the row has a payload"
    )
    # No foreign key: the claim is made by a worker that exists.
    worker_id: Mapped[int | None] = mapped_column(
        comment="The worker that holds the lease on it; NULL while no worker does", info=refers_to("worker")
    )
    attempt: Mapped[int] = mapped_column(
        Integer,
        server_default="0",
        comment="How many times the row was leased; a write that carries an older number is refused",
    )
    import_key: Mapped[uuid.UUID | None] = mapped_column(
        comment="Made from an imported row's content, so that importing it again adds nothing"
    )
    created_at: Mapped[Now] = mapped_column(comment="Time at which it was written")
    ready_xact: Mapped[int | None] = mapped_column(
        comment=(
            "Transaction that adopted it, then the one that gave it tokens; NULL for a row of a "
            "live group, which is drawn with its group"
        ),
        info=TRANSACTION,
    )
    seed: Mapped[int | None] = mapped_column(
        comment=(
            "The run's seed, in a row that passes over data may use; NULL in one that is live, "
            "held out or the worse one of a pair"
        )
    )
    draws_labels: Mapped[bool] = mapped_column(
        Boolean,
        server_default="false",
        comment="Whether its run learns from good and bad rows, copied when the run adopted it",
    )
    place: Mapped[int | None] = mapped_column(
        Computed(
            f"CASE WHEN {HAS_PLACE} THEN hashint8extended(source_id, seed + use_count) ELSE NULL::bigint END",
            persisted=True,
        ),
        comment=(
            "Its place in the shuffled order of a pass over data; each use gives it another. "
            "NULL if it cannot be drawn now"
        ),
    )
    # No index names the state, the lease or the uses, or has them in its condition: these columns stand in
    # their place. So a move that leaves these as they are, as from scored to ready, to leased and to trained,
    # writes no entry in any index (HOT).
    to_judge: Mapped[ExperienceState | None] = mapped_column(
        enum(ExperienceState, "experience_state"),
        Computed(
            f"CASE WHEN {IS_UNJUDGED} THEN state ELSE NULL::trinity.experience_state END",
            persisted=True,
        ),
        comment="raw or clean while processors have yet to judge it; NULL from then on",
    )
    judge_id: Mapped[int | None] = mapped_column(
        Computed(
            f"CASE WHEN {IS_UNJUDGED} THEN worker_id ELSE NULL::bigint END",
            persisted=True,
        ),
        comment="The processor that holds the lease on it; NULL while none does",
        info=refers_to("worker"),
    )
    is_offered: Mapped[bool] = mapped_column(
        Boolean,
        Computed("state = 'ready'::trinity.experience_state AND version_min IS NULL", persisted=True),
        comment="Whether it is ready, and of a data set or adopted: no policy of its run sampled it",
    )
    pass_number: Mapped[int | None] = mapped_column(
        Integer,
        Computed(
            f"CASE WHEN state = 'ready'::trinity.experience_state AND {HAS_PLACE}"
            " AND source_id IS NOT NULL AND seed IS NOT NULL THEN use_count ELSE NULL::integer END",
            persisted=True,
        ),
        comment="The pass over data in which it is drawn next, from 0; NULL if it cannot be drawn now",
    )

    __table_args__ = (
        # A row with one of them alone would be in a group for some statements and in none for others.
        CheckConstraint("(group_id IS NULL) = (rollout_id IS NULL)", "group_iff_rollout"),
        # A leased row without a worker would never be drawn again.
        CheckConstraint("state <> 'leased' OR worker_id IS NOT NULL", "leased_by_a_worker"),
        # One infinite reward would make the advantages of its whole group infinite or NaN.
        CheckConstraint("reward > '-Infinity' AND reward < 'Infinity'", "reward_finite"),
        CheckConstraint("version_min <= version_max", "versions_in_order"),
        # A row of an evaluation is judged, and never trained on. An adopted row that is held out stays ready.
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
        comment="The experience that the text is of",
    )
    prompt: Mapped[str] = mapped_column(Text, comment="Prompt as the model was given it")
    response: Mapped[str] = mapped_column(Text, comment="Response as text")
    messages: Mapped[list[dict[str, Any]] | None] = mapped_column(
        JSONB, comment="The prompt as a conversation; NULL where it was none"
    )
    tools: Mapped[list[dict[str, Any]] | None] = mapped_column(
        JSONB,
        comment="What the model may call in an imported conversation, as JSON schemas; NULL if nothing",
    )
    reply: Mapped[list[dict[str, Any]] | None] = mapped_column(
        JSONB,
        comment=(
            "An imported response as messages, where it is more than a text, as with tool calls or of "
            "several turns; NULL where response is all of it"
        ),
    )
    extra: Mapped[dict[str, Any] | None] = mapped_column(
        comment=("Columns of an imported row that have no place of their own; an export gives them back")
    )
    # It stands here and not in the hot row: it is as long as a prompt, costs nothing if it is NULL, and is
    # read in place of the prompt.
    state: Mapped[str | None] = mapped_column(
        Text,
        comment=(
            "State of the environment in which the response is an action, if the workflow names it; "
            "NULL means that the prompt is the state"
        ),
    )

    # In bytes. Only texts so long that two rows do not fit a page are compressed: to compress all of them
    # would cost each write more time than the fewer bytes save.
    __table_args__ = ({"postgresql_with": {"toast_tuple_target": "4080"}},)


class Payload(Base):
    """An experience's arrays, packed as in trinity_db.arrays; immutable. Written by explorer and trainer.

    The archiver moves the bytes to Lance and leaves the id of their Lance row here. A pruned payload has no
    bytes.
    """

    __tablename__ = "payload"

    experience_id: Mapped[int] = mapped_column(
        ForeignKey("experience.id", ondelete="CASCADE"),
        primary_key=True,
        comment="The experience that the arrays are of",
    )
    codec: Mapped[str] = mapped_column(Text, comment="How data is packed")
    num_tokens: Mapped[int] = mapped_column(Integer, comment="Number of tokens, prompt and response together")
    # STORAGE EXTERNAL (set in the migration): such bytes gain nothing from compression.
    data: Mapped[bytes | None] = mapped_column(
        LargeBinary,
        comment=(
            "Token ids, action mask, log-probabilities and policy versions, packed; NULL once "
            "they are in the archive or pruned"
        ),
    )
    # Such ids are stable: compaction keeps them.
    archive_row: Mapped[int | None] = mapped_column(
        comment="Row id in a Lance table of the experience's run; NULL while the bytes are here, or pruned",
        info=LOCAL,
    )
    archive_number: Mapped[int] = mapped_column(
        SmallInteger,
        server_default="0",
        comment="Number of the archive with that table; without meaning while the bytes are here, or pruned",
    )
    pruned_at: Mapped[datetime | None] = mapped_column(
        comment="Time at which trinity-db prune removed the arrays for good; NULL while there are any"
    )

    __table_args__ = (
        CheckConstraint("num_tokens > 0", "has_tokens"),
        CheckConstraint("num_nonnulls(data, archive_row, pruned_at) = 1", "in_one_place"),
        # What was archived leaves its bytes behind in the TOAST table; a few gigabytes are used again soon.
        {"postgresql_with": {"toast.autovacuum_vacuum_scale_factor": "0.05"}},
    )


class Archive(Base):
    """A Lance table of a run's archived payloads, and who may write it. Written by the archiver.

    One row for each run and each store that archives it. A copied store reads its original's table and writes
    its own.
    """

    __tablename__ = "archive"

    run_id: Mapped[int] = mapped_column(
        ForeignKey("run.id", ondelete="CASCADE"), primary_key=True, comment="The run that the row belongs to"
    )
    number: Mapped[int] = mapped_column(
        SmallInteger,
        primary_key=True,
        autoincrement=False,
        comment="Place among the run's archives, from 0 on",
    )
    store: Mapped[uuid.UUID] = mapped_column(
        Uuid, comment="The store instance that writes the table; any other only reads it"
    )
    name: Mapped[str] = mapped_column(Text, comment="Name of the Lance table")
    worker_id: Mapped[int | None] = mapped_column(
        ForeignKey("worker.id"),
        comment="The worker that may write the run's Lance table; NULL while no worker does",
    )
    attempt: Mapped[int] = mapped_column(
        Integer,
        server_default="0",
        comment=(
            "How many times the right to write was given; later writes of an earlier holder are refused"
        ),
    )
    num_rows: Mapped[int] = mapped_column(
        server_default="0", comment="Payloads that were archived, less those that were pruned since"
    )
    num_bytes: Mapped[int] = mapped_column(
        server_default="0", comment="Bytes of these payloads; after a prune in proportion to their number"
    )
    created_at: Mapped[Now] = mapped_column(comment="Time at which the run's archive was begun")

    __table_args__ = (
        UniqueConstraint("run_id", "store"),
        # The name is part of a path, and a table of another run must not be taken for this one's.
        CheckConstraint("name ~ ('^[A-Za-z0-9_-]+_' || run_id || '_[0-9]+(_[0-9a-f]{32})?$')", "of_the_run"),
        # A run that was copied by itself has all its payloads in Postgres, until it is archived.
        {"info": OF_THE_STORE},
    )
