-- name: name_session
-- The session, or this transaction, tells whose it is.
SELECT set_config('application_name', %(name)s, %(is_local)s)

-- name: server_process
-- Which process of the server answers.
SELECT pg_backend_pid() AS pid

-- name: limit_silence
-- The server ends this session when a transaction of its stands still, or its network says nothing, for so long. Local
-- is for this transaction only.
SELECT set_config('idle_in_transaction_session_timeout', %(seconds)s::float8 * 1000 || 'ms', %(is_local)s),
       set_config('tcp_user_timeout', %(seconds)s::float8 * 1000 || 'ms', %(is_local)s),
       set_config('tcp_keepalives_idle', greatest(1, round(%(seconds)s::float8 / 3))::text, %(is_local)s),
       set_config('tcp_keepalives_interval', greatest(1, round(%(seconds)s::float8 / 6))::text, %(is_local)s),
       set_config('tcp_keepalives_count', '4', %(is_local)s)

-- name: plan_for_growth
-- A session keeps its plans, and a role makes most of them while the tables are still small: then reading a table from
-- end to end, to sort, merge or hash it, is cheapest, and later it is what stops everything. Each statement of a role
-- has indexes that find its few rows, one after the other; it shall always use them, planned once, not at every call.
-- None gains what compiling costs.
SELECT set_config('plan_cache_mode', 'force_generic_plan', %(is_local)s), set_config(name, 'off', %(is_local)s)
FROM unnest(ARRAY['enable_seqscan', 'enable_mergejoin', 'enable_hashjoin', 'jit']) AS s (name)
