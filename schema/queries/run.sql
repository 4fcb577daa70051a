-- name: first_task
-- The task of a taskset with the lowest ordinal.
SELECT t.payload FROM trinity.task t WHERE t.taskset_id = %(taskset_id)s ORDER BY t.ordinal LIMIT 1

-- name: first_imported_row
-- Prompt of the first imported row that a run may still draw.
SELECT x.prompt, x.messages, x.tools
FROM (SELECT e.source_id FROM trinity.experience e
      WHERE e.run_id = %(run_id)s AND e.is_offered
      ORDER BY e.id LIMIT 1) AS first
JOIN trinity.experience_text x ON x.experience_id = first.source_id

-- name: working_runs
-- Runs with a live worker, oldest first.
SELECT v.run FROM trinity.run_view v WHERE v.kind = 'train' AND v.status = 'active' ORDER BY v.id

-- name: status_disk
-- Estimates the rows of a run by family of tables, and their bytes including a share of the indexes.
--
-- The number of rows is given as %(rows)s. Text, payloads and processing records are read for a sample of rows, items
-- for a sample of batches. Rows and metrics are sampled by id, one from each of a number of equal id ranges. If a run
-- has too few rows for that, the statement scans the hot rows. Free space inside the tables is not counted. It takes
-- about 50 ms for a million rows, and 100 ms more with the scan.
WITH part AS MATERIALIZED (
    SELECT coalesce(min(e.id), 0) AS first, coalesce(max(e.id) - min(e.id), 0) / %(sample)s + 1 AS ids
    FROM trinity.experience e
),
met AS MATERIALIZED (
    SELECT e.id
    FROM part
    CROSS JOIN generate_series(0, %(sample)s::integer) n
    CROSS JOIN LATERAL (SELECT part.first + part.ids * n + floor(random() * part.ids)::bigint AS id OFFSET 0) chosen
    JOIN trinity.experience e ON e.id = chosen.id AND e.run_id = %(run_id)s
),
picked AS MATERIALIZED (
    SELECT met.id FROM met WHERE (SELECT count(*) FROM met) >= %(sample)s / 10
    UNION ALL
    (SELECT e.id FROM trinity.experience e
     WHERE e.run_id = %(run_id)s AND (SELECT count(*) FROM met) < %(sample)s / 10
     ORDER BY hashint8extended(e.id, 0) LIMIT %(sample)s)
),
batches AS MATERIALIZED (
    SELECT b.id, pg_column_size(b.*) + coalesce(pg_column_size(b.query), 0) AS bytes, count(*) OVER () AS rows
    FROM trinity.batch b WHERE b.run_id = %(run_id)s
    ORDER BY hashint8extended(b.id, 0) LIMIT %(sample)s / 50
),
part_of_metrics AS MATERIALIZED (
    SELECT coalesce(min(m.id), 0) AS first, coalesce(max(m.id) - min(m.id), 0) / %(sample)s + 1 AS ids
    FROM trinity.metric m
),
measured AS MATERIALIZED (
    SELECT pg_column_size(m.*) * part.ids AS bytes, part.ids AS rows
    FROM part_of_metrics part
    CROSS JOIN generate_series(0, %(sample)s::integer) n
    CROSS JOIN LATERAL (SELECT part.first + part.ids * n + floor(random() * part.ids)::bigint AS id OFFSET 0) chosen
    JOIN trinity.metric m ON m.id = chosen.id AND m.run_id = %(run_id)s
),
found (family, relation, looked_at, of, rows, bytes) AS MATERIALIZED (
    SELECT 'hot rows', 'experience', count(*), %(rows)s::bigint, count(*), sum(pg_column_size(e.*))
    FROM picked p JOIN trinity.experience e ON e.id = p.id
    UNION ALL
    SELECT 'text', 'experience_text', (SELECT count(*) FROM picked), %(rows)s, count(*),
           sum(40 + coalesce(pg_column_size(x.prompt), 0) + coalesce(pg_column_size(x.response), 0)
               + coalesce(pg_column_size(x.messages), 0) + coalesce(pg_column_size(x.tools), 0)
               + coalesce(pg_column_size(x.reply), 0) + coalesce(pg_column_size(x.extra), 0)
               + coalesce(pg_column_size(x.state), 0))
    FROM picked p JOIN trinity.experience_text x ON x.experience_id = p.id
    UNION ALL
    SELECT 'payloads', 'payload', (SELECT count(*) FROM picked), %(rows)s, count(*),
           sum(64 + coalesce(pg_column_size(y.data), 0))
    FROM picked p JOIN trinity.payload y ON y.experience_id = p.id
    UNION ALL
    SELECT 'processing', 'processing', (SELECT count(*) FROM picked), %(rows)s, count(*), sum(pg_column_size(c.*))
    FROM picked p JOIN trinity.processing c ON c.experience_id = p.id
    UNION ALL
    SELECT 'batches', 'batch', count(*), max(b.rows), count(*), sum(b.bytes) FROM batches b
    UNION ALL
    SELECT 'batch items', 'batch_item', (SELECT count(*) FROM batches), (SELECT max(b.rows) FROM batches b), count(*),
           sum(pg_column_size(i.*))
    FROM batches b JOIN trinity.batch_item i ON i.batch_id = b.id
    UNION ALL
    SELECT 'metrics', 'metric', 1, 1, coalesce(sum(m.rows), 0), sum(m.bytes) FROM measured m
)
SELECT f.family,
       coalesce(round(f.rows * f.of / nullif(f.looked_at, 0)), 0)::bigint AS rows,
       coalesce(round(f.bytes * f.of / nullif(f.looked_at, 0)
                      * (pg_total_relation_size(c.oid) / nullif(pg_table_size(c.oid), 0)::numeric)), 0)::bigint AS bytes
FROM found f
JOIN pg_class c ON c.relname = f.relation AND c.relnamespace = 'trinity'::regnamespace AND c.relkind = 'r'
