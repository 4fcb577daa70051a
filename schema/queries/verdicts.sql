-- name: lock_next_review
-- Locks the oldest open review after the id :after that a person may claim: the person has no verdict on it and no
-- claim to it, and fewer people than wanted do. Skips reviews locked by another claim, and rows that will not be
-- trained on.
SELECT q.id
FROM trinity.review q
JOIN trinity.experience e ON e.id = q.experience_id AND e.state NOT IN ('dropped', 'expired')
LEFT JOIN trinity.experience o ON o.id = q.other_id
WHERE q.run_id = %(run_id)s AND q.closed_at IS NULL AND (q.other_id IS NOT NULL) = %(pairs)s AND q.id > %(after)s
  AND (o.state IN ('dropped', 'expired')) IS NOT TRUE
  AND NOT EXISTS (SELECT FROM trinity.label l
                  WHERE l.review_id = q.id AND l.author = %(author)s
                    AND (l.state <> 'draft' OR l.leased_until >= clock_timestamp()))
  AND q.wanted > (SELECT count(*) FROM trinity.label l
                  WHERE l.review_id = q.id AND l.author <> %(author)s
                    AND (l.state IN ('submitted', 'discarded') OR l.leased_until >= clock_timestamp()))
ORDER BY q.id
LIMIT 1
FOR NO KEY UPDATE OF q SKIP LOCKED

-- name: claim_review
-- Gives a person a claim to a locked review. Runs after the statement that locks, so it sees each claim committed
-- before the lock. No row if other people already have the wanted number of verdicts and claims, or the person has a
-- claim elsewhere.
INSERT INTO trinity.label AS l (review_id, author, swapped, leased_until)
SELECT q.id, %(author)s, CASE WHEN q.other_id IS NOT NULL THEN %(swapped)s::boolean END,
       clock_timestamp() + make_interval(secs => %(lease_seconds)s)
FROM trinity.review q
WHERE q.id = %(review_id)s AND q.closed_at IS NULL
  AND q.wanted > (SELECT count(*) FROM trinity.label o
                  WHERE o.review_id = q.id AND o.author <> %(author)s
                    AND (o.state IN ('submitted', 'discarded') OR o.leased_until >= clock_timestamp()))
ON CONFLICT (review_id, author) DO UPDATE
SET attempt = l.attempt + 1, leased_until = excluded.leased_until, swapped = excluded.swapped
WHERE l.state = 'draft' AND l.leased_until < clock_timestamp()
RETURNING l.id, l.attempt

-- name: read_claim
-- A claim as shown to its person.
SELECT l.id AS label_id, l.attempt, l.swapped, q.id AS review_id, q.source, q.name, q.lowest, q.highest,
       q.other_id IS NOT NULL AS is_pair,
       CASE WHEN q.other_id IS NULL THEN ARRAY[q.experience_id]
            WHEN l.swapped THEN ARRAY[q.other_id, q.experience_id]
            ELSE ARRAY[q.experience_id, q.other_id] END AS experience_ids,
       x.prompt, x.messages, x.response, y.response AS other_response
FROM trinity.label l
JOIN trinity.review q ON q.id = l.review_id
JOIN trinity.experience e ON e.id = q.experience_id
LEFT JOIN trinity.experience_text x ON x.experience_id = coalesce(e.source_id, e.id)
LEFT JOIN trinity.experience o ON o.id = q.other_id
LEFT JOIN trinity.experience_text y ON y.experience_id = coalesce(o.source_id, o.id)
WHERE l.id = %(label_id)s

-- name: read_reward_parts
-- The parts of the rewards of rows, for a person who asks to see them.
SELECT v.experience_id, v.name, v.value, v.weight, v.source
FROM trinity.reward_part_view v
WHERE v.experience_id = ANY(%(ids)s::bigint[])
ORDER BY v.experience_id, v.name

-- name: renew_claims
-- Extends claims that have not expired.
UPDATE trinity.label l SET leased_until = clock_timestamp() + make_interval(secs => %(lease_seconds)s)
FROM unnest(%(ids)s::bigint[], %(attempts)s::integer[]) AS n (id, attempt)
WHERE l.id = n.id AND l.attempt = n.attempt AND l.state = 'draft' AND l.leased_until >= clock_timestamp()
RETURNING l.id

