-- name: name_session
-- Names the session (behind a pooler, this transaction) after the worker that uses it.
SELECT set_config('application_name', %(name)s, %(is_local)s)

-- name: server_process
-- Process id of the server process that answers.
SELECT pg_backend_pid() AS pid

-- name: limit_silence
-- Lets the server end this session if one of its transactions is idle, or its network silent, for this long.
-- `is_local` limits this to the current transaction.
SELECT set_config('idle_in_transaction_session_timeout', %(seconds)s::float8 * 1000 || 'ms', %(is_local)s),
       set_config('tcp_user_timeout', %(seconds)s::float8 * 1000 || 'ms', %(is_local)s),
       set_config('tcp_keepalives_idle', greatest(1, round(%(seconds)s::float8 / 3))::text, %(is_local)s),
       set_config('tcp_keepalives_interval', greatest(1, round(%(seconds)s::float8 / 6))::text, %(is_local)s),
       set_config('tcp_keepalives_count', '4', %(is_local)s)

-- name: plan_for_growth
-- Makes the session plan each statement once, using indexes. A role makes most of its plans while the tables are
-- small; scanning, sorting, merging or hashing a whole table is cheapest then, and the kept plan becomes very slow
-- later. Every statement of a role has indexes for its few rows, so it should use them from the start. JIT
-- compilation costs more than any statement gains.
SELECT set_config('plan_cache_mode', 'force_generic_plan', %(is_local)s), set_config(name, 'off', %(is_local)s)
FROM unnest(ARRAY['enable_seqscan', 'enable_mergejoin', 'enable_hashjoin', 'jit']) AS s (name)

-- name: limit_statements
-- For a transaction that answers a person: limits the time of a statement, and keeps it on one core, since a run uses
-- the others. JIT compilation costs more than such a statement gains.
SELECT set_config('statement_timeout', %(seconds)s::float8 * 1000 || 'ms', true),
       set_config('max_parallel_workers_per_gather', '0', true), set_config('jit', 'off', true)

-- name: announce
-- Sends notifications in a transaction that changes nothing else. Senders are serialised with a lock of the server,
-- for which this waits at most `seconds`.
SELECT set_config('lock_timeout', %(seconds)s::float8 * 1000 || 'ms', true),
       pg_notify(n.channel, n.payload)
FROM unnest(%(channels)s::text[], %(payloads)s::text[]) AS n (channel, payload)
