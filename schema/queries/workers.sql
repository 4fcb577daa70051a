-- name: register_worker
-- Registers a worker. No row if it is to be the only one of its role in its run and another one is running. The
-- reference to the setting waits for a change of the setting in progress, and blocks later changes.
INSERT INTO trinity.worker (run_id, role, setting_id, host, pid, exclusive)
VALUES (%(run_id)s, %(role)s, %(setting_id)s, %(host)s, %(pid)s, %(exclusive)s)
ON CONFLICT (run_id, role) WHERE exclusive AND stopped_at IS NULL DO NOTHING
RETURNING id

-- name: heartbeat
-- Records a heartbeat: one small update keeps every lease of the worker alive. No row if the worker was marked as
-- gone: it must stop. Also returns whether the run was asked to stop since the worker started, and whether the worker
-- is a rescuer: the first live workers of a run per login are, because each rescue reads all workers of the run; per
-- login, since not every login may terminate another login's sessions.
UPDATE trinity.worker w SET heartbeat_at = clock_timestamp() WHERE w.id = %(worker_id)s AND w.stopped_at IS NULL
RETURNING w.heartbeat_at,
          (SELECT coalesce(r.stop_asked_at >= w.started_at, false) FROM trinity.run r WHERE r.id = w.run_id) AS is_to_stop,
          (SELECT count(*) < %(rescuers)s
           FROM (SELECT FROM trinity.worker o
                 WHERE o.run_id = w.run_id AND o.id < w.id AND o.stopped_at IS NULL AND o.login = w.login
                   AND trinity.is_alive(o.heartbeat_at, %(lease_seconds)s)
                 LIMIT %(rescuers)s) o) AS is_rescuer

-- name: record_broadcast
-- Records the address from which a trainer broadcasts versions.
UPDATE trinity.worker SET broadcast_at = %(address)s WHERE id = %(worker_id)s

-- name: record_engine_dtype
-- Records the number format of an explorer's engine.
UPDATE trinity.worker SET engine_dtype = %(dtype)s WHERE id = %(worker_id)s

-- name: engine_dtypes
-- The distinct number formats of a run's live explorers' engines; NULL if an explorer's format is unknown.
SELECT DISTINCT w.engine_dtype FROM trinity.worker w
WHERE w.run_id = %(run_id)s AND w.role = 'explore' AND w.stopped_at IS NULL
  AND trinity.is_alive(w.heartbeat_at, %(lease_seconds)s)

-- name: record_staged
-- Records the version that a worker's node last fetched, or whose objects it found missing or damaged.
UPDATE trinity.worker SET staged_version = coalesce(%(staged)s::integer, staged_version), broken_weights = %(broken)s::text
WHERE id = %(worker_id)s AND stopped_at IS NULL

-- name: hold_place
-- Locks (FOR SHARE) the worker: no other worker can take its place until this transaction ends. No row if one already
-- has.
SELECT id FROM trinity.worker WHERE id = %(worker_id)s AND stopped_at IS NULL FOR SHARE

-- name: stop_worker
-- Marks a worker as stopped; no effect if it is already.
UPDATE trinity.worker SET stopped_at = clock_timestamp() WHERE id = %(worker_id)s AND stopped_at IS NULL

-- name: process_is_at_work
-- Whether a process has a worker that has not stopped and whose last heartbeat is within its lease.
SELECT EXISTS (
    SELECT FROM trinity.worker
    WHERE run_id = %(run_id)s AND host = %(host)s AND pid = %(pid)s
      AND stopped_at IS NULL AND trinity.is_alive(heartbeat_at, %(lease_seconds)s)
) AS is_at_work

-- name: stop_process
-- Stops the worker of a process that its supervisor can no longer reach. If the process is alive, its next heartbeat
-- fails, and its writes until then are refused.
UPDATE trinity.worker SET stopped_at = clock_timestamp()
WHERE run_id = %(run_id)s AND host = %(host)s AND pid = %(pid)s AND stopped_at IS NULL

-- name: running_workers
-- Workers that have not stopped, and whether their last heartbeat is within their lease.
SELECT id, role, host, pid, started_at, trinity.is_alive(heartbeat_at, %(lease_seconds)s) AS is_alive
FROM trinity.worker
WHERE run_id = %(run_id)s AND stopped_at IS NULL
ORDER BY id

-- name: newest_worker
-- The worker of a run, given by name, that started last; NULL before the first. A changed value means that the run
-- has started to work.
SELECT max(w.id) AS id FROM trinity.worker w JOIN trinity.run r ON r.id = w.run_id WHERE r.name = %(run)s

-- name: stop_other_workers
-- Stops every other worker of this worker's role in its run.
UPDATE trinity.worker w SET stopped_at = clock_timestamp()
FROM trinity.worker me
WHERE me.id = %(worker_id)s AND w.run_id = me.run_id AND w.role = me.role AND w.id <> me.id AND w.stopped_at IS NULL

-- name: rival
-- The only worker of the role in the run, and whether its lease has expired.
SELECT id, heartbeat_at, NOT trinity.is_alive(heartbeat_at, %(lease_seconds)s) AS is_silent
FROM trinity.worker
WHERE run_id = %(run_id)s AND role = %(role)s AND exclusive AND stopped_at IS NULL

