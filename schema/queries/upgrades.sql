-- name: read_schema_version
-- The newest applied migration.
SELECT version_num AS version FROM trinity.schema_version

-- name: workers_at_work
-- Workers of all runs with a heartbeat within their lease. Also works on stores with an older schema.
SELECT r.name AS run, w.role::text AS role, w.host, w.pid
FROM trinity.worker w
JOIN trinity.run r ON r.id = w.run_id
WHERE w.stopped_at IS NULL AND w.heartbeat_at >= clock_timestamp() - make_interval(secs => %(lease_seconds)s)
ORDER BY w.run_id, w.id

-- name: end_sessions_of_silent_workers
-- Terminates the sessions of silent workers of all runs that have not stopped, so that the upgrade does not wait for
-- their locks. No server timeout ends a process that froze in the middle of a pipeline or a COPY. Sessions of other
-- accounts are skipped, since not every login may terminate them. Also works on stores with an older schema.
SELECT pg_terminate_backend(a.pid) AS is_ended
FROM trinity.worker w
JOIN pg_stat_activity a ON a.application_name = 'trinity-db worker ' || w.id
WHERE w.stopped_at IS NULL AND a.datname = current_database() AND a.usename = current_user
  AND a.state <> 'idle' AND a.pid <> pg_backend_pid()

-- name: stop_silent_workers
-- Fences off workers without a heartbeat within their lease: their later writes are refused.
UPDATE trinity.worker SET stopped_at = clock_timestamp() WHERE stopped_at IS NULL

-- name: wait_for_the_first_upgrade
-- Serialises the sessions that create the schema, until the transaction ends. Any login may take this lock, so it is
-- used only for a database that has no table to lock.
SELECT pg_advisory_xact_lock(hashtext('trinity_db upgrade'))
WHERE to_regclass('trinity.schema_version') IS NULL

-- name: upgrade_holder
-- The session for which an upgrade waits: of the sessions that hold a lock on the store's tables or
-- wait_for_the_first_upgrade, the one with the oldest transaction. No row if none exists.
SELECT a.pid, a.usename AS login, a.application_name AS application, coalesce(a.xact_start, a.state_change) AS since
FROM pg_locks l
JOIN pg_stat_activity a ON a.pid = l.pid
WHERE l.granted AND l.pid <> pg_backend_pid() AND a.backend_type = 'client backend'
  AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
  AND (EXISTS (SELECT FROM pg_class c WHERE c.oid = l.relation AND c.relnamespace = to_regnamespace('trinity'))
       OR (l.locktype = 'advisory' AND l.objsubid = 1
           AND (l.classid::bigint << 32) | l.objid::bigint = hashtext('trinity_db upgrade')))
ORDER BY coalesce(a.xact_start, a.state_change)
LIMIT 1
