"""What finds rows that are much like others."""

from sqlalchemy import BigInteger, CheckConstraint, Double, ForeignKey, Index, Text, UniqueConstraint
from sqlalchemy import text as sql
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.orm import Mapped, mapped_column

from trinity_db.schema.base import OF_THE_STORE, Base, Id, Now


class MinHash(Base):
    """The MinHash bands of a response that the clean step not_near_duplicate passed. Written by processors.

    Two responses that have a band in common may be near duplicates.
    """

    __tablename__ = "minhash"

    experience_id: Mapped[int] = mapped_column(
        ForeignKey("experience.id", ondelete="CASCADE"), primary_key=True, comment="The experience"
    )
    bands: Mapped[list[int]] = mapped_column(
        ARRAY(BigInteger),
        comment="Hash of each band, with the step's options and with what the response is compared in",
    )

    __table_args__ = (
        # A row without bands would look as if it had been compared.
        CheckConstraint("cardinality(bands) > 0", "has_bands"),
        # Without fastupdate, since each look-up would read all that was not sorted in yet.
        Index(None, "bands", postgresql_using="gin", postgresql_with={"fastupdate": "off"}),
        # The hashes hold ids of this store, so that they mean nothing in a copy of the run.
        {"info": OF_THE_STORE},
    )


class Overlap(Base):
    """Evidence, for a person to judge, that a task or a response has text of a task for evaluation.

    Written by processors and by `trinity-db overlap`. Nothing is dropped for it.
    """

    __tablename__ = "overlap"

    id: Mapped[Id] = mapped_column(comment="Number of the evidence, never used again")
    task_id: Mapped[int] = mapped_column(
        ForeignKey("task.id", ondelete="CASCADE"), comment="The task that is kept for evaluation"
    )
    of_task_id: Mapped[int | None] = mapped_column(
        ForeignKey("task.id", ondelete="CASCADE"),
        comment="The task that has text of it; NULL where a response has",
    )
    experience_id: Mapped[int | None] = mapped_column(
        ForeignKey("experience.id", ondelete="CASCADE"),
        comment="The experience whose response has text of it; NULL where a task has",
    )
    measure: Mapped[str] = mapped_column(Text, comment="How they were compared, such as 13 words")
    share: Mapped[float] = mapped_column(
        Double, comment="Share of the evaluated task's runs of so many words that were found"
    )
    text: Mapped[str] = mapped_column(Text, comment="The first of these runs of words")
    created_at: Mapped[Now] = mapped_column(comment="Time at which it was found")

    __table_args__ = (
        CheckConstraint("num_nonnulls(of_task_id, experience_id) = 1", "of_one_text"),
        CheckConstraint("share > 0 AND share <= 1", "is_share"),
        UniqueConstraint(
            "task_id", "of_task_id", "experience_id", "measure", postgresql_nulls_not_distinct=True
        ),
        # They find what goes with a task or an experience that is deleted.
        Index(None, "of_task_id", postgresql_where=sql("of_task_id IS NOT NULL")),
        Index(None, "experience_id", postgresql_where=sql("experience_id IS NOT NULL")),
        # It rests on tasksets of this store. In another one it is found again.
        {"info": OF_THE_STORE},
    )
