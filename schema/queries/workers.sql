-- name: register_worker
-- The reference to the setting waits for a change that is under way, and makes a later one wait.
INSERT INTO trinity.worker (run_id, role, setting_id, host, pid)
VALUES (%(run_id)s, %(role)s, %(setting_id)s, %(host)s, %(pid)s)
RETURNING id

-- name: newest_setting
-- Asked after register_worker, so that a worker never serves under a setting that was replaced.
SELECT max(s.id) AS id FROM trinity.run_setting s WHERE s.run_id = %(run_id)s

-- name: heartbeat
-- One small update keeps every lease of the worker alive. Nothing where it was taken for gone: it must not go on.
UPDATE trinity.worker SET heartbeat_at = clock_timestamp() WHERE id = %(worker_id)s AND stopped_at IS NULL

-- name: hold_place
-- Nobody can replace the worker before this transaction ends; no row where somebody did.
SELECT id FROM trinity.worker WHERE id = %(worker_id)s AND stopped_at IS NULL FOR SHARE

-- name: stop_worker
UPDATE trinity.worker SET stopped_at = clock_timestamp() WHERE id = %(worker_id)s AND stopped_at IS NULL

-- name: running_workers
-- Workers that did not say goodbye, and whether they gave a sign of life within their lease.
SELECT id, role, host, pid, heartbeat_at >= clock_timestamp() - make_interval(secs => %(lease_seconds)s) AS is_alive
FROM trinity.worker
WHERE run_id = %(run_id)s AND stopped_at IS NULL
ORDER BY id

-- name: living_workers
-- Workers of all runs that gave a sign of life within their lease.
SELECT r.name AS run, w.role, w.host, w.pid
FROM trinity.worker w
JOIN trinity.run r ON r.id = w.run_id
WHERE w.stopped_at IS NULL AND w.heartbeat_at >= clock_timestamp() - make_interval(secs => %(lease_seconds)s)
ORDER BY w.run_id, w.id

-- name: stop_other_workers
-- Whoever else has this worker's role in its run is replaced.
UPDATE trinity.worker w SET stopped_at = clock_timestamp()
FROM trinity.worker me
WHERE me.id = %(worker_id)s AND w.run_id = me.run_id AND w.role = me.role AND w.id <> me.id AND w.stopped_at IS NULL

-- name: sign_session
-- From now on this session tells whose it is, so that it can be ended when its worker falls silent.
SELECT set_config('application_name', 'trinity-db worker ' || %(worker_id)s::bigint, false) AS name

-- name: end_silent_sessions
-- Ends the transactions of workers that said no goodbye and are silent for longer than their lease, with their
-- sessions: a process frozen in the middle of a COPY stands still for no time-out of the server's. Sessions of other
-- accounts are left alone: not everybody may end them.
SELECT pg_terminate_backend(a.pid) AS is_ended
FROM trinity.worker w
JOIN pg_stat_activity a ON a.application_name = 'trinity-db worker ' || w.id
WHERE w.run_id = %(run_id)s AND w.stopped_at IS NULL
  AND w.heartbeat_at < clock_timestamp() - make_interval(secs => %(lease_seconds)s)
  AND a.datname = current_database() AND a.usename = current_user
  AND a.state <> 'idle' AND a.pid <> pg_backend_pid()

-- name: release_leases
-- Give back what stopped or silent workers hold: rows being processed and groups being explored. The next
-- claim raises their attempt, so that a late write of the old holder changes nothing. Rescuers work side by side: each
-- leaves rows that another session changes right now to the next one, and waits for none. Batches are reopened by the
-- trainer, which alone knows the checkpoint.
WITH gone AS MATERIALIZED (
    SELECT w.id
    FROM trinity.worker w
    WHERE w.run_id = %(run_id)s
      AND (w.stopped_at IS NOT NULL
           OR w.heartbeat_at < clock_timestamp() - make_interval(secs => %(lease_seconds)s))
),
stalled_groups AS MATERIALIZED (
    SELECT g.id FROM gone JOIN trinity.rollout_group g ON g.worker_id = gone.id AND g.state = 'open'
    ORDER BY g.id
    FOR NO KEY UPDATE OF g SKIP LOCKED
),
stalled_experiences AS MATERIALIZED (
    SELECT e.id FROM gone JOIN trinity.experience e ON e.worker_id = gone.id AND e.state IN ('raw', 'clean', 'scored')
    ORDER BY e.id
    FOR NO KEY UPDATE OF e SKIP LOCKED
),
groups AS (
    UPDATE trinity.rollout_group g SET worker_id = NULL
    WHERE g.id = ANY(ARRAY(SELECT s.id FROM stalled_groups s))
    RETURNING 1
),
experiences AS (
    UPDATE trinity.experience e SET worker_id = NULL
    WHERE e.id = ANY(ARRAY(SELECT s.id FROM stalled_experiences s))
    RETURNING 1
)
SELECT (SELECT count(*) FROM experiences) AS experiences, (SELECT count(*) FROM groups) AS groups

