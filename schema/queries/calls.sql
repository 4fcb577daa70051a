-- name: supersede_agents
-- Ends an earlier agent of the same member before another is admitted. The worker must hold the group under this
-- attempt. A repeated begin does not end its own agent.
UPDATE trinity.agent a SET ended_at = now()
FROM trinity.rollout_group g
WHERE g.id = %(group_id)s AND g.worker_id = %(worker_id)s AND g.attempt = %(attempt)s
  AND a.group_id = g.id AND a.ordinal = %(ordinal)s AND a.ended_at IS NULL AND a.key_hash IS DISTINCT FROM %(key_hash)s

-- name: begin_agent
-- Admits an agent with the hash of its key, for a member of a group that the worker holds. An existing key, for
-- example after a commit with unknown outcome, is skipped.
INSERT INTO trinity.agent (run_id, group_id, ordinal, attempt, retry, worker_id, key_hash)
SELECT g.run_id, g.id, %(ordinal)s, g.attempt, %(retry)s, g.worker_id, %(key_hash)s
FROM trinity.rollout_group g
WHERE g.id = %(group_id)s AND g.worker_id = %(worker_id)s AND g.attempt = %(attempt)s
ON CONFLICT (key_hash) DO NOTHING

-- name: agent_of_key
-- Id of the agent with this key; no row if begin_agent admitted none.
SELECT a.id FROM trinity.agent a WHERE a.key_hash = %(key_hash)s

-- name: record_calls
-- Stores calls of agents whose group the worker holds. Returns the calls that are stored, now or before; calls of
-- ended agents and of groups held by another worker are not. Locks the groups FOR SHARE in order of id: a claim of
-- the group waits, so its next holder sees every answered call.
WITH given AS MATERIALIZED (
    SELECT w.*
    FROM unnest(%(agent_ids)b::bigint[], %(numbers)b::integer[], %(digests)b::bytea[], %(prompts)b::text[],
            %(codecs)b::text[], %(num_tokens)b::integer[], %(data)b::bytea[], %(finish_reasons)b::text[],
            %(replaced)b::jsonb[], %(paths)b::text[], %(models)b::text[])
        AS w (agent_id, number, digest, prompt, codec, num_tokens, data, finish_reason, replaced, path, model)
    JOIN trinity.agent a ON a.id = w.agent_id
    JOIN trinity.rollout_group g ON g.id = a.group_id
    WHERE a.ended_at IS NULL AND a.worker_id = %(worker_id)s AND g.worker_id = %(worker_id)s
    ORDER BY g.id
    FOR SHARE OF g
),
stored AS (
    INSERT INTO trinity.call (agent_id, number, digest, prompt, codec, num_tokens, data, finish_reason, replaced, path,
        model)
    SELECT agent_id, number, digest, prompt, codec, num_tokens, data, finish_reason, replaced, path, model FROM given
    ON CONFLICT DO NOTHING
)
SELECT agent_id, number FROM given

-- name: end_agents
-- Ends the worker's agents of members whose rollouts this transaction writes. Deletes the calls of accepted rollouts,
-- since the payloads of their experiences have the tokens; calls with replaced options are kept without prompt and
-- tokens, and calls that are left out of training as they are. If a rollout was refused, a parked attempt does not end:
-- the group's next holder resumes it.
WITH ended AS (
    UPDATE trinity.agent a SET ended_at = now()
    FROM unnest(%(group_ids)b::bigint[], %(attempts)b::integer[], %(ordinals)b::smallint[])
        AS w (group_id, attempt, ordinal)
    WHERE a.group_id = w.group_id AND a.ordinal = w.ordinal AND a.worker_id = %(worker_id)s AND a.ended_at IS NULL
      AND (EXISTS (SELECT FROM trinity.rollout r
                   WHERE r.group_id = a.group_id AND r.ordinal = a.ordinal AND r.state <> 'refused')
           OR EXISTS (SELECT FROM trinity.rollout_group g WHERE g.id = a.group_id AND g.completed_at IS NOT NULL)
           OR NOT EXISTS (SELECT FROM trinity.park p
                          WHERE p.agent_id = a.id AND p.parked_at IS NOT NULL AND p.left_at IS NULL))
    RETURNING a.id, w.group_id, w.attempt, w.ordinal
),
finished AS (
    SELECT e.id FROM ended e
    JOIN trinity.rollout r ON r.group_id = e.group_id AND r.ordinal = e.ordinal AND r.attempt = e.attempt
    WHERE r.state = 'finished'
),
emptied AS (
    UPDATE trinity.call c SET prompt = '', data = NULL FROM finished f
    WHERE c.agent_id = f.id AND c.replaced IS NOT NULL AND c.left_out IS NULL
)
DELETE FROM trinity.call c USING finished f WHERE c.agent_id = f.id AND c.replaced IS NULL AND c.left_out IS NULL

