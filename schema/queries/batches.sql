-- name: latest_version
-- The highest number of a policy version, NULL before the first; withdrawn ones, and those that the server lost, count.
SELECT greatest((SELECT max(p.version) FROM trinity.policy_version p WHERE p.run_id = %(run_id)s),
                (SELECT max(s.last_version) FROM trinity.setback s WHERE s.run_id = %(run_id)s)) AS version

-- name: hold_trainer
-- As hold_place, with the newest version whose checkpoint is there and the batch of the last committed step: only this
-- worker changes either. A server that lost commits says something else than the trainer heard.
SELECT (SELECT p.version FROM trinity.policy_version p
        WHERE p.run_id = %(run_id)s AND p.checkpoint IS NOT NULL ORDER BY p.version DESC LIMIT 1) AS version,
       coalesce(last.step, 0) AS step, last.id AS batch_id, last.created_at
FROM trinity.worker w
LEFT JOIN LATERAL (SELECT b.id, b.step, b.created_at FROM trinity.batch b
                   WHERE b.run_id = %(run_id)s AND b.state <> 'reopened' AND b.state = 'committed'
                   ORDER BY b.step DESC LIMIT 1) last ON true
WHERE w.id = %(worker_id)s AND w.stopped_at IS NULL
FOR SHARE OF w

-- name: stale_groups
-- Ready groups that are staler than the limit allows, locked so that they can expire. IS TRUE, wherever rows
-- are known by id or group, keeps the planner off the partial index of ready ones, as NOT DISTINCT does in hold_rows.
-- Groups of newer versions than the limit allows are looked for, among all that are ready, only while there are later
-- versions that were withdrawn: from when a run went back until it publishes again.
WITH live AS MATERIALIZED (
    SELECT coalesce((SELECT b.floor FROM trinity.batch b
                     WHERE b.run_id = %(run_id)s AND b.state <> 'reopened' ORDER BY b.step DESC LIMIT 1), 0) AS floor
),
stale AS MATERIALIZED (
    SELECT g.id
    FROM trinity.rollout_group g
    WHERE g.run_id = %(run_id)s AND g.state = 'ready'
      AND g.version_min < %(version)s::integer - %(max_staleness)s::integer
      AND g.id >= (SELECT live.floor FROM live)
    UNION
    SELECT g.id
    FROM trinity.rollout_group g
    WHERE greatest((SELECT p.version FROM trinity.policy_version p
                    WHERE p.run_id = %(run_id)s ORDER BY p.version DESC LIMIT 1),
                   (SELECT max(s.last_version) FROM trinity.setback s WHERE s.run_id = %(run_id)s))
          > %(version)s::integer + %(max_staleness)s::integer
      AND g.run_id = %(run_id)s AND g.state = 'ready'
      AND g.version_max > %(version)s::integer + %(max_staleness)s::integer
      AND g.id >= (SELECT live.floor FROM live)
)
SELECT g.id
FROM stale
JOIN trinity.rollout_group g ON g.id = stale.id AND (g.state = 'ready') IS TRUE
ORDER BY g.id
FOR NO KEY UPDATE OF g

-- name: expire_groups
UPDATE trinity.rollout_group g SET state = 'dropped' WHERE g.id = ANY(%(group_ids)s) AND (g.state = 'ready') IS TRUE

-- name: expire_members
UPDATE trinity.experience e SET state = 'expired'
WHERE e.group_id = ANY(%(group_ids)s) AND (e.state = 'ready') IS TRUE AND e.source_id IS NULL
RETURNING e.id, trinity.staleness(%(version)s::integer, e.version_min, e.version_max) AS staleness

-- name: count_rows
-- With or without tokens: those that get none are dropped. By the rule of experience.place.
SELECT e.use_count AS uses, count(*) AS rows
FROM trinity.experience e
WHERE e.run_id = %(run_id)s AND e.state IN ('ready', 'leased', 'trained') AND e.seed IS NOT NULL
  AND (e.reward > 0 OR (e.reward IS NOT NULL) = e.draws_labels)
GROUP BY e.use_count

