-- name: claim_rows
-- Leases up to :limit rows in a stage's :state, oldest first after the id :after. Skips locked rows, rows held by
-- others, and suspects: rows whose last :suspect claims in a row brought no verdict. The state is sent as a literal.
-- With :evaluated, only rows of evaluations.
WITH picked AS MATERIALIZED (
    SELECT e.id
    FROM trinity.experience e
    WHERE e.run_id = %(run_id)s AND e.to_judge = %(state)s AND e.worker_id IS NULL AND e.id >= %(after)s
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
-- Leases one row in a stage's :state, suspects included; used when no other row is left, so that a row that kills its
-- processor takes no other row down with it. The state is sent as a literal.
WITH picked AS MATERIALIZED (
    SELECT e.id
    FROM trinity.experience e
    WHERE e.run_id = %(run_id)s AND e.to_judge = %(state)s AND e.worker_id IS NULL AND (e.held_out OR NOT %(evaluated)s)
    ORDER BY e.id
    LIMIT 1
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE trinity.experience e SET worker_id = %(worker_id)s, attempt = e.attempt + 1
FROM picked
WHERE e.id = picked.id
RETURNING e.id, e.attempt

-- name: read_claimed
-- Claimed rows with every column that a step may read. A processor selects the columns that its steps request. The
-- other columns cost nothing: each join finds one row by its key, so the planner removes joins that no selected
-- column needs. `unanswered` counts the claims since the last verdict, without the current one.
--
-- PUBLIC API: the comment at the end of each column's line is parsed (columns() in store/processing.py) and becomes
-- the documentation of the columns that steps may read, in docs/reference/steps.md and in error messages. Keep one
-- column per line, ending with `AS name,` and its comment, and write each comment for users.
SELECT e.attempt,
       e.attempt - 1 - coalesce((SELECT max(v.attempt) FROM trinity.processing v WHERE v.experience_id = e.id), 0)
           AS unanswered,
       p.codec, p.num_tokens, p.data,
       e.id AS id, -- the experience
       e.run_id AS run_id, -- its run
       g.task_id AS task_id, -- its task
       e.group_id AS group_id, -- its rollout group
       e.rollout_id AS rollout_id, -- its rollout
       x.prompt AS prompt, -- text that the model was given
       x.response AS response, -- text that the model wrote
       x.messages AS messages, -- the prompt as a list of messages; None if it was plain text
       t.payload AS task, -- columns of the imported task, by name
       m.finish_reason AS finish_reason, -- why the rollout ended; length: it reached the token limit
       e.prompt_length AS prompt_length, -- number of prompt tokens
       e.response_length AS response_length, -- number of response tokens
       e.step AS step, -- position of this response in an attempt with several, from 0
       (SELECT max(s.step) FROM trinity.experience s WHERE s.rollout_id = e.rollout_id)
           AS last_step, -- position of the attempt's last response; 0 if it has only one
       (SELECT min(s.id) FROM trinity.experience s JOIN trinity.experience_text y ON y.experience_id = s.id
        WHERE s.group_id = e.group_id AND s.step = e.step AND s.id <= e.id AND s.state <> 'dropped'
          AND y.response = x.response)
           AS first_equal, -- first row of its group with the same response that is not dropped; often its own id
       e.reward AS reward, -- sum of the rewards so far, such as the workflow's; None without any
       e.version_min AS version_min, -- oldest policy version that sampled a token of the row
       e.version_max AS version_max, -- newest policy version that sampled a token of the row
       (SELECT trinity.attempt_reward(e.rollout_id, count(s.reward), sum(s.reward), min(s.reward), max(s.reward))
        FROM trinity.experience s WHERE s.rollout_id = e.rollout_id AND s.state NOT IN ('dropped', 'expired'))
           AS attempt_reward, -- ready groups only: reward of the attempt, the sum of its steps or the mean of its sequences
       g.reward_mean AS group_mean, -- ready groups only: mean reward of the attempts; None without rewards
       sqrt(g.reward_variance) AS group_deviation, -- ready groups only: standard deviation of these rewards; None for one attempt
       (SELECT count(*) FROM trinity.rollout_group o
        WHERE o.run_id = g.run_id AND o.task_id = g.task_id AND o.id <= g.id AND o.evaluation_id IS NULL)
           AS task_groups, -- ready groups only: number of groups of the task so far, including this one
       trinity.staleness(e.run_id, (SELECT max(v.version) FROM trinity.policy_version v WHERE v.run_id = e.run_id),
                         e.version_min, e.version_max)
           AS staleness -- ready groups only: publications between the row and the newest policy version
FROM trinity.experience e
LEFT JOIN trinity.experience_text x ON x.experience_id = e.id
LEFT JOIN trinity.payload p ON p.experience_id = e.id
LEFT JOIN trinity.rollout m ON m.id = e.rollout_id
LEFT JOIN trinity.rollout_group g ON g.id = e.group_id
LEFT JOIN trinity.task t ON t.id = g.task_id
WHERE e.id = ANY(%(ids)s)

-- name: lock_step_lists
-- Locks the run's row, so that processors that start at the same time record their steps one after the other.
SELECT r.id FROM trinity.run r WHERE r.id = %(run_id)s FOR NO KEY UPDATE

-- name: record_step_list
-- Records a processor's list of steps; returns its version: that of an equal earlier list of the run, or the next
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
-- Locks the given rows that the worker still holds, in order of id, for their verdicts; returns their attempts.
SELECT e.id, e.attempt
FROM trinity.experience e
WHERE e.id = ANY(%(ids)s) AND e.worker_id = %(worker_id)s AND e.state IN ('raw', 'clean')
ORDER BY e.id
FOR NO KEY UPDATE

-- name: pass_rows
-- Moves held rows from a stage's state to the next or, in an evaluation, to the end. The states are sent as literals.
-- Rows in :rewarded, for which this transaction wrote events, get their reward in the same update, by the rule of
-- refresh_rewards.
UPDATE trinity.experience e
SET state = CASE WHEN e.held_out THEN 'evaluated' ELSE %(next_state)s END::trinity.experience_state, worker_id = NULL,
    reward = CASE WHEN e.id = ANY(%(rewarded)s::bigint[])
                  THEN (SELECT coalesce(sum(v.share), trinity.label_in(e.id, NULL)) FROM trinity.reward_part_view v
                        WHERE v.experience_id = e.id)
                  ELSE e.reward END
WHERE e.id = ANY(%(ids)s) AND e.state = %(state)s

-- name: drop_held
-- Drops held rows.
UPDATE trinity.experience e SET state = 'dropped', worker_id = NULL
WHERE e.id = ANY(%(ids)s) AND e.state IN ('raw', 'clean')

-- name: release_held
-- Releases held rows for another attempt.
UPDATE trinity.experience e SET worker_id = NULL WHERE e.id = ANY(%(ids)s) AND e.state IN ('raw', 'clean')

-- name: count_failures
-- Number of failures of a processor on each row with this version of its list of steps.
SELECT p.experience_id AS id, count(*) AS failures
FROM trinity.processing p
WHERE p.experience_id = ANY(%(ids)s) AND p.processor = %(processor)s
  AND p.processor_version = %(processor_version)s AND p.outcome = 'failed'
GROUP BY p.experience_id

-- name: record_processing
-- Writes one record per verdict on a held row, with the step that dropped or failed the row.
INSERT INTO trinity.processing (experience_id, processor, processor_version, attempt, outcome, step, error, detail)
SELECT p.id, %(processor)s, %(processor_version)s, p.attempt, p.outcome::trinity.processing_outcome, p.step, p.error,
       p.detail
FROM unnest(%(ids)s::bigint[], %(attempts)s::integer[], %(outcomes)s::text[], %(steps)s::text[], %(errors)s::text[],
            %(details)s::jsonb[])
     AS p (id, attempt, outcome, step, error, detail)

-- name: record_refused
-- Writes one record per verdict on a row that is no longer held. A verdict already written, in a transaction with
-- unknown commit outcome, is unchanged. Verdicts on held rows are new, so record_processing skips that check, which
-- costs WAL for each row.
INSERT INTO trinity.processing (experience_id, processor, processor_version, attempt, outcome)
SELECT p.id, %(processor)s, %(processor_version)s, p.attempt, 'refused'
FROM unnest(%(ids)s::bigint[], %(attempts)s::integer[]) AS p (id, attempt)
ON CONFLICT (experience_id, processor, processor_version, attempt) DO NOTHING

-- name: record_drops
-- Records why rows will not be trained on, and which processing steps dropped them, if any. Their state changes in
-- the same transaction. Rows of an evaluation are never trained on, so they are not recorded.
INSERT INTO trinity."drop" (run_id, experience_id, stage, step, reason, detail)
SELECT %(run_id)s, d.id, %(stage)s, d.step, d.reason, d.detail
FROM unnest(%(ids)s::bigint[], %(steps)s::text[], %(reasons)s::text[], %(details)s::jsonb[])
     AS d (id, step, reason, detail)
JOIN trinity.experience e ON e.id = d.id AND (e.source_id IS NOT NULL OR NOT e.held_out)
ON CONFLICT (experience_id) DO NOTHING

-- name: count_unprocessed
-- Number of rows that processors can still move, free or held. Excludes scored rows that wait for a reward from
-- another source, and rows of groups that are in exploration or abandoned.
SELECT (SELECT count(*) FROM trinity.experience e WHERE e.run_id = %(run_id)s AND e.to_judge IS NOT NULL)
     + (SELECT count(*)
        FROM trinity.rollout_group g
        JOIN trinity.experience e ON e.group_id = g.id AND e.state = 'scored'
        WHERE g.run_id = %(run_id)s AND g.state = 'complete' AND %(requires_reward)s::text IS NULL
          AND g.id >= (SELECT f.floor FROM trinity.floor_of(%(run_id)s) f)) AS rows

-- name: all_judged
-- Whether no row of a run waits for a verdict of clean or score, and no processor holds one.
SELECT NOT EXISTS (SELECT FROM trinity.experience e
                   WHERE e.run_id = %(run_id)s AND e.to_judge IS NOT NULL) AS all_judged

-- name: take_pairings
-- Takes the oldest changes of groups in which no processor has searched for pairs yet; skips those locked by another
-- processor. They are deleted in the transaction that writes the pairs, and return if it is rolled back.
DELETE FROM trinity.pairing q
WHERE q.run_id = %(run_id)s
  AND q.id = ANY(ARRAY(SELECT due.id FROM trinity.pairing due
                       WHERE due.run_id = %(run_id)s ORDER BY due.id LIMIT %(limit)s FOR UPDATE SKIP LOCKED))
RETURNING q.group_id

-- name: lock_paired_groups
-- Locks groups in order of id, so that only one processor at a time pairs a group. Transactions that change rewards
-- wait, too.
SELECT g.id FROM trinity.rollout_group g WHERE g.id = ANY(%(group_ids)s) ORDER BY g.id FOR NO KEY UPDATE

-- name: pair_groups
-- Pairs the best rows of locked groups with their worst. Every chosen row beats its rejected one by at least the
-- margin, no row is in two pairs of its group, and existing pairs are unchanged. A row of one token is in no pair,
-- since no model predicts that token. Used for a run's own rows and adopted ones. From now on the rejected row is in
-- no pass over rows, except passes over labels.
WITH ranked AS (
    SELECT e.id, e.source_id, e.group_id, e.reward, e.held_out,
           row_number() OVER (PARTITION BY e.group_id ORDER BY e.reward DESC, e.id) AS best,
           row_number() OVER (PARTITION BY e.group_id ORDER BY e.reward, e.id) AS worst
    FROM trinity.experience e
    WHERE e.group_id = ANY(%(group_ids)s) AND e.run_id = %(run_id)s AND e.reward IS NOT NULL
      AND e.state IN ('ready', 'leased', 'trained')
      AND e.step = 0 -- later steps have other prompts
      AND (e.prompt_length + e.response_length > 1) IS NOT FALSE -- NULL before the row has tokens
),
made AS (
    INSERT INTO trinity.preference
        (run_id, chosen_id, rejected_id, source, margin, held_out, origin_id, seed)
    SELECT r.id, chosen.id, rejected.id, 'pair', chosen.reward - rejected.reward, kept.is_so,
           coalesce(chosen.source_id, chosen.id), CASE WHEN NOT kept.is_so THEN r.seed END
    FROM trinity.run r
    CROSS JOIN ranked chosen
    JOIN ranked rejected ON rejected.group_id = chosen.group_id AND rejected.worst = chosen.best
    CROSS JOIN LATERAL (SELECT chosen.held_out OR rejected.held_out AS is_so) kept
    WHERE r.id = %(run_id)s AND chosen.reward - rejected.reward >= %(margin)s AND chosen.reward > rejected.reward
      -- LIMIT 1 as in pick_groups: forces a look-up per row, whatever the table's statistics.
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
