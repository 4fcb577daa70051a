-- name: people_queues
-- The newest runs and data sets, each with the number of rows and pairs waiting for verdicts (without rows that will
-- not be trained on), and of rows that an active run waits for and that are not queued yet. Each count stops at
-- :limit.
SELECT r.name AS run, r.kind, q.rows, p.pairs, coalesce(a.unasked, 0) AS unasked
FROM (SELECT r.id, r.name, r.kind, r.state, r.config FROM trinity.run r ORDER BY r.id DESC LIMIT 500) r
CROSS JOIN LATERAL (
    SELECT count(*) AS rows
    FROM (SELECT FROM trinity.review q
          JOIN trinity.experience e ON e.id = q.experience_id AND e.state NOT IN ('dropped', 'expired')
          WHERE q.run_id = r.id AND q.closed_at IS NULL AND q.other_id IS NULL
          LIMIT %(limit)s) q
) q
CROSS JOIN LATERAL (
    SELECT count(*) AS pairs
    FROM (SELECT FROM trinity.review q
          JOIN trinity.experience e ON e.id = q.experience_id AND e.state NOT IN ('dropped', 'expired')
          JOIN trinity.experience o ON o.id = q.other_id AND o.state NOT IN ('dropped', 'expired')
          WHERE q.run_id = r.id AND q.closed_at IS NULL
          LIMIT %(limit)s) q
) p
LEFT JOIN LATERAL (
    SELECT count(*) AS unasked
    FROM (SELECT FROM trinity.awaited_reward_view w
          WHERE w.run = r.name
            AND NOT EXISTS (SELECT FROM trinity.review q
                            WHERE q.experience_id = w.experience_id AND q.other_id IS NULL AND q.source = w.source
                              AND q.weight <> 0)
          LIMIT %(limit)s) w
) a ON r.state = 'active' AND r.config ->> 'requires_reward' IS NOT NULL
ORDER BY r.id DESC

-- name: people_progress
-- Number of rows (or pairs) of a run without a verdict, of those waiting for a person, and of the person's verdicts;
-- each count stops at :limit. count_queue counts them completely.
WITH open AS NOT MATERIALIZED (
    SELECT q.id, q.wanted
    FROM trinity.review q
    JOIN trinity.experience e ON e.id = q.experience_id AND e.state NOT IN ('dropped', 'expired')
    LEFT JOIN trinity.experience o ON o.id = q.other_id
    WHERE q.run_id = %(run_id)s AND q.closed_at IS NULL AND (q.other_id IS NOT NULL) = %(pairs)s
      AND (o.state IN ('dropped', 'expired')) IS NOT TRUE
)
SELECT (SELECT count(*) FROM (SELECT FROM open LIMIT %(limit)s) o) AS open,
       (SELECT count(*)
        FROM (SELECT FROM open q
              WHERE NOT EXISTS (SELECT FROM trinity.label l
                                WHERE l.review_id = q.id AND l.author = %(author)s AND l.state <> 'draft')
                AND q.wanted > (SELECT count(*) FROM trinity.label l
                                WHERE l.review_id = q.id AND l.author <> %(author)s
                                  AND (l.state IN ('submitted', 'discarded') OR l.leased_until >= clock_timestamp()))
              LIMIT %(limit)s) w) AS waiting,
       (SELECT count(*)
        FROM (SELECT FROM trinity.label l JOIN trinity.review v ON v.id = l.review_id
              WHERE v.run_id = %(run_id)s AND (v.other_id IS NOT NULL) = %(pairs)s AND l.author = %(author)s
                AND l.state IN ('submitted', 'discarded')
              LIMIT %(limit)s) g) AS verdicts

-- name: people_unasked
-- Number of rows that an active run waits for and that are not queued for people yet, up to :limit.
SELECT count(*) AS unasked
FROM (SELECT FROM trinity.awaited_reward_view w
      WHERE w.run = %(run)s
        AND NOT EXISTS (SELECT FROM trinity.review q
                        WHERE q.experience_id = w.experience_id AND q.other_id IS NULL AND q.source = w.source
                          AND q.weight <> 0)
      LIMIT %(limit)s) w

