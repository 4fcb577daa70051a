"""Identity of this store, and the place where it was last used."""

from uuid import UUID

from sqlalchemy import Boolean, CheckConstraint, Integer, Text, Uuid, text
from sqlalchemy.orm import Mapped, mapped_column

from trinity_db.schema.tables.base import OF_THE_STORE, Base, Now


class StoreInstance(Base):
    """This database on this server; a restored copy is another instance. Written by trainer and archiver."""

    __tablename__ = "store_instance"

    is_only: Mapped[bool] = mapped_column(
        Boolean, primary_key=True, server_default=text("true"), comment="Always true: there is one row"
    )
    id: Mapped[UUID] = mapped_column(
        Uuid, server_default=text("gen_random_uuid()"), comment="Id of the instance"
    )
    copy_of: Mapped[UUID | None] = mapped_column(
        Uuid, comment="Instance from which it was copied; NULL if it is not a copy"
    )
    # The place to which the instance is bound. A copied database still has its original's place.
    system_identifier: Mapped[int] = mapped_column(comment="Identifier of the server to which it is bound")
    database_oid: Mapped[int] = mapped_column(comment="Oid of its database on that server")
    # A promoted replica has a later timeline, and is the same store.
    timeline: Mapped[int] = mapped_column(Integer, comment="Timeline of the server's WAL")
    # A copied folder has the same values in all other columns.
    home: Mapped[str | None] = mapped_column(
        Text, comment="Folder of an embedded server; NULL for any other server"
    )
    created_at: Mapped[Now] = mapped_column(comment="Time from which it is this instance")

    # With two rows, it would be undefined to which of them folders belong.
    __table_args__ = (CheckConstraint("is_only", "one_row"), {"info": OF_THE_STORE})
