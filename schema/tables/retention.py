"""Retention of rows that can be pruned, as applied by processors."""

from datetime import datetime

from sqlalchemy import CheckConstraint, ForeignKey, Text
from sqlalchemy.orm import Mapped, mapped_column

from trinity_db.schema.tables.base import OF_THE_STORE, Base

FAMILY = "family IN ('payloads', 'calls', 'metrics', 'processing')"


class Retention(Base):
    """Retention of a family of rows in a run, and the number of deleted rows. Written by processors.

    The run's own processors add it when they start, so a copy of a run keeps all rows until then. The
    retention time is in the run's configuration.
    """

    __tablename__ = "retention"

    run_id: Mapped[int] = mapped_column(
        ForeignKey("run.id", ondelete="CASCADE"), primary_key=True, comment="Run"
    )
    family: Mapped[str] = mapped_column(
        Text, primary_key=True, comment="payloads, calls (of agents), metrics or processing"
    )
    num_rows: Mapped[int] = mapped_column(server_default="0", comment="Number of deleted rows")
    num_bytes: Mapped[int] = mapped_column(
        server_default="0", comment="Their bytes in Postgres, without those in the archive"
    )
    removed_at: Mapped[datetime | None] = mapped_column(comment="Time of the last deletion; NULL without any")

    __table_args__ = (CheckConstraint(FAMILY, "known_family"), {"info": OF_THE_STORE})


class Sweep(Base):
    """Progress of processors' search for old rows of a family, in all runs. Written by processors.

    The searching processor locks the row, so two never search the same rows.
    """

    __tablename__ = "sweep"

    family: Mapped[str] = mapped_column(
        Text, primary_key=True, comment="payloads, calls (of agents), metrics or processing"
    )
    after_id: Mapped[int] = mapped_column(
        server_default="0",
        comment="All ids up to this one were searched; 0: the next search starts from the beginning",
    )
    ended_at: Mapped[datetime | None] = mapped_column(
        comment="Time at which all rows had last been looked at; NULL: never yet"
    )

    __table_args__ = (
        CheckConstraint(FAMILY, "known_family"),
        CheckConstraint("after_id >= 0", "after_a_row"),
        {"info": OF_THE_STORE},
    )
