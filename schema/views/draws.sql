-- Draws: which groups a batch may take, priorities, chance, and batches.

-- Priority of a group derived from the variance of its attempts' rewards: their standard deviation, within the allowed range.
-- A group without a variance has the lowest priority.
CREATE FUNCTION trinity.derived_priority(variance double precision)
RETURNS double precision
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT least(greatest(sqrt(derived_priority.variance), 0.01), 1e18)
$$;

-- Whether an adopted row with this reward may be drawn: with labels, every row that has a reward; otherwise every row not
-- known to be bad. experience.place, which the server computes, uses the same rule.
CREATE FUNCTION trinity.is_learned_from(reward double precision, draws_labels boolean)
RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT (is_learned_from.reward > 0) IS TRUE OR (is_learned_from.reward IS NOT NULL) = is_learned_from.draws_labels
$$;

-- Id below which no rollout group of a run is live: batch.floor of its last batch; 0 before the first. A table of one row, so
-- that the planner inlines it.
CREATE FUNCTION trinity.floor_of(run_id bigint)
RETURNS TABLE (floor bigint)
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT coalesce((SELECT b.floor FROM trinity.batch b
                     WHERE b.run_id = floor_of.run_id AND b.state <> 'reopened' ORDER BY b.step DESC LIMIT 1), 0)
$$;

-- Rollout groups of a run that may be drawn now: ready and within the staleness limit, counted from a version. A NULL limit
-- means no limit. drawable_groups is the same for a recorded draw. If the difference of the numbers is the staleness,
-- no table is read for it: this case comes first.
CREATE FUNCTION trinity.drawable(run_id bigint, version integer, max_staleness integer)
RETURNS TABLE (id bigint, octave smallint)
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT g.id, g.octave
    FROM trinity.rollout_group g
    WHERE g.run_id = drawable.run_id AND g.state = 'ready'
      AND (CASE WHEN g.version_max <= drawable.version
                     AND g.version_min >= (SELECT trinity.unbroken_since(drawable.run_id, drawable.version))
                THEN drawable.version - g.version_min
                ELSE trinity.staleness(drawable.run_id, drawable.version, g.version_min, g.version_max)
           END > drawable.max_staleness) IS NOT TRUE
$$;

-- Rows of a rollout group that another run may adopt: rows that the group's own run sampled, and that are ready, were trained
-- on, or became too stale for it. Dropped rows and rows of evaluations are excluded. Rows whose arrays were pruned cannot be
-- adopted after all, and greedy rows only with their group, whose other members are compared with them.
CREATE FUNCTION trinity.adoptable_rows(group_id bigint)
RETURNS TABLE (id bigint, rollout_id bigint, step smallint, reward double precision, greedy boolean, pruned boolean)
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT e.id, e.rollout_id, e.step, e.reward, m.greedy, p.pruned_at IS NOT NULL
    FROM trinity.experience e
    JOIN trinity.rollout m ON m.id = e.rollout_id
    LEFT JOIN trinity.payload p ON p.experience_id = e.id
    WHERE e.group_id = adoptable_rows.group_id AND e.source_id IS NULL AND NOT e.held_out
      AND (e.state IN ('ready', 'leased', 'trained', 'expired')) IS TRUE
$$;

-- Every batch with statistics of its rows. Staleness is that of the draw, from batch_item.
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
       b.setting_id,
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
COMMENT ON COLUMN trinity.batch_view.id IS 'Id of the batch';
COMMENT ON COLUMN trinity.batch_view.run IS 'Name of its run';
COMMENT ON COLUMN trinity.batch_view.step IS 'Its trainer step';
COMMENT ON COLUMN trinity.batch_view.state IS 'leased, committed or reopened';
COMMENT ON COLUMN trinity.batch_view.policy_version IS 'Latest published policy version at the draw';
COMMENT ON COLUMN trinity.batch_view.included_version IS 'First policy version that includes it; NULL before';
COMMENT ON COLUMN trinity.batch_view.epoch IS 'Passes over imported data finished before it; 0 in an online run';
COMMENT ON COLUMN trinity.batch_view.sampler IS 'Name of the sampler';
COMMENT ON COLUMN trinity.batch_view.seed IS 'Seed of the draw';
COMMENT ON COLUMN trinity.batch_view.size IS 'Number of drawn groups, rows or pairs';
COMMENT ON COLUMN trinity.batch_view.experiences IS 'Number of rows';
COMMENT ON COLUMN trinity.batch_view.reward IS 'Mean of the rewards used';
COMMENT ON COLUMN trinity.batch_view.staleness_min IS 'Smallest staleness at the draw, in policy versions';
COMMENT ON COLUMN trinity.batch_view.staleness_mean IS 'Mean staleness at the draw, in policy versions';
COMMENT ON COLUMN trinity.batch_view.staleness_max IS 'Largest staleness at the draw, in policy versions';
COMMENT ON COLUMN trinity.batch_view.setting_id IS 'The run_setting used for its step';
COMMENT ON COLUMN trinity.batch_view.created_at IS 'Time of the draw';
COMMENT ON COLUMN trinity.batch_view.committed_at IS 'Time at which the step was committed; NULL before';

