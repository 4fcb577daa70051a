-- name: limit_checkup
-- Makes this transaction read-only, and limits the time of a statement and of a wait for a lock.
SELECT set_config('transaction_read_only', 'on', true),
       set_config('statement_timeout', %(statement_seconds)s::float8 * 1000 || 'ms', true),
       set_config('lock_timeout', %(lock_seconds)s::float8 * 1000 || 'ms', true)

-- name: doctor_server
-- Version of the server, and whether it is a standby.
SELECT current_setting('server_version') AS version, current_setting('server_version_num')::integer / 10000 AS major,
       pg_is_in_recovery() AS is_standby

-- name: doctor_settings
-- Settings of this session that make commits durable and let vacuum run, and the source of each.
SELECT s.name, s.setting, s.source, current_user AS role, current_database() AS database
FROM pg_settings s
WHERE s.name IN ('fsync', 'full_page_writes', 'synchronous_commit', 'autovacuum', 'track_counts')

-- name: doctor_log
-- WAL archiving: whether it is on, whether it has a target, its last success, and the file that it fails to archive.
SELECT current_setting('archive_mode') <> 'off' AS is_kept,
       current_setting('archive_command') <> '' OR current_setting('archive_library') <> '' AS has_place,
       a.last_archived_time AS last_time,
       a.failed_count > 0 AND a.last_failed_time > coalesce(a.last_archived_time, '-infinity') AS fails,
       a.last_failed_wal AS failed
FROM pg_stat_archiver a

-- name: doctor_lax_roles
-- Other roles whose commits in this database do not wait for the disk.
SELECT r.rolname AS role, d.datname AS database
FROM pg_db_role_setting s
JOIN pg_roles r ON r.oid = s.setrole
LEFT JOIN pg_database d ON d.oid = s.setdatabase
CROSS JOIN LATERAL unnest(s.setconfig) AS c (line)
WHERE c.line IN ('synchronous_commit=off', 'synchronous_commit=false', 'synchronous_commit=no', 'synchronous_commit=0')
  AND (s.setdatabase = 0 OR d.datname = current_database()) AND r.rolname <> current_user
ORDER BY 1, 2

-- name: doctor_connections
-- Client connections of the whole server, the number available to ordinary logins, and the number of sessions hidden
-- from this login.
SELECT count(*) FILTER (WHERE a.backend_type = 'client backend' OR a.backend_type IS NULL AND a.datid IS NOT NULL)
           AS used,
       count(*) FILTER (WHERE a.backend_type IS NULL) AS hidden,
       current_setting('max_connections')::integer - current_setting('superuser_reserved_connections')::integer
           - coalesce(current_setting('reserved_connections', true)::integer, 0) AS available,
       current_user AS role
FROM pg_stat_activity a

-- name: doctor_sessions
-- Sessions of this database that are idle in a transaction or run a statement for long, and standbys without a slot
-- that hold back old rows. `transactions`: age in transactions of the oldest row that they hold back; NULL if none.
SELECT a.pid, a.usename AS role, a.application_name AS application, a.client_addr::text AS address,
       a.backend_type = 'walsender' AS is_standby, coalesce(a.state, '') AS state, a.xact_start AS since,
       extract(epoch FROM clock_timestamp() - a.xact_start)::float8 AS seconds,
       greatest(age(a.backend_xmin), age(a.backend_xid)) AS transactions
FROM pg_stat_activity a
WHERE a.pid <> pg_backend_pid()
  AND (a.datname = current_database() AND a.backend_type = 'client backend'
       AND (starts_with(a.state, 'idle in transaction')
            AND a.state_change < clock_timestamp() - make_interval(secs => %(idle_seconds)s)
            OR a.state = 'active' AND coalesce(a.backend_xmin, a.backend_xid) IS NOT NULL
            AND a.xact_start < clock_timestamp() - make_interval(secs => %(statement_seconds)s))
       OR a.backend_type = 'walsender' AND age(a.backend_xmin) > %(max_age)s)
ORDER BY a.xact_start

-- name: doctor_prepared
-- Prepared transactions of this database that are neither committed nor rolled back.
SELECT p.gid, p.owner AS role, p.prepared AS since, age(p.transaction) AS transactions,
       extract(epoch FROM clock_timestamp() - p.prepared)::float8 AS seconds
