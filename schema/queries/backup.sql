-- name: holds_rows
-- Whether the store has runs or tasksets already. A backup is restored only into a store without any.
SELECT EXISTS (SELECT FROM trinity.run) OR EXISTS (SELECT FROM trinity.taskset) AS is_so

-- name: bind_timeline
-- Makes a store that was restored to a time a copy if its home is another one than the original's. Its later timeline
-- alone would make it a promoted replica, which is the original.
UPDATE trinity.store_instance i
SET timeline = ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::integer
WHERE i.home IS DISTINCT FROM %(home)s
