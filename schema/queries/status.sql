-- name: status_runs
-- Every run, or the run with this id: its status as in run_view, its workers that have not stopped, its rows and
-- pairs by state, and whether its latest batch took pairs. Rows of evaluations do not count. Counts are exact and
-- scan the hot rows: about 100 ms for a million.
SELECT r.id, r.name AS run, r.kind,
       v.status AS state,
       r.created_at, r.finished_at, r.stop_asked_at, p.version AS policy_version, p.step,
       p.published_at, coalesce(w.workers, '[]') AS workers, coalesce(e.states, '{}') AS experiences,
       coalesce(q.states, '{}') AS preferences,
       EXISTS (SELECT FROM trinity.batch_item i
               WHERE i.batch_id = (SELECT max(b.id) FROM trinity.batch b WHERE b.run_id = r.id)
                 AND i.preference_id IS NOT NULL) AS draws_pairs
FROM trinity.run r
JOIN trinity.run_view v ON v.id = r.id
LEFT JOIN LATERAL (
    SELECT p.version, p.step, p.published_at
    FROM trinity.policy_version p
    WHERE p.run_id = r.id AND p.withdrawn_at IS NULL
    ORDER BY p.version DESC
    LIMIT 1
) p ON true
LEFT JOIN LATERAL (
    SELECT jsonb_agg(jsonb_build_object('role', w.role, 'host', w.host, 'pid', w.pid, 'started_at', w.started_at,
                                        'silent_seconds', w.silent, 'alive', w.alive, 'staged_version', w.staged_version)
                     ORDER BY w.role, w.id) AS workers
    FROM (SELECT w.id, w.role, w.host, w.pid, w.started_at, w.staged_version,
                 round(extract(epoch FROM clock_timestamp() - w.heartbeat_at), 1) AS silent,
                 trinity.is_alive(w.heartbeat_at, %(lease_seconds)s) AS alive
          FROM trinity.worker w
          WHERE w.run_id = r.id AND w.stopped_at IS NULL) w
) w ON true
LEFT JOIN (
    SELECT s.run_id, jsonb_object_agg(s.state, s.rows) AS states
    FROM (SELECT e.run_id, e.state, count(*) AS rows
          FROM trinity.experience e
          WHERE (%(run_id)s::bigint IS NULL OR e.run_id = %(run_id)s) AND (e.source_id IS NOT NULL OR NOT e.held_out)
          GROUP BY e.run_id, e.state) s
    GROUP BY s.run_id
) e ON e.run_id = r.id
LEFT JOIN (
    SELECT s.run_id, jsonb_object_agg(s.state, s.rows) AS states
    FROM (SELECT p.run_id, p.state, count(*) AS rows
          FROM trinity.preference p
          WHERE %(run_id)s::bigint IS NULL OR p.run_id = %(run_id)s
          GROUP BY p.run_id, p.state) s
    GROUP BY s.run_id
) q ON q.run_id = r.id
WHERE %(run_id)s::bigint IS NULL OR r.id = %(run_id)s
ORDER BY r.id

-- name: status_metrics
-- Two results from the metrics of one run: `sampling`, the difference between the recorded log-probabilities and
-- the trainer's own for the same weights; and `waiting`, the shares of time that the trainer waits for
-- rollouts and the explorers for training, since the oldest of the latest batches. NULL before the third, since the
-- first ones wait for the start of the engines.
SELECT (SELECT jsonb_build_object(
                   'step', o.step, 'outside', o.value,
                   'mean', (SELECT m.value FROM trinity.metric m
                            WHERE m.run_id = %(run_id)s AND m.name = 'sampling/engine_logp_difference/mean'
                              AND m.step = o.step
                            ORDER BY m.id DESC LIMIT 1))
        FROM (SELECT m.step, m.value FROM trinity.metric m
              WHERE m.run_id = %(run_id)s AND m.name = 'sampling/engine_ratio_outside'
              ORDER BY m.step DESC, m.id DESC LIMIT 1) o) AS sampling,
       (SELECT jsonb_build_object(
            'trainer', (SELECT sum(m.value) FILTER (WHERE m.name = 'time/wait_for_batch')
                               / nullif(sum(m.value) FILTER (WHERE m.name = 'step_time'), 0)
                        FROM trinity.metric m
                        WHERE m.run_id = %(run_id)s AND m.role = 'train' AND m.step >= b.first_step
                          AND m.name IN ('time/wait_for_batch', 'step_time')),
            'explorers', (SELECT sum(m.value) FILTER (WHERE m.name = 'explore/wait_for_training')
                                 / nullif(sum(m.value) FILTER (WHERE m.name = 'explore/time'), 0)
                          FROM trinity.metric m
                          WHERE m.run_id = %(run_id)s AND m.role = 'explore' AND m.step >= b.first_version
                            AND m.name IN ('explore/wait_for_training', 'explore/time')),
            'max_staleness', (SELECT r.config -> 'max_staleness' FROM trinity.run r WHERE r.id = %(run_id)s))
        FROM (SELECT CASE WHEN count(*) >= 3 THEN min(l.step) END AS first_step, min(l.policy_version) AS first_version
              FROM (SELECT b.step, b.policy_version FROM trinity.batch b
                    WHERE b.run_id = %(run_id)s AND b.state = 'committed'
                    ORDER BY b.step DESC LIMIT %(batches)s) l) b) AS waiting

