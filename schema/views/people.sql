-- People: verdicts, labels and how far judges agree.

-- People's decision on two rows as of a snapshot: 1 if the first is better, -1 if the other is, 0 if neither; NULL without a
-- counting verdict. With a snapshot of NULL, the current decision.
CREATE FUNCTION trinity.side_in(first_id bigint, other_id bigint, seen pg_snapshot)
RETURNS integer
LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN q.experience_id = side_in.first_id THEN d.side ELSE -d.side END
    FROM trinity.review q
    JOIN trinity.decision d ON d.review_id = q.id
    WHERE q.experience_id = least(side_in.first_id, side_in.other_id)
      AND q.other_id = greatest(side_in.first_id, side_in.other_id)
      AND pg_visible_in_snapshot(d.xact::text::xid8, side_in.seen) IS NOT FALSE
    ORDER BY d.id DESC
    LIMIT 1
$$;

-- Label of an experience from its pairs as of a snapshot: 1 if it is the chosen row of each pair that gives labels, 0 if it is
-- the rejected row of each; NULL without such pairs, or if they contradict each other. Pairs that people decided differently are
-- ignored. With a snapshot of NULL, the current label, including changes of this transaction.
CREATE FUNCTION trinity.label_in(experience_id bigint, seen pg_snapshot)
RETURNS double precision
LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN bool_and(p.is_chosen) THEN 1 WHEN NOT bool_or(p.is_chosen) THEN 0 END
    FROM (
        SELECT a.*, true AS is_chosen FROM trinity.preference a WHERE a.chosen_id = label_in.experience_id
        UNION ALL
        SELECT b.*, false FROM trinity.preference b WHERE b.rejected_id = label_in.experience_id
    ) p
    LEFT JOIN LATERAL (
        SELECT v.source, trinity.side_in(p.chosen_id, p.rejected_id, label_in.seen) AS side
        FROM trinity.review v
        WHERE v.experience_id = least(p.chosen_id, p.rejected_id)
          AND v.other_id = greatest(p.chosen_id, p.rejected_id)
          -- A pair from another run may have the source of an undecided review.
          AND EXISTS (SELECT FROM trinity.decision d
                      WHERE d.review_id = v.id AND pg_visible_in_snapshot(d.xact::text::xid8, label_in.seen) IS NOT FALSE)
    ) q ON true
    WHERE p.gives_labels AND pg_visible_in_snapshot(p.ready_xact::text::xid8, label_in.seen) IS NOT FALSE
      AND coalesce(q.side > 0, q.source IS DISTINCT FROM p.source)
$$;

-- Sets the rewards of these locked experiences from their pairs, if no event about them counts. It runs with the rights of the
-- tables' owner: a trainer adopts pairs and may not set rewards, and this function sets only rewards that follow from pairs.
CREATE FUNCTION trinity.follow_labels(ids bigint[])
RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    UPDATE trinity.experience e SET reward = said.label
    FROM (SELECT n.id, trinity.label_in(n.id, NULL) AS label FROM unnest(follow_labels.ids) AS n (id)) said
    WHERE e.id = said.id AND e.draws_labels AND e.reward IS DISTINCT FROM said.label
      -- A sum instead of NOT EXISTS, which the planner would turn into a join with the events of all rows of the store.
      AND (SELECT sum(v.share) FROM trinity.reward_part_view v WHERE v.experience_id = e.id) IS NULL
$$;
REVOKE EXECUTE ON FUNCTION trinity.follow_labels(bigint[]) FROM PUBLIC;