-- name: release_claim
-- Expires a claim, so that the review is free for all.
UPDATE trinity.label l SET leased_until = clock_timestamp()
WHERE l.id = %(label_id)s AND l.attempt = %(attempt)s AND l.state = 'draft'

-- name: lock_review
-- Locks the review of a label, before all rows: only one transaction at a time changes its verdicts.
SELECT q.id FROM trinity.review q
WHERE q.id = (SELECT l.review_id FROM trinity.label l WHERE l.id = %(label_id)s)
FOR NO KEY UPDATE

-- name: lock_given_review
-- Locks the review of a verdict from another program; no row if the review is not the run's.
SELECT q.id, q.other_id IS NOT NULL AS is_pair, q.lowest, q.highest FROM trinity.review q
WHERE q.id = %(review_id)s AND q.run_id = %(run_id)s
FOR NO KEY UPDATE

-- name: decide_label
-- Writes a verdict on a claim, under the lock of its review. An expired claim still accepts it unless another person
-- has the place. No row if the claim was replaced, or the place is taken.
UPDATE trinity.label l
SET state = %(answer)s::trinity.label_state, value = %(value)s, seconds = %(seconds)s, blind = %(blind)s,
    leased_until = NULL, decided_at = clock_timestamp()
FROM trinity.review q
WHERE l.id = %(label_id)s AND l.attempt = %(attempt)s AND l.state = 'draft' AND q.id = l.review_id
  AND (l.leased_until >= clock_timestamp() OR %(answer)s = 'skipped'
       OR q.wanted > (SELECT count(*) FROM trinity.label o
                      WHERE o.review_id = q.id AND o.id <> l.id
                        AND (o.state IN ('submitted', 'discarded') OR o.leased_until >= clock_timestamp())))
RETURNING l.id

-- name: find_label
-- The current state of a label, which identifies a verdict that was sent twice.
SELECT l.attempt, l.state, l.value FROM trinity.label l WHERE l.id = %(label_id)s

-- name: last_decided
-- The person's last verdict in a queue.
SELECT l.id
FROM trinity.label l JOIN trinity.review q ON q.id = l.review_id
WHERE q.run_id = %(run_id)s AND (q.other_id IS NOT NULL) = %(pairs)s AND l.author = %(author)s AND l.state <> 'draft'
ORDER BY l.decided_at DESC, l.id DESC
LIMIT 1

-- name: take_back
-- Turns a verdict back into a claim, under the lock of its review.
UPDATE trinity.label l
SET state = 'draft', value = NULL, seconds = NULL, blind = NULL, decided_at = NULL, attempt = l.attempt + 1,
    leased_until = clock_timestamp() + make_interval(secs => %(lease_seconds)s)
WHERE l.id = %(label_id)s AND l.state <> 'draft'
RETURNING l.id

-- name: read_given
-- The person's existing verdict on a locked review.
SELECT l.state, l.value FROM trinity.label l WHERE l.review_id = %(review_id)s AND l.author = %(author)s

-- name: give_verdict
-- Writes a verdict from another program, replacing the person's earlier one.
INSERT INTO trinity.label AS l (review_id, author, state, value, swapped, seconds, decided_at)
VALUES (%(review_id)s, %(author)s, %(answer)s::trinity.label_state, %(value)s, %(swapped)s, %(seconds)s, now())
ON CONFLICT (review_id, author) DO UPDATE
SET state = excluded.state, value = excluded.value, swapped = excluded.swapped, seconds = excluded.seconds,
    blind = NULL, leased_until = NULL, decided_at = excluded.decided_at, attempt = l.attempt + 1

-- name: tally_review
-- Counts the verdicts on a locked review, and closes or reopens it by their number.
UPDATE trinity.review q
SET closed_at = CASE WHEN t.answers >= q.wanted THEN coalesce(q.closed_at, now()) END
FROM (SELECT count(*) FILTER (WHERE l.state IN ('submitted', 'discarded')) AS answers,
             count(l.value) AS verdicts, avg(l.value)::float8 AS mean, sign(sum(l.value))::smallint AS side
      FROM trinity.label l
      WHERE l.review_id = %(review_id)s) t
