-- name: hold_evaluated_version
-- Locks (FOR SHARE) a version, so that the trainer's pruning waits. No row if the run has no such version, or its
-- checkpoint is gone.
SELECT p.version FROM trinity.policy_version p
WHERE p.run_id = %(run_id)s AND p.version = %(version)s AND p.checkpoint IS NOT NULL
FOR SHARE

-- name: due_tasksets
-- The tasksets on which the run's configuration evaluates this version, and the settings. A version is evaluated if
-- `every` divides its number, or if it is the last one.
SELECT s.id AS taskset_id,
       (v.of ->> 'samples')::integer AS samples,
       coalesce(v.of ->> 'temperature', r.config #>> '{explorer,temperature}')::float8 AS temperature,
       coalesce(v.of ->> 'max_new_tokens', r.config #>> '{explorer,max_new_tokens}')::integer AS max_new_tokens
FROM trinity.run r
CROSS JOIN LATERAL (SELECT r.config -> 'evaluation' AS of) v
JOIN trinity.taskset s ON v.of -> 'taskset' ? s.name
WHERE r.id = %(run_id)s AND (%(version)s %% (v.of ->> 'every')::integer = 0 OR %(is_last)s)
ORDER BY s.id

-- name: begin_evaluation
-- Records an evaluation with one rollout group per task, for explorers to claim. Returns its id; no row if the run
-- already has the same evaluation.
WITH made AS (
    INSERT INTO trinity.evaluation
        (run_id, taskset_id, version, samples, temperature, max_new_tokens, seed, solved_reward, setting_id)
    SELECT r.id, %(taskset_id)s, %(version)s, %(samples)s, %(temperature)s, %(max_new_tokens)s, r.seed,
           coalesce((r.config #>> '{processors,group,solved_reward}')::float8, 1),
           (SELECT max(s.id) FROM trinity.run_setting s WHERE s.run_id = r.id)
    FROM trinity.run r
    WHERE r.id = %(run_id)s
    ON CONFLICT (run_id, version, taskset_id, samples, temperature, max_new_tokens, seed) DO NOTHING
    RETURNING id, run_id, taskset_id, samples
),
groups AS (
    INSERT INTO trinity.rollout_group (run_id, task_id, state, evaluation_id, expected, attempt)
    SELECT made.run_id, t.id, 'evaluating', made.id, made.samples, 0
    FROM made JOIN trinity.task t ON t.taskset_id = made.taskset_id
    ORDER BY t.id
)
SELECT made.id FROM made

-- name: resume_evaluation
-- Locks and returns the evaluation that begin_evaluation found to exist; resumes it if it was given up. Sessions that
-- extend it are serialised, so each sees what the other has added.
WITH known AS MATERIALIZED (
    SELECT v.id
    FROM trinity.evaluation v JOIN trinity.run r ON r.id = v.run_id
    WHERE v.run_id = %(run_id)s AND v.version = %(version)s AND v.taskset_id = %(taskset_id)s
      AND v.samples = %(samples)s AND v.temperature = %(temperature)s AND v.max_new_tokens = %(max_new_tokens)s
      AND v.seed = r.seed
    FOR NO KEY UPDATE OF v
),
resumed AS (
    UPDATE trinity.evaluation v SET error = NULL, finished_at = NULL
    FROM known
    WHERE v.id = known.id AND v.error IS NOT NULL
)
SELECT known.id FROM known

-- name: extend_evaluation
-- Adds rollout groups for the tasks imported since the evaluation began. If there are any, it is no longer finished.
WITH added AS (
    INSERT INTO trinity.rollout_group (run_id, task_id, state, evaluation_id, expected, attempt)
    SELECT v.run_id, t.id, 'evaluating', v.id, v.samples, 0
    FROM trinity.evaluation v JOIN trinity.task t ON t.taskset_id = v.taskset_id
    WHERE v.id = %(evaluation_id)s
      AND NOT EXISTS (SELECT FROM trinity.rollout_group g WHERE g.evaluation_id = v.id AND g.task_id = t.id)
    ORDER BY t.id
    RETURNING evaluation_id
)
UPDATE trinity.evaluation v SET finished_at = NULL
WHERE v.id = %(evaluation_id)s AND v.finished_at IS NOT NULL AND EXISTS (SELECT FROM added)

-- name: due_evaluation
-- The next evaluation of a run with groups for an explorer: evaluations of the explorer's loaded version first, then
-- the oldest. If :among is not NULL, only these evaluations count.
SELECT v.id, v.version, v.samples, v.temperature, v.max_new_tokens, v.seed, p.step, p.checkpoint, p.checkpoint_hash,
       p.weights
FROM trinity.evaluation v
JOIN trinity.policy_version p ON p.run_id = v.run_id AND p.version = v.version
WHERE v.run_id = %(run_id)s AND v.finished_at IS NULL AND p.checkpoint IS NOT NULL
  AND v.id = ANY(coalesce(%(among)s::bigint[], ARRAY[v.id]))
  AND EXISTS (SELECT FROM trinity.rollout_group g
              WHERE g.evaluation_id = v.id AND g.completed_at IS NULL AND g.worker_id IS NULL
                AND g.arrived + g.failed
                    + (SELECT count(*) FROM trinity.parked_members(g.id, NULL) p WHERE NOT p.is_due) < g.expected)
ORDER BY v.version <> %(loaded)s, v.id
LIMIT 1

-- name: claim_evaluation_groups
-- Leases unclaimed groups of an evaluation, in order of their tasks; skips groups that another explorer is claiming.
-- A member is missing if its only rollouts were refused. `key` identifies the task in every store, so the same
-- evaluation samples the same tokens again. A group whose missing members are all parked waits until one of them may
-- resume; `parked` lists the members that may.
WITH picked AS MATERIALIZED (
    SELECT g.id
    FROM trinity.rollout_group g
    WHERE g.evaluation_id = %(evaluation_id)s AND g.completed_at IS NULL AND g.worker_id IS NULL
      AND g.arrived + g.failed
          + (SELECT count(*) FROM trinity.parked_members(g.id, NULL) p WHERE NOT p.is_due) < g.expected
    ORDER BY g.id
    LIMIT %(limit)s
    FOR NO KEY UPDATE SKIP LOCKED
),
claimed AS (
    UPDATE trinity.rollout_group g SET worker_id = %(worker_id)s, attempt = g.attempt + 1
    FROM picked
    WHERE g.id = picked.id
    RETURNING g.id, g.task_id, g.attempt, g.expected
)
SELECT c.id, c.attempt, hashtextextended(t.key, 0) AS key, t.payload,
       ARRAY(SELECT n FROM generate_series(0, c.expected - 1) n
             WHERE NOT EXISTS (SELECT FROM trinity.rollout r
                               WHERE r.group_id = c.id AND r.ordinal = n AND r.state <> 'refused')
               AND n <> ALL (p.waiting)
             ORDER BY n) AS members,
       p.due AS parked, cardinality(p.waiting) > 0 AS waits
FROM claimed c
JOIN trinity.task t ON t.id = c.task_id
CROSS JOIN LATERAL (
    SELECT coalesce(array_agg(m.ordinal) FILTER (WHERE NOT m.is_due), '{}') AS waiting,
           coalesce(array_agg(m.ordinal) FILTER (WHERE m.is_due), '{}') AS due
    FROM trinity.parked_members(c.id, NULL) m
) p
ORDER BY c.id

-- name: give_up_evaluation
-- Ends an evaluation whose version cannot be loaded. Idempotent.
UPDATE trinity.evaluation v SET error = %(error)s, finished_at = now()
WHERE v.id = %(evaluation_id)s AND v.finished_at IS NULL

-- name: give_up_withdrawn_evaluations
-- Ends the evaluations of withdrawn versions, for which no attempt can be made any longer. A version keeps its
-- checkpoint while its evaluation is unfinished, unless it is withdrawn.
UPDATE trinity.evaluation v SET error = 'its version was withdrawn', finished_at = now()
FROM trinity.policy_version p
WHERE v.run_id = %(run_id)s AND v.finished_at IS NULL
  AND p.run_id = v.run_id AND p.version = v.version AND p.checkpoint IS NULL

-- name: open_evaluations
-- Number of unfinished evaluations of a run. Evaluations of withdrawn versions cannot continue and do not count;
-- neither do those of a run that is being deleted.
SELECT count(*) AS evaluations
FROM trinity.evaluation v
JOIN trinity.run r ON r.id = v.run_id AND r.deleting_at IS NULL
JOIN trinity.policy_version p ON p.run_id = v.run_id AND p.version = v.version AND p.checkpoint IS NOT NULL
WHERE v.run_id = %(run_id)s AND v.finished_at IS NULL
  AND v.id = ANY(coalesce(%(among)s::bigint[], ARRAY[v.id]))

-- name: finish_evaluations
-- Ends the evaluations of a run whose attempts have all ended and are all judged. If two sessions end the same one,
-- only the first gets its id.
UPDATE trinity.evaluation v SET finished_at = now()
WHERE v.run_id = %(run_id)s AND v.finished_at IS NULL
  AND NOT EXISTS (SELECT FROM trinity.rollout_group g WHERE g.evaluation_id = v.id AND g.completed_at IS NULL)
  AND NOT EXISTS (SELECT FROM trinity.rollout_group g JOIN trinity.experience e ON e.group_id = g.id
                  WHERE g.evaluation_id = v.id AND e.state = 'clean')
RETURNING v.id

-- name: read_evaluations
-- The results of these evaluations, in the order in which they began.
SELECT v.* FROM trinity.evaluation_view v WHERE v.id = ANY(%(ids)s) ORDER BY v.id

-- name: compare_evaluations
-- The difference between two evaluations over their common tasks.
SELECT d.* FROM trinity.evaluation_difference(%(before)s, %(after)s, %(k)s) d

-- name: evaluation_progress
-- Number of attempts of these evaluations, and how many have ended.
SELECT coalesce(sum(g.expected), 0) AS attempts, coalesce(sum(g.arrived + g.failed), 0) AS ended
FROM trinity.rollout_group g
WHERE g.evaluation_id = ANY(%(ids)s)

-- name: shared_tasks
-- Number of tasks that two tasksets have in common. The key of a task is derived from its content.
SELECT count(*) AS tasks
FROM trinity.task t JOIN trinity.task o ON o.taskset_id = %(other_id)s AND o.key = t.key
WHERE t.taskset_id = %(taskset_id)s
