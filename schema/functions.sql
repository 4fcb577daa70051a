-- Functions of the server that only some logins may call in this database. Without these limits each login may end the other
-- sessions of its login, such as those of other visitors of the page, and fill the disk with large objects, which no limit of a
-- session counts. Only a superuser may change this: for other logins the block does nothing. Roles end the sessions of
-- silent workers of their own login, and so does an upgrade by the owner of the tables.
DO $$
DECLARE
    name text;
BEGIN
    IF NOT (SELECT r.rolsuper FROM pg_roles r WHERE r.rolname = current_user) THEN
        RETURN;
    END IF;
    REVOKE EXECUTE ON FUNCTION pg_catalog.pg_terminate_backend(integer, bigint), pg_catalog.pg_cancel_backend(integer),
        pg_catalog.lo_creat(integer), pg_catalog.lo_create(oid), pg_catalog.lo_from_bytea(oid, bytea) FROM PUBLIC;
    GRANT EXECUTE ON FUNCTION pg_catalog.pg_terminate_backend(integer, bigint), pg_catalog.pg_cancel_backend(integer)
        TO pg_signal_backend;
    FOR name IN
        SELECT r.rolname FROM pg_roles r
        WHERE r.rolname IN ('trinity_explorer', 'trinity_processor', 'trinity_trainer')
           OR r.oid = (SELECT n.nspowner FROM pg_namespace n WHERE n.nspname = 'trinity')
    LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION pg_catalog.pg_terminate_backend(integer, bigint) TO %I', name);
    END LOOP;
END $$;
