-- name: supersede_agents
-- Ends an earlier agent that made the same member, before another one is let in. The worker must hold the group under
-- this attempt. A repeated begin leaves its own agent alone.
UPDATE trinity.agent a SET ended_at = now()
FROM trinity.rollout_group g
WHERE g.id = %(group_id)s AND g.worker_id = %(worker_id)s AND g.attempt = %(attempt)s
  AND a.group_id = g.id AND a.ordinal = %(ordinal)s AND a.ended_at IS NULL AND a.key_hash IS DISTINCT FROM %(key_hash)s

-- name: begin_agent
-- Lets a program in by the hash of its key, for a member of a group that the worker holds. A key that is there already,
-- as after a commit whose outcome was unclear, is left alone.
INSERT INTO trinity.agent (run_id, group_id, ordinal, attempt, retry, worker_id, key_hash)
SELECT g.run_id, g.id, %(ordinal)s, g.attempt, %(retry)s, g.worker_id, %(key_hash)s
FROM trinity.rollout_group g
WHERE g.id = %(group_id)s AND g.worker_id = %(worker_id)s AND g.attempt = %(attempt)s
ON CONFLICT (key_hash) DO NOTHING

-- name: agent_of_key
SELECT a.id FROM trinity.agent a WHERE a.key_hash = %(key_hash)s

-- name: record_calls
-- Stores calls of agents whose group the worker holds. Returns those that are stored now or were before; a call of an
-- agent that has ended, or whose group another worker has, is not. The lock on groups makes a claim of the group wait, so
-- that the next holder sees every call that was answered.
WITH given AS MATERIALIZED (
    SELECT w.*
    FROM unnest(%(agent_ids)b::bigint[], %(numbers)b::integer[], %(digests)b::bytea[], %(prompts)b::text[],
            %(codecs)b::text[], %(num_tokens)b::integer[], %(data)b::bytea[], %(finish_reasons)b::text[])
        AS w (agent_id, number, digest, prompt, codec, num_tokens, data, finish_reason)
    JOIN trinity.agent a ON a.id = w.agent_id
    JOIN trinity.rollout_group g ON g.id = a.group_id
    WHERE a.ended_at IS NULL AND a.worker_id = %(worker_id)s AND g.worker_id = %(worker_id)s
    ORDER BY g.id
    FOR SHARE OF g
),
stored AS (
    INSERT INTO trinity.call (agent_id, number, digest, prompt, codec, num_tokens, data, finish_reason)
    SELECT agent_id, number, digest, prompt, codec, num_tokens, data, finish_reason FROM given
    ON CONFLICT DO NOTHING
)
SELECT agent_id, number FROM given

-- name: end_agents
-- Ends the worker's agents of members whose rollouts this transaction writes. Where a rollout was accepted, the calls of
-- its agent go: the payloads of its experiences have their tokens. Where one came too late, an attempt that has parked
-- does not end: the next holder of the group goes on with it from there.
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
)
DELETE FROM trinity.call c
USING ended e, trinity.rollout r
WHERE c.agent_id = e.id AND r.group_id = e.group_id AND r.ordinal = e.ordinal AND r.attempt = e.attempt
  AND r.state = 'finished'

-- name: resume_agent
-- Gives the worker that holds a group the agent of a member that may still call. From then on no other worker stores
-- calls of it.
UPDATE trinity.agent a SET worker_id = g.worker_id
FROM trinity.rollout_group g
WHERE g.id = %(group_id)s AND g.worker_id = %(worker_id)s AND g.attempt = %(attempt)s
  AND a.group_id = g.id AND a.ordinal = %(ordinal)s AND a.ended_at IS NULL AND a.key_hash IS NOT NULL
RETURNING a.id, a.key_hash, a.started_at, a.rewards

-- name: read_calls
-- The calls of an agent in their order.
SELECT c.number, c.digest, c.prompt, c.codec, c.num_tokens, c.data, c.finish_reason
FROM trinity.call c
WHERE c.agent_id = %(agent_id)s AND c.data IS NOT NULL
ORDER BY c.number

-- name: end_agent
-- Ends an agent whose attempt another agent goes on with.
UPDATE trinity.agent a SET ended_at = now() WHERE a.id = %(agent_id)s AND a.ended_at IS NULL

-- name: succeed_agent
-- Lets in an agent that goes on with the attempt of one that has ended, under the worker's lease and by another key.
INSERT INTO trinity.agent (run_id, group_id, ordinal, attempt, retry, worker_id, key_hash, rewards, started_at)
SELECT a.run_id, a.group_id, a.ordinal, g.attempt, a.retry, g.worker_id, %(key_hash)s, a.rewards, a.started_at
FROM trinity.agent a JOIN trinity.rollout_group g ON g.id = a.group_id
WHERE a.id = %(agent_id)s AND g.worker_id = %(worker_id)s
RETURNING id, retry, rewards, started_at

-- name: move_calls
-- Gives an agent the first calls of the one that it succeeds. Later ones stay: the workflow makes them anew.
UPDATE trinity.call c SET agent_id = %(agent_id)s WHERE c.agent_id = %(before)s AND c.number < %(calls)s

-- name: reward_agent
-- Keeps what an agent says to have earned. The latest number under each name counts.
UPDATE trinity.agent a SET rewards = coalesce(a.rewards, '{}') || %(rewards)s
WHERE a.id = %(agent_id)s AND a.worker_id = %(worker_id)s AND a.ended_at IS NULL

-- name: dismiss_agent
-- Ends an agent that failed, before its rollout is written or its member is attempted anew. Its calls stay.
UPDATE trinity.agent a SET ended_at = now()
WHERE a.id = %(agent_id)s AND a.worker_id = %(worker_id)s AND a.ended_at IS NULL

-- name: fate_of_agent
-- Whether an agent has ended, and its rollout. If a later agent made the same member, this one has no rollout. An agent
-- that no explorer took over, as after a change of the workflow, counts as ended once its member has a rollout or its group
-- is complete; that rollout is of another attempt.
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
