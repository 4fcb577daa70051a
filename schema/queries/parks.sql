-- name: give_ticket
-- Creates the ticket for the next park of the worker's agent. An existing ticket is kept.
INSERT INTO trinity.park (run_id, agent_id)
SELECT a.run_id, a.id
FROM trinity.agent a JOIN trinity.rollout_group g ON g.id = a.group_id
WHERE a.id = %(agent_id)s AND a.worker_id = %(worker_id)s AND a.ended_at IS NULL AND g.worker_id = %(worker_id)s
ON CONFLICT (agent_id) WHERE parked_at IS NULL DO NOTHING

-- name: open_ticket
-- The open ticket of the worker's agent; no row if the agent has ended, or another worker holds it.
SELECT p.id FROM trinity.park p JOIN trinity.agent a ON a.id = p.agent_id
WHERE p.agent_id = %(agent_id)s AND p.parked_at IS NULL AND a.worker_id = %(worker_id)s AND a.ended_at IS NULL

-- name: leave_park
-- Marks the point from which an attempt resumed as left, before it parks at another one.
UPDATE trinity.park p SET left_at = now()
FROM trinity.agent a
WHERE a.id = p.agent_id AND a.id = %(agent_id)s AND a.worker_id = %(worker_id)s AND a.ended_at IS NULL
  AND p.id <> %(ticket)s AND p.parked_at IS NOT NULL AND p.left_at IS NULL

-- name: park_attempt
-- Parks an attempt of the worker with its ticket. Idempotent, for commits with unknown outcome. No row: the agent has
-- ended, or another worker holds its group.
UPDATE trinity.park p
SET parked_at = coalesce(p.parked_at, now()), state = %(given)s, record = %(record)s, version_min = %(version_min)s,
    wake_at = coalesce(p.wake_at, now() + make_interval(secs => %(seconds)s))
FROM trinity.agent a JOIN trinity.rollout_group g ON g.id = a.group_id
WHERE p.id = %(ticket)s AND a.id = p.agent_id AND a.worker_id = %(worker_id)s AND a.ended_at IS NULL
  AND g.worker_id = %(worker_id)s
RETURNING p.id

-- name: answer_park
-- Stores the answer of a park; the first one wins, as long as the attempt has not resumed without one. It need not be
-- parked yet: it resumes as soon as it parks.
UPDATE trinity.park p SET answer = %(answer)s, answered_at = now(), answered_by = %(by)s
FROM trinity.agent a JOIN trinity.rollout_group g ON g.id = a.group_id
WHERE p.id = %(ticket)s AND a.id = p.agent_id AND a.ended_at IS NULL AND g.completed_at IS NULL
  AND p.answered_at IS NULL AND p.resumed_at IS NULL
RETURNING p.id

-- name: find_park
-- A park, with the state of its attempt, and whether it already has this answer.
SELECT p.id, p.run_id, r.name AS run, r.state::text AS run_is, p.parked_at, p.answered_at, p.answered_by,
       p.answer = %(answer)s AS is_same, p.resumed_at, coalesce(a.ended_at, g.completed_at) AS ended_at
FROM trinity.park p
JOIN trinity.agent a ON a.id = p.agent_id
JOIN trinity.rollout_group g ON g.id = a.group_id
JOIN trinity.run r ON r.id = p.run_id
WHERE p.id = %(ticket)s

-- name: resume_park
-- Records that the worker resumes a parked member of a group that it holds, and returns the point.
UPDATE trinity.park p SET resumed_at = now(), resumed_attempt = g.attempt
FROM trinity.agent a JOIN trinity.rollout_group g ON g.id = a.group_id
WHERE g.id = %(group_id)s AND g.worker_id = %(worker_id)s AND g.attempt = %(attempt)s
  AND a.ordinal = %(ordinal)s AND a.ended_at IS NULL
  AND p.agent_id = a.id AND p.parked_at IS NOT NULL AND p.left_at IS NULL
RETURNING p.id, p.agent_id, p.state, p.record, p.answer, p.answered_at IS NOT NULL AS is_answered

-- name: move_parks
-- Moves the parks of an attempt, and the ticket of its next one, to the agent that continues it.
UPDATE trinity.park p SET agent_id = %(agent_id)s WHERE p.agent_id = %(before)s

-- name: woken_members
-- Parked members that may resume, in incomplete groups that the worker holds.
SELECT g.id, g.attempt, g.expected, t.payload, m.ordinals AS members, m.stale,
       CASE WHEN g.evaluation_id IS NOT NULL THEN hashtextextended(t.key, 0) END AS key
FROM trinity.rollout_group g
JOIN trinity.task t ON t.id = g.task_id
CROSS JOIN LATERAL (
    SELECT array_agg(p.ordinal ORDER BY p.ordinal) AS ordinals,
           coalesce(array_agg(p.ordinal) FILTER (WHERE p.is_stale), '{}') AS stale
    FROM trinity.parked_members(
             g.id, trinity.oldest_within(g.run_id, %(version)s, %(max_staleness)s)) p
    WHERE p.is_due AND p.resumed_attempt IS DISTINCT FROM g.attempt
) m
WHERE g.id = ANY(%(group_ids)s) AND g.worker_id = %(worker_id)s AND g.completed_at IS NULL AND m.ordinals IS NOT NULL
ORDER BY g.id

-- name: end_spare_parks
-- Ends parked attempts that their groups no longer need.
UPDATE trinity.agent a SET ended_at = now()
FROM trinity.rollout_group g
WHERE g.id = ANY(%(group_ids)s) AND g.completed_at IS NOT NULL AND a.group_id = g.id AND a.ended_at IS NULL
  AND EXISTS (SELECT FROM trinity.park p WHERE p.agent_id = a.id)

-- name: list_parks
-- The currently parked attempts of a run, longest first.
SELECT v.ticket, v.group_id, v.member, v.parked_at, v.wake_at, v.answered_at, v.state
FROM trinity.parked_view v
WHERE v.run_id = %(run_id)s
ORDER BY v.parked_at, v.ticket
LIMIT %(limit)s