-- name: fit_rows_to_epochs
-- Some adopted rows of an offline run whose epochs were changed: those that have uses left again are ready, those that
-- have none left any more are trained. For the run's trainer, at its start; no row where nothing is left to do.
UPDATE trinity.experience e
SET state = CASE WHEN e.state = 'ready' THEN 'trained' ELSE 'ready' END::trinity.experience_state
WHERE e.id IN (SELECT f.id FROM trinity.experience f
               WHERE f.run_id = %(run_id)s AND f.seed IS NOT NULL
                 AND f.state = CASE WHEN f.use_count < %(epochs)s THEN 'trained' ELSE 'ready' END::trinity.experience_state
               LIMIT %(limit)s)

-- name: fit_pairs_to_epochs
-- The same for pairs.
UPDATE trinity.preference p
SET state = CASE WHEN p.state = 'ready' THEN 'trained' ELSE 'ready' END::trinity.experience_state
WHERE p.id IN (SELECT f.id FROM trinity.preference f
               WHERE f.run_id = %(run_id)s AND NOT f.held_out
                 AND f.state = CASE WHEN f.use_count < %(epochs)s THEN 'trained' ELSE 'ready' END::trinity.experience_state
               LIMIT %(limit)s)

-- name: count_unlabelled
-- Rows that a run which learns from labels cannot learn from, for want of a reward.
SELECT count(*) AS rows
FROM trinity.experience e
WHERE e.run_id = %(run_id)s AND e.state = 'ready' AND e.draws_labels AND e.reward IS NULL

-- name: count_pairs
SELECT p.use_count AS uses, count(*) AS rows
FROM trinity.preference p
JOIN trinity.experience chosen ON chosen.id = p.chosen_id
JOIN trinity.experience rejected ON rejected.id = p.rejected_id
WHERE p.run_id = %(run_id)s AND p.state IN ('ready', 'leased', 'trained') AND NOT p.held_out
  AND (p.source <> 'pair' OR chosen.reward > rejected.reward)
GROUP BY p.use_count

-- name: held_out_rows
-- By the rules of those that are drawn.
SELECT e.id, e.reward
FROM trinity.experience e
WHERE e.run_id = %(run_id)s AND e.state = 'ready' AND e.held_out AND e.prompt_length IS NOT NULL
  AND (e.reward > 0 OR (e.reward IS NOT NULL) = e.draws_labels)
  AND (e.draws_labels OR NOT EXISTS (SELECT FROM trinity.preference p WHERE p.rejected_id = e.id))
ORDER BY e.id
LIMIT %(limit)s

-- name: held_out_pairs
-- The chosen row of each pair, then the rejected one; by the rules of those that are drawn.
SELECT e.id, e.reward
FROM (SELECT p.id, p.chosen_id, p.rejected_id
      FROM trinity.preference p
      CROSS JOIN LATERAL (SELECT FROM trinity.experience chosen, trinity.experience rejected
                          WHERE chosen.id = p.chosen_id AND rejected.id = p.rejected_id
                            AND chosen.prompt_length IS NOT NULL AND rejected.prompt_length IS NOT NULL
                            AND (p.source <> 'pair' OR chosen.reward > rejected.reward)
                          LIMIT 1) AS sides
      WHERE p.run_id = %(run_id)s AND p.state = 'ready' AND p.held_out
      ORDER BY p.id
      LIMIT %(limit)s) AS pair
CROSS JOIN LATERAL (VALUES (0, pair.chosen_id), (1, pair.rejected_id)) AS side (place, id)
JOIN trinity.experience e ON e.id = side.id
ORDER BY pair.id, side.place

