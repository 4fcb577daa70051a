-- name: draw_groups
-- The members of the oldest ready groups within the staleness limit, in order, with their rewards and this
-- statement's snapshot. Locks nothing. Rerun on its snapshot (replay_groups), it returns the same; the lease that
-- follows takes all of the rows or none.
WITH picked AS MATERIALIZED (
    SELECT g.id
    FROM trinity.drawable(%(run_id)s, %(version)s, %(max_staleness)s::integer - %(versions_ahead)s) g
    WHERE g.id >= (SELECT f.floor FROM trinity.floor_of(%(run_id)s) f)
    ORDER BY g.id
    LIMIT %(size)s
)
SELECT e.id, e.group_id, e.reward,
       trinity.staleness(%(run_id)s, %(version)s, e.version_min, e.version_max) + %(versions_ahead)s AS staleness,
       NULL::float8 AS probability, pg_current_snapshot()::text AS snapshot
FROM picked
JOIN trinity.experience e ON e.group_id = picked.id
WHERE (e.state = 'ready') IS TRUE AND e.source_id IS NULL
ORDER BY e.group_id, e.id

-- name: draw_newest
-- Like draw_groups, with the newest ready groups within the staleness limit.
WITH picked AS MATERIALIZED (
    SELECT g.id
    FROM trinity.drawable(%(run_id)s, %(version)s, %(max_staleness)s::integer - %(versions_ahead)s) g
    WHERE g.id >= (SELECT f.floor FROM trinity.floor_of(%(run_id)s) f)
    ORDER BY g.id DESC
    LIMIT %(size)s
)
SELECT e.id, e.group_id, e.reward,
       trinity.staleness(%(run_id)s, %(version)s, e.version_min, e.version_max) + %(versions_ahead)s AS staleness,
       NULL::float8 AS probability, pg_current_snapshot()::text AS snapshot
FROM picked
JOIN trinity.experience e ON e.group_id = picked.id
WHERE (e.state = 'ready') IS TRUE AND e.source_id IS NULL
ORDER BY e.group_id, e.id

