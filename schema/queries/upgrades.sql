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

-- name: stop_silent_workers
-- Takes workers for gone that gave no sign of life within their lease: what they still write is refused.
UPDATE trinity.worker SET stopped_at = clock_timestamp() WHERE stopped_at IS NULL
