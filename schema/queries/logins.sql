-- name: login_rights
-- Whether the session's login can change anything: a table of the store, the server's files, its databases, replication
-- slots (which keep WAL until the disk is full), or other roles' rights. Includes every role of which it is a member,
-- since it can assume each of them.
WITH held AS MATERIALIZED (
    SELECT r.oid, r.rolname, r.rolsuper OR r.rolcreaterole OR r.rolcreatedb OR r.rolreplication AS is_powerful
    FROM pg_roles r
    WHERE pg_has_role(session_user, r.oid, 'MEMBER')
)
SELECT session_user AS login,
       (SELECT r.rolsuper FROM pg_roles r WHERE r.rolname = session_user) AS is_superuser,
       EXISTS (SELECT FROM held
               WHERE held.is_powerful
                  OR held.rolname IN ('pg_execute_server_program', 'pg_write_server_files'))
       OR EXISTS (SELECT FROM held
                  CROSS JOIN pg_class c
                  WHERE c.relnamespace = to_regnamespace('trinity') AND c.relkind IN ('r', 'p')
                    AND (has_table_privilege(held.oid, c.oid, 'INSERT, UPDATE, DELETE, TRUNCATE')
                         OR has_any_column_privilege(held.oid, c.oid, 'INSERT, UPDATE'))) AS can_write

-- name: is_reader
-- Whether the login exists and belongs to the group of readers, and that group may read this store.
SELECT coalesce(pg_has_role(to_regrole(%(login)s), to_regrole(%(group)s), 'MEMBER')
                AND has_schema_privilege(to_regrole(%(group)s), to_regnamespace('trinity'), 'USAGE')
                AND has_table_privilege(to_regrole(%(group)s), to_regclass('trinity.run'), 'SELECT'), false) AS is_so

-- name: may_call_restricted
-- Whether a login may terminate sessions or take advisory locks; see functions.sql.
SELECT has_function_privilege(%(login)s, 'pg_terminate_backend(integer, bigint)', 'EXECUTE')
       OR has_function_privilege(%(login)s, 'pg_advisory_lock(bigint)', 'EXECUTE') AS is_so

-- name: is_labeller
-- Whether the session's login may give verdicts.
SELECT current_user AS login, has_any_column_privilege('trinity.label', 'INSERT') AS is_so
