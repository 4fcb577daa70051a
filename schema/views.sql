-- What people ask, so that nobody needs to know the joins. Made anew at every upgrade.
DROP FUNCTION IF EXISTS trinity.lineage(integer, text);
DROP VIEW IF EXISTS trinity.drop_view;
DROP VIEW IF EXISTS trinity.batch_view;
DROP VIEW IF EXISTS trinity.policy_progress;
DROP VIEW IF EXISTS trinity.experience_view;
-- create

-- Every experience with its text, its reward, how stale it is now and how often it was used.
CREATE VIEW trinity.experience_view AS
SELECT e.id,
       r.name AS run,
       e.state,
       e.group_id,
       m.ordinal AS member,
       t.key AS task,
       x.prompt,
       x.response,
       e.reward,
       e.version_min,
       e.version_max,
       latest.version - e.version_min AS staleness,
       e.use_count,
       e.prompt_length,
       e.response_length,
       m.model,
       m.finish_reason,
       e.held_out,
       e.created_at
FROM trinity.experience e
JOIN trinity.run r ON r.id = e.run_id
LEFT JOIN trinity.experience_text x ON x.experience_id = coalesce(e.source_id, e.id)
LEFT JOIN trinity.rollout m ON m.id = e.rollout_id
LEFT JOIN trinity.rollout_group g ON g.id = e.group_id
LEFT JOIN trinity.task t ON t.id = g.task_id
LEFT JOIN LATERAL (SELECT max(p.version) AS version FROM trinity.policy_version p
                   WHERE p.run_id = e.run_id AND p.checkpoint IS NOT NULL) latest ON true;

-- What each policy version wrote: how much, how good, how long.
CREATE VIEW trinity.policy_progress AS
SELECT r.name AS run,
       p.version,
       p.step,
       p.published_at,
       count(e.id) AS experiences,
       avg(e.reward) AS reward,
       avg(e.response_length) AS response_length,
       count(e.id) FILTER (WHERE e.state = 'trained') AS trained,
       count(e.id) FILTER (WHERE e.state IN ('dropped', 'expired')) AS dropped
FROM trinity.policy_version p
JOIN trinity.run r ON r.id = p.run_id
LEFT JOIN trinity.experience e ON e.run_id = p.run_id AND e.version_min = p.version
GROUP BY r.name, p.run_id, p.version, p.step, p.published_at;

-- Every batch with what it was made of.
CREATE VIEW trinity.batch_view AS
SELECT b.id,
       r.name AS run,
       b.step,
       b.state,
       b.policy_version,
       b.included_version,
       b.epoch,
       b.sampler,
       b.seed,
       b.size,
       i.experiences,
       i.reward,
       i.staleness_min,
       i.staleness_mean,
       i.staleness_max,
       b.created_at,
       b.committed_at
FROM trinity.batch b
JOIN trinity.run r ON r.id = b.run_id
JOIN LATERAL (
    SELECT count(*) AS experiences,
           avg(item.reward) AS reward,
           min(item.staleness) AS staleness_min,
           avg(item.staleness) AS staleness_mean,
           max(item.staleness) AS staleness_max
    FROM trinity.batch_item item
    WHERE item.batch_id = b.id
) i ON true;

-- What will not be trained on, by reason, taskset and length of the response in tokens.
CREATE VIEW trinity.drop_view AS
SELECT r.name AS run,
       d.stage,
       d.reason,
       s.name AS taskset,
       width_bucket(e.response_length, ARRAY[0, 32, 128, 512, 2048, 8192]) AS length_class,
       min(e.response_length) AS shortest,
       max(e.response_length) AS longest,
       count(*) AS rows
FROM trinity."drop" d
JOIN trinity.run r ON r.id = d.run_id
LEFT JOIN trinity.experience e ON e.id = d.experience_id
LEFT JOIN trinity.rollout_group g ON g.id = coalesce(d.group_id, e.group_id)
LEFT JOIN trinity.task t ON t.id = g.task_id
LEFT JOIN trinity.taskset s ON s.id = t.taskset_id
GROUP BY r.name, d.stage, d.reason, s.name, length_class;

-- Every row that a policy version was trained on; of the latest training run unless one is named.
CREATE FUNCTION trinity.lineage(version integer, run text DEFAULT NULL)
RETURNS TABLE (batch_id bigint, step integer, ordinal integer, experience_id bigint, policy_version integer,
               included_version integer, reward double precision, advantage double precision, staleness integer)
LANGUAGE sql STABLE AS $$
    SELECT b.id, b.step, i.ordinal, i.experience_id, b.policy_version, b.included_version, i.reward, i.advantage,
           i.staleness
    FROM trinity.batch b
    JOIN trinity.batch_item i ON i.batch_id = b.id
    WHERE b.run_id = (SELECT r.id FROM trinity.run r
                      WHERE CASE WHEN lineage.run IS NULL THEN r.kind = 'train' ELSE r.name = lineage.run END
                      ORDER BY r.id DESC LIMIT 1)
      AND b.state = 'committed'
      AND b.included_version <= lineage.version
    ORDER BY b.step, i.ordinal
$$;

-- For inspection: reads everything, writes nothing. Absent where the owner may not create roles.
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
EXCEPTION
    WHEN undefined_object THEN NULL;
END $$;
