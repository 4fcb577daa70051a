-- name: replay_groups
-- The result of draw_groups or draw_newest in the snapshot of a batch, from history alone. Members that are dropped
-- now were in no ready group.
WITH drawn AS MATERIALIZED (
    SELECT b.*, b.snapshot::pg_snapshot AS seen FROM trinity.batch b WHERE b.id = %(batch_id)s
),
picked AS MATERIALIZED (
    SELECT g.group_id AS id
    FROM drawn b
    CROSS JOIN trinity.drawable_groups(b.id) g
    ORDER BY CASE b.sampler WHEN 'newest' THEN -g.group_id ELSE g.group_id END
    LIMIT (SELECT size FROM drawn)
)
SELECT e.id AS experience_id, NULL::bigint AS preference_id, trinity.reward_in(e.id, b.seen) AS reward,
       trinity.staleness(b.run_id, b.policy_version, e.version_min, e.version_max) + b.versions_ahead AS staleness,
       NULL::float8 AS probability
FROM drawn b
CROSS JOIN picked
JOIN trinity.experience e ON e.group_id = picked.id
WHERE e.state <> 'dropped' AND e.source_id IS NULL
ORDER BY e.group_id, e.id

-- name: replay_by_chance
-- The result of draw_by_chance in the snapshot of a batch, from history alone: the same keys, probes and cells over
-- the groups that could be drawn then. docs/how-it-works/long-statements.md explains each step.
WITH drawn AS MATERIALIZED (
    SELECT b.*, b.snapshot::pg_snapshot AS seen, trinity.chance(b.step, b.seed) AS seed_of_draw,
           (b.parameters ->> 'lowest')::integer AS lowest, (b.parameters ->> 'alpha')::float8 AS alpha,
           (b.parameters ->> 'few')::bigint AS few, (b.parameters ->> 'probes')::bigint AS probes,
           (b.parameters ->> 'crowd')::float8 AS crowd, (b.parameters ->> 'places')::float8 AS places
    FROM trinity.batch b
    WHERE b.id = %(batch_id)s
),
pool AS MATERIALIZED (
    SELECT g.id, g.octave, power(g.priority, b.alpha) AS weight, g.position,
           row_number() OVER (PARTITION BY g.octave ORDER BY g.position) AS place
    FROM drawn b
    CROSS JOIN LATERAL (
        SELECT d.group_id AS id, d.priority, hashint8extended(d.group_id, 0) AS position,
               coalesce(ceil(ln(nullif(d.priority, 0)) / ln(2::float8)), -60) AS octave
        FROM trinity.drawable_groups(b.id) d
    ) g
    WHERE g.octave >= b.lowest
),
octave AS MATERIALIZED (
    SELECT p.octave, power(2, b.alpha * p.octave) AS ceiling, count(*) > b.few AS is_many,
           trinity.cell_bits(count(*), max(p.position), b.crowd) AS bits
    FROM drawn b
    JOIN pool p ON p.place <= b.few + 1
    GROUP BY p.octave, b.alpha, b.few, b.crowd
),
probed AS MATERIALIZED (
    SELECT o.octave, o.ceiling, -1::bigint << (64 - o.bits::integer) AS mask,
           coalesce(sum(o.rate) OVER (ORDER BY o.octave ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) AS above,
           sum(o.rate) OVER (ORDER BY o.octave ROWS UNBOUNDED PRECEDING) AS upto, sum(o.rate) OVER () AS total
    FROM (SELECT octave.*, drawn.places * octave.ceiling * power(2, octave.bits) AS rate
          FROM octave CROSS JOIN drawn WHERE octave.is_many) o
),
probe AS MATERIALIZED (
    SELECT p.*
    FROM drawn b
    CROSS JOIN (SELECT max(upto) AS total FROM probed) t
    CROSS JOIN LATERAL trinity.probes(b.seed_of_draw, b.probes, t.total, b.places) p
    WHERE t.total IS NOT NULL
),
proposed AS MATERIALIZED (
    SELECT g.id, g.weight, p.at, p.luck * p.ceiling < g.weight AS is_hit, p.place,
           row_number() OVER (PARTITION BY p.n ORDER BY g.position) - 1 AS found
    FROM (SELECT probe.*, o.octave, o.mask, o.ceiling, probe.cell & o.mask AS begins
          FROM probe JOIN probed o ON probe.mark >= o.above AND probe.mark < o.upto) p
    JOIN (SELECT pool.*, pool.position & o.mask AS begins
          FROM pool JOIN probed o ON o.octave = pool.octave) g
      ON g.octave = p.octave AND g.begins = p.begins
),
keyed AS (
    SELECT p.id, p.weight, trinity.key(p.id, p.weight, b.seed_of_draw) AS key
    FROM drawn b
    CROSS JOIN pool p
    WHERE p.octave NOT IN (SELECT octave FROM probed)
    UNION ALL
    SELECT h.id, h.weight, min(h.at) FROM proposed h WHERE h.found = h.place AND h.is_hit GROUP BY h.id, h.weight
),
picked AS MATERIALIZED (
    SELECT k.id, k.weight, k.key
    FROM keyed k
    WHERE k.key <= coalesce((SELECT max(at) FROM probe), 'Infinity')
    ORDER BY k.key, k.id
    LIMIT (SELECT size + 1 FROM drawn)
),
verdict AS MATERIALIZED (
    SELECT CASE WHEN count(*) > max(b.size) THEN max(p.key) ELSE 'Infinity' END AS key FROM drawn b CROSS JOIN picked p
)
SELECT e.id AS experience_id, NULL::bigint AS preference_id, trinity.reward_in(e.id, b.seen) AS reward,
       trinity.staleness(b.run_id, b.policy_version, e.version_min, e.version_max) + b.versions_ahead AS staleness,
       1 - exp(-least(p.weight * v.key, 700)) AS probability
FROM drawn b
CROSS JOIN verdict v
JOIN picked p ON p.key < v.key
JOIN trinity.experience e ON e.group_id = p.id AND e.state <> 'dropped' AND e.source_id IS NULL
ORDER BY e.group_id, e.id

-- name: replay_adopted_groups
-- The result of draw_adopted_groups in the snapshot of a batch, from history alone, like replay_rows.
WITH drawn AS MATERIALIZED (
    SELECT b.*, b.snapshot::pg_snapshot AS seen FROM trinity.batch b WHERE b.id = %(batch_id)s
),
used AS MATERIALIZED (
    SELECT e.group_id, count(DISTINCT x.id) AS uses,
           bool_or((x.committed_at <= b.created_at) IS NOT TRUE) AS is_leased
    FROM drawn b
    JOIN trinity.batch x ON x.run_id = b.run_id AND x.id < b.id AND (x.reopened_at <= b.created_at) IS NOT TRUE
    JOIN trinity.batch_item i ON i.batch_id = x.id
    JOIN trinity.experience e ON e.id = i.experience_id
    GROUP BY e.group_id
),
eligible AS MATERIALIZED (
    SELECT g.id, coalesce(u.uses, 0) AS use_count, hashint8extended(g.source_id, b.seed + coalesce(u.uses, 0)) AS place
    FROM drawn b
    JOIN trinity.rollout_group g ON g.run_id = b.run_id AND g.seed IS NOT NULL AND g.state <> 'dropped'
    LEFT JOIN used u ON u.group_id = g.id
    WHERE pg_visible_in_snapshot(g.ready_xact::text::xid8, b.seen) AND u.is_leased IS NOT TRUE
),
picked AS MATERIALIZED (
    SELECT g.id
    FROM eligible g
    WHERE g.use_count = (SELECT min(use_count) FROM eligible)
    ORDER BY g.place, g.id
    LIMIT (SELECT size FROM drawn)
)
SELECT e.id AS experience_id, NULL::bigint AS preference_id, trinity.reward_in(e.id, b.seen) AS reward,
       NULL::integer AS staleness
FROM drawn b
CROSS JOIN picked
JOIN trinity.experience e ON e.group_id = picked.id AND e.run_id = b.run_id AND e.state <> 'dropped'
ORDER BY e.group_id, e.id

-- name: replay_rows
-- The result of draw_rows in the snapshot of a batch, from history alone: rows that had tokens then and were in no
-- batch in training, ordered by their uses then. Used-up rows have more uses than the others.
--
-- Next to rollout groups, the rows were a draw with a separate snapshot. They may be from two passes, and their
-- rewards are irrelevant there and not recorded. If data sets have shares, these are the next rows of each (see
-- draw_experts).
-- 
WITH drawn AS MATERIALIZED (
    SELECT b.*, coalesce(b.parameters ->> 'experts_snapshot', b.snapshot)::pg_snapshot AS seen,
           (b.parameters ->> 'experts')::integer AS experts, b.parameters -> 'expert_shares' AS shares
    FROM trinity.batch b
    WHERE b.id = %(batch_id)s
),
used AS MATERIALIZED (
    SELECT i.experience_id, count(*) AS uses, bool_or((x.committed_at <= b.created_at) IS NOT TRUE) AS is_leased
    FROM drawn b
    JOIN trinity.batch x ON x.run_id = b.run_id AND x.id < b.id AND (x.reopened_at <= b.created_at) IS NOT TRUE
    JOIN trinity.batch_item i ON i.batch_id = x.id AND i.preference_id IS NULL
    GROUP BY i.experience_id
),
eligible AS MATERIALIZED (
    SELECT e.id, coalesce(e.source_id, e.id) AS origin_id, coalesce(u.uses, 0) AS use_count, r.reward
    FROM drawn b
    JOIN trinity.experience e ON e.run_id = b.run_id
    LEFT JOIN used u ON u.experience_id = e.id
    CROSS JOIN LATERAL (SELECT trinity.reward_in(e.id, b.seen) AS reward) r
    WHERE NOT e.held_out AND e.prompt_length IS NOT NULL
      AND pg_visible_in_snapshot(e.ready_xact::text::xid8, b.seen)
      AND u.is_leased IS NOT TRUE
      AND trinity.is_learned_from(r.reward, e.draws_labels)
      AND (e.draws_labels
           OR NOT EXISTS (SELECT FROM trinity.preference p
                          WHERE p.rejected_id = e.id AND pg_visible_in_snapshot(p.ready_xact::text::xid8, b.seen)))
      AND NOT EXISTS (SELECT FROM trinity."drop" d WHERE d.experience_id = e.id AND d.created_at < b.created_at)
)
SELECT p.id AS experience_id, NULL::bigint AS preference_id, CASE WHEN p.experts IS NULL THEN p.reward END AS reward,
       NULL::integer AS staleness, p.data
FROM (SELECT e.*, b.experts, b.size, d.data,
             row_number() OVER (PARTITION BY d.data
                                ORDER BY e.use_count, hashint8extended(e.origin_id, b.seed + e.use_count), e.id) AS place
      FROM drawn b
      CROSS JOIN eligible e
      CROSS JOIN LATERAL (SELECT CASE WHEN b.shares IS NOT NULL
                                      THEN (SELECT r.name FROM trinity.experience o JOIN trinity.run r ON r.id = o.run_id
                                            WHERE o.id = e.origin_id) END AS data) d
      WHERE b.experts IS NOT NULL OR e.use_count = (SELECT min(use_count) FROM eligible)) p
WHERE p.place <= coalesce(p.experts, p.size)
ORDER BY p.data, p.place

-- name: replay_pairs
-- The result of draw_pairs in the snapshot of a batch, from history alone, like replay_rows: the chosen row of each
-- pair, then the rejected one.
WITH drawn AS MATERIALIZED (
    SELECT b.*, b.snapshot::pg_snapshot AS seen FROM trinity.batch b WHERE b.id = %(batch_id)s
),
used AS MATERIALIZED (
    SELECT i.preference_id, count(DISTINCT x.id) AS uses,
           bool_or((x.committed_at <= b.created_at) IS NOT TRUE) AS is_leased
    FROM drawn b
    JOIN trinity.batch x ON x.run_id = b.run_id AND x.id < b.id AND (x.reopened_at <= b.created_at) IS NOT TRUE
    JOIN trinity.batch_item i ON i.batch_id = x.id
    GROUP BY i.preference_id
),
eligible AS MATERIALIZED (
    SELECT p.id, p.chosen_id, p.rejected_id, r.chosen_reward, r.rejected_reward, coalesce(u.uses, 0) AS use_count,
           hashint8extended(coalesce(chosen.source_id, chosen.id), b.seed + coalesce(u.uses, 0)) AS place
    FROM drawn b
    JOIN trinity.preference p ON p.run_id = b.run_id
    JOIN trinity.experience chosen ON chosen.id = p.chosen_id
    JOIN trinity.experience rejected ON rejected.id = p.rejected_id
    LEFT JOIN used u ON u.preference_id = p.id
    CROSS JOIN LATERAL (SELECT trinity.reward_in(chosen.id, b.seen) AS chosen_reward,
                               trinity.reward_in(rejected.id, b.seen) AS rejected_reward) r
    LEFT JOIN LATERAL (SELECT v.source, trinity.side_in(p.chosen_id, p.rejected_id, b.seen) AS side
                       FROM trinity.review v
                       WHERE v.experience_id = least(p.chosen_id, p.rejected_id)
                         AND v.other_id = greatest(p.chosen_id, p.rejected_id)
                         -- An adopted pair may have the source of an undecided review.
                         AND EXISTS (SELECT FROM trinity.decision d
                                     WHERE d.review_id = v.id
                                       AND pg_visible_in_snapshot(d.xact::text::xid8, b.seen))) q ON true
    WHERE NOT p.held_out AND pg_visible_in_snapshot(p.ready_xact::text::xid8, b.seen)
      AND u.is_leased IS NOT TRUE
      AND chosen.prompt_length IS NOT NULL AND rejected.prompt_length IS NOT NULL
      -- A run's own rows had tokens from the start; adopted rows since their transaction.
      AND pg_visible_in_snapshot(coalesce(chosen.ready_xact, p.ready_xact)::text::xid8, b.seen)
      AND pg_visible_in_snapshot(coalesce(rejected.ready_xact, p.ready_xact)::text::xid8, b.seen)
      -- People's decisions come first, then the rewards of a derived pair. Pairs from people depend on decisions
      -- only.
      AND CASE WHEN q.side IS NOT NULL THEN q.side > 0
               WHEN p.source = 'pair' THEN r.chosen_reward > r.rejected_reward
               ELSE q.source IS DISTINCT FROM p.source END
      AND NOT EXISTS (SELECT FROM trinity."drop" d WHERE d.preference_id = p.id AND d.created_at < b.created_at)
),
picked AS MATERIALIZED (
    SELECT p.*
    FROM eligible p
    WHERE p.use_count = (SELECT min(use_count) FROM eligible)
    ORDER BY p.place, p.id
    LIMIT (SELECT size FROM drawn)
)
SELECT side.experience_id, p.id AS preference_id, side.reward, NULL::integer AS staleness
FROM picked p
CROSS JOIN LATERAL (VALUES (0, p.chosen_id, p.chosen_reward), (1, p.rejected_id, p.rejected_reward))
           AS side (place, experience_id, reward)
ORDER BY p.place, p.id, side.place

-- name: drawable_then
-- The result of drawable_now in the snapshot of a batch, from history alone: the groups that could be drawn then,
-- with their rewards and uses. A priority set by hand is the current one.
SELECT g.id, g.task_id, t.key AS task, s.name AS taskset, t.level, d.priority, m.members, u.uses, m.reward_mean,
       m.reward_std, m.difficulty, m.prompt_length, m.response_length, g.version_min, g.version_max,
       trinity.staleness(b.run_id, b.policy_version, g.version_min, g.version_max) + b.versions_ahead AS staleness,
       g.created_at, g.ready_at
FROM trinity.batch b
CROSS JOIN LATERAL trinity.drawable_groups(b.id) d
JOIN trinity.rollout_group g ON g.id = d.group_id
LEFT JOIN trinity.task t ON t.id = g.task_id
LEFT JOIN trinity.taskset s ON s.id = t.taskset_id
LEFT JOIN LATERAL (
    SELECT count(*)::integer AS members, avg(a.reward ORDER BY a.rollout_id) AS reward_mean,
           sqrt(var_samp(a.reward ORDER BY a.rollout_id)) AS reward_std,
           count(*) FILTER (WHERE a.reward < r.solved_reward)::float8 / nullif(count(a.reward), 0) AS difficulty,
           avg(a.prompt_length)::float8 AS prompt_length, avg(a.response_length)::float8 AS response_length
    FROM (SELECT e.rollout_id, trinity.attempt_reward(e.rollout_id, count(c.reward), sum(c.reward ORDER BY e.id),
                                                      min(c.reward), max(c.reward)) AS reward,
                 max(e.prompt_length) AS prompt_length, sum(e.response_length) AS response_length
          FROM trinity.experience e
          CROSS JOIN LATERAL (SELECT trinity.reward_in(e.id, b.snapshot::pg_snapshot) AS reward OFFSET 0) c
          WHERE e.group_id = g.id AND e.state <> 'dropped' AND e.source_id IS NULL
          GROUP BY e.rollout_id) a,
         (SELECT coalesce((r.config #>> '{processors,group,solved_reward}')::float8, 1) AS solved_reward
          FROM trinity.run r WHERE r.id = g.run_id) r
) m ON true
LEFT JOIN LATERAL (
    SELECT count(DISTINCT x.id)::integer AS uses
    FROM trinity.experience e
    JOIN trinity.batch_item i ON i.experience_id = e.id
    JOIN trinity.batch x ON x.id = i.batch_id AND x.run_id = b.run_id AND x.id < b.id
                        AND (x.reopened_at <= b.created_at) IS NOT TRUE
    WHERE e.group_id = g.id
) u ON true
WHERE b.id = %(batch_id)s

-- name: replay_members
-- The result of choose_members for groups of a batch, in its snapshot.
SELECT e.id AS experience_id, NULL::bigint AS preference_id, e.group_id,
       trinity.reward_in(e.id, (b.parameters ->> 'members_snapshot')::pg_snapshot) AS reward,
       trinity.staleness(b.run_id, b.policy_version, e.version_min, e.version_max) + b.versions_ahead AS staleness
FROM trinity.batch b
JOIN trinity.experience e ON e.group_id = ANY(%(group_ids)s::bigint[])
WHERE b.id = %(batch_id)s AND e.state <> 'dropped' AND e.source_id IS NULL
ORDER BY e.group_id, e.id

-- name: recorded_draw
-- A batch with its run, and the checkpoint on which its step was based, directly or with further steps in between.
SELECT b.id AS batch, r.name AS run, r.id AS run_id, b.step, b.state, b.policy_version, b.versions_ahead,
       b.max_staleness, p.checkpoint, p.step AS checkpoint_step,
       b.epoch, b.setting_id AS setting, b.sampler, b.seed, b.size, b.parameters, b.snapshot,
       i.rows, i.has_pairs
FROM trinity.batch b
JOIN trinity.run r ON r.id = b.run_id
JOIN trinity.policy_version p ON p.run_id = b.run_id AND p.version = b.policy_version
CROSS JOIN LATERAL (SELECT count(*) AS rows, count(item.preference_id) > 0 AS has_pairs
                    FROM trinity.batch_item item WHERE item.batch_id = b.id) i
WHERE b.id = %(batch_id)s

-- name: recorded_items
-- The recorded rows of a batch with their numbers, in the order of the draw.
SELECT i.experience_id, i.preference_id, i.reward, i.staleness, i.probability
FROM trinity.batch_item i
WHERE i.batch_id = %(batch_id)s
ORDER BY i.ordinal