WHERE q.id = %(review_id)s
RETURNING q.id, q.run_id, q.experience_id, q.other_id, q.source, q.name, q.weight, t.verdicts, t.mean, t.side

-- name: find_correction
-- The latest reward event of a review's row under the review's name, if it was made outside the review. Run it under
-- the lock of the row's reward. The row is a value for the view: joined by a column, it would be computed for all
-- rows of the store.
SELECT p.event_id
FROM trinity.reward_part_view p
JOIN trinity.review q ON q.id = %(review_id)s AND q.name = p.name
JOIN trinity.reward_event v ON v.id = p.event_id
WHERE p.experience_id = (SELECT q.experience_id FROM trinity.review q WHERE q.id = %(review_id)s)
  AND (v.detail -> 'review' = to_jsonb(q.id)) IS NOT TRUE

-- name: record_decision
-- Records people's decision on a pair from now on. No row if it is unchanged.
INSERT INTO trinity.decision (review_id, side)
SELECT %(review_id)s, %(side)s::smallint
WHERE (SELECT d.side FROM trinity.decision d WHERE d.review_id = %(review_id)s ORDER BY d.id DESC LIMIT 1)
      IS DISTINCT FROM %(side)s::smallint
RETURNING id

-- name: prefer
-- Writes the preference for the side that people found better, unless it exists.
INSERT INTO trinity.preference (run_id, chosen_id, rejected_id, source, held_out, origin_id, seed, upheld, gives_labels)
SELECT r.id, chosen.id, rejected.id, %(source)s, kept.is_so, coalesce(chosen.source_id, chosen.id),
       CASE WHEN NOT kept.is_so THEN r.seed END, true, r.draws = 'labels'
FROM trinity.run r, trinity.experience chosen, trinity.experience rejected,
     LATERAL (SELECT chosen.held_out OR rejected.held_out AS is_so) kept
WHERE r.id = %(run_id)s AND %(side)s <> 0
  AND chosen.id = CASE WHEN %(side)s > 0 THEN %(first_id)s::bigint ELSE %(other_id)s::bigint END
  AND rejected.id = CASE WHEN %(side)s > 0 THEN %(other_id)s::bigint ELSE %(first_id)s::bigint END
  AND chosen.state NOT IN ('dropped', 'expired') AND rejected.state NOT IN ('dropped', 'expired')
ON CONFLICT (run_id, chosen_id, rejected_id) DO NOTHING

-- name: uphold_preferences
-- Adds the preferences of a pair to passes, or removes them, by people's decision. If no verdict counts any longer, a
-- pair derived from rewards follows these again, an imported pair is drawn, and a pair that people made is not.
WITH held AS MATERIALIZED (
    SELECT p.id, p.chosen_id = %(first_id)s AS is_first
    FROM trinity.preference p
    WHERE p.run_id = %(run_id)s
      AND (p.chosen_id = %(first_id)s AND p.rejected_id = %(other_id)s
           OR p.chosen_id = %(other_id)s AND p.rejected_id = %(first_id)s)
    ORDER BY p.id
    FOR NO KEY UPDATE
)
UPDATE trinity.preference p
SET upheld = %(side)s::smallint = CASE WHEN held.is_first THEN 1 ELSE -1 END,
    seed = CASE WHEN p.held_out THEN NULL
                WHEN %(side)s::smallint IS NOT NULL
                THEN CASE WHEN %(side)s::smallint = CASE WHEN held.is_first THEN 1 ELSE -1 END THEN r.seed END
                WHEN p.source = 'pair' THEN CASE WHEN chosen.reward > rejected.reward THEN r.seed END
                WHEN p.source <> %(source)s THEN r.seed END
FROM held, trinity.run r, trinity.experience chosen, trinity.experience rejected
WHERE p.id = held.id AND r.id = p.run_id AND chosen.id = p.chosen_id AND rejected.id = p.rejected_id