-- name: status_attempts
-- The attempts of one run that did not begin and were given back, and the parked ones. `missing`: the groups that
-- parts of the sampler lack for the next step.
SELECT (SELECT jsonb_build_object('rollouts', count(*), 'latest', max(m.finished_at),
                                  'why', (array_agg(m.finish_reason ORDER BY m.id DESC))[1])
        FROM trinity.rollout m
        WHERE m.run_id = %(run_id)s AND m.state = 'refused' AND m.finish_reason LIKE 'given back: %%'
        HAVING count(*) > 0) AS given_back,
       (SELECT jsonb_build_object('attempts', count(*), 'groups', count(DISTINCT p.group_id),
                                  'answered', count(p.answered_at), 'since', min(p.parked_at))
        FROM trinity.parked_view p WHERE p.run_id = %(run_id)s HAVING count(*) > 0) AS parked,
       (SELECT jsonb_object_agg(p.name, m.value)
        FROM (SELECT r.config -> 'sampler' AS sampler,
                     1 + coalesce((SELECT max(b.step) FROM trinity.batch b
                                   WHERE b.run_id = r.id AND b.state <> 'reopened'), 0) AS step
              FROM trinity.run r WHERE r.id = %(run_id)s) r
        CROSS JOIN LATERAL (SELECT jsonb_object_keys(r.sampler -> 'parts') AS name
                            UNION SELECT r.sampler ->> 'name'
                            UNION SELECT 'all') p
        CROSS JOIN LATERAL (SELECT w.value FROM trinity.metric w
                            WHERE w.run_id = %(run_id)s AND w.name = 'draw/missing/' || p.name AND w.step = r.step
                            ORDER BY w.id DESC LIMIT 1) m) AS missing

-- name: status_detail
-- The state of one run: its groups by state, the staleness of its latest batches, recent amounts of exploration for
-- training and of training, the newest evaluation on each taskset, the reasons of drops, and late writes. `awaited`:
-- rows that wait for a required reward; NULL if the run requires none. `unlabelled`: rows without the reward that a
-- label needs. `checkpoint`: the version from which the trainer would resume after a crash, and the number of
-- committed steps that it would repeat. Counts are exact and scan rows, rollouts and verdicts: some hundred
-- milliseconds for a million.
SELECT (SELECT coalesce(jsonb_object_agg(s.state, s.rows), '{}')
        FROM (SELECT g.state, count(*) AS rows FROM trinity.rollout_group g
              WHERE g.run_id = %(run_id)s AND g.evaluation_id IS NULL GROUP BY g.state) s) AS groups,
       (SELECT jsonb_build_object('batches', count(DISTINCT b.id), 'mean', avg(i.staleness), 'max', max(i.staleness))
        FROM (SELECT b.id FROM trinity.batch b
              WHERE b.run_id = %(run_id)s AND b.state <> 'reopened'
              ORDER BY b.step DESC LIMIT %(batches)s) b
        JOIN trinity.batch_item i ON i.batch_id = b.id
        WHERE i.staleness IS NOT NULL) AS staleness,
       jsonb_build_object(
           'seconds', %(window_seconds)s::integer,
           'rollouts_per_second',
           (SELECT round(count(*) / %(window_seconds)s::numeric, 2)
            FROM trinity.rollout_group g JOIN trinity.rollout m ON m.group_id = g.id
            WHERE g.run_id = %(run_id)s AND g.evaluation_id IS NULL
              AND coalesce(g.completed_at, now()) > now() - %(window_seconds)s * interval '1 s'
              AND m.finished_at > now() - %(window_seconds)s * interval '1 s'),
           'trained_rows_per_second',
           (SELECT round(count(*) / %(window_seconds)s::numeric, 2)
            FROM trinity.batch b JOIN trinity.batch_item i ON i.batch_id = b.id
            WHERE b.run_id = %(run_id)s AND b.state = 'committed'
              AND b.committed_at > now() - %(window_seconds)s * interval '1 s')) AS rates,
       (SELECT coalesce(jsonb_agg(to_jsonb(d)), '[]')
        FROM (SELECT d.stage, d.step, d.reason, count(d.experience_id) AS experiences, count(d.group_id) AS groups,
                     count(d.preference_id) AS preferences
              FROM trinity."drop" d
              WHERE d.run_id = %(run_id)s
              GROUP BY d.stage, d.step, d.reason
              ORDER BY count(*) DESC, d.stage, d.step, d.reason) d) AS drops,
       (SELECT jsonb_build_object('source', v.source, 'experiences', count(*), 'groups', count(DISTINCT v.group_id))
        FROM trinity.awaited_reward_view v
        WHERE v.run = (SELECT r.name FROM trinity.run r WHERE r.id = %(run_id)s)
        GROUP BY v.source) AS awaited,
       (SELECT count(*) FROM trinity.experience e
        WHERE e.run_id = %(run_id)s AND e.is_offered AND e.draws_labels AND e.reward IS NULL) AS unlabelled,
       jsonb_build_object(
           'rollouts',
           (SELECT count(*) FROM trinity.rollout m WHERE m.run_id = %(run_id)s AND m.state = 'refused'
              AND m.finish_reason IS DISTINCT FROM 'spare' AND coalesce(m.finish_reason, '') NOT LIKE 'given back: %%'),
           'processing',
           (SELECT count(*) FROM trinity.processing p JOIN trinity.experience e ON e.id = p.experience_id
            WHERE e.run_id = %(run_id)s AND p.outcome = 'refused'),
           'batches',
           (SELECT coalesce(sum(m.value), 0)::integer FROM trinity.metric m
            WHERE m.run_id = %(run_id)s AND m.name = 'refused/batches')) AS refused,
       (SELECT coalesce(jsonb_agg(to_jsonb(s) - 'run_id' ORDER BY s.id), '[]')
        FROM trinity.setback s WHERE s.run_id = %(run_id)s) AS setbacks,
       (SELECT coalesce(jsonb_agg(to_jsonb(v)), '[]')
        FROM (SELECT DISTINCT ON (o.taskset_id) o.id FROM trinity.evaluation o
              WHERE o.run_id = %(run_id)s ORDER BY o.taskset_id, o.version DESC, o.id DESC) newest
        JOIN trinity.evaluation_view v ON v.id = newest.id) AS evaluations,
       (SELECT jsonb_build_object('version', p.version, 'step', p.step, 'published_at', p.published_at,
                                  'steps_since',
                                  coalesce((SELECT max(b.step) FROM trinity.batch b
                                            WHERE b.run_id = p.run_id AND b.state = 'committed'), 0) - p.step)
        FROM trinity.policy_version p
        WHERE p.run_id = %(run_id)s AND p.withdrawn_at IS NULL AND (p.version = 0 OR p.resume_from IS NOT NULL)
        ORDER BY p.version DESC LIMIT 1) AS checkpoint,
       (SELECT jsonb_build_object('payloads', sum(a.num_rows), 'bytes', sum(a.num_bytes))
        FROM trinity.archive a WHERE a.run_id = %(run_id)s HAVING count(*) > 0) AS archived

