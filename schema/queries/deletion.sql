-- name: delete_batches
-- Deletes up to :limit batches of a run, with their items.
DELETE FROM trinity.batch
WHERE id IN (SELECT b.id FROM trinity.batch b WHERE b.run_id = %(run_id)s LIMIT %(limit)s)

-- name: delete_preferences
-- Deletes up to :limit pairs of a run, with their drops. Their batch items must be deleted before.
DELETE FROM trinity.preference
WHERE id IN (SELECT p.id FROM trinity.preference p WHERE p.run_id = %(run_id)s LIMIT %(limit)s)

-- name: delete_experiences
-- Deletes a run's rows in a range of ids, with their texts, payloads, scores, reward events, processing records and
-- drops. It works by range because no index covers all rows of a run: a call never reads more than the range. Fails
-- if another run has adopted one of the rows.
DELETE FROM trinity.experience e WHERE e.run_id = %(run_id)s AND e.id > %(after)s AND e.id <= %(until)s

-- name: delete_groups
-- Deletes up to :limit groups of a run with their drops, their rollouts, and the rollouts' reward events. Their rows
-- must be deleted before.
DELETE FROM trinity.rollout_group
WHERE id IN (SELECT g.id FROM trinity.rollout_group g WHERE g.run_id = %(run_id)s LIMIT %(limit)s)

-- name: delete_metrics
-- Deletes up to :limit metrics of a run.
DELETE FROM trinity.metric
WHERE id IN (SELECT m.id FROM trinity.metric m WHERE m.run_id = %(run_id)s LIMIT %(limit)s)

-- name: delete_pairings
-- Deletes up to :limit marks for pairing of a run.
DELETE FROM trinity.pairing
WHERE (run_id, id) IN (SELECT p.run_id, p.id FROM trinity.pairing p WHERE p.run_id = %(run_id)s LIMIT %(limit)s)

-- name: delete_task_stats
-- Deletes up to :limit task statistics of a run.
DELETE FROM trinity.task_stat
WHERE (run_id, task_id) IN (SELECT t.run_id, t.task_id FROM trinity.task_stat t
                            WHERE t.run_id = %(run_id)s LIMIT %(limit)s)

-- name: delete_evaluations
-- Deletes all evaluations of a run. Their groups must be deleted before.
DELETE FROM trinity.evaluation WHERE run_id = %(run_id)s

-- name: delete_versions
-- Deletes all policy versions of a run. No batch or evaluation may refer to them any longer.
DELETE FROM trinity.policy_version WHERE run_id = %(run_id)s

-- name: next_experience
-- Id of the next experience, and the highest id: where work by id ranges continues, and where it ends.
SELECT min(e.id) AS id, max(e.id) AS last FROM trinity.experience e WHERE e.id > %(after)s

-- name: dependent_runs
-- Runs that depend on this run: they name it in `data`, or started from a checkpoint that it still has.
SELECT d.name, d.adopts, d.starts
FROM (SELECT o.id, o.name, coalesce(o.config -> 'data' ? %(name)s, false) AS adopts,
             o.config #>> '{model,run}' = %(name)s
             AND EXISTS (SELECT FROM trinity.policy_version p
                         JOIN trinity.policy_version mine ON mine.checkpoint = p.checkpoint AND mine.run_id = %(run_id)s
                         WHERE p.run_id = o.id) IS TRUE AS starts
      FROM trinity.run o
      WHERE o.id <> %(run_id)s) d
WHERE d.adopts OR d.starts
ORDER BY d.id

-- name: made_from
-- Numbers of tasks and responses made from rows of a run. They stay if the run is deleted, but their origin does not.
SELECT count(o.task_id) AS tasks, count(o.experience_id) AS responses FROM trinity.origin o WHERE o.run_id = %(run_id)s

-- name: begin_deletion
-- Marks the run as being deleted: no process serves it, and no other run adopts its rows. Idempotent.
UPDATE trinity.run SET deleting_at = coalesce(deleting_at, now()) WHERE id = %(run_id)s

-- name: delete_run
-- Deletes the run itself with its settings, workers and archive. Its rows must be deleted before, or all of them
-- would be deleted in this one transaction.
DELETE FROM trinity.run WHERE id = %(run_id)s AND deleting_at IS NOT NULL
