-- name: server_place
-- Where this database is: what a copy of it, made in any way, does not have in common with it.
SELECT (SELECT c.system_identifier FROM pg_control_system() c) AS system_identifier,
       (SELECT d.oid::bigint FROM pg_database d WHERE d.datname = current_database()) AS database_oid,
       ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::integer AS timeline,
       nullif(current_setting('trinity_db.home', true), '') AS home

-- name: make_instance
-- The store is an instance from its first role on that owns files; nothing where it is one already.
INSERT INTO trinity.store_instance (system_identifier, database_oid, timeline, home)
VALUES (%(system_identifier)s, %(database_oid)s, %(timeline)s, %(home)s)
ON CONFLICT DO NOTHING

-- name: read_instance
SELECT i.id, i.copy_of, i.system_identifier, i.database_oid, i.timeline, i.home FROM trinity.store_instance i

-- name: may_rebind
-- Whether this login may say which instance the store is. It may read that, and make the first one, all the same.
SELECT has_table_privilege('trinity.store_instance', 'UPDATE') AS is_so

-- name: hold_instance
-- Roles that start at once decide one after the other which instance this is.
SELECT i.id, i.copy_of, i.system_identifier, i.database_oid, i.timeline, i.home, i.created_at
FROM trinity.store_instance i
FOR NO KEY UPDATE

-- name: bind_instance
-- The same instance, at this place from now on.
UPDATE trinity.store_instance i
SET system_identifier = %(system_identifier)s, database_oid = %(database_oid)s, timeline = %(timeline)s,
    home = %(home)s

-- name: become_instance
-- Another instance than the rows say: a copy becomes one of its own, or a store that was taken for one is the
-- original again.
UPDATE trinity.store_instance i
SET id = coalesce(%(id)s::uuid, gen_random_uuid()), copy_of = %(copy_of)s::uuid, created_at = clock_timestamp()

-- name: owns_files
-- Whether any run of the store has published a version since a moment, or has an archive that this instance writes.
SELECT EXISTS (SELECT FROM trinity.policy_version p WHERE p.published_at >= %(moment)s)
       OR EXISTS (SELECT FROM trinity.archive a WHERE a.store = %(id)s) AS is_so