-- name: insert_batch
-- A batch with what the trainer will see, in order, the numbers it will use, and its worker's setting. Nothing where
-- the step has a batch already: a run has one trainer. Its floor is the lowest group that is live now, found from the
-- floor before. Groups of a run are started one transaction after the other, so none comes to be below it later; and
-- only reopening brings groups back to life: those that this batch or a later one took, which were live when this one
-- was drawn.
WITH before AS MATERIALIZED (
    SELECT coalesce((SELECT b.floor FROM trinity.batch b
                     WHERE b.run_id = %(run_id)s AND b.state <> 'reopened' ORDER BY b.step DESC LIMIT 1), 0) AS floor
),
batch AS (
    INSERT INTO trinity.batch
        (run_id, step, worker_id, setting_id, policy_version, max_staleness, size, epoch, sampler, seed, query,
         snapshot, parameters, floor)
    SELECT %(run_id)s, %(step)s, %(worker_id)s,
           (SELECT w.setting_id FROM trinity.worker w WHERE w.id = %(worker_id)s),
           %(version)s, %(max_staleness)s, %(size)s, %(epoch)s, %(sampler)s, %(seed)s, %(query)s, %(snapshot)s,
           %(parameters)s::jsonb,
           least((SELECT min(g.id) FROM trinity.rollout_group g
                  WHERE g.run_id = %(run_id)s AND g.state = 'open' AND g.id >= before.floor),
                 (SELECT min(g.id) FROM trinity.rollout_group g
                  WHERE g.run_id = %(run_id)s AND g.state = 'complete' AND g.id >= before.floor),
                 (SELECT min(g.id) FROM trinity.rollout_group g
                  WHERE g.run_id = %(run_id)s AND g.state = 'ready' AND g.id >= before.floor),
                 (SELECT min(g.id) FROM trinity.rollout_group g
                  WHERE g.run_id = %(run_id)s AND g.state = 'leased' AND g.id >= before.floor))
    FROM before
    ON CONFLICT (run_id, step) WHERE state <> 'reopened' DO NOTHING
    RETURNING id, created_at
),
items AS (
    INSERT INTO trinity.batch_item
        (batch_id, ordinal, experience_id, preference_id, reward, advantage, staleness, probability, weight)
    SELECT batch.id, i.ordinal - 1, i.experience_id, i.preference_id, i.reward, i.advantage, i.staleness, i.probability,
           i.weight
    FROM batch
    CROSS JOIN unnest(%(experience_ids)b::bigint[], %(preference_ids)b::bigint[], %(rewards)b::float8[],
                      %(advantages)b::float8[], %(staleness)b::integer[], %(probabilities)b::float8[],
                      %(weights)b::float8[])
         WITH ORDINALITY
         AS i (experience_id, preference_id, reward, advantage, staleness, probability, weight, ordinal)
)
SELECT id, created_at FROM batch

-- name: lock_batch_groups
-- The groups of batches' rows, those that adopted rows come from too. Whoever changes rewards locks them first as
-- well, and in this order, so that nobody waits in a circle.
SELECT g.id FROM trinity.rollout_group g
WHERE g.id IN (SELECT e.group_id FROM trinity.batch_item i JOIN trinity.experience e ON e.id = i.experience_id
               WHERE i.batch_id = ANY(%(batch_ids)s) AND i.preference_id IS NULL)
ORDER BY g.id
FOR NO KEY UPDATE

-- name: lock_batch_rows
-- The rows of batches, after their groups. Those of pairs are neither leased nor used up.
SELECT e.id FROM trinity.experience e
WHERE e.id IN (SELECT i.experience_id FROM trinity.batch_item i
               WHERE i.batch_id = ANY(%(batch_ids)s) AND i.preference_id IS NULL)
ORDER BY e.id
FOR NO KEY UPDATE

-- name: lease_experiences
-- Waits, in the order of ids, for whoever changes a row right now; a row that is not ready any more stays as it is.
WITH held AS MATERIALIZED (
    SELECT e.id FROM trinity.experience e WHERE e.id = ANY(%(ids)b) ORDER BY e.id FOR NO KEY UPDATE
)
UPDATE trinity.experience e SET state = 'leased', worker_id = %(worker_id)s, attempt = e.attempt + 1
FROM held
WHERE e.id = held.id AND (e.state = 'ready') IS TRUE

-- name: lease_members
-- Under the lock of their groups: members need no order of their own.
UPDATE trinity.experience e SET state = 'leased', worker_id = %(worker_id)s, attempt = e.attempt + 1
WHERE e.id = ANY(%(ids)b) AND (e.state = 'ready') IS TRUE

-- name: lease_groups
-- As lease_experiences, and before lease_members.
WITH held AS MATERIALIZED (
    SELECT g.id FROM trinity.rollout_group g WHERE g.id = ANY(%(ids)b) ORDER BY g.id FOR NO KEY UPDATE
)
UPDATE trinity.rollout_group g SET state = 'leased', worker_id = %(worker_id)s
FROM held
WHERE g.id = held.id AND (g.state = 'ready') IS TRUE

-- name: lease_preferences
-- As lease_experiences.
WITH held AS MATERIALIZED (
    SELECT p.id FROM trinity.preference p WHERE p.id = ANY(%(ids)b) ORDER BY p.id FOR NO KEY UPDATE
)
UPDATE trinity.preference p SET state = 'leased', worker_id = %(worker_id)s, attempt = p.attempt + 1
FROM held
WHERE p.id = held.id AND p.state = 'ready'

