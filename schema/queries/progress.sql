-- name: run_progress
-- Where a run stands: steps committed, the newest version, what the last batch was like, how many groups were begun.
-- Asked again and again: it reads no table whose size is that of the store, but counters of tasks, and drops.
SELECT r.state,
       coalesce(b.step, 0) AS step,
       b.reward,
       b.staleness,
       (SELECT max(p.version) FROM trinity.policy_version p WHERE p.run_id = r.id) AS version,
       (SELECT coalesce(sum(s.issued), 0)::bigint FROM trinity.task_stat s WHERE s.run_id = r.id) AS groups,
       (SELECT count(d.experience_id) FROM trinity."drop" d WHERE d.run_id = r.id) AS dropped
FROM trinity.run r
LEFT JOIN LATERAL (
    SELECT last.step, avg(i.reward) AS reward, max(i.staleness) AS staleness
    FROM (SELECT id, step FROM trinity.batch
          WHERE run_id = r.id AND state = 'committed' ORDER BY step DESC LIMIT 1) last
    JOIN trinity.batch_item i ON i.batch_id = last.id
    GROUP BY last.step
) b ON true
WHERE r.id = %(run_id)s

-- name: run_summary
-- What a run did, all of it.
SELECT (SELECT count(*) FROM trinity.rollout o WHERE o.run_id = %(run_id)s AND o.state <> 'refused') AS rollouts,
       (SELECT count(*) FROM trinity.batch b WHERE b.run_id = %(run_id)s AND b.state = 'committed') AS trained_batches,
       (SELECT count(*) FROM trinity.policy_version p WHERE p.run_id = %(run_id)s) AS policy_versions,
       (SELECT max(i.staleness) FROM trinity.batch_item i JOIN trinity.batch b ON b.id = i.batch_id
        WHERE b.run_id = %(run_id)s AND b.state = 'committed') AS max_staleness_seen

-- name: reward_by_version
SELECT version, reward FROM trinity.policy_progress
WHERE run = %(run)s AND reward IS NOT NULL
ORDER BY version

-- name: staleness_by_step
SELECT step, staleness_min, staleness_mean::double precision, staleness_max FROM trinity.batch_view
WHERE run = %(run)s AND state = 'committed'
ORDER BY step

-- name: count_named_runs
-- How many runs have a name that begins like this.
SELECT count(*) AS runs FROM trinity.run WHERE starts_with(name, %(prefix)s)
