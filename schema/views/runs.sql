-- Runs: progress, configuration, workers and retention.

-- Whether a worker with this last heartbeat is alive: the time is at most one lease away from now. A time in the future means
-- that the server's clock was set back. If it is further away than a lease, the worker counts as dead; a live worker sends
-- another heartbeat within seconds.
CREATE FUNCTION trinity.is_alive(heartbeat_at timestamptz, lease_seconds double precision)
RETURNS boolean LANGUAGE sql VOLATILE
AS $$ SELECT abs(extract(epoch FROM clock_timestamp() - heartbeat_at)) <= lease_seconds $$;

-- Retention of a run for a family of rows, from its configuration; NULL: forever. Calls are kept as long as payloads.
-- Replaced and never dropped, since the policies of roles.sql use it; therefore it uses no operators of the calling login.
CREATE OR REPLACE FUNCTION trinity.kept_for(run_id bigint, family text)
RETURNS interval LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT (r.config #>> ARRAY['processors', 'retention', CASE kept_for.family WHEN 'calls' THEN 'payloads' ELSE kept_for.family END])::interval
    FROM trinity.run r
    WHERE r.id = kept_for.run_id
$$;

-- Time before which processors delete rows of a family of a run. NULL: they delete none, because the run keeps all, its
-- processors have not started in this store, or it is being deleted.
CREATE FUNCTION trinity.kept_until(run_id bigint, family text)
RETURNS timestamptz LANGUAGE sql STABLE
AS $$
    SELECT now() - trinity.kept_for(t.run_id, t.family)
    FROM trinity.retention t JOIN trinity.run r ON r.id = t.run_id
    WHERE t.run_id = kept_until.run_id AND t.family = kept_until.family AND r.deleting_at IS NULL
$$;

-- Each policy version with the experiences that it sampled for training: their number, mean reward and mean length. `reward` is
-- the reward at training, which rescoring does not change; `reward_now` is the current one. Also how much of the update is
-- visible in the version's weights, as measured by the trainer.
CREATE VIEW trinity.policy_progress AS
SELECT r.name AS run,
       p.version,
       p.step,
       p.published_at,
       count(e.id) AS experiences,
       avg(trinity.reward_at_training(e.id, e.rollout_id, e.reward)) AS reward,
       avg(e.reward) AS reward_now,
       avg(e.response_length) AS response_length,
       count(e.id) FILTER (WHERE e.state = 'trained') AS trained,
       count(e.id) FILTER (WHERE e.state IN ('dropped', 'expired')) AS dropped,
       (SELECT m.value FROM trinity.metric m WHERE m.run_id = p.run_id AND m.name = 'publish/visible' AND m.step = p.step
        ORDER BY m.id DESC LIMIT 1) AS visible,
       (SELECT m.value FROM trinity.metric m WHERE m.run_id = p.run_id AND m.name = 'publish/visible_last_ten' AND m.step = p.step
        ORDER BY m.id DESC LIMIT 1) AS visible_last_ten,
       (SELECT m.value FROM trinity.metric m WHERE m.run_id = p.run_id AND m.name = 'publish/changed' AND m.step = p.step
        ORDER BY m.id DESC LIMIT 1) AS changed,
       (SELECT m.value FROM trinity.metric m WHERE m.run_id = p.run_id AND m.name = 'publish/noise' AND m.step = p.step
        ORDER BY m.id DESC LIMIT 1) AS noise
FROM trinity.policy_version p
JOIN trinity.run r ON r.id = p.run_id
LEFT JOIN trinity.experience e ON e.run_id = p.run_id AND e.version_min = p.version AND NOT e.held_out
GROUP BY r.name, p.run_id, p.version, p.step, p.published_at;
COMMENT ON COLUMN trinity.policy_progress.run IS 'Name of the run';
COMMENT ON COLUMN trinity.policy_progress.version IS 'Policy version';
COMMENT ON COLUMN trinity.policy_progress.step IS 'Trainer step after which it was published';
COMMENT ON COLUMN trinity.policy_progress.published_at IS 'Time at which it was published';
COMMENT ON COLUMN trinity.policy_progress.experiences IS 'Experiences whose oldest token it sampled';
COMMENT ON COLUMN trinity.policy_progress.reward IS 'Mean of their rewards at training; for rows that no batch used, the rewards before any rescore';
COMMENT ON COLUMN trinity.policy_progress.reward_now IS 'Mean of their current rewards';
COMMENT ON COLUMN trinity.policy_progress.response_length IS 'Mean length of their responses in tokens';
COMMENT ON COLUMN trinity.policy_progress.trained IS 'Number of them that are trained';
COMMENT ON COLUMN trinity.policy_progress.dropped IS 'Number of them that are dropped or expired';
COMMENT ON COLUMN trinity.policy_progress.visible IS 'Metric publish/visible of the version: share of the update since version 0 that is visible in its weights; NULL if not measured';
COMMENT ON COLUMN trinity.policy_progress.visible_last_ten IS 'Metric publish/visible_last_ten: the same since the version ten before';
COMMENT ON COLUMN trinity.policy_progress.changed IS 'Metric publish/changed: share of weights that differ from the previous version';
COMMENT ON COLUMN trinity.policy_progress.noise IS 'Metric publish/noise: root mean square of the rounding error, relative to that of the weights';

-- Changes of a run's configuration, a row per key: the first step to which it applies, the time, and the login that made it.
-- The step is NULL until a batch is drawn with the change. The complete configuration of a step is in the run_setting to which
-- its batch refers.
CREATE VIEW trinity.setting_view AS
WITH RECURSIVE leaf AS (
    SELECT s.id, s.run_id, k.key, k.value FROM trinity.run_setting s CROSS JOIN LATERAL jsonb_each(s.config) k
    UNION ALL
    SELECT l.id, l.run_id, l.key || '.' || k.key, k.value
    FROM leaf l
    CROSS JOIN LATERAL jsonb_each(CASE WHEN jsonb_typeof(l.value) = 'object' THEN l.value ELSE '{}' END) k
),
key AS (
    SELECT id, run_id, key, value FROM leaf WHERE jsonb_typeof(value) <> 'object' OR value = '{}'
),
setting AS (
    SELECT s.*, lag(s.id) OVER (PARTITION BY s.run_id ORDER BY s.id) AS before_id FROM trinity.run_setting s
)
SELECT r.name AS run,
       s.id AS setting_id,
       (SELECT min(b.step) FROM trinity.batch b WHERE b.setting_id = s.id AND b.run_id = s.run_id) AS since_step,
       change.key,
       change.before,
       change.after,
       s.created_at AS changed_at,
       s.created_by AS changed_by,
       s.host
FROM setting s
JOIN trinity.run r ON r.id = s.run_id
CROSS JOIN LATERAL (
    SELECT coalesce(a.key, b.key) AS key, b.value AS before, a.value AS after
    FROM (SELECT k.key, k.value FROM key k WHERE k.id = s.id) a
    FULL JOIN (SELECT k.key, k.value FROM key k WHERE k.id = s.before_id) b ON b.key = a.key
    WHERE a.value IS DISTINCT FROM b.value
) change
WHERE s.before_id IS NOT NULL;
COMMENT ON COLUMN trinity.setting_view.run IS 'Name of the run';
COMMENT ON COLUMN trinity.setting_view.setting_id IS 'The run_setting that made the change';
COMMENT ON COLUMN trinity.setting_view.since_step IS 'First step drawn under it; NULL before the first';
COMMENT ON COLUMN trinity.setting_view.key IS 'Path of the key';
COMMENT ON COLUMN trinity.setting_view.before IS 'Value before the change';
COMMENT ON COLUMN trinity.setting_view.after IS 'Value after the change';
COMMENT ON COLUMN trinity.setting_view.changed_at IS 'Time of the change';
COMMENT ON COLUMN trinity.setting_view.changed_by IS 'Login that made it';
COMMENT ON COLUMN trinity.setting_view.host IS 'Host on which it was made';

-- Runs and data sets with a status derived from their workers. run.state only records whether the configured work is done: a
-- killed supervisor writes nothing, so a stopped run stays `active` there. A worker is alive if its last heartbeat is within
-- its lease of 30 s. Without a live worker, the workers that were last alive together count: those whose last heartbeat
-- is at most a lease older than the newest one. If one of them did not sign off, or another process marked it as gone after its
-- lease, the run crashed. In the first 30 s after a crash the run is still shown as active.
CREATE VIEW trinity.run_view AS
SELECT r.id,
       r.name AS run,
       r.kind,
       r.state,
       CASE WHEN r.deleting_at IS NOT NULL THEN 'being deleted'
            WHEN r.kind = 'data' THEN 'data set'
            WHEN w.are_to_stop THEN 'stopping'
            WHEN r.state = 'finished' THEN 'finished'
            WHEN w.run_id IS NULL THEN 'new'
            WHEN w.alive > 0 THEN 'active'
            WHEN w.is_crashed THEN 'crashed'
            ELSE 'stopped' END AS status,
       coalesce(w.alive, 0) AS alive,
       w.seen_at,
       r.created_at,
       r.finished_at
FROM trinity.run r
LEFT JOIN (
    SELECT a.run_id,
           max(a.newest) AS seen_at,
           count(*) FILTER (WHERE a.is_alive) AS alive,
           bool_or(a.is_alive AND a.started_at <= a.stop_asked_at) AS are_to_stop,
           bool_or(a.heartbeat_at >= a.newest - interval '30 s'
                   AND coalesce(a.stopped_at > a.heartbeat_at + interval '30 s', true)) AS is_crashed
    FROM (SELECT w.run_id, w.started_at, w.heartbeat_at, w.stopped_at, o.stop_asked_at,
                 w.stopped_at IS NULL AND trinity.is_alive(w.heartbeat_at, 30) AS is_alive,
                 max(w.heartbeat_at) OVER (PARTITION BY w.run_id) AS newest
          FROM trinity.worker w
          JOIN trinity.run o ON o.id = w.run_id) a
    GROUP BY a.run_id
) w ON w.run_id = r.id;
COMMENT ON COLUMN trinity.run_view.id IS 'Id of the run';
COMMENT ON COLUMN trinity.run_view.run IS 'Name of the run or data set';
COMMENT ON COLUMN trinity.run_view.kind IS 'train for a training effort, data for an imported data set';
COMMENT ON COLUMN trinity.run_view.state IS 'active or finished, as in run: whether the configured work is done';
COMMENT ON COLUMN trinity.run_view.status IS
    'active (a worker is alive), stopping (living workers were asked to stop), stopped (all workers signed off), crashed (a worker ended without signing off), new (no worker started yet), finished, being deleted, or data set';
COMMENT ON COLUMN trinity.run_view.alive IS 'Workers with a heartbeat within 30 s that did not sign off';
COMMENT ON COLUMN trinity.run_view.seen_at IS 'Last heartbeat of any of its workers; NULL before the first';
COMMENT ON COLUMN trinity.run_view.created_at IS 'Time at which it was created';
COMMENT ON COLUMN trinity.run_view.finished_at IS 'Time at which the configured work was complete; NULL before';

-- Workers and their current leases: every worker that has not stopped, or still holds something. A worker is alive if its last
-- heartbeat is within its lease of 30 s. Rows are experiences and preferences.
CREATE VIEW trinity.lease_view AS
SELECT r.name AS run,
       w.id AS worker,
       w.role,
       w.host,
       w.pid,
       round(extract(epoch FROM clock_timestamp() - w.heartbeat_at), 1) AS silent_seconds,
       w.stopped_at IS NULL AND trinity.is_alive(w.heartbeat_at, 30) AS alive,
       held.groups,
       held.rows,
       held.batches
FROM trinity.worker w
JOIN trinity.run r ON r.id = w.run_id
CROSS JOIN LATERAL (
    SELECT (SELECT count(*) FROM trinity.rollout_group g WHERE g.worker_id = w.id) AS groups,
           (SELECT count(*) FROM trinity.experience e WHERE e.judge_id = w.id)
           + (SELECT count(*)
              FROM trinity.batch b
              JOIN trinity.batch_item i ON i.batch_id = b.id
              JOIN trinity.experience e ON e.id = i.experience_id AND e.worker_id = w.id AND e.state = 'leased'
              WHERE b.run_id = w.run_id AND b.worker_id = w.id AND b.state = 'leased')
           + (SELECT count(*) FROM trinity.preference p WHERE p.worker_id = w.id) AS rows,
           (SELECT count(*) FROM trinity.batch b
            WHERE b.run_id = w.run_id AND b.worker_id = w.id AND b.state = 'leased') AS batches
) held
WHERE w.stopped_at IS NULL OR held.groups + held.rows + held.batches > 0;
COMMENT ON COLUMN trinity.lease_view.run IS 'Name of the run';
COMMENT ON COLUMN trinity.lease_view.worker IS 'Id of the worker';
COMMENT ON COLUMN trinity.lease_view.role IS 'explore, process or train';
COMMENT ON COLUMN trinity.lease_view.host IS 'Name of its host';
COMMENT ON COLUMN trinity.lease_view.pid IS 'Its process id on that host';
COMMENT ON COLUMN trinity.lease_view.silent_seconds IS 'Seconds since its last heartbeat';
COMMENT ON COLUMN trinity.lease_view.alive IS 'Whether it works and its last heartbeat is within 30 s';
COMMENT ON COLUMN trinity.lease_view.groups IS 'Rollout groups that it holds';
COMMENT ON COLUMN trinity.lease_view.rows IS 'Experiences and pairs that it holds';
COMMENT ON COLUMN trinity.lease_view.batches IS 'Batches that it holds';