-- Agreement of the scores of steps with labels from people or another judge. A label is a reward event from a source that is
-- not a role, such as human; it is compared with the score of the same name after the last slash. The latest event of each
-- name counts. Give labels a weight of 0 to keep them out of the reward. docs/how-it-works/long-statements.md explains each step.
CREATE VIEW trinity.agreement_view AS
WITH label AS MATERIALIZED (
    SELECT DISTINCT ON (v.run_id, v.source, v.name, v.rollout_id, v.experience_id)
           v.run_id, v.source, v.name, v.rollout_id, v.experience_id, v.value,
           v.detail -> 'taken_back' IS NOT NULL AS is_taken_back
    FROM trinity.reward_event v
    WHERE v.source NOT IN ('explore', 'score', 'rescore', 'import')
    ORDER BY v.run_id, v.source, v.name, v.rollout_id, v.experience_id, v.id DESC
),
pair AS (
    SELECT dense_rank() OVER (ORDER BY l.run_id, m.name, m.processor_version, m.judge, l.source, l.name) AS kind,
           l.run_id, m.name, m.processor_version, m.judge, l.source, l.name AS label, m.value AS mark, l.value AS given
    FROM label l
    CROSS JOIN LATERAL (
        SELECT DISTINCT ON (v.name) v.name, v.processor_version, v.detail ->> 'judge' AS judge, v.value,
               v.detail ->> 'withdrawn' IS NOT NULL AS is_withdrawn
        FROM (SELECT a.* FROM trinity.reward_event a WHERE a.rollout_id = l.rollout_id
              UNION ALL
              SELECT a.* FROM trinity.reward_event a WHERE a.experience_id = l.experience_id) v
        WHERE v.source IN ('score', 'rescore') AND substring(v.name FROM '[^/]+$') = substring(l.name FROM '[^/]+$')
        ORDER BY v.name, v.id DESC
    ) m
    WHERE NOT m.is_withdrawn AND NOT l.is_taken_back
),
ranked AS (
    SELECT p.*,
           rank() OVER (PARTITION BY p.kind ORDER BY p.mark)
               + (count(*) OVER (PARTITION BY p.kind, p.mark) - 1) / 2.0 AS mark_rank,
           rank() OVER (PARTITION BY p.kind ORDER BY p.given)
               + (count(*) OVER (PARTITION BY p.kind, p.given) - 1) / 2.0 AS given_rank
    FROM pair p
),
chance AS (
    SELECT n.kind, sum(n.marks * n.labels) / sum(n.marks) ^ 2 AS equal
    FROM (SELECT p.kind, u.value, count(*) FILTER (WHERE u.is_mark) AS marks,
                 count(*) FILTER (WHERE NOT u.is_mark) AS labels
          FROM pair p CROSS JOIN LATERAL (VALUES (p.mark, true), (p.given, false)) AS u (value, is_mark)
          GROUP BY p.kind, u.value) n
    GROUP BY n.kind
),
agreed AS (
    SELECT k.kind, k.run_id, k.name, k.processor_version, k.judge, k.source, k.label, count(*) AS rows,
           avg((k.mark = k.given)::int)::float8 AS equal, corr(k.mark, k.given) AS pearson,
           corr(k.mark_rank, k.given_rank) AS spearman, avg(k.mark - k.given) AS excess
    FROM ranked k
    GROUP BY k.kind, k.run_id, k.name, k.processor_version, k.judge, k.source, k.label
)
SELECT r.name AS run, a.name, a.processor_version, a.judge, a.source, a.label, a.rows, a.equal,
       ((a.equal - c.equal) / nullif(1 - c.equal, 0))::float8 AS kappa, a.pearson, a.spearman, a.excess
FROM agreed a
JOIN chance c ON c.kind = a.kind
JOIN trinity.run r ON r.id = a.run_id;
COMMENT ON COLUMN trinity.agreement_view.run IS 'Name of the run';
COMMENT ON COLUMN trinity.agreement_view.name IS 'Name of the score, such as model_judge/polite';
COMMENT ON COLUMN trinity.agreement_view.processor_version IS 'Version of the list of scoring steps';
COMMENT ON COLUMN trinity.agreement_view.judge IS 'Model that judged; NULL if the step names none';
COMMENT ON COLUMN trinity.agreement_view.source IS 'Source of the labels';
COMMENT ON COLUMN trinity.agreement_view.label IS 'Name of the labels';
COMMENT ON COLUMN trinity.agreement_view.rows IS 'Rows or rollouts with both';
COMMENT ON COLUMN trinity.agreement_view.equal IS 'Share of them whose score equals the label';
COMMENT ON COLUMN trinity.agreement_view.kappa IS
    'The same beyond chance (Cohen): 1 for complete agreement, 0 for agreement by chance; NULL if all have the same score';
COMMENT ON COLUMN trinity.agreement_view.pearson IS 'Correlation of scores and labels; NULL if one of them is constant';
COMMENT ON COLUMN trinity.agreement_view.spearman IS 'Correlation of their ranks, ties at their mean rank';
COMMENT ON COLUMN trinity.agreement_view.excess IS 'Mean of score minus label';

