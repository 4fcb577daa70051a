-- name: ask_to_stop
-- Asks all workers of a run that have started so far to stop; each reads it with its next heartbeat. Workers that
-- start later ignore it, so nothing has to be cleared.
UPDATE trinity.run SET stop_asked_at = clock_timestamp() WHERE id = %(run_id)s RETURNING stop_asked_at

-- name: stop_asked_at
-- Time at which a run was last asked to stop; NULL if never.
SELECT r.stop_asked_at FROM trinity.run r WHERE r.id = %(run_id)s
