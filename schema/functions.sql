-- Functions of the server that only some logins may call in this database. Without these limits every login may terminate other
-- sessions of its login, such as those of other visitors of the page; take so many advisory locks that no session can lock
-- anything; and fill the disk with large objects, messages in the WAL or exported snapshots, which no session limit covers. Only
-- a superuser may change this: for other logins the block has no effect. Roles terminate sessions of silent workers of their
-- login, and take a lock while they write metrics. The owner of the tables keeps all functions.
DO $$
DECLARE
    called text;
    name text;
BEGIN
    IF NOT (SELECT r.rolsuper FROM pg_roles r WHERE r.rolname = current_user) THEN
        RETURN;
    END IF;
    FOR called IN
        SELECT p.oid::regprocedure FROM pg_proc p
        WHERE p.pronamespace = 'pg_catalog'::regnamespace
          AND (p.proname IN ('pg_terminate_backend', 'pg_cancel_backend', 'lo_creat', 'lo_create', 'lo_from_bytea',
                             'pg_logical_emit_message', 'pg_export_snapshot')
               OR p.proname ~ '^pg_(try_)?advisory_(xact_)?lock')
    LOOP
        EXECUTE format('REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC', called);
        FOR name IN SELECT r.rolname FROM pg_roles r JOIN pg_namespace n ON n.nspowner = r.oid WHERE n.nspname = 'trinity' LOOP
            EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %I', called, name);
        END LOOP;
    END LOOP;
    GRANT EXECUTE ON FUNCTION pg_catalog.pg_terminate_backend(integer, bigint), pg_catalog.pg_cancel_backend(integer)
        TO pg_signal_backend;
    FOR name IN
        SELECT r.rolname FROM pg_roles r WHERE r.rolname IN ('trinity_explorer', 'trinity_processor', 'trinity_trainer')
    LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION pg_catalog.pg_terminate_backend(integer, bigint), '
                       'pg_catalog.pg_try_advisory_xact_lock_shared(bigint) TO %I', name);
    END LOOP;
END $$;
