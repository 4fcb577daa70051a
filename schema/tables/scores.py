"""Scores: the log-probabilities of trained tokens under another model, the teacher or the reference."""

from sqlalchemy import CheckConstraint, ForeignKey, LargeBinary, Text
from sqlalchemy.orm import Mapped, mapped_column

from trinity_db.schema.tables.base import Base, Now


class Score(Base):
    """Log-probabilities of an experience's trained tokens under a model other than the one in training.

    At most one of each name. Written by the score processor (teacher) and the trainer (reference), packed as
    in trinity_db.arrays.codec. A score is deleted with its experience, and stays here when the arrays are
    archived: it takes four bytes per trained token.
    """

    __tablename__ = "score"

    experience_id: Mapped[int] = mapped_column(
        ForeignKey("experience.id", ondelete="CASCADE"),
        primary_key=True,
        comment="Scored experience",
    )
    name: Mapped[str] = mapped_column(Text, primary_key=True, comment="Model: reference or teacher")
    digest: Mapped[str] = mapped_column(Text, comment="Digest of the model's files")
    # STORAGE EXTERNAL (set in the migration): the bytes are not compressible.
    data: Mapped[bytes] = mapped_column(
        LargeBinary, comment="Log-probabilities of the trained tokens, as 4-byte floats, little-endian"
    )
    created_at: Mapped[Now] = mapped_column(comment="Time at which it was written")

    __table_args__ = (
        # No algorithm reads other names, so their scores would be useless.
        CheckConstraint("name IN ('reference', 'teacher')", "known_name"),
        # A partial number would shift all numbers after it.
        CheckConstraint("octet_length(data) % 4 = 0", "whole_numbers"),
    )
