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

-- name: adopt_experiences
-- Copies the hot rows that a data set has gained since the run last looked; text and rollouts stay shared. Imports
-- into one data set take turns (lock_tasksets), so its rows are committed in the order of their ids, and all rows
-- above the newest that the run has are new.
--
-- All answers to one prompt are held out together, also when they are in several data sets. Rows that are held out are
-- in no pass. Rejected rows of pairs are in none either, unless the run learns from labels.
WITH adopted AS (
    INSERT INTO trinity.experience
        (run_id, source_id, group_id, rollout_id, step, state, reward, held_out, seed, draws_labels, ready_xact)
    SELECT r.id, e.id, e.group_id, e.rollout_id, e.step, 'ready', e.reward, kept.is_so,
           CASE WHEN NOT kept.is_so
                     AND (r.draws = 'labels' OR NOT EXISTS (SELECT FROM trinity.preference p WHERE p.rejected_id = e.id))
                THEN r.seed END,
           r.draws = 'labels', pg_current_xact_id()::text::bigint
    FROM trinity.run r
    CROSS JOIN trinity.experience e
    JOIN trinity.experience_text x ON x.experience_id = e.id
    CROSS JOIN LATERAL (
        SELECT abs(hashtextextended(x.prompt, 0) %% 1000000) < %(holdout)s::float8 * 1000000 AS is_so
    ) kept
    WHERE r.id = %(run_id)s AND e.run_id = %(source_run_id)s AND e.state = 'ready'
      AND e.id > coalesce((SELECT n.id FROM trinity.experience n
                           WHERE n.run_id = %(source_run_id)s AND n.state = 'ready'
                             AND (SELECT a.id FROM trinity.experience a
                                  WHERE a.source_id = n.id AND a.run_id = %(run_id)s) IS NOT NULL
                           ORDER BY n.id DESC LIMIT 1), 0)
    ORDER BY e.id
    ON CONFLICT DO NOTHING
    RETURNING run_id, group_id
)
INSERT INTO trinity.pairing (run_id, group_id)
SELECT DISTINCT a.run_id, a.group_id
FROM adopted a JOIN trinity.run r ON r.id = a.run_id
WHERE a.group_id IS NOT NULL AND r.derives_pairs

-- name: adopt_preferences
-- Copies the pairs that a data set has gained, as adopt_experiences does, over the rows that the run adopted. Pairs
-- that the run derived from rewards are not among the adopted ones. A pair is dropped with either of its rows, also if
-- a row was dropped before. From now on the rejected row is in no pass over rows, except for passes over labels.
WITH made AS (
    INSERT INTO trinity.preference
        (run_id, chosen_id, rejected_id, source, margin, state, held_out, origin_id, seed)
    SELECT r.id, chosen.id, rejected.id, p.source, p.margin,
           CASE WHEN 'dropped' IN (chosen.state, rejected.state) THEN 'dropped' ELSE 'ready' END::trinity.experience_state,
           chosen.held_out, p.chosen_id, CASE WHEN NOT chosen.held_out THEN r.seed END
    FROM trinity.run r
    CROSS JOIN trinity.preference p
    JOIN trinity.experience chosen ON chosen.run_id = r.id AND chosen.source_id = p.chosen_id
    JOIN trinity.experience rejected ON rejected.run_id = r.id AND rejected.source_id = p.rejected_id
    WHERE r.id = %(run_id)s AND p.run_id = %(source_run_id)s AND p.state = 'ready'
      AND p.id > coalesce((SELECT n.id FROM trinity.preference n
                           WHERE n.run_id = %(source_run_id)s AND n.state = 'ready'
                             AND (SELECT q.id FROM trinity.preference q
                                  WHERE q.run_id = %(run_id)s AND q.source = n.source
                                    AND q.chosen_id = (SELECT c.id FROM trinity.experience c
                                                       WHERE c.source_id = n.chosen_id AND c.run_id = %(run_id)s)
                                    AND q.rejected_id = (SELECT d.id FROM trinity.experience d
                                                         WHERE d.source_id = n.rejected_id AND d.run_id = %(run_id)s)
                                 ) IS NOT NULL
                           ORDER BY n.id DESC LIMIT 1), 0)
    ORDER BY p.id
    ON CONFLICT DO NOTHING
    RETURNING id, run_id, rejected_id, state
),
dropped AS (
    INSERT INTO trinity."drop" (run_id, preference_id, stage, reason)
    SELECT made.run_id, made.id, 'encode', 'row_dropped' FROM made WHERE made.state = 'dropped'
),
worse AS MATERIALIZED (
    SELECT e.id FROM trinity.experience e
    WHERE e.id IN (SELECT made.rejected_id FROM made) AND e.seed IS NOT NULL AND NOT e.draws_labels
    ORDER BY e.id
    FOR NO KEY UPDATE
)
UPDATE trinity.experience e SET seed = NULL FROM worse WHERE e.id = worse.id

-- name: announce
-- Wakes the roles that wait on this run. Several calls in one transaction are one notification.
SELECT pg_notify('trinity_run_' || %(run_id)s::bigint, '')
