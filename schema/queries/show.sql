-- name: show_experience
-- One experience with its one-to-one details. An adopted row shares the text of its source.
SELECT e.id, r.name AS run, e.state, e.held_out, e.reward, e.version_min, e.version_max,
       CASE WHEN e.version_min IS NOT NULL -- NULL if no version of the run wrote it
            THEN trinity.staleness(e.run_id, (SELECT max(p.version) FROM trinity.policy_version p
                                              WHERE p.run_id = e.run_id AND p.checkpoint IS NOT NULL),
                                   e.version_min, e.version_max) END AS staleness_now,
       e.use_count, e.prompt_length, e.response_length, e.source_id, e.group_id, g.state AS group_state,
       m.ordinal AS member, e.rollout_id, e.step, m.greedy, m.model, m.finish_reason, m.output, m.started_at, m.finished_at,
       e.worker_id, e.attempt, e.created_at, s.name AS taskset, g.task_id, t.key AS task,
       t.payload AS task_payload,
       (SELECT p.pruned_at FROM trinity.payload p WHERE p.experience_id = e.id) AS arrays_pruned_at,
       x.prompt, x.response, x.messages, x.state AS environment
FROM trinity.experience e
JOIN trinity.run r ON r.id = e.run_id
LEFT JOIN trinity.experience_text x ON x.experience_id = coalesce(e.source_id, e.id)
LEFT JOIN trinity.rollout m ON m.id = e.rollout_id
LEFT JOIN trinity.rollout_group g ON g.id = e.group_id
LEFT JOIN trinity.task t ON t.id = g.task_id
LEFT JOIN trinity.taskset s ON s.id = t.taskset_id
WHERE e.id = %(id)s

-- name: run_of_experience
-- The run of an experience.
SELECT e.run_id FROM trinity.experience e WHERE e.id = %(id)s

-- name: show_rewards
-- The reward events of an experience, of its source if adopted, or of their rollout. The latest of each name counts.
SELECT v.created_at, v.source, v.name, v.value, v.weight, v.created_by, v.detail,
       row_number() OVER (PARTITION BY v.name ORDER BY v.id DESC) = 1 AS latest
FROM trinity.experience e
CROSS JOIN LATERAL (
    SELECT v.* FROM trinity.reward_event v WHERE v.rollout_id = e.rollout_id
    UNION ALL
    SELECT v.* FROM trinity.reward_event v WHERE v.experience_id = ANY(ARRAY[e.id, e.source_id])
) v
WHERE e.id = %(id)s
ORDER BY v.id

-- name: show_attempts
-- The rollouts of a run with their tasks, and the ids of their experiences in order.
SELECT m.state, m.error, m.started_at, m.finished_at, t.payload AS task,
       ARRAY(SELECT e.id FROM trinity.experience e WHERE e.rollout_id = m.id ORDER BY e.id) AS experiences
FROM trinity.rollout m
JOIN trinity.rollout_group g ON g.id = m.group_id
JOIN trinity.task t ON t.id = g.task_id
WHERE m.run_id = %(run_id)s
ORDER BY m.id

-- name: show_replaced
-- Options that were left out of the requests of a run's programs, by the digest of the request.
SELECT c.digest, c.replaced
FROM trinity.call c
JOIN trinity.agent a ON a.id = c.agent_id
WHERE a.run_id = %(run_id)s AND c.replaced IS NOT NULL

-- name: show_sequences
-- The sequences of an experience's attempt, if programs asked for them, and its calls that are left out of training.
SELECT v.step, v.experience_id, v.state, v.left_out, v.calls, v.models, v.paths, v.num_tokens, v.num_trained, v.reward
FROM trinity.sequence_view v
WHERE v.rollout_id = (SELECT e.rollout_id FROM trinity.experience e WHERE e.id = %(id)s) AND v.calls IS NOT NULL
ORDER BY v.step NULLS LAST

-- name: show_parks
-- The parks of an experience's attempt, with the answers.
SELECT p.id AS ticket, p.parked_at, p.answered_at, p.answered_by, p.resumed_at, p.state, p.answer
FROM trinity.experience e
JOIN trinity.rollout m ON m.id = e.rollout_id
JOIN trinity.agent a ON a.group_id = m.group_id AND a.ordinal = m.ordinal AND a.attempt = m.attempt
JOIN trinity.park p ON p.agent_id = a.id AND p.parked_at IS NOT NULL
WHERE e.id = %(id)s
ORDER BY p.id

-- name: show_processing
-- The processing records of an experience, oldest first.
SELECT p.created_at, p.processor, p.processor_version, p.attempt, p.outcome, p.step, p.error
FROM trinity.processing p
WHERE p.experience_id = %(id)s
ORDER BY p.id

-- name: show_drops
-- Why an experience, or the group of a run's own experience, will not be trained on.
SELECT d.created_at, d.stage, d.step, d.reason, d.detail, d.group_id
FROM trinity.experience e
JOIN trinity."drop" d ON d.experience_id = e.id OR (d.group_id = e.group_id AND d.run_id = e.run_id)
WHERE e.id = %(id)s
ORDER BY d.id

-- name: show_preferences
-- The pairs that contain an experience.
SELECT p.id, p.chosen_id, p.rejected_id, p.state, p.source, p.margin, p.use_count, p.held_out
FROM trinity.preference p
WHERE p.chosen_id = %(id)s OR p.rejected_id = %(id)s
ORDER BY p.id

-- name: show_batches
-- The batches of an experience, with the numbers that they used.
SELECT b.id, b.step, b.state, b.sampler, b.policy_version, b.included_version, i.ordinal, i.preference_id, i.reward,
       i.advantage, i.staleness, i.weight, i.probability, b.created_at, b.committed_at
FROM trinity.batch_item i
JOIN trinity.batch b ON b.id = i.batch_id
WHERE i.experience_id = %(id)s
ORDER BY b.id, i.ordinal
