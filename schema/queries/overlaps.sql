-- name: tasks_after
-- The next tasks of a taskset, by id after :after.
SELECT t.id, t.payload FROM trinity.task t
WHERE t.taskset_id = %(taskset_id)s AND t.id > %(after)s
ORDER BY t.id
LIMIT %(limit)s

-- name: responses_after
-- The next responses of a run's own rows, by id after :after. Adopted rows share the text of their source.
SELECT e.id, x.response
FROM trinity.experience e
JOIN trinity.experience_text x ON x.experience_id = e.id
WHERE e.run_id = %(run_id)s AND e.source_id IS NULL AND e.id > %(after)s
ORDER BY e.id
LIMIT %(limit)s

-- name: write_overlaps
-- Writes evidence. Existing evidence is unchanged, and rows deleted meanwhile are skipped.
INSERT INTO trinity.overlap (task_id, of_task_id, experience_id, measure, share, text)
SELECT n.task_id, n.of_task_id, n.experience_id, %(measure)s, n.share, n.text
FROM unnest(%(task_ids)s::bigint[], %(of_task_ids)s::bigint[], %(experience_ids)s::bigint[], %(shares)s::float8[],
            %(texts)s::text[]) AS n (task_id, of_task_id, experience_id, share, text)
WHERE EXISTS (SELECT FROM trinity.task t WHERE t.id = n.task_id)
ON CONFLICT (task_id, of_task_id, experience_id, measure) DO NOTHING

-- name: strongest_overlaps
-- Evidence about the tasks of a taskset and the rows of a run, largest shares first.
SELECT o.experience_id AS experience, o.of_task_id AS task, o.task_id AS evaluated, o.measure, o.share, o.text
FROM trinity.overlap o
JOIN trinity.task b ON b.id = o.task_id AND b.taskset_id = %(with_id)s
LEFT JOIN trinity.task t ON t.id = o.of_task_id
LEFT JOIN trinity.experience e ON e.id = o.experience_id
WHERE (t.taskset_id = %(taskset_id)s::bigint OR e.run_id = %(run_id)s::bigint) AND o.measure = %(measure)s
ORDER BY o.share DESC, o.id
LIMIT %(limit)s
