-- Access for readers. Executed after all views exist.

-- For inspection: reads everything, writes nothing. Missing if the owner may not create roles.
DO $$
BEGIN
    CREATE ROLE trinity_reader NOLOGIN;
EXCEPTION
    WHEN duplicate_object OR unique_violation OR insufficient_privilege THEN NULL;
END $$;
DO $$
BEGIN
    GRANT USAGE ON SCHEMA trinity TO trinity_reader;
    GRANT SELECT ON ALL TABLES IN SCHEMA trinity TO trinity_reader;
    GRANT SELECT ON ALL SEQUENCES IN SCHEMA trinity TO trinity_reader;
EXCEPTION
    WHEN undefined_object THEN NULL;
END $$;

-- Lets clients use table names without the schema: psql "$(trinity-db db url)". New objects of clients are still created where
-- they were before. An existing search_path of the database is kept, and so is that of another owner's database.
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_db_role_setting s CROSS JOIN unnest(s.setconfig) AS setting
                   WHERE s.setrole = 0 AND setting LIKE 'search\_path=%'
                     AND s.setdatabase = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())) THEN
        EXECUTE format('ALTER DATABASE %I SET search_path = "$user", public, trinity', current_database());
    END IF;
EXCEPTION
    WHEN insufficient_privilege THEN NULL;
END $$;
