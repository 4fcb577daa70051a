-- name: replay_groups
-- What draw_groups says in the snapshot of a batch, from history alone: groups that were ready then, in no earlier
-- batch but those that were reopened by then, not expired before, and within the limit that the batch was held to.
-- Members that are dropped never were in a ready group. A live group is used once.
WITH drawn AS MATERIALIZED (
    SELECT b.*, b.snapshot::pg_snapshot AS seen FROM trinity.batch b WHERE b.id = %(batch_id)s
),
in_use AS MATERIALIZED (
    SELECT DISTINCT e.group_id
    FROM drawn b
    JOIN trinity.batch x ON x.run_id = b.run_id AND x.id < b.id AND (x.reopened_at <= b.created_at) IS NOT TRUE
    JOIN trinity.batch_item i ON i.batch_id = x.id
    JOIN trinity.experience e ON e.id = i.experience_id
),
expired AS MATERIALIZED (
    SELECT DISTINCT e.group_id
    FROM drawn b
    JOIN trinity."drop" d ON d.run_id = b.run_id AND d.stage = 'draw' AND d.created_at < b.created_at
    JOIN trinity.experience e ON e.id = d.experience_id
),
picked AS MATERIALIZED (
    SELECT g.id
    FROM drawn b
    JOIN trinity.rollout_group g ON g.run_id = b.run_id
    WHERE pg_visible_in_snapshot(g.ready_xact::text::xid8, b.seen)
      AND (b.policy_version - g.version_min > b.max_staleness) IS NOT TRUE
      AND NOT EXISTS (SELECT FROM in_use WHERE in_use.group_id = g.id)
      AND NOT EXISTS (SELECT FROM expired WHERE expired.group_id = g.id)
    ORDER BY g.id
    LIMIT (SELECT size FROM drawn)
)
SELECT e.id AS experience_id, NULL::bigint AS preference_id, trinity.reward_in(e.id, b.seen) AS reward,
       b.policy_version - e.version_min AS staleness
FROM drawn b
CROSS JOIN picked
JOIN trinity.experience e ON e.group_id = picked.id
WHERE e.state <> 'dropped' AND e.source_id IS NULL
ORDER BY e.group_id, e.id

-- name: replay_rows
-- What draw_rows says in the snapshot of a batch, from history alone: rows that had tokens then, were in no batch
-- that was being trained on, in the order of their uses then. Those that were used up have more uses than the rest.
WITH drawn AS MATERIALIZED (
    SELECT b.*, b.snapshot::pg_snapshot AS seen FROM trinity.batch b WHERE b.id = %(batch_id)s
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
      AND (r.reward IS NULL OR r.reward > 0)
      AND NOT EXISTS (SELECT FROM trinity.preference p
                      WHERE p.rejected_id = e.id AND pg_visible_in_snapshot(p.ready_xact::text::xid8, b.seen))
      AND NOT EXISTS (SELECT FROM trinity."drop" d WHERE d.experience_id = e.id AND d.created_at < b.created_at)
)
SELECT e.id AS experience_id, NULL::bigint AS preference_id, e.reward, NULL::integer AS staleness
FROM drawn b
CROSS JOIN eligible e
WHERE e.use_count = (SELECT min(use_count) FROM eligible)
ORDER BY hashint8extended(e.origin_id, b.seed + e.use_count), e.id
LIMIT (SELECT size FROM drawn)

-- name: replay_pairs
-- What draw_pairs says in the snapshot of a batch, from history alone, as replay_rows does for rows. The chosen row
-- of each pair, then the rejected one.
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
    WHERE NOT p.held_out AND pg_visible_in_snapshot(p.ready_xact::text::xid8, b.seen)
      AND u.is_leased IS NOT TRUE
      AND chosen.prompt_length IS NOT NULL AND rejected.prompt_length IS NOT NULL
      -- A run's own rows had tokens from the first; adopted ones have them since their transaction.
      AND pg_visible_in_snapshot(coalesce(chosen.ready_xact, p.ready_xact)::text::xid8, b.seen)
      AND pg_visible_in_snapshot(coalesce(rejected.ready_xact, p.ready_xact)::text::xid8, b.seen)
      AND (p.source <> 'pair' OR r.chosen_reward > r.rejected_reward)
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

-- name: recorded_draw
-- A batch with its run, and the checkpoint from which its step began, or went on by the steps between.
SELECT b.id AS batch, r.name AS run, b.step, b.state, b.policy_version, p.checkpoint, p.step AS checkpoint_step,
       b.epoch, b.sampler, b.seed, b.snapshot, i.rows, i.has_pairs
FROM trinity.batch b
JOIN trinity.run r ON r.id = b.run_id
JOIN trinity.policy_version p ON p.run_id = b.run_id AND p.version = b.policy_version
CROSS JOIN LATERAL (SELECT count(*) AS rows, count(item.preference_id) > 0 AS has_pairs
                    FROM trinity.batch_item item WHERE item.batch_id = b.id) i
WHERE b.id = %(batch_id)s

-- name: recorded_items
SELECT i.experience_id, i.preference_id, i.reward, i.staleness
FROM trinity.batch_item i
WHERE i.batch_id = %(batch_id)s
ORDER BY i.ordinal

-- name: list_batches
-- The newest batches of a run, newest first; of each the loss that was recorded when it was committed.
SELECT b.id, b.step, b.state, b.policy_version, b.included_version, i.rows, i.reward_mean, i.staleness_mean,
       i.staleness_max, m.value AS loss, b.created_at, b.committed_at
FROM (SELECT * FROM trinity.batch x WHERE x.run_id = %(run_id)s ORDER BY x.id DESC LIMIT %(limit)s) b
CROSS JOIN LATERAL (
    SELECT count(*) AS rows, avg(item.reward) AS reward_mean, avg(item.staleness)::double precision AS staleness_mean,
           max(item.staleness) AS staleness_max
    FROM trinity.batch_item item
    WHERE item.batch_id = b.id
) i
LEFT JOIN trinity.metric m ON m.run_id = %(run_id)s AND m.name = 'loss' AND m.step = b.step
                          AND m.created_at = b.committed_at
ORDER BY b.id DESC
