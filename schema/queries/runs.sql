-- name: create_run
-- Creates a run and the first of its settings; inserts nothing if the name is taken. Data sets have no settings and
-- draw nothing.
WITH made AS (
    INSERT INTO trinity.run (name, kind, config, draws) VALUES (%(name)s, %(kind)s, %(config)s, %(draws)s)
    ON CONFLICT (name) DO NOTHING
    RETURNING id, kind, config
)
INSERT INTO trinity.run_setting (run_id, config, host)
SELECT made.id, made.config, %(host)s FROM made WHERE made.kind = 'train'

-- name: find_run
-- A run with the newest of its settings, whose configuration is that of the run.
SELECT r.id, r.name, r.kind, r.state, r.config, r.seed, r.created_at, r.finished_at,
       r.deleting_at IS NOT NULL AS is_being_deleted,
       (SELECT max(s.id) FROM trinity.run_setting s WHERE s.run_id = r.id) AS setting_id
FROM trinity.run r
WHERE r.name = %(name)s

-- name: list_run_names
SELECT name FROM trinity.run ORDER BY id

-- name: run_state
-- The state of a run as its roles see it: a run that is being deleted is finished for them.
SELECT CASE WHEN deleting_at IS NULL THEN state ELSE 'finished' END AS state FROM trinity.run WHERE id = %(run_id)s

-- name: hold_run
-- Locks a run that is about to get another configuration, or to be deleted. A run that adopts its rows waits, and so does
-- the run itself where it adopts rows; or it was there before, and its rows are seen now.
SELECT r.id FROM trinity.run r WHERE r.id = %(run_id)s FOR UPDATE

-- name: hold_adopter
-- Locks a run that is about to adopt rows against hold_run. Explorers that lock the run to start groups do not wait. Ask
-- newest_setting after this whether the run may still adopt what its data named.
SELECT r.id FROM trinity.run r WHERE r.id = %(run_id)s FOR KEY SHARE

-- name: hold_setting
-- Locks a setting. A worker that enters itself under it now waits, and then sees that there is a newer one. Ask
-- newest_setting after this whether the setting is still the newest.
SELECT s.id FROM trinity.run_setting s WHERE s.id = %(setting_id)s FOR UPDATE

-- name: newest_setting
-- The newest setting of a run; NULL for a run that is being deleted. It is asked after register_worker, so that no
-- worker serves under a setting that was replaced.
SELECT max(s.id) AS id
FROM trinity.run_setting s JOIN trinity.run r ON r.id = s.run_id
WHERE s.run_id = %(run_id)s AND r.deleting_at IS NULL

-- name: finish_run
-- Records that the configured work is done: explorers and processors end. Harmless when repeated.
UPDATE trinity.run SET state = 'finished', finished_at = now() WHERE id = %(run_id)s AND state = 'active'

-- name: find_taskset
SELECT s.id, (SELECT count(*) FROM trinity.task t WHERE t.taskset_id = s.id) AS tasks
FROM trinity.taskset s WHERE s.name = %(name)s

-- name: lock_tasksets
-- Lets sessions that import into tasksets or data sets of these names, adopt them or delete them take turns. So a row
-- that an import did not find is still missing when the import writes it.
SELECT s.id FROM trinity.taskset s WHERE s.name = ANY(%(names)s::text[]) ORDER BY s.id FOR NO KEY UPDATE