-- name: read_batch
-- The rows of a batch with the numbers recorded for them and their arrays, in the order of the draw.
SELECT i.ordinal, i.experience_id, i.preference_id, e.group_id, i.reward, i.advantage, i.weight, i.probability,
       i.staleness, p.codec, p.num_tokens, p.data, p.archive_row, p.pruned_at
FROM trinity.batch_item i
JOIN trinity.experience e ON e.id = i.experience_id
LEFT JOIN trinity.payload p ON p.experience_id = i.experience_id
WHERE i.batch_id = %(batch_id)s
ORDER BY i.ordinal

-- name: read_payloads
-- Bytes that are archived are NULL here, and in that row of the run's Lance table; pruned ones are nowhere.
SELECT p.experience_id, p.codec, p.num_tokens, p.data, p.archive_row, p.pruned_at
FROM trinity.payload p
WHERE p.experience_id = ANY(%(ids)s)

-- name: commit_batch
-- The trainer step is done. Only the worker that drew the batch can say so.
UPDATE trinity.batch b SET state = 'committed', committed_at = now()
WHERE b.id = %(batch_id)s AND b.worker_id = %(worker_id)s AND b.state = 'leased'
RETURNING b.run_id

-- name: batch_state
SELECT b.state, b.created_at FROM trinity.batch b WHERE b.id = %(batch_id)s

-- name: use_experiences
-- Count the use; a row that was used as often as allowed is trained. Adopted rows beside rollout groups come back
-- without end: each use moves them to their place in the next pass.
UPDATE trinity.experience e
SET use_count = e.use_count + 1,
    state = CASE WHEN e.use_count + 1 < %(max_uses)s OR e.source_id IS NOT NULL AND %(keeps_adopted)s
                 THEN 'ready' ELSE 'trained' END::trinity.experience_state,
    worker_id = NULL
FROM trinity.batch_item i
WHERE i.batch_id = %(batch_id)s AND i.preference_id IS NULL AND e.id = i.experience_id AND e.state = 'leased'

-- name: use_groups
-- A group is trained when its members are, and ready as long as they have uses left.
WITH m AS MATERIALIZED (
    SELECT e.group_id, max(e.use_count) AS uses
    FROM trinity.batch_item i JOIN trinity.experience e ON e.id = i.experience_id
    WHERE i.batch_id = %(batch_id)s
    GROUP BY e.group_id
)
UPDATE trinity.rollout_group g
SET state = CASE WHEN m.uses < %(max_uses)s THEN 'ready' ELSE 'trained' END::trinity.group_state, worker_id = NULL
FROM m
WHERE g.id = m.group_id AND g.run_id = %(run_id)s AND g.state = 'leased'

-- name: use_preferences
-- The same for pairs, locked in the order of their ids.
WITH held AS MATERIALIZED (
    SELECT p.id FROM trinity.preference p
    WHERE p.id IN (SELECT i.preference_id FROM trinity.batch_item i WHERE i.batch_id = %(batch_id)s)
    ORDER BY p.id
    FOR NO KEY UPDATE
)
UPDATE trinity.preference p
SET use_count = p.use_count + 1,
    state = CASE WHEN p.use_count + 1 < %(max_uses)s THEN 'ready' ELSE 'trained' END::trinity.experience_state,
    worker_id = NULL
FROM held
WHERE p.id = held.id AND p.state = 'leased'

-- name: publish_version
-- The last step must still be committed by the worker that publishes: a trainer that was replaced meanwhile
-- publishes nothing. The lock makes it wait for whoever reopens that step right now. The first version has no
-- steps. Harmless when repeated.
WITH last AS MATERIALIZED (
    SELECT b.id
    FROM trinity.batch b
    WHERE b.run_id = %(run_id)s AND b.step = %(step)s AND b.state = 'committed' AND b.worker_id = %(worker_id)s
    FOR NO KEY UPDATE
)
INSERT INTO trinity.policy_version (run_id, version, step, checkpoint, checkpoint_hash)
SELECT %(run_id)s, %(version)s, %(step)s, %(checkpoint)s, %(checkpoint_hash)s
WHERE %(version)s = 0 OR EXISTS (SELECT FROM last)
ON CONFLICT (run_id, version) DO NOTHING

