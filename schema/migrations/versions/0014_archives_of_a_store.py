"""An archive belongs to one store: a copy of the store reads its original's tables and writes its own.

What was archived so far is the store's own, in the table that it is in. Older workers that archive must be
stopped before; the others may run on.
"""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

# A store that has archived has an instance, also where no trainer has looked since there are such.
MAKE_INSTANCE = """
INSERT INTO trinity.store_instance (system_identifier, database_oid, timeline, home)
SELECT (SELECT c.system_identifier FROM pg_control_system() c),
       (SELECT d.oid::bigint FROM pg_database d WHERE d.datname = current_database()),
       ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::integer,
       nullif(current_setting('trinity_db.home', true), '')
WHERE EXISTS (SELECT FROM trinity.archive)
ON CONFLICT DO NOTHING
"""
NAME_TABLES = """
UPDATE trinity.archive a
SET store = i.id, name = format('payload_%s_%s', r.id, (extract(epoch FROM r.created_at) * 1000000)::bigint)
FROM trinity.run r, trinity.store_instance i
WHERE r.id = a.run_id
"""
# The table of a store's second archive has a name that older code does not find.
REFUSE = """
DO $$ BEGIN
    IF EXISTS (SELECT FROM trinity.archive a
               JOIN trinity.run r ON r.id = a.run_id
               WHERE a.name <> format('payload_%s_%s', r.id,
                                      (extract(epoch FROM r.created_at) * 1000000)::bigint)) THEN
        RAISE EXCEPTION 'Payloads that were archived since cannot be found by older code';
    END IF;
END $$
"""


def upgrade() -> None:
    op.add_column(
        "payload",
        sa.Column("archive_number", sa.SmallInteger(), server_default="0", nullable=False),
        schema="trinity",
    )
    op.add_column(
        "archive",
        sa.Column("number", sa.SmallInteger(), server_default="0", nullable=False),
        schema="trinity",
    )
    op.alter_column("archive", "number", server_default=None, schema="trinity")
    for column in (sa.Column("store", sa.Uuid()), sa.Column("name", sa.Text())):
        op.add_column("archive", column, schema="trinity")
    op.get_bind().exec_driver_sql(MAKE_INSTANCE)
    op.get_bind().exec_driver_sql(NAME_TABLES.replace("%", "%%"))
    for name in ("store", "name"):
        op.alter_column("archive", name, nullable=False, schema="trinity")
    op.drop_constraint(op.f("archive_pkey"), "archive", schema="trinity", type_="primary")
    op.create_primary_key(op.f("archive_pkey"), "archive", ["run_id", "number"], schema="trinity")
    op.create_unique_constraint(
        op.f("archive_run_id_store_key"), "archive", ["run_id", "store"], schema="trinity"
    )
    op.create_check_constraint(
        op.f("archive_of_the_run_check"),
        "archive",
        "name ~ ('^payload_' || run_id || '_[0-9a-f_]+$')",
        schema="trinity",
    )


def downgrade() -> None:
    op.get_bind().exec_driver_sql(REFUSE.replace("%", "%%"))
    op.drop_constraint(op.f("archive_of_the_run_check"), "archive", schema="trinity", type_="check")
    op.drop_constraint(op.f("archive_run_id_store_key"), "archive", schema="trinity", type_="unique")
    op.drop_constraint(op.f("archive_pkey"), "archive", schema="trinity", type_="primary")
    op.create_primary_key(op.f("archive_pkey"), "archive", ["run_id"], schema="trinity")
    for name in ("name", "store", "number"):
        op.drop_column("archive", name, schema="trinity")
    op.drop_column("payload", "archive_number", schema="trinity")
