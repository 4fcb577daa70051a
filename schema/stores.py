"""Which store this is, and where it was when it was used last."""

from uuid import UUID

from sqlalchemy import Boolean, CheckConstraint, Integer, Text, Uuid, text
from sqlalchemy.orm import Mapped, mapped_column

from trinity_db.schema.base import OF_THE_STORE, Base, Now


class StoreInstance(Base):
    """This database on this server; a restored copy is another one. Written by the trainer."""

    __tablename__ = "store_instance"

    is_only: Mapped[bool] = mapped_column(Boolean, primary_key=True, server_default=text("true"))
    id: Mapped[UUID] = mapped_column(Uuid, server_default=text("gen_random_uuid()"))
    # Which instance it was copied from; NULL where it is no copy.
    copy_of: Mapped[UUID | None] = mapped_column(Uuid)
    # The place that the instance is bound to. A copy finds the place of its original here.
    system_identifier: Mapped[int]
    database_oid: Mapped[int]
    # Of the server's log: a replica that is promoted has a later one, and is the same store.
    timeline: Mapped[int] = mapped_column(Integer)
    # The folder of an embedded server; NULL for any other. A copied folder has all the rest in common.
    home: Mapped[str | None] = mapped_column(Text)
    # Since when it is this instance.
    created_at: Mapped[Now]

    # With two rows no role could tell which of them its folders belong to.
    __table_args__ = (CheckConstraint("is_only", "one_row"), {"info": OF_THE_STORE})