-- name: draw_by_chance
-- The members of :size groups picked at random, one after the other, with probability proportional to weight
-- (priority ^ alpha) among the remaining groups. This equals taking the groups with the smallest keys, where a key is
-- exponential with the weight as its rate. All randomness comes from hashes of seed and step, so the draw can be
-- repeated. docs/how-it-works/draws.md has the derivation, long-statements.md each step.
--
-- In an octave of few groups each group gets its key. Other octaves are probed: a probe picks an octave, one of its
-- cells (an interval of hashes) and one of :places in the cell. A group at that place is hit with probability of its
-- weight over the octave's largest. Probes come at random times, so the hits of each group are a Poisson process with
-- its weight as the rate, and the first hit is its key. The width of cells changes the cost, not the distribution. If
-- the probes end too early, the draw is undecided and returns no members. (A cell with more groups than places would
-- distort the distribution; the probability of that is 1e-13 per probe.)
--
-- Groups before the probed place are read with index-only scans, if VACUUM has run since they changed. Weights are
-- read only for proposed groups, and only if they differ.
WITH RECURSIVE occupied AS (
    SELECT %(lowest)s::integer - 1 AS octave
    UNION ALL
    SELECT (SELECT g.octave FROM trinity.rollout_group g
            WHERE g.run_id = %(run_id)s AND g.state = 'ready' AND g.octave > o.octave
            ORDER BY g.octave LIMIT 1)::integer
    FROM occupied o
    WHERE o.octave IS NOT NULL
),
entry AS MATERIALIZED (
    SELECT o.octave, g.id, g.position
    FROM occupied o
    CROSS JOIN LATERAL (
        SELECT g.id, hashint8extended(g.id, 0) AS position
        FROM trinity.drawable(%(run_id)s, %(version)s, %(max_staleness)s::integer - %(versions_ahead)s) g
        WHERE g.octave = o.octave
        ORDER BY hashint8extended(g.id, 0)
        LIMIT %(few)s::bigint + 1
    ) g
    WHERE o.octave >= %(lowest)s::integer
),
octave AS MATERIALIZED (
    SELECT e.octave, power(2, %(alpha)s::float8 * e.octave) AS ceiling, count(*) > %(few)s::bigint AS is_many,
           trinity.cell_bits(count(*), max(e.position), %(crowd)s) AS bits
    FROM entry e
    GROUP BY e.octave
),
probed AS MATERIALIZED (
    SELECT o.octave, o.ceiling, -1::bigint << (64 - o.bits::integer) AS mask,
           coalesce(sum(o.rate) OVER (ORDER BY o.octave ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) AS above,
           sum(o.rate) OVER (ORDER BY o.octave ROWS UNBOUNDED PRECEDING) AS upto, sum(o.rate) OVER () AS total
    FROM (SELECT *, %(places)s::float8 * octave.ceiling * power(2, octave.bits) AS rate
          FROM octave WHERE octave.is_many) o
),
probe AS MATERIALIZED (
    SELECT p.*
    FROM (SELECT max(upto) AS total FROM probed) t
    CROSS JOIN LATERAL trinity.probes(trinity.chance(%(step)s, %(seed)s), %(probes)s, t.total, %(places)s) p
    WHERE t.total IS NOT NULL
),
proposed AS MATERIALIZED (
    SELECT g.id, p.at, p.luck * o.ceiling AS least,
           CASE WHEN %(alpha)s = 0 THEN 1
                ELSE (SELECT power(w.priority, %(alpha)s) FROM trinity.rollout_group w WHERE w.id = g.id) END AS weight
    FROM probe p
    JOIN probed o ON p.mark >= o.above AND p.mark < o.upto
    CROSS JOIN LATERAL (
        SELECT g.id
        FROM trinity.drawable(%(run_id)s, %(version)s, %(max_staleness)s::integer - %(versions_ahead)s) g
        WHERE g.octave = o.octave AND hashint8extended(g.id, 0) BETWEEN (p.cell & o.mask) AND (p.cell | ~o.mask)
        ORDER BY hashint8extended(g.id, 0)
        OFFSET p.place LIMIT 1
    ) g
),
keyed AS (
    SELECT e.id, e.weight,
           trinity.key(e.id, e.weight, trinity.chance(%(step)s, %(seed)s)) AS key
    FROM (SELECT entry.id,
                 (SELECT power(w.priority, %(alpha)s) FROM trinity.rollout_group w WHERE w.id = entry.id) AS weight
          FROM entry
          WHERE entry.octave NOT IN (SELECT octave FROM probed)) e
    UNION ALL
    SELECT h.id, h.weight, min(h.at) FROM proposed h WHERE h.least < h.weight GROUP BY h.id, h.weight
),
-- One more than drawn: its key gives the probability of the others.
picked AS MATERIALIZED (
    SELECT k.id, k.weight, k.key
    FROM keyed k
    WHERE k.key <= coalesce((SELECT max(at) FROM probe), 'Infinity')
    ORDER BY k.key, k.id
    LIMIT %(size)s + 1
),
verdict AS MATERIALIZED (
    SELECT count(*) > %(size)s OR NOT EXISTS (SELECT FROM probed) AS is_decided,
           CASE WHEN count(*) > %(size)s THEN max(p.key) ELSE 'Infinity' END AS key
    FROM picked p
)
SELECT v.is_decided, e.id, e.group_id, e.reward,
       trinity.staleness(%(run_id)s, %(version)s, e.version_min, e.version_max) + %(versions_ahead)s AS staleness,
       1 - exp(-least(p.weight * v.key, 700)) AS probability, pg_current_snapshot()::text AS snapshot
FROM verdict v
LEFT JOIN picked p ON v.is_decided AND p.key < v.key
LEFT JOIN trinity.experience e ON e.group_id = p.id AND (e.state = 'ready') IS TRUE AND e.source_id IS NULL
ORDER BY e.group_id, e.id