-- Verdicts and claims of people on rows and pairs, one line per person and review.
CREATE VIEW trinity.verdict_view AS
SELECT r.name AS run,
       q.id AS review_id,
       q.experience_id,
       q.other_id,
       q.source,
       q.name,
       l.author,
       l.state,
       l.value,
       l.swapped,
       l.blind,
       l.seconds,
       l.decided_at,
       q.closed_at,
       l.id AS label_id
FROM trinity.label l
JOIN trinity.review q ON q.id = l.review_id
JOIN trinity.run r ON r.id = q.run_id;
COMMENT ON COLUMN trinity.verdict_view.run IS 'Name of the run';
COMMENT ON COLUMN trinity.verdict_view.review_id IS 'Review';
COMMENT ON COLUMN trinity.verdict_view.experience_id IS 'Judged row, or first row of the pair';
COMMENT ON COLUMN trinity.verdict_view.other_id IS 'Second row of the pair; NULL for a single row';
COMMENT ON COLUMN trinity.verdict_view.source IS 'Source of the resulting reward events or preference';
COMMENT ON COLUMN trinity.verdict_view.name IS 'Name of the resulting reward events';
COMMENT ON COLUMN trinity.verdict_view.author IS 'Person';
COMMENT ON COLUMN trinity.verdict_view.state IS 'draft: claimed; submitted, discarded or skipped';
COMMENT ON COLUMN trinity.verdict_view.value IS
    'Verdict; for a pair 1: the first row is better, -1: the second, 0: neither. NULL unless submitted';
COMMENT ON COLUMN trinity.verdict_view.swapped IS
    'Whether the person saw the second row of the pair as A; NULL for a single row';
COMMENT ON COLUMN trinity.verdict_view.blind IS 'Whether the rewards were hidden from the person before the verdict; NULL if unknown';
COMMENT ON COLUMN trinity.verdict_view.seconds IS 'Time that the person took, in seconds; NULL if unknown';
COMMENT ON COLUMN trinity.verdict_view.decided_at IS 'Time of the verdict; NULL while it is a draft';
COMMENT ON COLUMN trinity.verdict_view.closed_at IS 'Time of the last wanted verdict; NULL while verdicts are missing';
COMMENT ON COLUMN trinity.verdict_view.label_id IS 'Id of the label';

-- Agreement between people: Krippendorff's alpha of their verdicts, for values compared by equality (nominal) and for grades
-- compared by distance (interval). Reviews with one verdict do not count; each review may have been judged by different people.
-- 1: all agree; 0: as by chance; below: less than by chance. Krippendorff, Content Analysis, 2004, chapter 11: alpha is 1
-- less the disagreement within reviews divided by the disagreement of all verdicts.
CREATE VIEW trinity.verdict_agreement_view AS
WITH verdict AS (
    SELECT q.run_id, q.source, q.name, q.other_id IS NOT NULL AS is_pair, q.lowest, q.highest, l.review_id, l.author,
           l.value::double precision AS value,
           count(*) OVER (PARTITION BY l.review_id) AS given
    FROM trinity.label l
    JOIN trinity.review q ON q.id = l.review_id
    WHERE l.state = 'submitted'
),
pairable AS (
    SELECT dense_rank() OVER (ORDER BY v.run_id, v.source, v.name, v.is_pair, v.lowest, v.highest) AS kind, v.*
    FROM verdict v
    WHERE v.given > 1
),
equals AS (
    -- Ordered pairs of equal verdicts within each review, and within all of them.
    SELECT c.kind, sum(c.times * (c.times - 1) / (c.given - 1.0)) AS within
    FROM (SELECT p.kind, p.review_id, p.given, p.value, count(*) AS times
          FROM pairable p GROUP BY p.kind, p.review_id, p.given, p.value) c
    GROUP BY c.kind
),
all_equals AS (
    SELECT c.kind, sum(c.times * (c.times - 1)) AS among
    FROM (SELECT p.kind, p.value, count(*) AS times FROM pairable p GROUP BY p.kind, p.value) c
    GROUP BY c.kind
),
spread AS (
    SELECT c.kind, sum(c.given * c.variance) AS within
    FROM (SELECT p.kind, p.review_id, p.given, var_samp(p.value) AS variance
          FROM pairable p GROUP BY p.kind, p.review_id, p.given) c
    GROUP BY c.kind
),
total AS (
    SELECT p.kind, p.run_id, p.source, p.name, p.is_pair, p.lowest, p.highest, count(*)::double precision AS verdicts,
           count(DISTINCT p.review_id) AS reviews, count(DISTINCT p.author) AS people, var_samp(p.value) AS variance
    FROM pairable p
    GROUP BY p.kind, p.run_id, p.source, p.name, p.is_pair, p.lowest, p.highest
)
SELECT r.name AS run, t.source, t.name, t.is_pair, t.lowest, t.highest, t.reviews, t.verdicts::bigint AS verdicts, t.people,
       (1 - (1 - e.within / t.verdicts)
            / nullif(1 - a.among / (t.verdicts * (t.verdicts - 1)), 0))::double precision AS alpha_nominal,
       (1 - s.within / t.verdicts / nullif(t.variance, 0))::double precision AS alpha_interval