FROM pg_prepared_xacts p
WHERE p.database = current_database() AND p.prepared < clock_timestamp() - make_interval(secs => %(idle_seconds)s)
ORDER BY p.prepared

-- name: doctor_slots
-- Replication slots that hold back old rows: they have no reader, or a reader that lags far behind.
SELECT s.slot_name AS slot, s.slot_type AS kind, s.active AS is_active,
       greatest(age(s.xmin), age(s.catalog_xmin)) AS transactions
FROM pg_replication_slots s
WHERE (s.database IS NULL OR s.database = current_database())
  AND coalesce(s.xmin, s.catalog_xmin) IS NOT NULL
  AND (NOT s.active OR greatest(age(s.xmin), age(s.catalog_xmin)) > %(max_age)s)
ORDER BY s.slot_name

-- name: doctor_tables
-- The schema's tables and their TOAST tables: live rows, changes since the last ANALYZE, dead rows, the number of
-- dead rows that triggers a vacuum, and the bytes per row on its page (NULL before the first ANALYZE). A TOAST row
-- has 2 kB at most.
SELECT c.relname AS "table", k.is_toast,
       greatest(k.reltuples, s.n_live_tup, 0)::bigint AS rows, s.n_dead_tup AS dead,
       s.n_mod_since_analyze AS changed, pg_relation_size(k.oid) AS bytes,
       greatest(s.last_vacuum, s.last_autovacuum) AS vacuumed_at,
       coalesce(o.enabled, 'true') IN ('false', 'off', 'no', '0') AS is_unvacuumed,
       coalesce(o.threshold, current_setting('autovacuum_vacuum_threshold'))::float8
           + coalesce(o.scale, current_setting('autovacuum_vacuum_scale_factor'))::float8 * greatest(k.reltuples, 0)
           AS trigger,
       w.width IS NOT NULL OR k.is_toast AS has_statistics,
       CASE WHEN k.is_toast THEN 2048 ELSE (28 + w.width) / (coalesce(o.fillfactor, '100')::float8 / 100) END AS row_bytes
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
CROSS JOIN LATERAL (SELECT t.oid, t.oid <> c.oid AS is_toast, t.reltuples, t.reloptions
                    FROM pg_class t WHERE t.oid IN (c.oid, c.reltoastrelid)) k
LEFT JOIN pg_stat_all_tables s ON s.relid = k.oid
LEFT JOIN LATERAL (
    SELECT max(p.option_value) FILTER (WHERE p.option_name = 'autovacuum_enabled') AS enabled,
           max(p.option_value) FILTER (WHERE p.option_name = 'autovacuum_vacuum_threshold') AS threshold,
           max(p.option_value) FILTER (WHERE p.option_name = 'autovacuum_vacuum_scale_factor') AS scale,
           max(p.option_value) FILTER (WHERE p.option_name = 'fillfactor') AS fillfactor
    FROM pg_options_to_table(k.reloptions) p
) o ON true
LEFT JOIN LATERAL (SELECT sum(v.avg_width) AS width FROM pg_stats v
                   WHERE v.schemaname = n.nspname AND v.tablename = c.relname) w ON NOT k.is_toast
WHERE n.nspname = 'trinity' AND c.relkind = 'r' AND has_table_privilege(c.oid, 'SELECT')
ORDER BY c.relname, k.is_toast

-- name: doctor_indexes
-- The schema's indexes: whether they are valid, and their size. Indexes being built now are left out.
SELECT i.relname AS index, t.relname AS "table", x.indisvalid AND x.indisready AS is_valid, x.indisunique AS is_unique,
       greatest(i.reltuples, 0)::bigint AS entries, pg_relation_size(i.oid) AS bytes
FROM pg_index x
JOIN pg_class i ON i.oid = x.indexrelid
JOIN pg_class t ON t.oid = x.indrelid
JOIN pg_namespace n ON n.oid = t.relnamespace
WHERE n.nspname = 'trinity' AND t.relkind = 'r'
  AND NOT EXISTS (SELECT FROM pg_stat_progress_create_index p WHERE p.index_relid = i.oid)
ORDER BY i.relname

-- name: doctor_age
-- Age of the oldest row of this database in transactions, and in multixacts.
SELECT age(d.datfrozenxid) AS transactions, mxid_age(d.datminmxid) AS multixacts
FROM pg_database d WHERE d.datname = current_database()

