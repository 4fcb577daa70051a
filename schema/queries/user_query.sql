-- name: guard_select
-- Restricts a user's SELECT: read-only, a time limit, and the search path, until the savepoint before it ends.
SELECT set_config('transaction_read_only', 'on', true),
       set_config('search_path', 'trinity, public', true),
       set_config('statement_timeout', ceil(%(seconds)s::float8 * 1000)::bigint::text, true)
