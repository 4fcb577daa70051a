-- name: name_session
-- Gives the session, or behind a pooler this transaction, a name that tells which worker uses it.
SELECT set_config('application_name', %(name)s, %(is_local)s)

-- name: server_process
-- The process of the server that answers.
SELECT pg_backend_pid() AS pid

-- name: limit_silence
-- Lets the server end this session when one of its transactions stands still for so long, or when its network is
-- silent for so long. `is_local` limits this to the current transaction.
SELECT set_config('idle_in_transaction_session_timeout', %(seconds)s::float8 * 1000 || 'ms', %(is_local)s),
       set_config('tcp_user_timeout', %(seconds)s::float8 * 1000 || 'ms', %(is_local)s),
       set_config('tcp_keepalives_idle', greatest(1, round(%(seconds)s::float8 / 3))::text, %(is_local)s),
       set_config('tcp_keepalives_interval', greatest(1, round(%(seconds)s::float8 / 6))::text, %(is_local)s),
       set_config('tcp_keepalives_count', '4', %(is_local)s)

-- name: plan_for_growth
-- Lets the session plan each statement once, by its indexes. A role makes most of its plans while the tables are still
-- small. Then it is cheapest to read a whole table and to sort, merge or hash it, and the kept plan becomes very slow
-- later. Each statement of a role has indexes that find its few rows, one after the other, so it shall use them from
-- the start. No statement gains as much from compilation as that costs.
SELECT set_config('plan_cache_mode', 'force_generic_plan', %(is_local)s), set_config(name, 'off', %(is_local)s)
FROM unnest(ARRAY['enable_seqscan', 'enable_mergejoin', 'enable_hashjoin', 'jit']) AS s (name)

-- name: limit_statements
-- For one transaction that answers a person: ends a statement that takes longer, and keeps it on one core, since a run
-- works on the others. No such statement gains as much from compilation as that costs.
SELECT set_config('statement_timeout', %(seconds)s::float8 * 1000 || 'ms', true),
       set_config('max_parallel_workers_per_gather', '0', true), set_config('jit', 'off', true)

-- name: announce
-- Sends notifications, as a transaction that changes nothing else. Senders take turns by a lock of the server, which this
-- waits for no longer than `seconds`.
SELECT set_config('lock_timeout', %(seconds)s::float8 * 1000 || 'ms', true),
       pg_notify(n.channel, n.payload)
FROM unnest(%(channels)s::text[], %(payloads)s::text[]) AS n (channel, payload)
