-- name: holds_rows
-- Whether the store has runs or tasksets. A backup is restored only into a store without any.
SELECT EXISTS (SELECT FROM trinity.run) OR EXISTS (SELECT FROM trinity.taskset) AS is_so
