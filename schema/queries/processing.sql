-- name: claim_rows
-- Leases up to :limit rows in a stage's :state, oldest first, from the id :after on. It skips rows that others hold,
-- and suspects: rows whose last claims, so many in a row, brought no verdict. The state is sent as a literal. With
-- :evaluated it takes rows of evaluations only.
WITH picked AS MATERIALIZED (
    SELECT e.id
    FROM trinity.experience e
    WHERE e.run_id = %(run_id)s AND e.state = %(state)s AND e.worker_id IS NULL AND e.id >= %(after)s
      AND (e.held_out OR NOT %(evaluated)s)
      AND (e.attempt < %(suspect)s
           OR e.attempt - coalesce((SELECT max(v.attempt) FROM trinity.processing v
                                    WHERE v.experience_id = e.id), 0) < %(suspect)s)
    ORDER BY e.id
    LIMIT %(limit)s
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE trinity.experience e SET worker_id = %(worker_id)s, attempt = e.attempt + 1
FROM picked
WHERE e.id = picked.id
RETURNING e.id, e.attempt

-- name: claim_suspect
-- Leases one row in a stage's :state, a suspect too, when no other row is left. So a row that kills its processor
-- takes no other row with it. The state is sent as a literal.
WITH picked AS MATERIALIZED (
    SELECT e.id
    FROM trinity.experience e
    WHERE e.run_id = %(run_id)s AND e.state = %(state)s AND e.worker_id IS NULL AND (e.held_out OR NOT %(evaluated)s)
    ORDER BY e.id
    LIMIT 1
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE trinity.experience e SET worker_id = %(worker_id)s, attempt = e.attempt + 1
FROM picked
WHERE e.id = picked.id
RETURNING e.id, e.attempt

-- name: read_claimed
-- Claimed rows with every column that a step may read; each name has its meaning beside it. A processor selects the
-- columns that its steps ask for. The other columns cost nothing: each join finds one row by its key, so the planner
-- leaves out the joins that no selected column needs. `unanswered` counts the claims without a verdict since the last
-- verdict, before this claim.
SELECT e.attempt,
       e.attempt - 1 - coalesce((SELECT max(v.attempt) FROM trinity.processing v WHERE v.experience_id = e.id), 0)
           AS unanswered,
       p.codec, p.num_tokens, p.data,
       e.id AS id, -- the experience
       e.group_id AS group_id, -- its rollout group
       e.rollout_id AS rollout_id, -- its rollout
       x.prompt AS prompt, -- text that the model was given
       x.response AS response, -- text that the model wrote
       x.messages AS messages, -- the prompt as a list of messages; None where it was plain text
       t.payload AS task, -- columns of the imported task, by name
       m.finish_reason AS finish_reason, -- why the rollout ended; length: no more tokens were allowed
       e.prompt_length AS prompt_length, -- tokens
       e.response_length AS response_length, -- tokens
       e.step AS step, -- place of this response in an attempt of several, from 0
       (SELECT max(s.step) FROM trinity.experience s WHERE s.rollout_id = e.rollout_id)
           AS last_step, -- place of the last one; 0 where the attempt has one response
       e.reward AS reward, -- sum of what was said before, as by the workflow; None where nothing was
       e.version_min AS version_min, -- oldest policy version that sampled a token of it
       e.version_max AS version_max -- newest one
FROM trinity.experience e
LEFT JOIN trinity.experience_text x ON x.experience_id = e.id
LEFT JOIN trinity.payload p ON p.experience_id = e.id
LEFT JOIN trinity.rollout m ON m.id = e.rollout_id
LEFT JOIN trinity.rollout_group g ON g.id = e.group_id
LEFT JOIN trinity.task t ON t.id = g.task_id
WHERE e.id = ANY(%(ids)s)

-- name: lock_step_lists
-- Lets processors of a run that start at once record their steps one after the other.
SELECT r.id FROM trinity.run r WHERE r.id = %(run_id)s FOR NO KEY UPDATE

-- name: record_step_list
-- The version of a processor's list of steps: the version of an equal list that the run had before, or else the next
-- number.
WITH known AS (
    SELECT max(l.version) AS version FROM trinity.step_list l
    WHERE l.run_id = %(run_id)s AND l.processor = %(processor)s AND l.steps = %(steps)s::jsonb
),
made AS (
    INSERT INTO trinity.step_list (run_id, processor, version, steps)
    SELECT %(run_id)s, %(processor)s, coalesce(max(l.version), 0) + 1, %(steps)s::jsonb
    FROM trinity.step_list l
    WHERE l.run_id = %(run_id)s AND l.processor = %(processor)s
    HAVING (SELECT known.version FROM known) IS NULL
    RETURNING version
)
SELECT coalesce((SELECT known.version FROM known), (SELECT made.version FROM made)) AS version

-- name: hold_rows
-- Those of these rows that the worker still holds, with their attempts; locked for the verdicts, in the order in which
-- every statement locks rows. NOT DISTINCT stands in place of =, which the planner may answer from the index of
-- workers, by all rows that this worker ever held.
SELECT e.id, e.attempt
FROM trinity.experience e
WHERE e.id = ANY(%(ids)s) AND e.worker_id IS NOT DISTINCT FROM %(worker_id)s AND e.state IN ('raw', 'clean')
ORDER BY e.id
FOR NO KEY UPDATE

-- name: pass_rows
-- Moves held rows from a stage's state to the next, or, in an evaluation, to its end. The states are sent as literals.
UPDATE trinity.experience e
SET state = CASE WHEN e.held_out THEN 'evaluated' ELSE %(next_state)s END::trinity.experience_state, worker_id = NULL
WHERE e.id = ANY(%(ids)s) AND e.state = %(state)s

-- name: drop_held
UPDATE trinity.experience e SET state = 'dropped', worker_id = NULL
WHERE e.id = ANY(%(ids)s) AND e.state IN ('raw', 'clean')

-- name: release_held
-- Gives held rows back for another attempt.
UPDATE trinity.experience e SET worker_id = NULL WHERE e.id = ANY(%(ids)s) AND e.state IN ('raw', 'clean')

-- name: count_failures
-- How often a processor has failed on each row with this version of its list of steps.
SELECT p.experience_id AS id, count(*) AS failures
FROM trinity.processing p
WHERE p.experience_id = ANY(%(ids)s) AND p.processor = %(processor)s
  AND p.processor_version = %(processor_version)s AND p.outcome = 'failed'
GROUP BY p.experience_id

-- name: record_processing
-- Writes one row for each verdict, with the step that dropped or failed the row. A verdict that was written before, in
-- a transaction whose commit was unclear, stays as it is.
INSERT INTO trinity.processing (experience_id, processor, processor_version, attempt, outcome, step, error)
SELECT p.id, %(processor)s, %(processor_version)s, p.attempt, p.outcome::trinity.processing_outcome, p.step, p.error
FROM unnest(%(ids)s::bigint[], %(attempts)s::integer[], %(outcomes)s::text[], %(steps)s::text[], %(errors)s::text[])
     AS p (id, attempt, outcome, step, error)
ON CONFLICT (experience_id, processor, processor_version, attempt) DO NOTHING

-- name: record_drops
-- Records why rows will not be trained on, and which processing steps dropped them, if steps did. The state changes in
-- the same transaction. Rows of an evaluation are never trained on, so that none is recorded.
INSERT INTO trinity."drop" (run_id, experience_id, stage, step, reason, detail)
SELECT %(run_id)s, d.id, %(stage)s, d.step, d.reason, d.detail
FROM unnest(%(ids)s::bigint[], %(steps)s::text[], %(reasons)s::text[], %(details)s::jsonb[])
     AS d (id, step, reason, detail)
JOIN trinity.experience e ON e.id = d.id AND (e.source_id IS NOT NULL OR NOT e.held_out)
ON CONFLICT (experience_id) DO NOTHING

-- name: pick_groups
-- Locks complete groups that can be settled, oldest first. Groups that are locked are passed over, not waited for. It
-- looks at :among, or, if that is NULL, at all complete groups from the run's floor on.
--
-- A group waits while a member is still being processed. If the run requires rewards of a source, a group also waits
-- until that source has judged each member, unless the group is too small in any case. An attempt that lost a step is
-- dropped with its other steps, so it needs no judgement and does not count.
SELECT g.id
FROM trinity.rollout_group g
WHERE g.run_id = %(run_id)s AND g.state = 'complete'
  AND g.id = ANY(coalesce(%(among)s::bigint[], ARRAY(
      SELECT c.id FROM trinity.rollout_group c
      WHERE c.run_id = %(run_id)s AND c.state = 'complete'
        AND c.id >= (SELECT f.floor FROM trinity.floor_of(%(run_id)s) f)
      ORDER BY c.id)))
  AND NOT EXISTS (SELECT FROM trinity.experience e WHERE e.group_id = g.id AND e.state IN ('raw', 'clean'))
  -- LIMIT 1 in place of EXISTS, which the planner may answer from a hash of the whole table.
  AND (%(requires_reward)s::text IS NULL
       OR (SELECT count(DISTINCT e.rollout_id) FROM trinity.experience e
           WHERE e.group_id = g.id AND e.state = 'scored'
             AND (SELECT lost.id FROM trinity.experience lost
                  WHERE lost.rollout_id = e.rollout_id AND (lost.state = 'dropped') IS TRUE
                  LIMIT 1) IS NULL) < %(min_group_size)s
       OR (SELECT e.id FROM trinity.experience e
           WHERE e.group_id = g.id AND e.state = 'scored'
             AND (SELECT lost.id FROM trinity.experience lost
                  WHERE lost.rollout_id = e.rollout_id AND (lost.state = 'dropped') IS TRUE LIMIT 1) IS NULL
             AND (SELECT v.id FROM trinity.reward_event v
                  WHERE v.rollout_id = e.rollout_id AND v.source = %(requires_reward)s LIMIT 1) IS NULL
             AND (SELECT v.id FROM trinity.reward_event v
                  WHERE v.experience_id = e.id AND v.source = %(requires_reward)s LIMIT 1) IS NULL
           LIMIT 1) IS NULL)
ORDER BY g.id
LIMIT %(limit)s
FOR NO KEY UPDATE SKIP LOCKED

-- name: drop_partial_attempts
-- Drops the other steps of attempts that lost a step to a processor, since the reward of the attempt is no longer
-- known. Under the lock of their groups.
WITH partial AS (
    UPDATE trinity.experience e SET state = 'dropped'
    WHERE e.group_id = ANY(%(group_ids)s) AND (e.state = 'scored') IS TRUE AND e.source_id IS NULL
      AND e.rollout_id IN (SELECT lost.rollout_id FROM trinity.experience lost
                           WHERE lost.group_id = ANY(%(group_ids)s) AND (lost.state = 'dropped') IS TRUE
                             AND lost.source_id IS NULL)
    RETURNING e.run_id, e.id
)
INSERT INTO trinity."drop" (run_id, experience_id, stage, reason)
SELECT run_id, id, 'group', 'partial_attempt' FROM partial
ON CONFLICT (experience_id) DO NOTHING

-- name: settle_groups
-- Makes picked groups ready or drops them with a reason: too few members are left, or, where the run asks for that,
-- all rewards are equal. Attempts are compared, each with the sum of the rewards of its steps. An attempt with at
-- least :solved_reward solved its task.
--
-- The statement runs after the one that locks the groups, so that it sees every reward that was committed before the
-- lock. It checks again that the groups can be settled.
WITH attempts AS (
    SELECT g.id, e.rollout_id,
           count(e.id) FILTER (WHERE e.state IN ('raw', 'clean')) AS unprocessed,
           count(e.id) FILTER (
               WHERE e.state = 'scored'
                 AND (SELECT v.id FROM trinity.reward_event v
                      WHERE v.rollout_id = e.rollout_id AND v.source = %(requires_reward)s::text LIMIT 1) IS NULL
                 AND (SELECT v.id FROM trinity.reward_event v
                      WHERE v.experience_id = e.id AND v.source = %(requires_reward)s LIMIT 1) IS NULL
           ) AS unrewarded,
           bool_or(e.state = 'scored') AS is_scored,
           sum(e.reward) FILTER (WHERE e.state = 'scored') AS reward
    FROM trinity.rollout_group g
    LEFT JOIN trinity.experience e ON e.group_id = g.id
    WHERE g.id = ANY(%(group_ids)s)
    GROUP BY g.id, e.rollout_id
),
members AS (
    SELECT a.id, sum(a.unprocessed) AS unprocessed, sum(a.unrewarded) AS unrewarded,
           count(*) FILTER (WHERE a.is_scored) AS size,
           count(*) FILTER (WHERE a.reward >= %(solved_reward)s::float8) AS solved,
           count(a.reward) AS reward_count, avg(a.reward) AS reward_mean, var_samp(a.reward) AS reward_variance,
           min(a.reward) AS lowest, max(a.reward) AS highest
    FROM attempts a
    GROUP BY a.id
),
verdict AS (
    SELECT m.*,
           CASE WHEN m.size < %(min_group_size)s THEN 'group_too_small'
                WHEN %(drop_equal_rewards)s AND m.lowest = m.highest THEN 'equal_rewards'
           END AS reason
    FROM members m
)
UPDATE trinity.rollout_group g
SET state = CASE WHEN v.reason IS NULL THEN 'ready' ELSE 'dropped' END::trinity.group_state,
    ready_xact = CASE WHEN v.reason IS NULL THEN pg_current_xact_id()::text::bigint END,
    ready_at = CASE WHEN v.reason IS NULL THEN now() END,
    reward_count = v.reward_count,
    reward_mean = v.reward_mean,
    reward_variance = v.reward_variance,
    priority = CASE WHEN (SELECT r.config #>> '{processors,group,priority}' FROM trinity.run r
                          WHERE r.id = g.run_id) = 'reward_std'
                    THEN trinity.derived_priority(v.reward_variance) ELSE g.priority END
FROM verdict v
WHERE g.id = v.id AND g.state = 'complete' AND v.unprocessed = 0
  AND (%(requires_reward)s IS NULL OR v.unrewarded = 0 OR v.size < %(min_group_size)s)
RETURNING g.id, g.task_id, v.reason, v.size, v.reward_count, v.solved, v.lowest

-- name: ready_members
-- Makes the members of ready groups ready, under the lock of their groups; members need no order of their own. From
-- now on they can be paired.
WITH ready AS (
    UPDATE trinity.experience e SET state = 'ready' WHERE e.group_id = ANY(%(group_ids)s) AND e.state = 'scored'
    RETURNING e.run_id, e.group_id
)
INSERT INTO trinity.pairing (run_id, group_id)
SELECT DISTINCT m.run_id, m.group_id FROM ready m JOIN trinity.run r ON r.id = m.run_id WHERE r.derives_pairs

-- name: drop_members
-- Drops the members of groups that are dropped as a whole.
UPDATE trinity.experience e SET state = 'dropped'
WHERE e.group_id = ANY(%(group_ids)s) AND e.state = 'scored'
RETURNING e.id, e.group_id

-- name: record_group_drops
INSERT INTO trinity."drop" (run_id, group_id, stage, reason, detail)
SELECT %(run_id)s, d.id, %(stage)s, d.reason, d.detail
FROM unnest(%(group_ids)s::bigint[], %(reasons)s::text[], %(details)s::jsonb[]) AS d (id, reason, detail)
ON CONFLICT (group_id) DO NOTHING

-- name: count_solved
-- Updates the counts of a task by which groups are chosen: its rollouts with a reward, those that solved it, and the
-- Beta posterior that follows. In the order of the tasks, since explorers write the same rows.
INSERT INTO trinity.task_stat AS s (run_id, task_id, scored, solved, alpha, beta)
SELECT %(run_id)s, n.task_id, sum(n.scored), sum(n.solved), 1 + sum(n.solved), 1 + sum(n.scored - n.solved)
FROM unnest(%(task_ids)s::bigint[], %(scored)s::integer[], %(solved)s::integer[]) AS n (task_id, scored, solved)
GROUP BY n.task_id
ORDER BY n.task_id
ON CONFLICT (run_id, task_id) DO UPDATE
SET scored = s.scored + excluded.scored,
    solved = s.solved + excluded.solved,
    alpha = s.alpha + excluded.solved,
    beta = s.beta + excluded.scored - excluded.solved

-- name: count_unprocessed
-- Rows that processors have yet to move on, free or held. Scored rows that wait for a reward of another source do not
-- count, and neither do those of groups that are still being explored or were abandoned.
SELECT (SELECT count(*) FROM trinity.experience e
        WHERE e.run_id = %(run_id)s AND e.state IN ('raw', 'clean', 'scored') AND e.worker_id IS NULL
          AND (e.state <> 'scored'
               OR (%(requires_reward)s::text IS NULL
                   AND (SELECT g.state FROM trinity.rollout_group g WHERE g.id = e.group_id) <> 'open')))
     + (SELECT count(*) FROM trinity.experience e
        WHERE e.run_id = %(run_id)s AND e.state IN ('raw', 'clean') AND e.worker_id IS NOT NULL) AS rows

-- name: take_pairings
-- Takes the oldest changes of groups in which no processor has looked for pairs yet, and skips those that another
-- processor looks at right now. They are deleted in the transaction that writes the pairs, and come back if that is
-- undone.
DELETE FROM trinity.pairing q
WHERE q.run_id = %(run_id)s
  AND q.id = ANY(ARRAY(SELECT due.id FROM trinity.pairing due
                       WHERE due.run_id = %(run_id)s ORDER BY due.id LIMIT %(limit)s FOR UPDATE SKIP LOCKED))
RETURNING q.group_id

-- name: lock_paired_groups
-- Locks groups, so that one processor at a time makes the pairs of a group. Transactions that change rewards wait too.
SELECT g.id FROM trinity.rollout_group g WHERE g.id = ANY(%(group_ids)s) ORDER BY g.id FOR NO KEY UPDATE

-- name: pair_groups
-- Pairs the best rows of locked groups with their worst. Every chosen row beats its rejected one by at least the
-- margin, no row is in two pairs of its group, and existing pairs stay. This serves a run's own rows and adopted ones.
-- From now on the rejected row is in no pass over rows, except for passes over labels.
WITH ranked AS (
    SELECT e.id, e.source_id, e.group_id, e.reward, e.held_out,
           row_number() OVER (PARTITION BY e.group_id ORDER BY e.reward DESC, e.id) AS best,
           row_number() OVER (PARTITION BY e.group_id ORDER BY e.reward, e.id) AS worst
    FROM trinity.experience e
    WHERE e.group_id = ANY(%(group_ids)s) AND e.run_id = %(run_id)s AND e.reward IS NOT NULL
      AND e.state IN ('ready', 'leased', 'trained')
      AND e.step = 0 -- later steps have other prompts
),
made AS (
    INSERT INTO trinity.preference
        (run_id, chosen_id, rejected_id, source, margin, held_out, origin_id, seed)
    SELECT r.id, chosen.id, rejected.id, 'pair', chosen.reward - rejected.reward, chosen.held_out,
           coalesce(chosen.source_id, chosen.id), CASE WHEN NOT chosen.held_out THEN r.seed END
    FROM trinity.run r
    CROSS JOIN ranked chosen
    JOIN ranked rejected ON rejected.group_id = chosen.group_id AND rejected.worst = chosen.best
    WHERE r.id = %(run_id)s AND chosen.reward - rejected.reward >= %(margin)s AND chosen.reward > rejected.reward
      -- LIMIT 1 as in pick_groups: looked up for each, whatever the planner thinks of a table that grows.
      AND (SELECT p.id FROM trinity.preference p
           WHERE p.run_id = %(run_id)s AND p.chosen_id = chosen.id LIMIT 1) IS NULL
      AND (SELECT p.id FROM trinity.preference p WHERE p.rejected_id = rejected.id LIMIT 1) IS NULL
    ORDER BY chosen.id
    ON CONFLICT DO NOTHING
    RETURNING rejected_id
),
worse AS MATERIALIZED (
    SELECT e.id FROM trinity.experience e
    WHERE e.id = ANY(ARRAY(SELECT made.rejected_id FROM made)) AND e.seed IS NOT NULL AND NOT e.draws_labels
    ORDER BY e.id
    FOR NO KEY UPDATE
),
out_of_passes AS (
    UPDATE trinity.experience e SET seed = NULL FROM worse WHERE e.id = worse.id
)
SELECT count(*) AS pairs FROM made