-- name: adopt_version
-- A checkpoint that the server has forgotten becomes a version of the run again, under a number of its own. Its steps
-- have no batches in the store. Harmless when repeated.
INSERT INTO trinity.policy_version (run_id, version, step, checkpoint, checkpoint_hash)
VALUES (%(run_id)s, %(version)s, %(step)s, %(checkpoint)s, %(checkpoint_hash)s)
ON CONFLICT (run_id, version) DO NOTHING

-- name: find_version
SELECT p.version FROM trinity.policy_version p
WHERE p.run_id = %(run_id)s AND p.version = %(version)s AND p.step = %(step)s
  AND p.checkpoint_hash = %(checkpoint_hash)s

-- name: include_batches
-- By this the version's checkpoint includes every batch that was committed since the one before.
UPDATE trinity.batch b SET included_version = %(version)s
WHERE b.run_id = %(run_id)s AND b.state = 'committed' AND b.included_version IS NULL AND b.step <= %(step)s

-- name: versions_with_checkpoint
-- Newest first.
SELECT p.version, p.step, p.checkpoint, p.checkpoint_hash
FROM trinity.policy_version p
WHERE p.run_id = %(run_id)s AND p.checkpoint IS NOT NULL
ORDER BY p.version DESC
LIMIT %(limit)s

-- name: hold_checkpoint
-- Another run starts from this checkpoint. Until that is on record, the lock makes the run's own pruning wait.
SELECT p.version FROM trinity.policy_version p
WHERE p.run_id = %(run_id)s AND p.checkpoint = %(checkpoint)s
FOR SHARE

-- name: lock_checkpoints
-- Before prune_checkpoints, which then sees every run that has started from one of these.
SELECT p.version FROM trinity.policy_version p
WHERE p.run_id = %(run_id)s AND p.checkpoint IS NOT NULL AND p.version > 0
ORDER BY p.version
FOR NO KEY UPDATE

-- name: prune_checkpoints
-- Forget the checkpoints of all but the newest few versions, before their files are deleted. Version 0 stays:
-- it is where a run starts anew, and what it is compared with. So does one that another run started from.
WITH old AS (
    SELECT p.version, p.checkpoint
    FROM trinity.policy_version p
    WHERE p.run_id = %(run_id)s AND p.checkpoint IS NOT NULL AND p.version > 0
    ORDER BY p.version DESC
    OFFSET %(keep)s
)
UPDATE trinity.policy_version p SET checkpoint = NULL
FROM old
WHERE p.run_id = %(run_id)s AND p.version = old.version
  AND NOT EXISTS (SELECT FROM trinity.policy_version o WHERE o.checkpoint = old.checkpoint AND o.run_id <> p.run_id)
RETURNING old.version, old.checkpoint

-- name: relocate_checkpoint
-- The files of a version are in another place by now. Harmless when repeated, and where they are where they were.
UPDATE trinity.policy_version p SET checkpoint = %(checkpoint)s
WHERE p.run_id = %(run_id)s AND p.version = %(version)s AND p.checkpoint_hash = %(checkpoint_hash)s
  AND p.checkpoint <> %(checkpoint)s

-- name: withdraw_later_versions
-- They include batches that are given back: nobody shall load them.
UPDATE trinity.policy_version p SET checkpoint = NULL
WHERE p.run_id = %(run_id)s AND p.version > %(version)s AND p.checkpoint IS NOT NULL

-- name: open_batches
-- Batches that the checkpoint of a version does not include.
SELECT b.id, b.state
FROM trinity.batch b
WHERE b.run_id = %(run_id)s AND b.state IN ('leased', 'committed')
  AND (b.included_version IS NULL OR b.included_version > %(version)s)
ORDER BY b.id
FOR NO KEY UPDATE

-- name: leased_batch
-- What this worker drew for a step and did not commit; another's batch is not its to give back.
SELECT b.id
FROM trinity.batch b
WHERE b.run_id = %(run_id)s AND b.step = %(step)s AND b.state = 'leased' AND b.worker_id = %(worker_id)s
FOR NO KEY UPDATE

-- name: reopen_experiences
-- Give the rows of batches back; a committed use is taken back, also of a row that was dropped since and stays so.
UPDATE trinity.experience e
SET state = CASE WHEN e.state IN ('leased', 'trained') THEN 'ready' ELSE e.state END,
    worker_id = NULL,
    use_count = e.use_count - i.uses
