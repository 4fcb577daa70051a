-- name: lock_labelled
-- Locks rows in runs that learn from labels, in order of id, like reward events. Later statements of the transaction
-- see all changes committed before.
SELECT e.id FROM trinity.experience e
WHERE e.id = ANY(%(ids)s::bigint[]) AND e.draws_labels
ORDER BY e.id
FOR NO KEY UPDATE

-- name: follow_pairs
-- Sets the rewards of locked rows from their pairs, if no reward event counts. A trainer may not set rewards
-- directly.
SELECT trinity.follow_labels(%(ids)s::bigint[])
