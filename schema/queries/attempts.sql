-- name: read_attempts
-- Positions of rows within their attempts, in the order of the given ids. A row without a rollout is an attempt of
-- its own. Equal numbers in `states` mean equal states within a group: 64 bits of a hash of the state named by the
-- workflow, or of the prompt. Texts are read only if states are requested.
SELECT coalesce(e.rollout_id, -e.id) AS rollouts, e.step AS steps, coalesce(m.greedy, false) AS greedy,
       coalesce(m.shares_reward, false) AS shares_reward,
       CASE WHEN %(with_states)s
            THEN (SELECT hashtextextended(coalesce(x.state, x.prompt), coalesce(e.group_id, -e.id))
                  FROM trinity.experience_text x WHERE x.experience_id = coalesce(e.source_id, e.id)) END AS states
FROM unnest(%(ids)s::bigint[]) WITH ORDINALITY AS w (id, position)
JOIN trinity.experience e ON e.id = w.id
LEFT JOIN trinity.rollout m ON m.id = e.rollout_id
ORDER BY w.position