FROM (SELECT i.experience_id, count(*) FILTER (WHERE b.state = 'committed') AS uses
      FROM trinity.batch_item i JOIN trinity.batch b ON b.id = i.batch_id
      WHERE i.batch_id = ANY(%(batch_ids)s) AND i.preference_id IS NULL
      GROUP BY i.experience_id) i
WHERE e.id = i.experience_id

-- name: reopen_groups
-- The run's own: the groups of adopted rows belong to their data set.
WITH m AS MATERIALIZED (
    SELECT DISTINCT e.group_id
    FROM trinity.batch_item i JOIN trinity.experience e ON e.id = i.experience_id
    WHERE i.batch_id = ANY(%(batch_ids)s)
)
UPDATE trinity.rollout_group g SET state = 'ready', worker_id = NULL
FROM m
WHERE g.id = m.group_id AND g.run_id = %(run_id)s AND g.state IN ('leased', 'trained')

-- name: reopen_preferences
-- The same for pairs.
UPDATE trinity.preference p
SET state = CASE WHEN p.state IN ('leased', 'trained') THEN 'ready' ELSE p.state END,
    worker_id = NULL,
    use_count = p.use_count - i.uses
FROM (SELECT pairs.preference_id, count(*) FILTER (WHERE pairs.state = 'committed') AS uses
      FROM (SELECT DISTINCT i.preference_id, b.id, b.state
            FROM trinity.batch_item i JOIN trinity.batch b ON b.id = i.batch_id
            WHERE i.batch_id = ANY(%(batch_ids)s) AND i.preference_id IS NOT NULL) pairs
      GROUP BY pairs.preference_id) i
WHERE p.id = i.preference_id

-- name: reopen_batches
UPDATE trinity.batch b SET state = 'reopened', included_version = NULL, reopened_at = now()
WHERE b.id = ANY(%(batch_ids)s)

-- name: unencoded_rows
-- Adopted rows that no tokenizer has seen yet.
SELECT e.id, x.prompt, x.response, x.messages
FROM trinity.experience e
JOIN trinity.experience_text x ON x.experience_id = e.source_id
WHERE e.run_id = %(run_id)s AND e.state = 'ready' AND e.prompt_length IS NULL AND e.id > %(after)s
ORDER BY e.id
LIMIT %(limit)s

-- name: count_unencoded
SELECT count(*) AS rows
FROM trinity.experience e
WHERE e.run_id = %(run_id)s AND e.state = 'ready' AND e.prompt_length IS NULL

-- name: encode_rows
-- From now on they can be drawn.
UPDATE trinity.experience e
SET prompt_length = n.prompt_length, response_length = n.response_length,
    ready_xact = pg_current_xact_id()::text::bigint
FROM unnest(%(ids)s::bigint[], %(prompt_lengths)s::integer[], %(response_lengths)s::integer[])
     AS n (id, prompt_length, response_length)
WHERE e.id = n.id

-- name: insert_payloads
-- Arrays are immutable: a row that has some keeps them.
INSERT INTO trinity.payload (experience_id, codec, num_tokens, data)
SELECT n.id, %(codec)s, n.num_tokens, n.data
FROM unnest(%(ids)s::bigint[], %(num_tokens)s::integer[], %(data)s::bytea[]) AS n (id, num_tokens, data)
ON CONFLICT (experience_id) DO NOTHING

-- name: drop_ready
-- Ready rows that turn out not to fit the model. Other members of their groups may make pairs now.
WITH dropped AS (
    UPDATE trinity.experience e SET state = 'dropped' WHERE e.id = ANY(%(ids)s) AND (e.state = 'ready') IS TRUE
    RETURNING e.run_id, e.group_id
)
INSERT INTO trinity.pairing (run_id, group_id)
SELECT DISTINCT d.run_id, d.group_id
FROM dropped d JOIN trinity.run r ON r.id = d.run_id
WHERE d.group_id IS NOT NULL AND r.derives_pairs

-- name: drop_pairs_of
-- A pair goes with either of its rows.
WITH dropped AS (
    UPDATE trinity.preference p SET state = 'dropped'
    WHERE p.run_id = %(run_id)s AND (p.chosen_id = ANY(%(ids)s) OR p.rejected_id = ANY(%(ids)s)) AND p.state = 'ready'
    RETURNING p.id, p.run_id
)
INSERT INTO trinity."drop" (run_id, preference_id, stage, reason)
SELECT run_id, id, %(stage)s, 'row_dropped' FROM dropped
