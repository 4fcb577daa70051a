-- name: read_step_lists
-- The run's lists of scoring steps, oldest first.
SELECT l.version, l.steps FROM trinity.step_list l
WHERE l.run_id = %(run_id)s AND l.processor = 'score'
ORDER BY l.version

-- name: selectable_rows
-- The rows of a run as in experience_view, each with the name of its taskset. A condition on these columns selects
-- the rows to rescore.
SELECT v.*, s.name AS taskset
FROM trinity.experience_view v
JOIN trinity.rollout_group g ON g.id = v.group_id
JOIN trinity.task t ON t.id = g.task_id
JOIN trinity.taskset s ON s.id = t.taskset_id
WHERE v.run = %(run)s

-- name: last_group
-- The newest rollout group of a run; 0 before the first.
SELECT coalesce(max(g.id), 0) AS id FROM trinity.rollout_group g WHERE g.run_id = %(run_id)s

-- name: due_rows
-- The rows to rescore, each with the names of the steps whose current version has not scored it. Looks at the groups
-- in :among or, if that is NULL, at the run's groups up to the id :until.
--
-- A step has scored a row if the latest pass over it, with a list that names the step, had the same step: the same
-- code, options and weight. `held` has the versions of these lists, `same` those with the same step. If no pass is
-- recorded any longer, because it was pruned, the step's latest reward event identifies its list. With :whole, a row
-- is also due if its reward includes an event from a step that is no longer in the list.
--
-- Excludes groups whose members are still in their first processing, evaluations, adopted rows, and rows that a step
-- dropped or could not judge.
SELECT e.group_id, e.id, due.steps
FROM trinity.rollout_group g
JOIN trinity.experience e ON e.group_id = g.id
CROSS JOIN LATERAL (
    SELECT coalesce(array_agg(s.name) FILTER (WHERE NOT coalesce(
               (SELECT p.processor_version = ANY(s.same)
                FROM trinity.processing p
                WHERE p.experience_id = e.id AND p.processor IN ('score', 'rescore') AND p.outcome = 'passed'
                  AND p.processor_version = ANY(s.held)
                ORDER BY p.id DESC LIMIT 1),
               (SELECT v.processor_version = ANY(s.same)
                FROM (SELECT a.* FROM trinity.reward_event a WHERE a.rollout_id = e.rollout_id
                      UNION ALL
                      SELECT a.* FROM trinity.reward_event a WHERE a.experience_id = e.id) v
                WHERE v.source IN ('score', 'rescore') AND (v.name = s.name OR starts_with(v.name, s.name || '/'))
                ORDER BY v.id DESC LIMIT 1),
               false)), '{}') AS steps
    FROM jsonb_to_recordset(%(steps)s::jsonb) AS s (name text, held integer[], same integer[])
) due
WHERE g.id = ANY(coalesce(%(among)s::bigint[], ARRAY(
          SELECT o.id FROM trinity.rollout_group o WHERE o.run_id = %(run_id)s AND o.id <= %(until)s)))
  AND g.run_id = %(run_id)s
  AND (g.state IN ('complete', 'ready', 'leased', 'trained', 'dropped')) IS TRUE
  AND e.source_id IS NULL
  AND (e.state IN ('scored', 'ready', 'leased', 'trained', 'expired')
       OR e.state = 'dropped' AND (SELECT d.stage FROM trinity."drop" d WHERE d.experience_id = e.id) IN ('group', 'draw')
      ) IS TRUE
  -- LIMIT 1 instead of EXISTS here and below: see pick_groups.
  AND (SELECT m.id FROM trinity.experience m
       WHERE m.group_id = g.id AND (m.state IN ('raw', 'clean')) IS TRUE LIMIT 1) IS NULL
  AND (due.steps <> '{}'
       OR %(whole)s
          AND (SELECT v.event_id FROM trinity.reward_part_view v
               WHERE v.experience_id = e.id AND v.source IN ('score', 'rescore') AND v.weight <> 0
                 AND NOT EXISTS (SELECT FROM jsonb_to_recordset(%(steps)s::jsonb) AS s (name text)
                                 WHERE v.name = s.name OR starts_with(v.name, s.name || '/'))
               LIMIT 1) IS NOT NULL)
ORDER BY e.group_id, e.id

-- name: claim_rescore
-- Leases up to :limit of these groups, in order of id, to rescore their rows. Skips groups held by another worker,
-- and those claimed :suspect times without a verdict: their rows may be killing their judge.
INSERT INTO trinity.rescore AS q (group_id, worker_id)
SELECT g.id, %(worker_id)s
FROM trinity.rollout_group g
LEFT JOIN trinity.rescore h ON h.group_id = g.id
WHERE g.id = ANY(%(group_ids)s) AND (h.group_id IS NULL OR h.worker_id IS NULL AND h.attempt < %(suspect)s)
ORDER BY g.id
LIMIT %(limit)s
ON CONFLICT (group_id) DO UPDATE SET worker_id = excluded.worker_id, attempt = q.attempt + 1
WHERE q.worker_id IS NULL AND q.attempt < %(suspect)s
RETURNING q.group_id, q.attempt

-- name: hold_rescore
-- Locks the given groups that the worker still holds until their verdicts are written; returns their attempts.
SELECT q.group_id, q.attempt FROM trinity.rescore q
WHERE q.group_id = ANY(%(group_ids)s) AND q.worker_id = %(worker_id)s
ORDER BY q.group_id
FOR UPDATE

-- name: lock_rescored
-- Locks groups and then their rows, like every statement that changes rewards. From then on the rows' reward events
-- are fixed.
WITH groups AS MATERIALIZED (
    SELECT g.id FROM trinity.rollout_group g WHERE g.id = ANY(%(group_ids)s) ORDER BY g.id FOR NO KEY UPDATE
)
SELECT e.id FROM trinity.experience e
WHERE e.group_id = ANY(ARRAY(SELECT groups.id FROM groups)) AND e.source_id IS NULL
ORDER BY e.id
FOR NO KEY UPDATE

-- name: read_parts
-- The parts of these rows' rewards, with the rollout or experience that each part belongs to.
SELECT v.experience_id, v.name, v.value, v.weight, v.source, o.rollout_id, o.experience_id AS about_id
FROM trinity.reward_part_view v
JOIN trinity.reward_event o ON o.id = v.event_id
WHERE v.experience_id = ANY(%(ids)s)

-- name: record_rescored
-- Writes one record per verdict of a rescore, with the next attempt of that list version.
INSERT INTO trinity.processing (experience_id, processor, processor_version, attempt, outcome, step, error)
SELECT v.id, 'rescore', %(version)s,
       1 + coalesce((SELECT max(p.attempt) FROM trinity.processing p
                     WHERE p.experience_id = v.id AND p.processor = 'rescore' AND p.processor_version = %(version)s), 0),
       v.outcome::trinity.processing_outcome, v.step, v.error
FROM unnest(%(ids)s::bigint[], %(outcomes)s::text[], %(steps)s::text[], %(errors)s::text[])
     AS v (id, outcome, step, error)

-- name: end_rescore
-- Ends leases whose verdicts are written.
DELETE FROM trinity.rescore q WHERE q.group_id = ANY(%(group_ids)s)

-- name: unprocessed_row
-- A row that waits for a processor; none if the processors keep up.
SELECT e.id FROM trinity.experience e
WHERE e.run_id = %(run_id)s AND e.to_judge IS NOT NULL AND e.worker_id IS NULL
LIMIT 1
