-- name: read_step_lists
-- The lists of scoring steps that a run had, from the first.
SELECT l.version, l.steps FROM trinity.step_list l
WHERE l.run_id = %(run_id)s AND l.processor = 'score'
ORDER BY l.version

-- name: selectable_rows
-- The rows of a run as experience_view has them, each with the name of its taskset. A rescore is told by a condition on
-- these columns which of them to judge.
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
-- The rows that are to be judged again, each with the names of the steps that have not judged it as they are now. It
-- looks at the groups :among, or, if that is NULL, at those of the run up to the id :until.
--
-- A step has judged a row if the latest pass over it by a list that names the step had the same step: the same code,
-- options and weight. `held` has the versions of these lists, `same` those with the same step. Where no pass is
-- recorded any more, because it was pruned, the latest statement of the step tells its list. With :whole a row is also
-- due if something counts in its reward that a step said which the list has no more.
--
-- Groups whose members are still processed for the first time are left alone. So are evaluations, rows that were adopted,
-- and rows that a step dropped or could not judge.
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
  -- LIMIT 1 in place of EXISTS here and below, as in pick_groups.
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
-- Leases up to :limit of these groups, in the order of their ids, to judge their rows again. It takes none that another
-- worker holds, and none that was claimed :suspect times without a verdict: its rows may be killing their judge.
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
-- Those of these groups that the worker still holds, with their attempts; locked until their verdicts are written.
SELECT q.group_id, q.attempt FROM trinity.rescore q
WHERE q.group_id = ANY(%(group_ids)s) AND q.worker_id = %(worker_id)s
ORDER BY q.group_id
FOR UPDATE

-- name: lock_rescored
-- Locks groups and then their rows, as every statement does that changes rewards. After it the rows' statements stay as
-- they are.
WITH groups AS MATERIALIZED (
    SELECT g.id FROM trinity.rollout_group g WHERE g.id = ANY(%(group_ids)s) ORDER BY g.id FOR NO KEY UPDATE
)
SELECT e.id FROM trinity.experience e
WHERE e.group_id = ANY(ARRAY(SELECT groups.id FROM groups)) AND e.source_id IS NULL
ORDER BY e.id
FOR NO KEY UPDATE

-- name: read_parts
-- What the rewards of these rows are made of, and what each statement is about.
SELECT v.experience_id, v.name, v.value, v.weight, v.source, o.rollout_id, o.experience_id AS about_id
FROM trinity.reward_part_view v
JOIN trinity.reward_event o ON o.id = v.event_id
WHERE v.experience_id = ANY(%(ids)s)

-- name: record_rescored
-- Writes one row for each verdict of a rescore, under the next attempt by that version of the list.
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
-- A row that waits for a processor; none if processors keep up.
SELECT e.id FROM trinity.experience e
WHERE e.run_id = %(run_id)s AND e.to_judge IS NOT NULL AND e.worker_id IS NULL
LIMIT 1