-- name: leave_out_calls
-- Marks calls of the worker's agents whose tokens are left out of training, in the transaction that writes their
-- rollouts, before it ends the agents.
UPDATE trinity.call c SET left_out = w.reason
FROM unnest(%(group_ids)b::bigint[], %(ordinals)b::smallint[], %(numbers)b::integer[], %(reasons)b::text[])
    AS w (group_id, ordinal, number, reason)
JOIN trinity.agent a ON a.group_id = w.group_id AND a.ordinal = w.ordinal
WHERE a.worker_id = %(worker_id)s AND a.ended_at IS NULL AND c.agent_id = a.id AND c.number = w.number

-- name: resume_agent
-- Moves the agent of a member that may still call to the worker that holds the group. From then on no other worker
-- stores its calls.
UPDATE trinity.agent a SET worker_id = g.worker_id
FROM trinity.rollout_group g
WHERE g.id = %(group_id)s AND g.worker_id = %(worker_id)s AND g.attempt = %(attempt)s
  AND a.group_id = g.id AND a.ordinal = %(ordinal)s AND a.ended_at IS NULL AND a.key_hash IS NOT NULL
RETURNING a.id, a.key_hash, a.started_at, a.rewards

-- name: read_calls
-- The calls of an agent in order.
SELECT c.number, c.digest, c.prompt, c.codec, c.num_tokens, c.data, c.finish_reason, c.path, c.model
FROM trinity.call c
WHERE c.agent_id = %(agent_id)s AND c.data IS NOT NULL
ORDER BY c.number

-- name: end_agent
-- Ends an agent whose attempt another agent continues.
UPDATE trinity.agent a SET ended_at = now() WHERE a.id = %(agent_id)s AND a.ended_at IS NULL

-- name: succeed_agent
-- Admits, with a new key, an agent that continues the attempt of an ended agent, under the worker's lease.
INSERT INTO trinity.agent (run_id, group_id, ordinal, attempt, retry, worker_id, key_hash, rewards, started_at)
SELECT a.run_id, a.group_id, a.ordinal, g.attempt, a.retry, g.worker_id, %(key_hash)s, a.rewards, a.started_at
FROM trinity.agent a JOIN trinity.rollout_group g ON g.id = a.group_id
WHERE a.id = %(agent_id)s AND g.worker_id = %(worker_id)s
RETURNING id, retry, rewards, started_at

-- name: move_calls
-- Moves the first calls of an agent to its successor. Later calls stay: the workflow repeats them.
UPDATE trinity.call c SET agent_id = %(agent_id)s WHERE c.agent_id = %(before)s AND c.number < %(calls)s

-- name: reward_agent
-- Stores the rewards that an agent reports. The latest value of each name counts.
UPDATE trinity.agent a SET rewards = coalesce(a.rewards, '{}') || %(rewards)s
WHERE a.id = %(agent_id)s AND a.worker_id = %(worker_id)s AND a.ended_at IS NULL

-- name: dismiss_agent
-- Ends a failed agent, before its rollout is written or its member is retried. Its calls are kept.
UPDATE trinity.agent a SET ended_at = now()
WHERE a.id = %(agent_id)s AND a.worker_id = %(worker_id)s AND a.ended_at IS NULL

-- name: fate_of_agent
-- Whether an agent has ended, and its rollout. If a later agent made the same member, this one has no rollout. An
-- agent that no explorer took over, for example after a change of the workflow, counts as ended once its member has a
-- rollout or its group is complete; that rollout belongs to another attempt.
SELECT a.run_id,
       a.ended_at IS NOT NULL OR g.completed_at IS NOT NULL
           OR EXISTS (SELECT FROM trinity.rollout m
                      WHERE m.group_id = a.group_id AND m.ordinal = a.ordinal AND m.state <> 'refused') AS ended,
       r.id AS rollout_id, r.state::text AS state
FROM trinity.agent a
JOIN trinity.rollout_group g ON g.id = a.group_id
LEFT JOIN LATERAL (
    SELECT m.id, m.state FROM trinity.rollout m
    WHERE m.group_id = a.group_id AND m.ordinal = a.ordinal AND a.ended_at IS NOT NULL
      AND NOT EXISTS (SELECT FROM trinity.agent later
                      WHERE later.group_id = a.group_id AND later.ordinal = a.ordinal AND later.id > a.id)
    ORDER BY m.attempt DESC LIMIT 1
) r ON true
WHERE a.key_hash = %(key_hash)s