-- name: status_rewards
-- The newest :versions versions of one run, newest first: number of sampled rows, their mean reward at training and
-- now, and the loss of the step before publication. Rewards are those of the newest :rows rows of each version, NULL
-- for all. They equal reward_at_training, which takes 15 µs per row and is called only for rows that were rescored
-- and never in a batch; the others take 3 µs per row.
WITH newest AS MATERIALIZED (
    SELECT p.version, p.step FROM trinity.policy_version p
    WHERE p.run_id = %(run_id)s ORDER BY p.version DESC LIMIT %(versions)s
),
written AS MATERIALIZED (
    SELECT e.id, e.rollout_id, e.reward, e.version_min,
           %(rows)s::bigint IS NULL
           OR row_number() OVER (PARTITION BY e.version_min ORDER BY e.id DESC) <= %(rows)s AS is_read
    FROM trinity.experience e
    WHERE e.run_id = %(run_id)s AND NOT e.held_out AND e.version_min = ANY(ARRAY(SELECT n.version FROM newest n))
)
SELECT n.version, n.step, coalesce(e.rows, 0) AS experiences, e.reward, e.reward_now,
       (SELECT m.value FROM trinity.metric m
        WHERE m.run_id = %(run_id)s AND m.name = 'loss' AND m.step = n.step ORDER BY m.id DESC LIMIT 1) AS loss
FROM newest n
LEFT JOIN (
    SELECT w.version_min, count(*) AS rows, avg(w.reward) FILTER (WHERE w.is_read) AS reward_now,
           avg(CASE WHEN NOT w.is_read THEN NULL
                    WHEN u.id IS NOT NULL THEN u.reward
                    -- LIMIT 1 instead of EXISTS, for which the planner may hash the whole table.
                    WHEN (SELECT v.id FROM trinity.reward_event v
                          WHERE v.rollout_id = w.rollout_id AND v.source = 'rescore' LIMIT 1) IS NULL
                         AND (SELECT v.id FROM trinity.reward_event v
                              WHERE v.experience_id = w.id AND v.source = 'rescore' LIMIT 1) IS NULL THEN w.reward
                    ELSE trinity.reward_at_training(w.id, w.rollout_id, w.reward) END) AS reward
    FROM written w
    LEFT JOIN LATERAL (
        SELECT i.experience_id AS id, i.reward
        FROM trinity.batch_item i
        JOIN trinity.batch b ON b.id = i.batch_id AND b.state = 'committed'
        WHERE w.is_read AND i.experience_id = w.id AND i.reward IS NOT NULL
        ORDER BY b.id DESC LIMIT 1
    ) u ON true
    GROUP BY w.version_min
) e ON e.version_min = n.version
ORDER BY n.version DESC
