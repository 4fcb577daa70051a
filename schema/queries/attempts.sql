-- name: read_attempts
-- Where rows stand within their attempts, in the order of the given ids. A row without a rollout is an attempt by
-- itself. Equal numbers in `states` stand for equal states within one group: 64 bits of a hash of the state that the
-- workflow named, or of the prompt. Texts are read only when states are asked for.
SELECT coalesce(e.rollout_id, -e.id) AS rollouts, e.step AS steps, coalesce(m.greedy, false) AS greedy,
       CASE WHEN %(with_states)s
            THEN (SELECT hashtextextended(coalesce(x.state, x.prompt), coalesce(e.group_id, -e.id))
                  FROM trinity.experience_text x WHERE x.experience_id = coalesce(e.source_id, e.id)) END AS states
FROM unnest(%(ids)s::bigint[]) WITH ORDINALITY AS w (id, position)
JOIN trinity.experience e ON e.id = w.id
LEFT JOIN trinity.rollout m ON m.id = e.rollout_id
ORDER BY w.position
