-- name: read_schema_version
-- The newest migration that was done.
SELECT version_num AS version FROM trinity.alembic_version

-- name: workers_at_work
-- Workers of all runs that gave a sign of life within their lease. Also for a store whose schema is older than this code.
SELECT r.name AS run, w.role::text AS role, w.host, w.pid
FROM trinity.worker w
JOIN trinity.run r ON r.id = w.run_id
WHERE w.stopped_at IS NULL AND w.heartbeat_at >= clock_timestamp() - make_interval(secs => %(lease_seconds)s)
ORDER BY w.run_id, w.id

-- name: end_sessions_of_silent_workers
-- Ends what workers of all runs that have not stopped still do, so that the upgrade does not wait for their locks. No
-- time-out of the server ends a process that froze in the middle of a pipeline or a COPY. Sessions of other accounts are
-- left alone, since not every login may end them. Also for a store whose schema is older than this code.
SELECT pg_terminate_backend(a.pid) AS is_ended
FROM trinity.worker w
JOIN pg_stat_activity a ON a.application_name = 'trinity-db worker ' || w.id
WHERE w.stopped_at IS NULL AND a.datname = current_database() AND a.usename = current_user
  AND a.state <> 'idle' AND a.pid <> pg_backend_pid()

-- name: stop_silent_workers
-- Takes workers for gone that gave no sign of life within their lease: what they still write is refused.
UPDATE trinity.worker SET stopped_at = clock_timestamp() WHERE stopped_at IS NULL
