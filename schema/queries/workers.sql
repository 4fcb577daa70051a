-- name: register_worker
INSERT INTO trinity.worker (run_id, role, host, pid) VALUES (%(run_id)s, %(role)s, %(host)s, %(pid)s) RETURNING id

-- name: heartbeat
-- One small update keeps every lease of the worker alive.
UPDATE trinity.worker SET heartbeat_at = clock_timestamp() WHERE id = %(worker_id)s

-- name: stop_worker
UPDATE trinity.worker SET stopped_at = clock_timestamp() WHERE id = %(worker_id)s AND stopped_at IS NULL

-- name: running_workers
-- Workers that did not say goodbye.
SELECT id, host, pid
FROM trinity.worker
WHERE run_id = %(run_id)s AND stopped_at IS NULL
ORDER BY id

-- name: release_leases
-- Give back what stopped or silent workers hold: rows being processed and groups being explored. The next
-- claim raises their attempt, so that a late write of the old holder changes nothing. Batches are
-- reopened by the trainer, which alone knows the checkpoint.
WITH gone AS MATERIALIZED (
    SELECT w.id
    FROM trinity.worker w
    WHERE w.run_id = %(run_id)s
      AND (w.stopped_at IS NOT NULL
           OR w.heartbeat_at < clock_timestamp() - make_interval(secs => %(lease_seconds)s))
),
experiences AS (
    UPDATE trinity.experience e SET worker_id = NULL
    FROM gone
    WHERE e.worker_id = gone.id AND e.state IN ('raw', 'clean', 'scored')
    RETURNING 1
),
groups AS (
    UPDATE trinity.rollout_group g SET worker_id = NULL
    FROM gone
    WHERE g.worker_id = gone.id AND g.state = 'open'
    RETURNING 1
)
SELECT (SELECT count(*) FROM experiences) AS experiences, (SELECT count(*) FROM groups) AS groups

-- name: release_own_leases
-- Give back what a worker holds without knowing it: the answer to its claim was lost with the connection.
WITH experiences AS (
    UPDATE trinity.experience e SET worker_id = NULL
    WHERE e.worker_id = %(worker_id)s AND e.state IN ('raw', 'clean', 'scored')
    RETURNING 1
),
groups AS (
    UPDATE trinity.rollout_group g SET worker_id = NULL
    WHERE g.worker_id = %(worker_id)s AND g.state = 'open'
    RETURNING 1
)
SELECT (SELECT count(*) FROM experiences) AS experiences, (SELECT count(*) FROM groups) AS groups

-- name: lock_trainer
-- A run has one trainer: the lock lasts as long as the connection that took it.
SELECT pg_advisory_lock(hashtextextended('trinity trainer', %(run_id)s))

-- name: wait_for_lock
SELECT set_config('lock_timeout', %(seconds)s, false)