-- name: people_drawn
-- Effect of a person's newest :limit verdicts on rows (or pairs) of a run that count in rewards: how many of these
-- rows or pairs are in a batch drawn after the verdict and not reopened, and the last of these batches. Rows adopted
-- by other runs count there, too. A pair is in a batch as a pair, or by its first row if its run learns from labels.
WITH mine AS MATERIALIZED (
    SELECT q.experience_id, q.other_id, l.decided_at
    FROM trinity.label l
    JOIN trinity.review q ON q.id = l.review_id
    WHERE l.author = %(author)s AND l.state = 'submitted' AND q.run_id = %(run_id)s AND q.weight <> 0
      AND (q.other_id IS NOT NULL) = %(pairs)s
    ORDER BY l.decided_at DESC
    LIMIT %(limit)s
),
drawn AS (
    SELECT b.id
    FROM mine m
    LEFT JOIN LATERAL (
        SELECT b.id
        FROM trinity.batch_item i
        JOIN trinity.batch b ON b.id = i.batch_id
        LEFT JOIN trinity.preference p ON p.id = i.preference_id
        WHERE i.experience_id IN (SELECT m.experience_id
                                  UNION ALL
                                  SELECT c.id FROM trinity.experience c WHERE c.source_id = m.experience_id)
          AND b.created_at > m.decided_at AND b.state <> 'reopened'
          AND (m.other_id IS NULL OR m.other_id IN (p.chosen_id, p.rejected_id)
               OR p.id IS NULL AND (SELECT r.draws FROM trinity.run r WHERE r.id = b.run_id) = 'labels')
        ORDER BY b.id DESC
        LIMIT 1
    ) b ON true
)
SELECT d.verdicts, d.drawn, b.step, r.name AS run
FROM (SELECT count(*) AS verdicts, count(id) AS drawn, max(id) AS last FROM drawn) d
LEFT JOIN trinity.batch b ON b.id = d.last
LEFT JOIN trinity.run r ON r.id = b.run_id

-- name: people_verdicts
-- Each person's verdicts on rows and on pairs of a run: their number, mean, median of the seconds, and how many were
-- given without seeing the rewards. Only the newest :verdicts count.
SELECT l.author, l.is_pair, l.name,
       count(*) FILTER (WHERE l.state = 'submitted') AS verdicts,
       count(*) FILTER (WHERE l.state = 'discarded') AS discarded,
       count(*) FILTER (WHERE l.state = 'skipped') AS skipped,
       avg(l.value) FILTER (WHERE NOT l.is_pair)::float8 AS mean,
       percentile_cont(0.5) WITHIN GROUP (ORDER BY l.seconds) AS seconds,
       count(*) FILTER (WHERE l.state = 'submitted' AND l.blind) AS blind,
       max(l.decided_at) AS last
FROM (SELECT l.author, l.state, l.value, l.seconds, l.blind, l.decided_at, q.other_id IS NOT NULL AS is_pair, q.name
      FROM trinity.label l
      JOIN trinity.review q ON q.id = l.review_id
      WHERE q.run_id = %(run_id)s AND l.state <> 'draft'
      ORDER BY l.id DESC
      LIMIT %(verdicts)s) l
GROUP BY l.author, l.is_pair, l.name
ORDER BY verdicts DESC, l.author, l.is_pair, l.name
LIMIT %(limit)s

-- name: people_agreement
-- Agreement between the people of a run.
SELECT v.name, v.is_pair, v.lowest, v.highest, v.reviews, v.verdicts, v.people, v.alpha_nominal, v.alpha_interval
FROM trinity.verdict_agreement_view v
WHERE v.run = %(run)s
ORDER BY v.name, v.is_pair
LIMIT %(limit)s

-- name: people_disputes
-- Rows and pairs of a run with different verdicts, widest spread first. Items that this person may still judge are
-- left out, so that no verdict is influenced by another person's.
SELECT d.experience_id, d.other_id, d.name, d.least, d.greatest, d.mean, d.said
FROM trinity.dispute_view d
JOIN trinity.review q ON q.id = d.review_id
WHERE d.run = %(run)s
  AND (%(author)s::text IS NULL OR q.closed_at IS NOT NULL
       OR EXISTS (SELECT FROM trinity.label l
                  WHERE l.review_id = q.id AND l.author = %(author)s AND l.state <> 'draft'))
ORDER BY d.greatest - d.least DESC, d.review_id DESC
LIMIT %(limit)s
