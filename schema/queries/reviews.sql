-- name: askable_rows
-- The rows of a run as in experience_view, without rows that will not be trained on. A condition on these columns
-- selects the rows to queue.
SELECT v.* FROM trinity.experience_view v WHERE v.run = %(run)s AND v.state NOT IN ('dropped', 'expired')

-- name: ask_about_rows
-- Queues rows of a run for verdicts, once per source and name.
INSERT INTO trinity.review (run_id, experience_id, source, name, weight, wanted, lowest, highest)
SELECT e.run_id, e.id, %(source)s, %(name)s, %(weight)s, %(wanted)s, %(lowest)s, %(highest)s
FROM trinity.experience e
WHERE e.run_id = %(run_id)s AND e.id = ANY(%(ids)s::bigint[])
ORDER BY e.id
ON CONFLICT DO NOTHING
RETURNING id

-- name: ask_about_awaited
-- Queues rows that an active run waits for, by whole groups. Skips rows that have a review from this source whose
-- verdicts count in the reward.
INSERT INTO trinity.review (run_id, experience_id, source, name, weight, wanted, lowest, highest)
SELECT r.id, w.experience_id, w.source, %(name)s, %(weight)s, %(wanted)s, %(lowest)s, %(highest)s
FROM trinity.run r
JOIN trinity.awaited_reward_view w ON w.run = r.name
WHERE r.id = %(run_id)s AND w.source = %(source)s
  AND NOT EXISTS (SELECT FROM trinity.review q
                  WHERE q.experience_id = w.experience_id AND q.other_id IS NULL AND q.source = w.source
                    AND q.weight <> 0)
ORDER BY w.group_id, w.experience_id
LIMIT %(limit)s
ON CONFLICT DO NOTHING
RETURNING id

-- name: ask_about_pairs
-- Queues one pair of rows per group, if no pair of the group is queued yet: the rows with the highest and the lowest
-- reward or, without rewards, the first and the last. Equal responses make no pair, nor do rows of one token, which
-- no model predicts.
WITH ranked AS (
    SELECT e.group_id, e.id, x.response,
           row_number() OVER (PARTITION BY e.group_id ORDER BY e.reward DESC NULLS LAST, e.id) AS place,
           count(*) OVER (PARTITION BY e.group_id) AS size
    FROM trinity.experience e
    JOIN trinity.experience_text x ON x.experience_id = coalesce(e.source_id, e.id)
    WHERE e.run_id = %(run_id)s AND e.group_id IS NOT NULL AND e.step = 0 AND NOT e.held_out
      AND e.state IN ('scored', 'ready', 'leased', 'trained')
      AND (e.prompt_length + e.response_length > 1) IS NOT FALSE
)
INSERT INTO trinity.review (run_id, experience_id, other_id, source, name, weight, wanted, lowest, highest)
SELECT %(run_id)s, least(best.id, worst.id), greatest(best.id, worst.id), %(source)s, %(name)s, %(weight)s, %(wanted)s,
       -1, 1
FROM ranked best
JOIN ranked worst ON worst.group_id = best.group_id AND worst.place = worst.size
WHERE best.place = 1 AND best.size > 1 AND best.response <> worst.response
  AND NOT EXISTS (SELECT FROM trinity.review q JOIN trinity.experience m ON m.id = q.experience_id
                  WHERE q.run_id = %(run_id)s AND q.other_id IS NOT NULL AND m.group_id = best.group_id)
ORDER BY best.group_id
LIMIT %(limit)s
ON CONFLICT DO NOTHING
RETURNING id

-- name: count_queue
-- Number of open reviews in a queue (without rows that will not be trained on), of reviews waiting for this person,
-- and number of the person's verdicts.
SELECT count(*) AS open,
       count(*) FILTER (
           WHERE NOT EXISTS (SELECT FROM trinity.label l
                             WHERE l.review_id = q.id AND l.author = %(author)s AND l.state <> 'draft')
             AND q.wanted > (SELECT count(*) FROM trinity.label l
                             WHERE l.review_id = q.id AND l.author <> %(author)s
                               AND (l.state IN ('submitted', 'discarded') OR l.leased_until >= clock_timestamp()))
       ) AS waiting,
       (SELECT count(*) FROM trinity.label l JOIN trinity.review v ON v.id = l.review_id
        WHERE v.run_id = %(run_id)s AND (v.other_id IS NOT NULL) = %(pairs)s AND l.author = %(author)s
          AND l.state IN ('submitted', 'discarded')) AS verdicts
FROM trinity.review q
JOIN trinity.experience e ON e.id = q.experience_id AND e.state NOT IN ('dropped', 'expired')
LEFT JOIN trinity.experience o ON o.id = q.other_id
WHERE q.run_id = %(run_id)s AND (q.other_id IS NOT NULL) = %(pairs)s AND q.closed_at IS NULL
  AND (o.state IN ('dropped', 'expired')) IS NOT TRUE

-- name: list_reviews
-- The open reviews of a run with the content shown to people, for judging in another program.
SELECT q.id AS review_id, q.experience_id, q.other_id, q.source, q.name, q.lowest, q.highest, q.wanted,
       x.prompt, x.messages, x.response, y.response AS other_response
FROM trinity.review q
JOIN trinity.experience e ON e.id = q.experience_id AND e.state NOT IN ('dropped', 'expired')
LEFT JOIN trinity.experience_text x ON x.experience_id = coalesce(e.source_id, e.id)
LEFT JOIN trinity.experience o ON o.id = q.other_id
LEFT JOIN trinity.experience_text y ON y.experience_id = coalesce(o.source_id, o.id)
WHERE q.run_id = %(run_id)s AND q.closed_at IS NULL AND (q.other_id IS NOT NULL) = %(pairs)s
  AND (o.state IN ('dropped', 'expired')) IS NOT TRUE
ORDER BY q.id
