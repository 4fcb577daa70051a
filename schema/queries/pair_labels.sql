-- name: lock_labelled
-- Locks rows in runs that learn from labels, in the order of their ids, as reward events do. What is said of them after it
-- is seen by the statements that follow.
SELECT e.id FROM trinity.experience e
WHERE e.id = ANY(%(ids)s::bigint[]) AND e.draws_labels
ORDER BY e.id
FOR NO KEY UPDATE

-- name: follow_pairs
-- Sets the rewards of locked rows by what pairs say, where no reward event counts. A trainer may not set rewards itself.
SELECT trinity.follow_labels(%(ids)s::bigint[])
