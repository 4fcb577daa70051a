-- name: server_place
-- Where this database is. A copy of it, however it was made, differs in one of these columns.
SELECT (SELECT c.system_identifier FROM pg_control_system() c) AS system_identifier,
       (SELECT d.oid::bigint FROM pg_database d WHERE d.datname = current_database()) AS database_oid,
       ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::integer AS timeline,
       nullif(current_setting('trinity_db.home', true), '') AS home

-- name: make_instance
-- Makes the store an instance, when the first role that owns files looks. Inserts nothing if it is one already.
INSERT INTO trinity.store_instance (system_identifier, database_oid, timeline, home)
VALUES (%(system_identifier)s, %(database_oid)s, %(timeline)s, %(home)s)
ON CONFLICT DO NOTHING

-- name: read_instance
SELECT i.id, i.copy_of, i.system_identifier, i.database_oid, i.timeline, i.home FROM trinity.store_instance i

-- name: may_rebind
-- Whether this login may change which instance the store is. Without that right a login can still read the instance
-- and make the first one.
SELECT has_table_privilege('trinity.store_instance', 'UPDATE') AS is_so

-- name: hold_instance
-- Locks the instance, so that roles that start at once decide one after the other which instance this is.
SELECT i.id, i.copy_of, i.system_identifier, i.database_oid, i.timeline, i.home, i.created_at
FROM trinity.store_instance i
FOR NO KEY UPDATE

-- name: bind_instance
-- Records that the same instance is at this place from now on.
UPDATE trinity.store_instance i
SET system_identifier = %(system_identifier)s, database_oid = %(database_oid)s, timeline = %(timeline)s,
    home = %(home)s

-- name: become_instance
-- Makes the store another instance: a copy becomes an instance of its own, or a store that was taken for a copy is the
-- original again.
UPDATE trinity.store_instance i
SET id = coalesce(%(id)s::uuid, gen_random_uuid()), copy_of = %(copy_of)s::uuid, created_at = clock_timestamp()

-- name: owns_files
-- Whether a run of the store has published a version since a moment, or this instance writes an archive.
SELECT EXISTS (SELECT FROM trinity.policy_version p WHERE p.published_at >= %(moment)s)
       OR EXISTS (SELECT FROM trinity.archive a WHERE a.store = %(id)s) AS is_so
