-- name: draw_groups
-- The members of the oldest ready groups within the staleness limit, in order, with their rewards and the snapshot
-- in which this one statement saw all that. It locks nothing: what it says holds for its snapshot, also when it is
-- run again (replay_groups), and the lease that follows takes all of it or nothing.
WITH picked AS MATERIALIZED (
    SELECT g.id
    FROM trinity.drawable(%(run_id)s, %(version)s, %(max_staleness)s) g
    WHERE g.id >= (SELECT f.floor FROM trinity.floor_of(%(run_id)s) f)
    ORDER BY g.id
    LIMIT %(size)s
)
SELECT e.id, e.group_id, e.reward, trinity.staleness(%(version)s::integer, e.version_min, e.version_max) AS staleness,
       NULL::float8 AS probability, pg_current_snapshot()::text AS snapshot
FROM picked
JOIN trinity.experience e ON e.group_id = picked.id
WHERE (e.state = 'ready') IS TRUE AND e.source_id IS NULL
ORDER BY e.group_id, e.id

-- name: draw_newest
-- The members of the newest ready groups within the staleness limit: as draw_groups, from the other end.
WITH picked AS MATERIALIZED (
    SELECT g.id
    FROM trinity.drawable(%(run_id)s, %(version)s, %(max_staleness)s) g
    WHERE g.id >= (SELECT f.floor FROM trinity.floor_of(%(run_id)s) f)
    ORDER BY g.id DESC
    LIMIT %(size)s
)
SELECT e.id, e.group_id, e.reward, trinity.staleness(%(version)s::integer, e.version_min, e.version_max) AS staleness,
       NULL::float8 AS probability, pg_current_snapshot()::text AS snapshot
FROM picked
JOIN trinity.experience e ON e.group_id = picked.id
WHERE (e.state = 'ready') IS TRUE AND e.source_id IS NULL
ORDER BY e.group_id, e.id

-- name: draw_by_chance
-- The members of :size groups that are picked one after the other, each with a chance in proportion to its weight,
-- priority ^ alpha, among those that are left. That is to say the groups with the smallest keys, where a key is
-- exponential with the weight as its rate. All chance is hashes of seed and step: drawn again, the draw is the same.
--
-- An octave of few groups gives each of them its key. The others are probed: a probe picks an octave, one of its cells
-- (intervals of the order of hashes) and one of :places there; the group at that place, if any, is hit with its share
-- of the octave's largest weight. Probes come at random times, so that each group is hit at the times of a Poisson
-- process of its own, with its weight as the rate; the first hit is its key. The width of cells changes what it costs,
-- not the law. Undecided, without members, when the probes end too soon. (That a cell holds more groups than there are
-- places, so that the rest would have none, has a chance of 1e-13 a probe.)
--
-- What is passed over on the way to a place is read from the index alone, where VACUUM has been since; weights are
-- looked up of those groups that are proposed, where they are not all alike.
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
        FROM trinity.drawable(%(run_id)s, %(version)s, %(max_staleness)s) g
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
        FROM trinity.drawable(%(run_id)s, %(version)s, %(max_staleness)s) g
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
-- One more than are drawn: its key says how likely the others were.
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
       trinity.staleness(%(version)s::integer, e.version_min, e.version_max) AS staleness,
       1 - exp(-least(p.weight * v.key, 700)) AS probability, pg_current_snapshot()::text AS snapshot
FROM verdict v
LEFT JOIN picked p ON v.is_decided AND p.key < v.key
LEFT JOIN trinity.experience e ON e.group_id = p.id AND (e.state = 'ready') IS TRUE AND e.source_id IS NULL
ORDER BY e.group_id, e.id
