-- name: comparison_runs
-- The runs with these names: start, duration, progress and settings.
SELECT r.id, r.name, r.kind, r.config, v.status AS state,
       r.created_at, extract(epoch FROM coalesce(r.finished_at, now()) - r.created_at)::float8 AS seconds,
       p.version, b.step
FROM trinity.run r
JOIN trinity.run_view v ON v.id = r.id
LEFT JOIN LATERAL (SELECT p.version FROM trinity.policy_version p
                   WHERE p.run_id = r.id AND p.withdrawn_at IS NULL ORDER BY p.version DESC LIMIT 1) p ON true
LEFT JOIN LATERAL (SELECT b.step FROM trinity.batch b
                   WHERE b.run_id = r.id AND b.state = 'committed' ORDER BY b.step DESC LIMIT 1) b ON true
WHERE r.name = ANY(%(names)s::text[])

-- name: comparison_metrics
-- Names of the metrics of these runs, at most :names per run. Each name is searched for after the previous one, so
-- the cost depends on the number of names, not of measurements.
WITH RECURSIVE found AS (
    SELECT r.id, 1 AS number, (SELECT min(m.name) FROM trinity.metric m WHERE m.run_id = r.id) AS name
    FROM unnest(%(run_ids)s::bigint[]) AS r (id)
    UNION ALL
    SELECT f.id, f.number + 1, (SELECT min(m.name) FROM trinity.metric m WHERE m.run_id = f.id AND m.name > f.name)
    FROM found f
    WHERE f.name IS NOT NULL AND f.number < %(names)s
)
SELECT DISTINCT f.name FROM found f WHERE f.name IS NOT NULL ORDER BY f.name

-- name: comparison_curves
-- Metrics of a run with these names, at most :points each, every point the mean over the same number of steps.
-- `place` is the x coordinate: the step, the newest policy version at that step, the seconds since the run was
-- created, or the number of trained tokens. Explorers' metrics are recorded by version and placed at its step. For a
-- repeated step the last measurement counts.
WITH measured AS (
    (SELECT DISTINCT ON (m.name, m.step) m.name, m.step, m.value, m.created_at
     FROM trinity.metric m
     WHERE m.run_id = %(run_id)s AND m.name = ANY(%(names)s::text[] || 'num_tokens'::text) AND m.role <> 'explore'
     ORDER BY m.name, m.step, m.id DESC)
    UNION ALL
    SELECT m.name, p.step, m.value, m.created_at
    FROM trinity.metric m
    JOIN trinity.policy_version p ON p.run_id = m.run_id AND p.version = m.step
    WHERE m.run_id = %(run_id)s AND m.name = ANY(%(names)s::text[]) AND m.role = 'explore'
),
point AS (
    SELECT m.name, min(m.step) AS step, min(m.created_at) AS created_at, avg(m.value) AS value
    FROM measured m
    CROSS JOIN (SELECT max(l.step) / %(points)s::integer + 1 AS width FROM measured l) w
    GROUP BY m.name, m.step / w.width
),
placed AS (
    SELECT a.name, a.value,
           CASE %(over)s::text
               WHEN 'version' THEN max(a.version) OVER at_step
               WHEN 'tokens' THEN max(CASE WHEN a.name = 'num_tokens' THEN a.value END) OVER at_step
               WHEN 'time' THEN extract(epoch FROM a.created_at
                                        - (SELECT r.created_at FROM trinity.run r WHERE r.id = %(run_id)s))
               ELSE a.step END::float8 AS place
    FROM (SELECT p.name, p.step, p.created_at, p.value, NULL::integer AS version FROM point p
          UNION ALL
          SELECT NULL, v.step, NULL, NULL, v.version FROM trinity.policy_version v
          WHERE v.run_id = %(run_id)s AND v.withdrawn_at IS NULL) a
    WINDOW at_step AS (ORDER BY a.step) -- includes all rows of the same step
)
SELECT p.name, p.place, avg(p.value) AS value
FROM placed p
WHERE p.name = ANY(%(names)s::text[]) AND p.place IS NOT NULL
GROUP BY p.name, p.place
ORDER BY p.name, p.place

-- name: comparison_last
-- The last measurement of a run under each of these names.
SELECT n.name, l.value
FROM unnest(%(names)s::text[]) AS n (name)
CROSS JOIN LATERAL (SELECT m.value FROM trinity.metric m
                    WHERE m.run_id = %(run_id)s AND m.name = n.name ORDER BY m.step DESC, m.id DESC LIMIT 1) l

-- name: comparison_settings
-- The newest :limit settings of a run, oldest first, each with the first step drawn under it.
SELECT s.config, s.created_at, b.since_step
FROM (SELECT s.id, s.config, s.created_at FROM trinity.run_setting s
      WHERE s.run_id = %(run_id)s ORDER BY s.id DESC LIMIT %(limit)s) s
LEFT JOIN (SELECT b.setting_id, min(b.step) AS since_step FROM trinity.batch b
           WHERE b.run_id = %(run_id)s GROUP BY b.setting_id) b ON b.setting_id = s.id
ORDER BY s.id
