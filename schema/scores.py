"""What other models say of a row's trained tokens: a teacher, or the model that a policy is held to."""

from sqlalchemy import CheckConstraint, ForeignKey, LargeBinary, Text
from sqlalchemy.orm import Mapped, mapped_column

from trinity_db.schema.base import Base, Now


class Score(Base):
    """Log-probabilities of an experience's trained tokens under a model that is not the one in training.

    At most one of each name. Written by the score processor (teacher) and the trainer (reference), packed as
    in trinity_db.arrays. They go with their experience, and stay here when its arrays are archived: they are
    four bytes a trained token.
    """

    __tablename__ = "score"

    experience_id: Mapped[int] = mapped_column(
        ForeignKey("experience.id", ondelete="CASCADE"),
        primary_key=True,
        comment="The experience that was scored",
    )
    name: Mapped[str] = mapped_column(
        Text, primary_key=True, comment="Which model says it: reference or teacher"
    )
    digest: Mapped[str] = mapped_column(Text, comment="Digest of the model's files")
    # STORAGE EXTERNAL (set in the migration): such bytes gain nothing from compression.
    data: Mapped[bytes] = mapped_column(
        LargeBinary, comment="Log-probabilities of the trained tokens, as 4-byte floats, little-endian"
    )
    created_at: Mapped[Now] = mapped_column(comment="Time at which it was written")

    __table_args__ = (
        # A name that nobody reads would be a model asked in vain.
        CheckConstraint("name IN ('reference', 'teacher')", "known_name"),
        # Half a number would shift all that follow it.
        CheckConstraint("octet_length(data) % 4 = 0", "whole_numbers"),
    )
