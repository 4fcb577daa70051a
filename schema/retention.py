"""How long runs keep what can be pruned, as processors carry it out."""

from datetime import datetime

from sqlalchemy import CheckConstraint, ForeignKey, Text
from sqlalchemy.orm import Mapped, mapped_column

from trinity_db.schema.base import OF_THE_STORE, Base

FAMILY = "family IN ('payloads', 'calls', 'metrics', 'processing')"


class Retention(Base):
    """A run whose old rows of a family are removed, and how much was. Written by processors.

    The run's own processors enter it when they start, so a copy of a run keeps all rows until then. The run's
    configuration says how long rows are kept.
    """

    __tablename__ = "retention"

    run_id: Mapped[int] = mapped_column(
        ForeignKey("run.id", ondelete="CASCADE"), primary_key=True, comment="The run"
    )
    family: Mapped[str] = mapped_column(
        Text, primary_key=True, comment="payloads, calls (of agents), metrics or processing"
    )
    num_rows: Mapped[int] = mapped_column(server_default="0", comment="Rows that were removed so far")
    num_bytes: Mapped[int] = mapped_column(
        server_default="0", comment="Bytes of them in Postgres; those in the archive do not count"
    )
    removed_at: Mapped[datetime | None] = mapped_column(
        comment="Time at which rows were last removed; NULL: none were"
    )

    __table_args__ = (CheckConstraint(FAMILY, "known_family"), {"info": OF_THE_STORE})


class Sweep(Base):
    """How far processors have looked for old rows of a family, in all runs. Written by processors.

    The processor that looks holds the row, so two never look at the same rows.
    """

    __tablename__ = "sweep"

    family: Mapped[str] = mapped_column(
        Text, primary_key=True, comment="payloads, calls (of agents), metrics or processing"
    )
    after_id: Mapped[int] = mapped_column(
        server_default="0", comment="All ids up to this one were looked at; 0: the next look begins anew"
    )
    ended_at: Mapped[datetime | None] = mapped_column(
        comment="Time at which all rows had last been looked at; NULL: never yet"
    )

    __table_args__ = (
        CheckConstraint(FAMILY, "known_family"),
        CheckConstraint("after_id >= 0", "after_a_row"),
        {"info": OF_THE_STORE},
    )