-- name: release_own_leases
-- Give back what a worker holds without knowing it: the answer to its claim was lost with the connection. Locked in
-- the order of their ids, as by everybody.
WITH held_groups AS MATERIALIZED (
    SELECT g.id FROM trinity.rollout_group g
    WHERE g.worker_id = %(worker_id)s AND g.state = 'open'
    ORDER BY g.id
    FOR NO KEY UPDATE
),
held_experiences AS MATERIALIZED (
    SELECT e.id FROM trinity.experience e
    WHERE e.worker_id = %(worker_id)s AND e.state IN ('raw', 'clean', 'scored')
    ORDER BY e.id
    FOR NO KEY UPDATE
),
groups AS (
    UPDATE trinity.rollout_group g SET worker_id = NULL
    WHERE g.id = ANY(ARRAY(SELECT h.id FROM held_groups h))
    RETURNING 1
),
experiences AS (
    UPDATE trinity.experience e SET worker_id = NULL
    WHERE e.id = ANY(ARRAY(SELECT h.id FROM held_experiences h))
    RETURNING 1
)
SELECT (SELECT count(*) FROM experiences) AS experiences, (SELECT count(*) FROM groups) AS groups

-- name: lock_trainer
-- A run has one trainer: the lock lasts as long as the session that took it.
SELECT pg_advisory_lock(hashtextextended('trinity trainer', %(run_id)s))

-- name: wait_for_lock
-- For this transaction.
SELECT set_config('lock_timeout', %(lock_seconds)s::float8 * 1000 || 'ms', true)

-- name: end_silent_trainer
-- Ends the session that holds the run's trainer lock, where trainers did not say goodbye and all of them have been
-- silent for longer than their lease: frozen, or on a machine that is gone. Nothing while one is alive.
SELECT pg_terminate_backend(l.pid) AS is_ended
FROM pg_locks l
WHERE l.locktype = 'advisory' AND l.granted AND l.pid <> pg_backend_pid() AND l.objsubid = 1
  AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
  AND (l.classid::bigint << 32 | l.objid::bigint) = hashtextextended('trinity trainer', %(run_id)s)
  AND (SELECT max(w.heartbeat_at) FROM trinity.worker w
       WHERE w.run_id = %(run_id)s AND w.role = 'train' AND w.stopped_at IS NULL)
      < clock_timestamp() - make_interval(secs => %(lease_seconds)s)

-- name: limit_silence
-- The server ends this session when a transaction of its stands still, or its network says nothing, for so long.
SELECT set_config('idle_in_transaction_session_timeout', %(seconds)s::float8 * 1000 || 'ms', false),
       set_config('tcp_user_timeout', %(seconds)s::float8 * 1000 || 'ms', false),
       set_config('tcp_keepalives_idle', greatest(1, round(%(seconds)s::float8 / 3))::text, false),
       set_config('tcp_keepalives_interval', greatest(1, round(%(seconds)s::float8 / 6))::text, false),
       set_config('tcp_keepalives_count', '4', false)

-- name: plan_for_growth
-- A session keeps its plans, and a role makes most of them while the tables are still small: then reading a table from
-- end to end, to sort, merge or hash it, is cheapest, and later it is what stops everything. Each statement of a role
-- has indexes that find its few rows, one after the other; it shall always use them, planned once, not at every call.
-- None gains what compiling costs.
SELECT set_config('plan_cache_mode', 'force_generic_plan', false), set_config(name, 'off', false)
FROM unnest(ARRAY['enable_seqscan', 'enable_mergejoin', 'enable_hashjoin', 'jit']) AS s (name)
