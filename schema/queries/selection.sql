-- name: read_passes
-- A run's position in each of these tasksets, and the range of their ordinals. All columns of a pass are NULL before
-- the first group.
SELECT s.id AS taskset_id, p.issued, p.walk, p.number, p.first, p.size, p.position, p.level,
       coalesce((SELECT max(t.ordinal) + 1 FROM trinity.task t WHERE t.taskset_id = s.id), 0) AS count
FROM unnest(%(taskset_ids)s::bigint[]) s (id)
LEFT JOIN trinity.task_pass p ON p.run_id = %(run_id)s AND p.taskset_id = s.id

-- name: tasks_at
-- The tasks with these ordinals, in the given order, with the run's statistics of each. Ordinals of deleted tasks
-- return no row. LIMIT 1 forces a look-up per task, whatever the tables' statistics.
SELECT n.place, t.id, coalesce(s.alpha, 1) AS alpha, coalesce(s.beta, 1) AS beta
FROM unnest(%(positions)s::integer[], %(ordinals)s::integer[]) AS n (place, ordinal)
CROSS JOIN LATERAL (SELECT t.id FROM trinity.task t
                    WHERE t.taskset_id = %(taskset_id)s AND t.ordinal = n.ordinal LIMIT 1) t
LEFT JOIN LATERAL (SELECT s.alpha, s.beta FROM trinity.task_stat s
                   WHERE s.run_id = %(run_id)s AND s.task_id = t.id LIMIT 1) s ON true
ORDER BY n.place

-- name: harder_tasks
-- The next tasks in order of level after a position. Tasks without a level come last.
SELECT t.id, t.ordinal, coalesce(t.level, 'Infinity'::double precision) AS level
FROM trinity.task t
WHERE t.taskset_id = %(taskset_id)s
  AND (coalesce(t.level, 'Infinity'::double precision), t.ordinal)
      >= (coalesce(%(level)s::double precision, '-Infinity'::double precision), %(position)s::integer)
ORDER BY coalesce(t.level, 'Infinity'::double precision), t.ordinal
LIMIT %(limit)s

-- name: save_pass
-- Records a run's position in a taskset, in the transaction that starts its groups.
INSERT INTO trinity.task_pass AS p (run_id, taskset_id, issued, walk, number, first, size, position, level)
VALUES (%(run_id)s, %(taskset_id)s, %(issued)s, %(walk)s, %(number)s, %(first)s, %(size)s, %(position)s, %(level)s)
ON CONFLICT (run_id, taskset_id) DO UPDATE
SET issued = excluded.issued, walk = excluded.walk, number = excluded.number, first = excluded.first,
    size = excluded.size, position = excluded.position, level = excluded.level

-- name: tasksets_of
-- The tasksets of these tasks.
SELECT t.id, t.taskset_id FROM trinity.task t WHERE t.id = ANY(%(task_ids)s::bigint[])
