-- name: server_place
-- The place of this database. A copy, however it was made, differs in one of these columns.
SELECT (SELECT c.system_identifier FROM pg_control_system() c) AS system_identifier,
       (SELECT d.oid::bigint FROM pg_database d WHERE d.datname = current_database()) AS database_oid,
       ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::integer AS timeline,
       nullif(current_setting('trinity_db.home', true), '') AS home

-- name: make_instance
-- Creates the store's instance for the first role that owns files. No effect if it exists.
INSERT INTO trinity.store_instance (system_identifier, database_oid, timeline, home)
VALUES (%(system_identifier)s, %(database_oid)s, %(timeline)s, %(home)s)
ON CONFLICT DO NOTHING

-- name: read_instance
-- The store's instance and the place to which it is bound.
SELECT i.id, i.copy_of, i.system_identifier, i.database_oid, i.timeline, i.home FROM trinity.store_instance i

-- name: may_rebind
-- Whether this login may change the store's instance. Without that right a login can still read it and create the
-- first one.
SELECT has_table_privilege('trinity.store_instance', 'UPDATE') AS is_so

-- name: hold_instance
-- Locks the instance, which serialises the decision of roles that start at the same time.
SELECT i.id, i.copy_of, i.system_identifier, i.database_oid, i.timeline, i.home, i.created_at
FROM trinity.store_instance i
FOR NO KEY UPDATE

-- name: bind_instance
-- Binds the same instance to a new place.
UPDATE trinity.store_instance i
SET system_identifier = %(system_identifier)s, database_oid = %(database_oid)s, timeline = %(timeline)s,
    home = %(home)s

-- name: become_instance
-- Gives the store another instance: a copy gets a new one, or a store mistaken for a copy is the original again.
UPDATE trinity.store_instance i
SET id = coalesce(%(id)s::uuid, gen_random_uuid()), copy_of = %(copy_of)s::uuid, created_at = clock_timestamp()

-- name: owns_files
-- Whether a run of the store has published a version since a given time, or this instance writes an archive.
SELECT EXISTS (SELECT FROM trinity.policy_version p WHERE p.published_at >= %(moment)s)
       OR EXISTS (SELECT FROM trinity.archive a WHERE a.store = %(id)s) AS is_so
