"""The Lance table of a run's archive begins with the run's name.

Tables that there are keep their names. Older workers that archive must be stopped before, since they take a
table with more columns than theirs for a damaged one; the others may run on.
"""

from alembic import op

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None

BY_NAME = "name ~ ('^[A-Za-z0-9_-]+_' || run_id || '_[0-9]+(_[0-9a-f]{32})?$')"
BEFORE = "name ~ ('^payload_' || run_id || '_[0-9a-f_]+$')"
# Older code finds a table by the name that stands here, and its constraint knows one beginning only.
REFUSE = """
DO $$ BEGIN
    IF EXISTS (SELECT FROM trinity.archive a WHERE a.name !~ '^payload_') THEN
        RAISE EXCEPTION 'Payloads were archived in tables whose names older code does not allow';
    END IF;
END $$
"""


def upgrade() -> None:
    _replace(BY_NAME)


def downgrade() -> None:
    op.get_bind().exec_driver_sql(REFUSE)
    _replace(BEFORE)


def _replace(rule: str) -> None:
    op.drop_constraint(op.f("archive_of_the_run_check"), "archive", schema="trinity", type_="check")
    op.create_check_constraint(op.f("archive_of_the_run_check"), "archive", rule, schema="trinity")