-- Rollout groups from which a batch could have been drawn, in its snapshot, from history alone: ready at that time, in no batch
-- in training, with uses left, not expired, and within the batch's staleness limit. A priority derived from rewards or computed
-- by steps is that of the time; any other is the current one.
CREATE FUNCTION trinity.drawable_groups(batch_id bigint)
RETURNS TABLE (group_id bigint, priority double precision)
LANGUAGE sql STABLE AS $$
    WITH drawn AS MATERIALIZED (
        SELECT b.*, b.snapshot::pg_snapshot AS seen, coalesce((b.parameters ->> 'max_uses')::integer, 1) AS max_uses,
               r.config #>> '{processors,group,priority}' = 'reward_std' AS has_derived_priorities,
               r.config #> '{processors,priority,0}' IS NOT NULL AS has_computed_priorities
        FROM trinity.batch b JOIN trinity.run r ON r.id = b.run_id
        WHERE b.id = drawable_groups.batch_id
    ),
    used AS MATERIALIZED (
        SELECT e.group_id, count(DISTINCT x.id) AS uses, bool_or((x.committed_at <= b.created_at) IS NOT TRUE) AS is_leased
        FROM drawn b
        JOIN trinity.batch x ON x.run_id = b.run_id AND x.id < b.id AND (x.reopened_at <= b.created_at) IS NOT TRUE
        JOIN trinity.batch_item i ON i.batch_id = x.id
        JOIN trinity.experience e ON e.id = i.experience_id
        GROUP BY e.group_id
    ),
    expired AS MATERIALIZED (
        SELECT DISTINCT e.group_id
        FROM drawn b
        JOIN trinity."drop" d ON d.run_id = b.run_id AND d.stage = 'draw' AND d.created_at < b.created_at
        JOIN trinity.experience e ON e.id = d.experience_id
    )
    SELECT g.id,
           CASE WHEN b.has_derived_priorities
                THEN (SELECT trinity.derived_priority(var_samp(m.reward))
                      FROM (SELECT trinity.attempt_reward(e.rollout_id, count(c.reward), sum(c.reward), min(c.reward),
                                                          max(c.reward)) AS reward
                            FROM trinity.experience e
                            CROSS JOIN LATERAL (SELECT trinity.reward_in(e.id, b.seen) AS reward OFFSET 0) c
                            WHERE e.group_id = g.id AND e.state <> 'dropped' AND e.source_id IS NULL
                            GROUP BY e.rollout_id) m)
                WHEN b.has_computed_priorities
                THEN coalesce((SELECT p.priority FROM trinity.group_priority p
                               WHERE p.group_id = g.id AND pg_visible_in_snapshot(p.computed_xact::text::xid8, b.seen)
                               ORDER BY p.id DESC LIMIT 1), 0)
                ELSE g.priority END
    FROM drawn b
    JOIN trinity.rollout_group g ON g.run_id = b.run_id
    LEFT JOIN used u ON u.group_id = g.id
    WHERE pg_visible_in_snapshot(g.ready_xact::text::xid8, b.seen)
      AND (trinity.staleness(b.run_id, b.policy_version, g.version_min, g.version_max) + b.versions_ahead > b.max_staleness)
          IS NOT TRUE
      AND u.is_leased IS NOT TRUE AND coalesce(u.uses, 0) < b.max_uses
      AND NOT EXISTS (SELECT FROM expired WHERE expired.group_id = g.id)
$$;

-- Randomness of draws: 64 bits determined by a number and a seed. It hashes twice, since the upper half of the server's hash is
-- similar for adjacent numbers.
CREATE FUNCTION trinity.chance(number bigint, seed bigint)
RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT hashint8extended(chance.number, hashint8extended(chance.number, chance.seed))
$$;

-- Maps 64 random bits to a number strictly between 0 and 1, one of 2^52 equidistant values.
CREATE FUNCTION trinity.unit(hash bigint)
RETURNS double precision
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT ((unit.hash >> 12 & 4503599627370495)::double precision + 0.5) / 4503599627370496
$$;

-- Key of a group in a random draw: exponential with the group's weight as its rate.
CREATE FUNCTION trinity.key(id bigint, weight double precision, seed bigint)
RETURNS double precision
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT -ln(trinity.unit(trinity.chance(8 * key.id + 5, key.seed))) / key.weight
$$;

-- Number of hash bits that identify a cell of an octave, so that a cell contains between half of `crowd` and `crowd` groups.
-- Estimated from the first groups of the octave in hash order: their number, and the highest hash among them.
CREATE FUNCTION trinity.cell_bits(groups bigint, highest bigint, crowd double precision)
RETURNS double precision
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT greatest(ceil(ln(cell_bits.groups / cell_bits.crowd / (cell_bits.highest / 2::float8 ^ 64 + 0.5))
                         / ln(2::float8)), 1)
$$;

-- Probes of a random draw, by time. `mark` is between 0 and `rate`, the sum of the rates of all octaves, and so picks an
-- octave. `cell` is a hash in the probed cell, `place` one of its places, and `luck` decides whether the group at that place is
-- hit.
CREATE FUNCTION trinity.probes(seed bigint, probes bigint, rate double precision, places double precision)
RETURNS TABLE (n bigint, at double precision, mark double precision, cell bigint, place bigint, luck double precision)
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT n, sum(-ln(trinity.unit(trinity.chance(8 * n, probes.seed)))) OVER (ORDER BY n) / probes.rate,
           trinity.unit(trinity.chance(8 * n + 1, probes.seed)) * probes.rate,
           trinity.chance(8 * n + 2, probes.seed),
           floor(trinity.unit(trinity.chance(8 * n + 3, probes.seed)) * probes.places)::bigint,
           trinity.unit(trinity.chance(8 * n + 4, probes.seed))
    FROM generate_series(1, probes.probes) n
$$;
