-- name: holds_rows
-- Whether a store has anything that a restored backup would stand beside.
SELECT EXISTS (SELECT FROM trinity.run) OR EXISTS (SELECT FROM trinity.taskset) AS is_so
