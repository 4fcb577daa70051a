-- name: use_of_run
-- Progress of a run. It has rows if one of its rollouts succeeded, a row of it was judged, or another run started
-- from it. It is trained if a step was ever committed, even if reopened.
SELECT EXISTS (SELECT FROM trinity.rollout_group g
               JOIN trinity.rollout m ON m.group_id = g.id AND m.state = 'finished'
               WHERE g.run_id = %(run_id)s)
       OR EXISTS (SELECT FROM trinity.reward_event v WHERE v.run_id = %(run_id)s)
       OR EXISTS (SELECT FROM trinity.run r JOIN trinity.run o ON o.config #>> '{model,run}' = r.name
                  WHERE r.id = %(run_id)s) AS has_rows,
       EXISTS (SELECT FROM trinity.batch b WHERE b.run_id = %(run_id)s AND b.committed_at IS NOT NULL) AS is_trained

-- name: failed_attempts
-- Number of attempts of a run; used only for runs without a successful attempt.
SELECT count(*) AS failed
FROM trinity.rollout_group g JOIN trinity.rollout m ON m.group_id = g.id
WHERE g.run_id = %(run_id)s

-- name: change_setting
-- Replaces the configuration of a run, as a dated row. If the number of steps or epochs changes, the run is active
-- again, and its trainer decides when it is finished.
WITH given AS (
    SELECT g.config,
           (r.config #> '{trainer,steps}', r.config #> '{trainer,epochs}')
           IS DISTINCT FROM (g.config #> '{trainer,steps}', g.config #> '{trainer,epochs}') AS has_another_end
    FROM trinity.run r CROSS JOIN (SELECT %(config)s::jsonb AS config) g
    WHERE r.id = %(run_id)s
),
changed AS (
    UPDATE trinity.run r
    SET config = given.config,
        draws = %(draws)s,
        state = CASE WHEN given.has_another_end THEN 'active' ELSE r.state END,
        finished_at = CASE WHEN NOT given.has_another_end THEN r.finished_at END
    FROM given
    WHERE r.id = %(run_id)s
    RETURNING r.id, r.config
)
INSERT INTO trinity.run_setting (run_id, config, host) SELECT changed.id, changed.config, %(host)s FROM changed

-- name: latest_changes
-- The changed keys of a run's configuration, each with the time of its last change.
SELECT v.key, max(v.changed_at) AS changed_at
FROM trinity.setting_view v
WHERE v.run = (SELECT r.name FROM trinity.run r WHERE r.id = %(run_id)s)
GROUP BY v.key
