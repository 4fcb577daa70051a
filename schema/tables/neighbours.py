"""Index of near duplicates, and evidence of overlaps with evaluation tasks."""

from sqlalchemy import BigInteger, CheckConstraint, Double, ForeignKey, Index, Text, UniqueConstraint
from sqlalchemy import text as sql
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.orm import Mapped, mapped_column

from trinity_db.schema.tables.base import OF_THE_STORE, Base, Id, Now


class MinHash(Base):
    """The MinHash bands of a response passed by the clean step not_near_duplicate. Written by processors.

    Two responses with a common band may be near duplicates.
    """

    __tablename__ = "minhash"

    experience_id: Mapped[int] = mapped_column(
        ForeignKey("experience.id", ondelete="CASCADE"), primary_key=True, comment="Experience"
    )
    bands: Mapped[list[int]] = mapped_column(
        ARRAY(BigInteger),
        comment="Hash of each band, combined with the step's options and the scope of the comparison",
    )

    __table_args__ = (
        # A row without bands would appear to have been compared.
        CheckConstraint("cardinality(bands) > 0", "has_bands"),
        # Without fastupdate, since each look-up would scan the pending list.
        Index(None, "bands", postgresql_using="gin", postgresql_with={"fastupdate": "off"}),
        # The hashes contain ids of this store, so they are meaningless in a copy of the run.
        {"info": OF_THE_STORE},
    )


class Overlap(Base):
    """Evidence, for a person to judge, that a task or a response has text of an evaluation task.

    Written by processors and by `trinity-db overlap`. Nothing is dropped because of it.
    """

    __tablename__ = "overlap"

    id: Mapped[Id] = mapped_column(comment="Id of the evidence, never reused")
    task_id: Mapped[int] = mapped_column(ForeignKey("task.id", ondelete="CASCADE"), comment="Evaluation task")
    of_task_id: Mapped[int | None] = mapped_column(
        ForeignKey("task.id", ondelete="CASCADE"),
        comment="Task that contains its text; NULL for a response",
    )
    experience_id: Mapped[int | None] = mapped_column(
        ForeignKey("experience.id", ondelete="CASCADE"),
        comment="Experience whose response contains its text; NULL for a task",
    )
    measure: Mapped[str] = mapped_column(Text, comment="Measure of the comparison, such as 13 words")
    share: Mapped[float] = mapped_column(
        Double, comment="Share of the evaluation task's word sequences of that length that were found"
    )
    text: Mapped[str] = mapped_column(Text, comment="First of these word sequences")
    created_at: Mapped[Now] = mapped_column(comment="Time at which it was found")

    __table_args__ = (
        CheckConstraint("num_nonnulls(of_task_id, experience_id) = 1", "of_one_text"),
        CheckConstraint("share > 0 AND share <= 1", "is_share"),
        UniqueConstraint(
            "task_id", "of_task_id", "experience_id", "measure", postgresql_nulls_not_distinct=True
        ),
        # Find the evidence to delete with a task or an experience.
        Index(None, "of_task_id", postgresql_where=sql("of_task_id IS NOT NULL")),
        Index(None, "experience_id", postgresql_where=sql("experience_id IS NOT NULL")),
        # It depends on tasksets of this store; in another store it is computed again.
        {"info": OF_THE_STORE},
    )