FROM total t
JOIN equals e ON e.kind = t.kind
JOIN all_equals a ON a.kind = t.kind
JOIN spread s ON s.kind = t.kind
JOIN trinity.run r ON r.id = t.run_id;
COMMENT ON COLUMN trinity.verdict_agreement_view.run IS 'Name of the run';
COMMENT ON COLUMN trinity.verdict_agreement_view.source IS 'Source of the verdicts';
COMMENT ON COLUMN trinity.verdict_agreement_view.name IS 'Name of the judged rewards';
COMMENT ON COLUMN trinity.verdict_agreement_view.is_pair IS 'Whether pairs were compared instead of rows judged';
COMMENT ON COLUMN trinity.verdict_agreement_view.lowest IS 'Lowest value of a verdict';
COMMENT ON COLUMN trinity.verdict_agreement_view.highest IS 'Highest value of a verdict';
COMMENT ON COLUMN trinity.verdict_agreement_view.reviews IS 'Rows or pairs with at least two verdicts';
COMMENT ON COLUMN trinity.verdict_agreement_view.verdicts IS 'Verdicts on them';
COMMENT ON COLUMN trinity.verdict_agreement_view.people IS 'People who gave them';
COMMENT ON COLUMN trinity.verdict_agreement_view.alpha_nominal IS
    'Krippendorff''s alpha with verdicts compared by equality; NULL if all are equal, since chance is undefined then';
COMMENT ON COLUMN trinity.verdict_agreement_view.alpha_interval IS
    'Krippendorff''s alpha with verdicts compared by squared distance';

-- Rows and pairs on which people disagree.
CREATE VIEW trinity.dispute_view AS
SELECT r.name AS run,
       q.id AS review_id,
       q.experience_id,
       q.other_id,
       q.name,
       count(*) AS verdicts,
       min(l.value) AS least,
       max(l.value) AS greatest,
       avg(l.value)::double precision AS mean,
       jsonb_object_agg(l.author, l.value) AS said
FROM trinity.label l
JOIN trinity.review q ON q.id = l.review_id
JOIN trinity.run r ON r.id = q.run_id
WHERE l.state = 'submitted'
GROUP BY r.name, q.id
HAVING min(l.value) < max(l.value);
COMMENT ON COLUMN trinity.dispute_view.run IS 'Name of the run';
COMMENT ON COLUMN trinity.dispute_view.review_id IS 'Review';
COMMENT ON COLUMN trinity.dispute_view.experience_id IS 'Judged row, or first row of the pair';
COMMENT ON COLUMN trinity.dispute_view.other_id IS 'Second row of the pair; NULL for a single row';
COMMENT ON COLUMN trinity.dispute_view.name IS 'Name of the judged rewards';
COMMENT ON COLUMN trinity.dispute_view.verdicts IS 'Number of its verdicts';
COMMENT ON COLUMN trinity.dispute_view.least IS 'Lowest verdict';
COMMENT ON COLUMN trinity.dispute_view.greatest IS 'Highest verdict';
COMMENT ON COLUMN trinity.dispute_view.mean IS 'Mean verdict';
COMMENT ON COLUMN trinity.dispute_view.said IS 'Verdict of each person';
