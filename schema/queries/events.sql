-- name: events_settings
-- The newest :limit settings of a run and the one before them, oldest first.
SELECT s.config, s.created_at, s.created_by
FROM (SELECT s.id, s.config, s.created_at, s.created_by FROM trinity.run_setting s
      WHERE s.run_id = %(run_id)s ORDER BY s.id DESC LIMIT %(limit)s + 1) s
ORDER BY s.id

-- name: events_newest
-- The newest :limit events of a run, newest first: starts and ends of workers, setbacks, and drops, where the newest
-- :drops drops are grouped by minute and reason.
SELECT e.*
FROM (
    (SELECT w.started_at AS at, 'start' AS kind, w.role::text, w.host, w.pid, NULL AS reason, NULL::bigint AS rows,
            NULL::jsonb AS setback
     FROM trinity.worker w WHERE w.run_id = %(run_id)s ORDER BY w.started_at DESC LIMIT %(limit)s)
    UNION ALL
    (SELECT w.stopped_at, 'end', w.role::text, w.host, w.pid, NULL, NULL, NULL
     FROM trinity.worker w WHERE w.run_id = %(run_id)s AND w.stopped_at IS NOT NULL
     ORDER BY w.stopped_at DESC LIMIT %(limit)s)
    UNION ALL
    (SELECT s.created_at, 'setback', NULL, NULL, NULL, NULL, NULL, to_jsonb(s)
     FROM trinity.setback s WHERE s.run_id = %(run_id)s ORDER BY s.id DESC LIMIT %(limit)s)
    UNION ALL
    (SELECT max(d.created_at), 'drop', NULL, NULL, NULL, d.reason, count(*), NULL
     FROM (SELECT d.created_at, d.reason FROM trinity."drop" d
           WHERE d.run_id = %(run_id)s ORDER BY d.id DESC LIMIT %(drops)s) d
     GROUP BY d.reason, date_trunc('minute', d.created_at)
     ORDER BY 1 DESC LIMIT %(limit)s)
) e
ORDER BY e.at DESC
LIMIT %(limit)s
