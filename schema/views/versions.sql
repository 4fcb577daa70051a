-- Policy versions: their distance, staleness and line.

-- Number of publications between two versions of a run. If one of them was withdrawn, counted via their common ancestor: up
-- from the one and down to the other. A version's position on its line is its number less policy_version.skipped. A number
-- without a row is a version that the server lost; its line continued from the row below.
--
-- Numbers are assigned in order of publication, and a run only goes back to ancestors of its newest version. So the common
-- ancestor of two versions is just before the lowest position between their numbers. If the same number of versions is skipped
-- below both, each version between them descends from the previous one.
CREATE FUNCTION trinity.distance(run_id bigint, version integer, other integer)
RETURNS integer
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN low.skipped = high.skipped THEN high.number - low.number
                WHEN low.is_kept AND high.is_kept THEN high.number - high.skipped - (low.number - low.skipped)
                ELSE low.number - low.skipped + high.number - high.skipped
                     - 2 * least(low.number - low.skipped,
                                 (SELECT min(p.version - p.skipped) - 1 FROM trinity.policy_version p
                                  WHERE p.run_id = distance.run_id AND p.version > low.number
                                    AND p.version <= high.number)) END
    FROM (SELECT least(distance.version, distance.other) AS number, p.skipped,
                 p.version = least(distance.version, distance.other) AND p.withdrawn_at IS NULL AS is_kept
          FROM trinity.policy_version p
          WHERE p.run_id = distance.run_id AND p.version <= least(distance.version, distance.other)
          ORDER BY p.version DESC LIMIT 1) low,
         (SELECT greatest(distance.version, distance.other) AS number, p.skipped,
                 p.version = greatest(distance.version, distance.other) AND p.withdrawn_at IS NULL AS is_kept
          FROM trinity.policy_version p
          WHERE p.run_id = distance.run_id AND p.version <= greatest(distance.version, distance.other)
          ORDER BY p.version DESC LIMIT 1) high
$$;

-- Staleness of a row relative to a version: the larger distance of the oldest and the newest version that sampled it.
CREATE FUNCTION trinity.staleness(run_id bigint, version integer, oldest integer, newest integer)
RETURNS integer
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT greatest(trinity.distance(staleness.run_id, staleness.version, staleness.oldest),
                    CASE WHEN staleness.newest <> staleness.oldest
                         THEN trinity.distance(staleness.run_id, staleness.version, staleness.newest) END)
$$;

-- Lowest number from which each version, up to the given one, descends from the version just before it; 0 in a run that never
-- went back. From there on, the distance from the given version is the difference of the numbers.
CREATE FUNCTION trinity.unbroken_since(run_id bigint, version integer)
RETURNS integer
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN latest.skipped = 0 THEN 0
                ELSE (SELECT min(p.version) FROM trinity.policy_version p
                      WHERE p.run_id = unbroken_since.run_id
                        AND p.version > (SELECT q.version FROM trinity.policy_version q
                                         WHERE q.run_id = unbroken_since.run_id AND q.version < unbroken_since.version
                                           AND q.skipped < latest.skipped
                                         ORDER BY q.version DESC LIMIT 1)) END
    FROM trinity.policy_version latest
    WHERE latest.run_id = unbroken_since.run_id AND latest.version = unbroken_since.version
$$;

-- Lowest version number that may be within the distance limit of the given version; all versions below it are beyond the limit.
CREATE FUNCTION trinity.oldest_within(run_id bigint, version integer, max_distance integer)
RETURNS integer
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN latest.skipped = 0 THEN latest.version - oldest_within.max_distance
                ELSE coalesce((SELECT p.version + 1 FROM trinity.policy_version p
                               WHERE p.run_id = oldest_within.run_id AND p.version <= latest.version
                                 AND p.version - p.skipped < latest.version - latest.skipped - oldest_within.max_distance
                               ORDER BY p.version DESC LIMIT 1), 0) END
    FROM trinity.policy_version latest
    WHERE latest.run_id = oldest_within.run_id AND latest.version = oldest_within.version
$$;

-- Every row on which a policy version was trained, with its staleness at the draw. Without a name, the run is the latest
-- training run. For an adopted row it also returns the original: its number, its run or data set, and the newest version of that
-- run that sampled a token of it.
CREATE FUNCTION trinity.lineage(version integer, run text DEFAULT NULL)
RETURNS TABLE (batch_id bigint, step integer, ordinal integer, experience_id bigint, policy_version integer,
               included_version integer, reward double precision, advantage double precision, staleness integer,
               weight double precision, probability double precision, source_id bigint, source_run text,
               source_version integer)
LANGUAGE sql STABLE AS $$
    SELECT b.id, b.step, i.ordinal, i.experience_id, b.policy_version, b.included_version, i.reward, i.advantage,
           i.staleness, i.weight, i.probability, o.id, r.name, o.version_max
    FROM trinity.batch b
    JOIN trinity.batch_item i ON i.batch_id = b.id
    JOIN trinity.experience e ON e.id = i.experience_id
    LEFT JOIN trinity.experience o ON o.id = e.source_id
    LEFT JOIN trinity.run r ON r.id = o.run_id
    WHERE b.run_id = (SELECT r.id FROM trinity.run r
                      WHERE CASE WHEN lineage.run IS NULL THEN r.kind = 'train' ELSE r.name = lineage.run END
                      ORDER BY r.id DESC LIMIT 1)
      AND b.state = 'committed'
      AND b.included_version <= lineage.version
    ORDER BY b.step, i.ordinal
$$;