-- name: stop_rival
-- Stops a worker that has sent no heartbeat since it was read; no effect if it has.
UPDATE trinity.worker SET stopped_at = clock_timestamp()
WHERE id = %(worker_id)s AND heartbeat_at = %(heartbeat_at)s AND stopped_at IS NULL

-- name: stop_lost_rival
-- Stops the only worker of a role if the server has ended the session of its heartbeats: its process was killed, or
-- the server can no longer reach it. This is detected at once, even for a worker on another node. Behind a connection
-- pooler a worker has no dedicated session, and its lease must expire.
UPDATE trinity.worker w SET stopped_at = clock_timestamp()
WHERE w.run_id = %(run_id)s AND w.role = %(role)s AND w.exclusive AND w.stopped_at IS NULL
  AND w.session_pid IS NOT NULL
  AND NOT EXISTS (SELECT FROM pg_stat_activity a
                  WHERE a.pid = w.session_pid AND a.application_name = 'trinity-db worker ' || w.id)

-- name: sign_session
-- Names this session (behind a pooler, this transaction) after its worker, so that it can be terminated if the worker
-- falls silent.
SELECT set_config('application_name', 'trinity-db worker ' || %(worker_id)s::bigint, %(is_local)s) AS name

-- name: keep_session
-- Ties the worker to this session: when the session ends, the worker counts as lost.
UPDATE trinity.worker SET session_pid = pg_backend_pid() WHERE id = %(worker_id)s

-- name: end_silent_sessions
-- Terminates the sessions of workers that have not stopped and are silent for longer than their lease. No server
-- timeout ends a process that froze in the middle of a COPY. Sessions of other accounts are skipped, since not every
-- login may terminate them.
SELECT pg_terminate_backend(a.pid) AS is_ended
FROM trinity.worker w
JOIN pg_stat_activity a ON a.application_name = 'trinity-db worker ' || w.id
WHERE w.run_id = %(run_id)s AND w.stopped_at IS NULL
  AND NOT trinity.is_alive(w.heartbeat_at, %(lease_seconds)s)
  AND a.datname = current_database() AND a.usename = current_user
  AND a.state <> 'idle' AND a.pid <> pg_backend_pid()

-- name: release_leases
-- Releases the leases of stopped or silent workers: rows in processing and groups in exploration. The next claim
-- increments their attempt, so that late writes of the old holder change nothing. Sessions that rescue work
-- concurrently: each skips rows locked by another session until the next call. Groups being rescored are released,
-- too, without being counted. Batches are reopened by the trainer, since only the trainer has the checkpoint. Also
-- counts the silent workers that have not stopped, whose sessions end_silent_sessions terminates.
WITH gone AS MATERIALIZED (
    SELECT w.id, w.stopped_at IS NULL AS is_silent
    FROM trinity.worker w
    WHERE w.run_id = %(run_id)s
      AND (w.stopped_at IS NOT NULL
           OR NOT trinity.is_alive(w.heartbeat_at, %(lease_seconds)s))
),
stalled_groups AS MATERIALIZED (
    SELECT g.id FROM gone JOIN trinity.rollout_group g ON g.worker_id = gone.id AND g.state IN ('open', 'evaluating')
    ORDER BY g.id
    FOR NO KEY UPDATE OF g SKIP LOCKED
),
stalled_experiences AS MATERIALIZED (
    SELECT e.id FROM gone JOIN trinity.experience e ON e.judge_id = gone.id
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
),
judged_again AS (
    UPDATE trinity.rescore q SET worker_id = NULL
    WHERE q.group_id = ANY(ARRAY(SELECT s.group_id FROM gone JOIN trinity.rescore s ON s.worker_id = gone.id
                                 ORDER BY s.group_id
                                 FOR NO KEY UPDATE OF s SKIP LOCKED))
)
SELECT (SELECT count(*) FROM experiences) AS experiences, (SELECT count(*) FROM groups) AS groups,
       (SELECT count(*) FROM gone WHERE gone.is_silent) AS silent

-- name: release_own_leases
-- Releases what a worker holds without knowing it, because the reply to its claim was lost with the connection:
-- everything except the experiences that it is processing and the groups that it explores. Locks rows in order of id.
-- Groups that it was rescoring are released as if never claimed.
WITH held_groups AS MATERIALIZED (
    SELECT g.id FROM trinity.rollout_group g
    WHERE g.worker_id = %(worker_id)s AND g.state IN ('open', 'evaluating') AND g.id <> ALL(%(keep_groups)s::bigint[])
    ORDER BY g.id
    FOR NO KEY UPDATE
),
held_experiences AS MATERIALIZED (
    SELECT e.id FROM trinity.experience e
    WHERE e.judge_id = %(worker_id)s AND e.id <> ALL(%(keep)s::bigint[])
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
),
judged_again AS (
    DELETE FROM trinity.rescore q
    WHERE q.group_id = ANY(ARRAY(SELECT h.group_id FROM trinity.rescore h WHERE h.worker_id = %(worker_id)s
                                 ORDER BY h.group_id
                                 FOR UPDATE))
)
SELECT (SELECT count(*) FROM experiences) AS experiences, (SELECT count(*) FROM groups) AS groups