-- name: doctor_objects
-- Names of all tables, views and functions of the schema.
SELECT c.relname AS name FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = 'trinity' AND c.relkind IN ('r', 'v')
UNION
SELECT p.proname FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace WHERE n.nspname = 'trinity'

-- name: doctor_dead_letters
-- Rows that a processor gave up, because it repeatedly raised errors or ended before its verdict.
SELECT r.name AS run, d.reason, count(*) AS rows
FROM trinity."drop" d JOIN trinity.run r ON r.id = d.run_id
WHERE d.reason IN ('clean_failed', 'score_failed', 'clean_crashed', 'score_crashed')
GROUP BY r.id, r.name, d.reason
ORDER BY r.id, d.reason

-- name: doctor_silent_workers
-- Workers that have stopped, or been silent for longer than their lease, and still hold rows, groups or batches.
SELECT r.name AS run, w.id AS worker, w.role, w.host, w.pid, w.stopped_at IS NOT NULL AS is_stopped,
       extract(epoch FROM clock_timestamp() - w.heartbeat_at)::float8 AS seconds, h.rows, h.groups, h.batches
FROM trinity.worker w
JOIN trinity.run r ON r.id = w.run_id
CROSS JOIN LATERAL (
    SELECT (SELECT count(*) FROM trinity.experience e WHERE e.judge_id = w.id)
           + (SELECT count(*)
              FROM trinity.batch b
              JOIN trinity.batch_item i ON i.batch_id = b.id
              JOIN trinity.experience e ON e.id = i.experience_id AND e.worker_id = w.id AND e.state = 'leased'
              WHERE b.run_id = w.run_id AND b.worker_id = w.id AND b.state = 'leased')
           + (SELECT count(*) FROM trinity.preference p WHERE p.worker_id = w.id) AS rows,
           (SELECT count(*) FROM trinity.rollout_group g WHERE g.worker_id = w.id) AS groups,
           (SELECT count(*) FROM trinity.batch b
            WHERE b.run_id = w.run_id AND b.worker_id = w.id AND b.state = 'leased') AS batches
) h
WHERE (w.stopped_at IS NOT NULL OR NOT trinity.is_alive(w.heartbeat_at, %(lease_seconds)s))
  AND h.rows + h.groups + h.batches > 0
ORDER BY w.id

-- name: doctor_runs
-- Unfinished runs: status as in run_view, whether they explore, and the roles with a live worker.
SELECT r.name AS run, v.status, r.config ->> 'taskset' IS NOT NULL AS is_online,
       ARRAY(SELECT DISTINCT w.role::text FROM trinity.worker w
             WHERE w.run_id = r.id AND w.stopped_at IS NULL
               AND trinity.is_alive(w.heartbeat_at, %(lease_seconds)s)) AS alive
FROM trinity.run r
JOIN trinity.run_view v ON v.id = r.id
WHERE r.kind = 'train' AND r.state = 'active'
ORDER BY r.id

-- name: doctor_notifications
-- Fill level of the server's notification queue, from 0 to 1. The slowest listener determines it.
SELECT pg_notification_queue_usage() AS share

-- name: doctor_unread_notifications
-- The session that most likely keeps the notification queue full: a listening session reads no notifications while it
-- is in a transaction, or while its client accepts no data. The queue is shared by all databases. Which sessions
-- listen is not visible to others, so this is the oldest open transaction.
SELECT a.pid, a.usename AS role, a.application_name AS application, a.client_addr::text AS address, a.state,
       coalesce(a.xact_start, a.state_change) AS since
FROM pg_stat_activity a
WHERE a.backend_type = 'client backend' AND a.pid <> pg_backend_pid()
  AND (a.xact_start IS NOT NULL OR a.wait_event = 'ClientWrite')
ORDER BY coalesce(a.xact_start, a.state_change)
LIMIT 1

-- name: doctor_archives
-- Lance tables with rows of runs.
SELECT r.name AS run, a.name, a.num_rows AS rows
FROM trinity.archive a JOIN trinity.run r ON r.id = a.run_id
WHERE a.num_rows > 0
ORDER BY r.id, a.number

-- name: doctor_setbacks
-- Setbacks: commits that servers of this store have lost.
SELECT r.name AS run, s.created_at, s.known_version, s.known_step, s.last_step, s.num_rows, s.first_version, s.last_version,
       s.resumed_version, s.adopted_version
FROM trinity.setback s
JOIN trinity.run r ON r.id = s.run_id
ORDER BY s.id
