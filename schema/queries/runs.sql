-- name: create_run
-- Creates a run with its first setting; no effect if the name is taken. Data sets have no settings and draw nothing.
WITH made AS (
    INSERT INTO trinity.run (name, kind, config, draws) VALUES (%(name)s, %(kind)s, %(config)s, %(draws)s)
    ON CONFLICT (name) DO NOTHING
    RETURNING id, kind, config
)
INSERT INTO trinity.run_setting (run_id, config, host)
SELECT made.id, made.config, %(host)s FROM made WHERE made.kind = 'train'

-- name: find_run
-- A run with its newest setting, whose configuration is the run's.
SELECT r.id, r.name, r.kind, r.state, r.config, r.seed, r.created_at, r.finished_at,
       r.deleting_at IS NOT NULL AS is_being_deleted,
       (SELECT max(s.id) FROM trinity.run_setting s WHERE s.run_id = r.id) AS setting_id
FROM trinity.run r
WHERE r.name = %(name)s

-- name: list_run_names
-- Names of all runs and data sets, oldest first.
SELECT name FROM trinity.run ORDER BY id

-- name: run_state
-- The state of a run for its roles: a run that is being deleted counts as finished.
SELECT CASE WHEN deleting_at IS NULL THEN state ELSE 'finished' END AS state FROM trinity.run WHERE id = %(run_id)s

-- name: hold_run
-- Locks (FOR UPDATE) a run before its configuration changes or it is deleted. Runs that adopt its rows wait, and so
-- does the run itself if it is adopting rows; rows adopted before are visible afterwards.
SELECT r.id FROM trinity.run r WHERE r.id = %(run_id)s FOR UPDATE

-- name: hold_adopter
-- Locks a run that is about to adopt rows against hold_run (FOR KEY SHARE). Explorers that lock the run to start
-- groups do not wait. Check with newest_setting afterwards whether the run may still adopt the rows that its `data`
-- named.
SELECT r.id FROM trinity.run r WHERE r.id = %(run_id)s FOR KEY SHARE

-- name: hold_setting
-- Locks (FOR UPDATE) a setting. A worker that registers with it waits, and then sees the newer one. Check with
-- newest_setting afterwards whether the setting is still the newest.
SELECT s.id FROM trinity.run_setting s WHERE s.id = %(setting_id)s FOR UPDATE

-- name: newest_setting
-- The newest setting of a run; NULL for a run that is being deleted. Read it after register_worker, so that no worker
-- runs with a replaced setting.
SELECT max(s.id) AS id
FROM trinity.run_setting s JOIN trinity.run r ON r.id = s.run_id
WHERE s.run_id = %(run_id)s AND r.deleting_at IS NULL

-- name: finish_run
-- Records that the configured work is complete: explorers and processors exit. Idempotent.
UPDATE trinity.run SET state = 'finished', finished_at = now() WHERE id = %(run_id)s AND state = 'active'

-- name: find_taskset
-- Id of a taskset and its number of tasks.
SELECT s.id, (SELECT count(*) FROM trinity.task t WHERE t.taskset_id = s.id) AS tasks
FROM trinity.taskset s WHERE s.name = %(name)s

-- name: taskset_names
-- Names of the tasksets that have tasks.
SELECT s.name FROM trinity.taskset s WHERE EXISTS (SELECT FROM trinity.task t WHERE t.taskset_id = s.id)

-- name: lock_tasksets
-- Locks tasksets and data sets of these names in order of id, which serialises importing, adopting and deleting them:
-- a row that an import did not find is still missing when the import writes it.
SELECT s.id FROM trinity.taskset s WHERE s.name = ANY(%(names)s::text[]) ORDER BY s.id FOR NO KEY UPDATE
