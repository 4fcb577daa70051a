-- name: guard_select
-- What a SELECT of a user's may do, and where it finds tables, until the savepoint before it is left.
SELECT set_config('transaction_read_only', 'on', true),
       set_config('search_path', 'trinity, public', true),
       set_config('statement_timeout', ceil(%(seconds)s::float8 * 1000)::bigint::text, true)
