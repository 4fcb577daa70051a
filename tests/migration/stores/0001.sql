SET statement_timeout = 0;
SET lock_timeout = 0;
SET idle_in_transaction_session_timeout = 0;
SET client_encoding = 'UTF8';
SET standard_conforming_strings = on;
SELECT pg_catalog.set_config('search_path', '', false);
SET check_function_bodies = false;
SET xmloption = content;
SET client_min_messages = warning;
SET row_security = off;

CREATE SCHEMA trinity;

CREATE TYPE trinity.batch_state AS ENUM (
    'leased',
    'committed',
    'reopened'
);

CREATE TYPE trinity.experience_state AS ENUM (
    'raw',
    'clean',
    'scored',
    'ready',
    'leased',
    'trained',
    'dropped',
    'expired',
    'evaluated'
);

CREATE TYPE trinity.group_state AS ENUM (
    'open',
    'complete',
    'ready',
    'leased',
    'trained',
    'dropped',
    'evaluating',
    'evaluated'
);

CREATE TYPE trinity.label_state AS ENUM (
    'draft',
    'submitted',
    'discarded',
    'skipped'
);

CREATE TYPE trinity.processing_outcome AS ENUM (
    'passed',
    'dropped',
    'failed',
    'refused'
);

CREATE TYPE trinity.rollout_state AS ENUM (
    'finished',
    'failed',
    'refused'
);

CREATE TYPE trinity.run_kind AS ENUM (
    'train',
    'data'
);

CREATE TYPE trinity.run_state AS ENUM (
    'active',
    'finished'
);

CREATE TYPE trinity.worker_role AS ENUM (
    'explore',
    'process',
    'train'
);

CREATE FUNCTION trinity.adoptable_rows(group_id bigint) RETURNS TABLE(id bigint, rollout_id bigint, step smallint, reward double precision, greedy boolean, pruned boolean)
    LANGUAGE sql STABLE PARALLEL SAFE
    AS $$
    SELECT e.id, e.rollout_id, e.step, e.reward, m.greedy, p.pruned_at IS NOT NULL
    FROM trinity.experience e
    JOIN trinity.rollout m ON m.id = e.rollout_id
    LEFT JOIN trinity.payload p ON p.experience_id = e.id
    WHERE e.group_id = adoptable_rows.group_id AND e.source_id IS NULL AND NOT e.held_out
      AND (e.state IN ('ready', 'leased', 'trained', 'expired')) IS TRUE
$$;

CREATE FUNCTION trinity.cell_bits(groups bigint, highest bigint, crowd double precision) RETURNS double precision
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$
    SELECT greatest(ceil(ln(cell_bits.groups / cell_bits.crowd / (cell_bits.highest / 2::float8 ^ 64 + 0.5))
                         / ln(2::float8)), 1)
$$;

CREATE FUNCTION trinity.chance(number bigint, seed bigint) RETURNS bigint
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$
    SELECT hashint8extended(chance.number, hashint8extended(chance.number, chance.seed))
$$;

CREATE FUNCTION trinity.derived_priority(variance double precision) RETURNS double precision
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$
    SELECT least(greatest(sqrt(derived_priority.variance), 0.01), 1e18)
$$;

CREATE FUNCTION trinity.distance(run_id bigint, version integer, other integer) RETURNS integer
    LANGUAGE sql STABLE PARALLEL SAFE
    AS $$
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

CREATE FUNCTION trinity.drawable(run_id bigint, version integer, max_staleness integer) RETURNS TABLE(id bigint, octave smallint)
    LANGUAGE sql STABLE PARALLEL SAFE
    AS $$
    SELECT g.id, g.octave
    FROM trinity.rollout_group g
    WHERE g.run_id = drawable.run_id AND g.state = 'ready'
      AND (CASE WHEN g.version_max <= drawable.version
                     AND g.version_min >= (SELECT trinity.unbroken_since(drawable.run_id, drawable.version))
                THEN drawable.version - g.version_min
                ELSE trinity.staleness(drawable.run_id, drawable.version, g.version_min, g.version_max)
           END > drawable.max_staleness) IS NOT TRUE
$$;

CREATE FUNCTION trinity.drawable_groups(batch_id bigint) RETURNS TABLE(group_id bigint, priority double precision)
    LANGUAGE sql STABLE
    AS $$
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
                      FROM (SELECT sum(trinity.reward_in(e.id, b.seen)) AS reward
                            FROM trinity.experience e
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

CREATE FUNCTION trinity.evaluation_at(evaluation_id bigint, k integer) RETURNS TABLE(tasks bigint, mean double precision, mean_low double precision, mean_high double precision, tasks_at_k bigint, best double precision, best_low double precision, best_high double precision, pass double precision, pass_low double precision, pass_high double precision)
    LANGUAGE sql STABLE
    AS $$
    WITH task AS (
        SELECT w.reward, w.rewards[1] AS lowest, w.best AS highest,
               trinity.pass_at(w.judged, w.solved, evaluation_at.k) AS pass,
               -- The reward at rank i is the best of k with the probability that the k attempts reach rank i and no higher one.
               (SELECT sum(u.reward * (trinity.pass_at(w.judged, w.judged - u.place + 1, evaluation_at.k)
                                       - trinity.pass_at(w.judged, w.judged - u.place, evaluation_at.k)))
                FROM unnest(w.rewards) WITH ORDINALITY AS u (reward, place)) AS best
        FROM trinity.evaluation_task_view w
        WHERE w.evaluation_id = evaluation_at.evaluation_id
    ),
    total AS (
        SELECT count(task.reward) AS tasks, avg(task.reward) AS mean, var_samp(task.reward) AS mean_variance,
               count(task.pass) AS tasks_at_k, avg(task.best) AS best, var_samp(task.best) AS best_variance,
               avg(task.pass) AS pass, least(min(task.lowest), 0) AS lowest,
               greatest(max(task.highest), (SELECT v.solved_reward FROM trinity.evaluation v
                                            WHERE v.id = evaluation_at.evaluation_id)) AS highest
        FROM task
    )
    SELECT t.tasks, t.mean, m.low, m.high, t.tasks_at_k, t.best, b.low, b.high, t.pass, p.low, p.high
    FROM total t
    CROSS JOIN LATERAL trinity.mean_interval(t.mean, t.mean_variance, t.tasks, t.lowest, t.highest) m
    CROSS JOIN LATERAL trinity.mean_interval(t.best, t.best_variance, t.tasks_at_k, t.lowest, t.highest) b
    CROSS JOIN LATERAL trinity.share_interval(t.pass, t.tasks_at_k) p
$$;

CREATE FUNCTION trinity.evaluation_difference(before bigint, after bigint, k integer DEFAULT 1) RETURNS TABLE(tasks bigint, mean double precision, mean_low double precision, mean_high double precision, tasks_at_k bigint, pass double precision, pass_low double precision, pass_high double precision)
    LANGUAGE sql STABLE
    AS $$
    WITH task AS (
        SELECT b.reward - a.reward AS mean, least(a.rewards[1], b.rewards[1]) AS lowest, greatest(a.best, b.best) AS highest,
               trinity.pass_at(b.judged, b.solved, evaluation_difference.k)
               - trinity.pass_at(a.judged, a.solved, evaluation_difference.k) AS pass
        FROM trinity.evaluation_task_view a
        JOIN trinity.evaluation_task_view b ON b.task = a.task
        WHERE a.evaluation_id = evaluation_difference.before AND b.evaluation_id = evaluation_difference.after
    ),
    total AS (
        SELECT count(task.mean) AS tasks, avg(task.mean) AS mean,
               1.959964 * stddev_samp(task.mean) / sqrt(count(task.mean)) AS mean_error,
               count(task.pass) AS tasks_at_k, avg(task.pass) AS pass,
               1.959964 * stddev_samp(task.pass) / sqrt(count(task.pass)) AS pass_error,
               greatest(max(task.highest),
                        (SELECT max(v.solved_reward) FROM trinity.evaluation v
                         WHERE v.id IN (evaluation_difference.before, evaluation_difference.after)))
               - least(min(task.lowest), 0) AS width
        FROM task
    )
    SELECT t.tasks, t.mean, greatest(t.mean - t.mean_error, -t.width), least(t.mean + t.mean_error, t.width),
           t.tasks_at_k, t.pass, greatest(t.pass - t.pass_error, -1), least(t.pass + t.pass_error, 1)
    FROM total t
$$;

CREATE FUNCTION trinity.floor_of(run_id bigint) RETURNS TABLE(floor bigint)
    LANGUAGE sql STABLE PARALLEL SAFE
    AS $$
    SELECT coalesce((SELECT b.floor FROM trinity.batch b
                     WHERE b.run_id = floor_of.run_id AND b.state <> 'reopened' ORDER BY b.step DESC LIMIT 1), 0)
$$;

CREATE FUNCTION trinity.follow_labels(ids bigint[]) RETURNS void
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    UPDATE trinity.experience e SET reward = said.label
    FROM (SELECT n.id, trinity.label_in(n.id, NULL) AS label FROM unnest(follow_labels.ids) AS n (id)) said
    WHERE e.id = said.id AND e.draws_labels AND e.reward IS DISTINCT FROM said.label
      -- A sum instead of NOT EXISTS, which the planner would turn into a join with the events of all rows of the store.
      AND (SELECT sum(v.share) FROM trinity.reward_part_view v WHERE v.experience_id = e.id) IS NULL
$$;

CREATE FUNCTION trinity.is_alive(heartbeat_at timestamp with time zone, lease_seconds double precision) RETURNS boolean
    LANGUAGE sql
    AS $$ SELECT abs(extract(epoch FROM clock_timestamp() - heartbeat_at)) <= lease_seconds $$;

CREATE FUNCTION trinity.is_awaited(experience_id bigint, rollout_id bigint, source text) RETURNS boolean
    LANGUAGE sql STABLE
    AS $$
    SELECT NOT EXISTS (SELECT FROM trinity.reward_event v
                       WHERE v.rollout_id = is_awaited.rollout_id AND v.source = is_awaited.source
                         AND v.weight <> 0 AND v.detail -> 'review' IS NULL)
       AND NOT EXISTS (SELECT FROM trinity.reward_event v
                       WHERE v.experience_id = is_awaited.experience_id AND v.source = is_awaited.source
                         AND v.weight <> 0 AND v.detail -> 'review' IS NULL)
       AND NOT EXISTS (SELECT FROM trinity.review q
                       WHERE q.experience_id = is_awaited.experience_id AND q.other_id IS NULL
                         AND q.source = is_awaited.source AND q.weight <> 0 AND q.closed_at IS NOT NULL)
$$;

CREATE FUNCTION trinity.is_learned_from(reward double precision, draws_labels boolean) RETURNS boolean
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$
    SELECT (is_learned_from.reward > 0) IS TRUE OR (is_learned_from.reward IS NOT NULL) = is_learned_from.draws_labels
$$;

CREATE FUNCTION trinity.kept_for(run_id bigint, family text) RETURNS interval
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    SELECT (r.config #>> ARRAY['processors', 'retention', CASE kept_for.family WHEN 'calls' THEN 'payloads' ELSE kept_for.family END])::interval
    FROM trinity.run r
    WHERE r.id = kept_for.run_id
$$;

CREATE FUNCTION trinity.kept_until(run_id bigint, family text) RETURNS timestamp with time zone
    LANGUAGE sql STABLE
    AS $$
    SELECT now() - trinity.kept_for(t.run_id, t.family)
    FROM trinity.retention t JOIN trinity.run r ON r.id = t.run_id
    WHERE t.run_id = kept_until.run_id AND t.family = kept_until.family AND r.deleting_at IS NULL
$$;

CREATE FUNCTION trinity.key(id bigint, weight double precision, seed bigint) RETURNS double precision
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$
    SELECT -ln(trinity.unit(trinity.chance(8 * key.id + 5, key.seed))) / key.weight
$$;

CREATE FUNCTION trinity.label_in(experience_id bigint, seen pg_snapshot) RETURNS double precision
    LANGUAGE sql STABLE
    AS $$
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

CREATE FUNCTION trinity.lineage(version integer, run text DEFAULT NULL::text) RETURNS TABLE(batch_id bigint, step integer, ordinal integer, experience_id bigint, policy_version integer, included_version integer, reward double precision, advantage double precision, staleness integer, weight double precision, probability double precision, source_id bigint, source_run text, source_version integer)
    LANGUAGE sql STABLE
    AS $$
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

CREATE FUNCTION trinity.mean_interval(mean double precision, variance double precision, tasks bigint, lowest double precision, highest double precision) RETURNS TABLE(low double precision, high double precision)
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$
    SELECT r.lowest + r.width * i.low, r.lowest + r.width * i.high
    FROM (SELECT mean_interval.lowest, mean_interval.highest - mean_interval.lowest AS width,
                 (mean_interval.mean - mean_interval.lowest) * (mean_interval.highest - mean_interval.mean)
                 / CASE WHEN mean_interval.variance > v.rounding THEN mean_interval.variance END AS ratio
          FROM (SELECT (1e-12 * (mean_interval.highest - mean_interval.lowest)) ^ 2 AS rounding) v) r
    CROSS JOIN LATERAL trinity.share_interval(
        CASE WHEN r.width > 0 THEN (mean_interval.mean - r.lowest) / r.width ELSE 0 END,
        mean_interval.tasks * greatest(r.ratio, 1)) i
$$;

CREATE FUNCTION trinity.oldest_within(run_id bigint, version integer, max_distance integer) RETURNS integer
    LANGUAGE sql STABLE PARALLEL SAFE
    AS $$
    SELECT CASE WHEN latest.skipped = 0 THEN latest.version - oldest_within.max_distance
                ELSE coalesce((SELECT p.version + 1 FROM trinity.policy_version p
                               WHERE p.run_id = oldest_within.run_id AND p.version <= latest.version
                                 AND p.version - p.skipped < latest.version - latest.skipped - oldest_within.max_distance
                               ORDER BY p.version DESC LIMIT 1), 0) END
    FROM trinity.policy_version latest
    WHERE latest.run_id = oldest_within.run_id AND latest.version = oldest_within.version
$$;

CREATE FUNCTION trinity.parked_members(group_id bigint, oldest integer) RETURNS TABLE(ordinal smallint, is_due boolean, is_stale boolean, resumed_attempt integer)
    LANGUAGE sql STABLE
    AS $$
    SELECT a.ordinal, p.answered_at IS NOT NULL OR (p.wake_at <= now()) IS TRUE OR s.is_stale, s.is_stale,
           p.resumed_attempt
    FROM trinity.agent a
    JOIN trinity.park p ON p.agent_id = a.id AND p.parked_at IS NOT NULL AND p.left_at IS NULL
    JOIN trinity.rollout_group g ON g.id = a.group_id
    CROSS JOIN LATERAL (SELECT g.evaluation_id IS NULL
                               AND (least(g.version_min, p.version_min) < parked_members.oldest) IS TRUE AS is_stale) s
    WHERE a.group_id = parked_members.group_id AND a.ended_at IS NULL
$$;

CREATE FUNCTION trinity.pass_at(samples bigint, solved bigint, k integer) RETURNS double precision
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$
    SELECT CASE WHEN pass_at.k < 1 OR pass_at.samples < pass_at.k THEN NULL
                WHEN pass_at.samples - pass_at.solved < pass_at.k THEN 1
                ELSE 1 - exp(coalesce((SELECT sum(ln(1 - pass_at.k::double precision / i))
                                       FROM generate_series(pass_at.samples - pass_at.solved + 1, pass_at.samples) i), 0))
           END
$$;

CREATE FUNCTION trinity.probes(seed bigint, probes bigint, rate double precision, places double precision) RETURNS TABLE(n bigint, at double precision, mark double precision, cell bigint, place bigint, luck double precision)
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$
    SELECT n, sum(-ln(trinity.unit(trinity.chance(8 * n, probes.seed)))) OVER (ORDER BY n) / probes.rate,
           trinity.unit(trinity.chance(8 * n + 1, probes.seed)) * probes.rate,
           trinity.chance(8 * n + 2, probes.seed),
           floor(trinity.unit(trinity.chance(8 * n + 3, probes.seed)) * probes.places)::bigint,
           trinity.unit(trinity.chance(8 * n + 4, probes.seed))
    FROM generate_series(1, probes.probes) n
$$;

CREATE FUNCTION trinity.question(prompt text, messages jsonb) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $_$
    SELECT coalesce(
        (SELECT CASE jsonb_typeof(m.message -> 'content')
                    WHEN 'array' THEN (SELECT string_agg(c.part ->> 'text', ' ' ORDER BY c.place)
                                       FROM jsonb_array_elements(m.message -> 'content') WITH ORDINALITY AS c (part, place))
                    ELSE m.message ->> 'content' END
         FROM jsonb_array_elements(CASE WHEN pg_column_size(messages) <= 65536 AND jsonb_typeof(messages) = 'array'
                                        THEN messages END)
              WITH ORDINALITY AS m (message, place)
         WHERE m.message ->> 'role' = 'user'
         ORDER BY m.place DESC LIMIT 1),
        CASE WHEN octet_length(prompt) > 1000000 THEN left(prompt, 20000)
             WHEN right(prompt, 20000) ~ '<\|im_start\|>user|<\|start_header_id\|>user|<start_of_turn>user|<\|user\|>|\[INST\]'
             THEN regexp_replace(
                      regexp_replace(
                          regexp_replace(
                              right(prompt, 20000),
                              '^.*(<\|im_start\|>user|<\|start_header_id\|>user<\|end_header_id\|>|<start_of_turn>user|<\|user\|>|\[INST\])',
                              ''),
                          '(<\|im_start\|>|<\|start_header_id\|>|<start_of_turn>|<\|)(assistant|model).*$', ''),
                      '<\|[^|>]*\|>|<(start|end)_of_turn>|\[/INST\]|</s>', ' ', 'g')
             ELSE prompt END)
$_$;

CREATE FUNCTION trinity.reward_at_training(experience_id bigint, rollout_id bigint, reward double precision) RETURNS double precision
    LANGUAGE sql STABLE
    AS $$
    SELECT coalesce(
        (SELECT i.reward
         FROM trinity.batch_item i
         JOIN trinity.batch b ON b.id = i.batch_id AND b.state = 'committed'
         WHERE i.experience_id = reward_at_training.experience_id AND i.reward IS NOT NULL
         ORDER BY b.id DESC LIMIT 1),
        CASE WHEN EXISTS (SELECT FROM trinity.reward_event v
                          WHERE v.rollout_id = reward_at_training.rollout_id AND v.source = 'rescore')
                  OR EXISTS (SELECT FROM trinity.reward_event v
                             WHERE v.experience_id = reward_at_training.experience_id AND v.source = 'rescore')
             THEN (SELECT sum(trinity.reward_share(v.value, v.weight, v.source) ORDER BY v.name)
                   FROM (SELECT DISTINCT ON (a.name) a.name, a.value, a.weight, a.source
                         FROM (SELECT w.* FROM trinity.reward_event w
                               WHERE w.rollout_id = reward_at_training.rollout_id
                               UNION ALL
                               SELECT w.* FROM trinity.reward_event w
                               WHERE w.experience_id = reward_at_training.experience_id) a
                         WHERE a.source <> 'rescore'
                         ORDER BY a.name, a.id DESC) v)
             ELSE reward_at_training.reward END)
$$;

CREATE FUNCTION trinity.reward_in(experience_id bigint, seen pg_snapshot) RETURNS double precision
    LANGUAGE sql STABLE
    AS $$
    WITH about AS MATERIALIZED (
        SELECT v.id, v.name, trinity.reward_share(v.value, v.weight, v.source) AS part,
               pg_visible_in_snapshot(v.xact::text::xid8, seen) AS is_seen
        FROM trinity.experience e
        CROSS JOIN LATERAL (
            SELECT v.* FROM trinity.reward_event v WHERE v.rollout_id = e.rollout_id
            UNION ALL
            SELECT v.* FROM trinity.reward_event v WHERE v.experience_id = ANY(ARRAY[e.id, e.source_id])
        ) v
        WHERE e.id = reward_in.experience_id
    ),
    latest AS (
        SELECT DISTINCT ON (about.name) about.name, about.part
        FROM about
        WHERE about.is_seen
        ORDER BY about.name, about.id DESC
    )
    SELECT coalesce((SELECT sum(latest.part ORDER BY latest.name) FROM latest),
                    trinity.label_in(reward_in.experience_id, reward_in.seen),
                    (SELECT e.reward FROM trinity.experience e
                     WHERE e.id = reward_in.experience_id AND NOT EXISTS (SELECT FROM about)
                       AND NOT EXISTS (SELECT FROM trinity.preference p WHERE p.chosen_id = e.id AND p.gives_labels)
                       AND NOT EXISTS (SELECT FROM trinity.preference p WHERE p.rejected_id = e.id AND p.gives_labels)))
$$;

CREATE FUNCTION trinity.reward_share(value double precision, weight double precision, source text) RETURNS double precision
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$
    SELECT CASE WHEN reward_share.weight <> 0 OR reward_share.source IN ('score', 'rescore')
                THEN reward_share.value * reward_share.weight END
$$;

CREATE FUNCTION trinity.share_interval(share double precision, trials double precision) RETURNS TABLE(low double precision, high double precision)
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$
    SELECT greatest((share_interval.share + i.z / 2 - i.spread) / (1 + i.z), 0),
           least((share_interval.share + i.z / 2 + i.spread) / (1 + i.z), 1)
    FROM (SELECT q.z, sqrt(q.z * (greatest(share_interval.share * (1 - share_interval.share), 0) + q.z / 4)) AS spread
          FROM (SELECT 1.959964 ^ 2 / nullif(share_interval.trials, 0) AS z) q) i
$$;

CREATE FUNCTION trinity.side_in(first_id bigint, other_id bigint, seen pg_snapshot) RETURNS integer
    LANGUAGE sql STABLE
    AS $$
    SELECT CASE WHEN q.experience_id = side_in.first_id THEN d.side ELSE -d.side END
    FROM trinity.review q
    JOIN trinity.decision d ON d.review_id = q.id
    WHERE q.experience_id = least(side_in.first_id, side_in.other_id)
      AND q.other_id = greatest(side_in.first_id, side_in.other_id)
      AND pg_visible_in_snapshot(d.xact::text::xid8, side_in.seen) IS NOT FALSE
    ORDER BY d.id DESC
    LIMIT 1
$$;

CREATE FUNCTION trinity.staleness(run_id bigint, version integer, oldest integer, newest integer) RETURNS integer
    LANGUAGE sql STABLE PARALLEL SAFE
    AS $$
    SELECT greatest(trinity.distance(staleness.run_id, staleness.version, staleness.oldest),
                    CASE WHEN staleness.newest <> staleness.oldest
                         THEN trinity.distance(staleness.run_id, staleness.version, staleness.newest) END)
$$;

CREATE FUNCTION trinity.unbroken_since(run_id bigint, version integer) RETURNS integer
    LANGUAGE sql STABLE PARALLEL SAFE
    AS $$
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

CREATE FUNCTION trinity.unit(hash bigint) RETURNS double precision
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$
    SELECT ((unit.hash >> 12 & 4503599627370495)::double precision + 0.5) / 4503599627370496
$$;

SET default_tablespace = '';

SET default_table_access_method = heap;

CREATE TABLE trinity.agent (
    id bigint NOT NULL,
    run_id bigint NOT NULL,
    group_id bigint NOT NULL,
    ordinal smallint NOT NULL,
    attempt integer NOT NULL,
    retry smallint NOT NULL,
    worker_id bigint NOT NULL,
    key_hash bytea,
    rewards jsonb,
    started_at timestamp with time zone DEFAULT now() NOT NULL,
    ended_at timestamp with time zone
);

ALTER TABLE trinity.agent ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME trinity.agent_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE trinity.reward_event (
    id bigint NOT NULL,
    run_id bigint NOT NULL,
    rollout_id bigint,
    experience_id bigint,
    source text NOT NULL,
    name text NOT NULL,
    value double precision NOT NULL,
    weight double precision DEFAULT '1'::double precision NOT NULL,
    created_by text,
    processor_version integer,
    detail jsonb,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    xact bigint DEFAULT ((pg_current_xact_id())::text)::bigint NOT NULL,
    CONSTRAINT reward_event_about_one_thing_check CHECK ((num_nonnulls(rollout_id, experience_id) = 1)),
    CONSTRAINT reward_event_value_finite_check CHECK (((value > '-Infinity'::double precision) AND (value < 'Infinity'::double precision))),
    CONSTRAINT reward_event_weight_finite_check CHECK (((weight > '-Infinity'::double precision) AND (weight < 'Infinity'::double precision)))
);

CREATE TABLE trinity.run (
    id bigint NOT NULL,
    name text NOT NULL,
    kind trinity.run_kind NOT NULL,
    state trinity.run_state DEFAULT 'active'::trinity.run_state NOT NULL,
    config jsonb NOT NULL,
    seed bigint GENERATED ALWAYS AS (COALESCE(((config ->> 'seed'::text))::bigint, (0)::bigint)) STORED NOT NULL,
    derives_pairs boolean GENERATED ALWAYS AS (((config #>> '{processors,pair}'::text[]) IS NOT NULL)) STORED NOT NULL,
    draws text,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    finished_at timestamp with time zone,
    deleting_at timestamp with time zone,
    stop_asked_at timestamp with time zone,
    CONSTRAINT run_draws_iff_train_check CHECK (((kind = 'train'::trinity.run_kind) = (draws IS NOT NULL))),
    CONSTRAINT run_finished_at_iff_finished_check CHECK (((state = 'finished'::trinity.run_state) = (finished_at IS NOT NULL))),
    CONSTRAINT run_known_draws_check CHECK ((draws = ANY (ARRAY['groups'::text, 'rows'::text, 'labels'::text, 'pairs'::text])))
);

CREATE VIEW trinity.agreement_view AS
 WITH label AS MATERIALIZED (
         SELECT DISTINCT ON (v.run_id, v.source, v.name, v.rollout_id, v.experience_id) v.run_id,
            v.source,
            v.name,
            v.rollout_id,
            v.experience_id,
            v.value,
            ((v.detail -> 'taken_back'::text) IS NOT NULL) AS is_taken_back
           FROM trinity.reward_event v
          WHERE (v.source <> ALL (ARRAY['explore'::text, 'score'::text, 'rescore'::text, 'import'::text]))
          ORDER BY v.run_id, v.source, v.name, v.rollout_id, v.experience_id, v.id DESC
        ), pair AS (
         SELECT dense_rank() OVER (ORDER BY l.run_id, m.name, m.processor_version, m.judge, l.source, l.name) AS kind,
            l.run_id,
            m.name,
            m.processor_version,
            m.judge,
            l.source,
            l.name AS label,
            m.value AS mark,
            l.value AS given
           FROM (label l
             CROSS JOIN LATERAL ( SELECT DISTINCT ON (v.name) v.name,
                    v.processor_version,
                    (v.detail ->> 'judge'::text) AS judge,
                    v.value,
                    ((v.detail ->> 'withdrawn'::text) IS NOT NULL) AS is_withdrawn
                   FROM ( SELECT a_1.id,
                            a_1.run_id,
                            a_1.rollout_id,
                            a_1.experience_id,
                            a_1.source,
                            a_1.name,
                            a_1.value,
                            a_1.weight,
                            a_1.created_by,
                            a_1.processor_version,
                            a_1.detail,
                            a_1.created_at,
                            a_1.xact
                           FROM trinity.reward_event a_1
                          WHERE (a_1.rollout_id = l.rollout_id)
                        UNION ALL
                         SELECT a_1.id,
                            a_1.run_id,
                            a_1.rollout_id,
                            a_1.experience_id,
                            a_1.source,
                            a_1.name,
                            a_1.value,
                            a_1.weight,
                            a_1.created_by,
                            a_1.processor_version,
                            a_1.detail,
                            a_1.created_at,
                            a_1.xact
                           FROM trinity.reward_event a_1
                          WHERE (a_1.experience_id = l.experience_id)) v
                  WHERE ((v.source = ANY (ARRAY['score'::text, 'rescore'::text])) AND ("substring"(v.name, '[^/]+$'::text) = "substring"(l.name, '[^/]+$'::text)))
                  ORDER BY v.name, v.id DESC) m)
          WHERE ((NOT m.is_withdrawn) AND (NOT l.is_taken_back))
        ), ranked AS (
         SELECT p.kind,
            p.run_id,
            p.name,
            p.processor_version,
            p.judge,
            p.source,
            p.label,
            p.mark,
            p.given,
            ((rank() OVER (PARTITION BY p.kind ORDER BY p.mark))::numeric + (((count(*) OVER (PARTITION BY p.kind, p.mark) - 1))::numeric / 2.0)) AS mark_rank,
            ((rank() OVER (PARTITION BY p.kind ORDER BY p.given))::numeric + (((count(*) OVER (PARTITION BY p.kind, p.given) - 1))::numeric / 2.0)) AS given_rank
           FROM pair p
        ), chance AS (
         SELECT n.kind,
            (sum((n.marks * n.labels)) / (sum(n.marks) ^ (2)::numeric)) AS equal
           FROM ( SELECT p.kind,
                    u.value,
                    count(*) FILTER (WHERE u.is_mark) AS marks,
                    count(*) FILTER (WHERE (NOT u.is_mark)) AS labels
                   FROM (pair p
                     CROSS JOIN LATERAL ( VALUES (p.mark,true), (p.given,false)) u(value, is_mark))
                  GROUP BY p.kind, u.value) n
          GROUP BY n.kind
        ), agreed AS (
         SELECT k.kind,
            k.run_id,
            k.name,
            k.processor_version,
            k.judge,
            k.source,
            k.label,
            count(*) AS rows,
            (avg(((k.mark = k.given))::integer))::double precision AS equal,
            corr(k.mark, k.given) AS pearson,
            corr((k.mark_rank)::double precision, (k.given_rank)::double precision) AS spearman,
            avg((k.mark - k.given)) AS excess
           FROM ranked k
          GROUP BY k.kind, k.run_id, k.name, k.processor_version, k.judge, k.source, k.label
        )
 SELECT r.name AS run,
    a.name,
    a.processor_version,
    a.judge,
    a.source,
    a.label,
    a.rows,
    a.equal,
    ((a.equal - (c.equal)::double precision) / (NULLIF(((1)::numeric - c.equal), (0)::numeric))::double precision) AS kappa,
    a.pearson,
    a.spearman,
    a.excess
   FROM ((agreed a
     JOIN chance c ON ((c.kind = a.kind)))
     JOIN trinity.run r ON ((r.id = a.run_id)));

CREATE TABLE trinity.archive (
    run_id bigint NOT NULL,
    number smallint NOT NULL,
    store uuid NOT NULL,
    name text NOT NULL,
    worker_id bigint,
    attempt integer DEFAULT 0 NOT NULL,
    num_rows bigint DEFAULT '0'::bigint NOT NULL,
    num_bytes bigint DEFAULT '0'::bigint NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT archive_of_the_run_check CHECK ((name ~ (('^[A-Za-z0-9_-]+_'::text || run_id) || '_[0-9]+(_[0-9a-f]{32})?$'::text)))
);

CREATE TABLE trinity.experience (
    id bigint NOT NULL,
    run_id bigint NOT NULL,
    group_id bigint,
    rollout_id bigint,
    source_id bigint,
    step smallint DEFAULT '0'::smallint NOT NULL,
    state trinity.experience_state NOT NULL,
    held_out boolean DEFAULT false NOT NULL,
    version_min integer,
    version_max integer,
    reward double precision,
    priority double precision DEFAULT '0'::double precision NOT NULL,
    use_count integer DEFAULT 0 NOT NULL,
    prompt_length integer,
    response_length integer,
    worker_id bigint,
    attempt integer DEFAULT 0 NOT NULL,
    import_key uuid,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    ready_xact bigint,
    seed bigint,
    draws_labels boolean DEFAULT false NOT NULL,
    place bigint GENERATED ALWAYS AS (
CASE
    WHEN ((prompt_length IS NOT NULL) AND ((reward > (0)::double precision) OR ((reward IS NOT NULL) = draws_labels))) THEN hashint8extended(source_id, (seed + use_count))
    ELSE NULL::bigint
END) STORED,
    to_judge trinity.experience_state GENERATED ALWAYS AS (
CASE
    WHEN (state = ANY (ARRAY['raw'::trinity.experience_state, 'clean'::trinity.experience_state])) THEN state
    ELSE NULL::trinity.experience_state
END) STORED,
    judge_id bigint GENERATED ALWAYS AS (
CASE
    WHEN (state = ANY (ARRAY['raw'::trinity.experience_state, 'clean'::trinity.experience_state])) THEN worker_id
    ELSE NULL::bigint
END) STORED,
    is_offered boolean GENERATED ALWAYS AS (((state = 'ready'::trinity.experience_state) AND (version_min IS NULL))) STORED NOT NULL,
    pass_number integer GENERATED ALWAYS AS (
CASE
    WHEN ((state = 'ready'::trinity.experience_state) AND (prompt_length IS NOT NULL) AND ((reward > (0)::double precision) OR ((reward IS NOT NULL) = draws_labels)) AND (source_id IS NOT NULL) AND (seed IS NOT NULL)) THEN use_count
    ELSE NULL::integer
END) STORED,
    CONSTRAINT experience_evaluated_in_place_of_trained_check CHECK (((source_id IS NOT NULL) OR (NOT held_out) OR ((state)::text = ANY (ARRAY['clean'::text, 'evaluated'::text, 'dropped'::text])))),
    CONSTRAINT experience_group_iff_rollout_check CHECK (((group_id IS NULL) = (rollout_id IS NULL))),
    CONSTRAINT experience_leased_by_a_worker_check CHECK (((state <> 'leased'::trinity.experience_state) OR (worker_id IS NOT NULL))),
    CONSTRAINT experience_only_held_out_are_evaluated_check CHECK ((held_out OR ((state)::text <> 'evaluated'::text))),
    CONSTRAINT experience_reward_finite_check CHECK (((reward > '-Infinity'::double precision) AND (reward < 'Infinity'::double precision))),
    CONSTRAINT experience_versions_in_order_check CHECK ((version_min <= version_max))
)
WITH (fillfactor='70', autovacuum_vacuum_threshold='1000', autovacuum_vacuum_scale_factor='0.01', autovacuum_vacuum_insert_scale_factor='0.05', autovacuum_analyze_scale_factor='0.02', autovacuum_vacuum_cost_delay='0');

CREATE TABLE trinity.experience_text (
    experience_id bigint NOT NULL,
    prompt text NOT NULL,
    response text NOT NULL,
    messages jsonb,
    tools jsonb,
    reply jsonb,
    extra jsonb,
    requests jsonb,
    state text
)
WITH (toast_tuple_target='4080');

CREATE TABLE trinity.rollout_group (
    id bigint NOT NULL,
    run_id bigint NOT NULL,
    task_id bigint NOT NULL,
    source_id bigint,
    state trinity.group_state DEFAULT 'open'::trinity.group_state NOT NULL,
    evaluation_id bigint,
    expected smallint NOT NULL,
    arrived smallint DEFAULT '0'::smallint NOT NULL,
    failed smallint DEFAULT '0'::smallint NOT NULL,
    version_min integer,
    version_max integer,
    reward_count integer DEFAULT 0 NOT NULL,
    reward_mean double precision,
    reward_variance double precision,
    priority double precision DEFAULT '1'::double precision NOT NULL,
    octave smallint GENERATED ALWAYS AS ((COALESCE(ceil((ln(NULLIF(priority, (0)::double precision)) / ln((2)::double precision))), '-60'::double precision))::smallint) STORED NOT NULL,
    worker_id bigint,
    attempt integer DEFAULT 1 NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    completed_at timestamp with time zone,
    ready_xact bigint,
    ready_at timestamp with time zone,
    use_count integer DEFAULT 0 NOT NULL,
    seed bigint,
    place bigint GENERATED ALWAYS AS (hashint8extended(source_id, (seed + use_count))) STORED,
    CONSTRAINT rollout_group_completed_at_iff_not_open_check CHECK ((((state)::text = ANY (ARRAY['open'::text, 'evaluating'::text])) = (completed_at IS NULL))),
    CONSTRAINT rollout_group_evaluated_iff_of_an_evaluation_check CHECK ((((state)::text = ANY (ARRAY['evaluating'::text, 'evaluated'::text])) = (evaluation_id IS NOT NULL))),
    CONSTRAINT rollout_group_members_within_expected_check CHECK (((expected > 0) AND ((arrived + failed) <= expected))),
    CONSTRAINT rollout_group_priority_in_range_check CHECK (((priority = (0)::double precision) OR ((priority >= (0.000000000000000001)::double precision) AND (priority <= ('1000000000000000000'::numeric)::double precision)))),
    CONSTRAINT rollout_group_versions_in_order_check CHECK ((version_min <= version_max))
)
WITH (fillfactor='70', autovacuum_vacuum_threshold='1000', autovacuum_vacuum_scale_factor='0.01', autovacuum_vacuum_insert_scale_factor='0.05', autovacuum_analyze_scale_factor='0.02', autovacuum_vacuum_cost_delay='0');

CREATE VIEW trinity.awaited_reward_view AS
 SELECT r.name AS run,
    (r.config ->> 'requires_reward'::text) AS source,
    e.id AS experience_id,
    e.group_id,
    x.prompt,
    x.response,
    e.created_at
   FROM (((trinity.run r
     JOIN trinity.rollout_group g ON (((g.run_id = r.id) AND (g.state = 'complete'::trinity.group_state))))
     JOIN trinity.experience e ON (((e.group_id = g.id) AND (e.state = 'scored'::trinity.experience_state))))
     LEFT JOIN trinity.experience_text x ON ((x.experience_id = e.id)))
  WHERE ((r.state = 'active'::trinity.run_state) AND ((r.config ->> 'requires_reward'::text) IS NOT NULL) AND (NOT (EXISTS ( SELECT
           FROM trinity.experience lost
          WHERE ((lost.rollout_id = e.rollout_id) AND (lost.state = 'dropped'::trinity.experience_state))))) AND trinity.is_awaited(e.id, e.rollout_id, (r.config ->> 'requires_reward'::text)));

CREATE TABLE trinity.batch (
    id bigint NOT NULL,
    run_id bigint NOT NULL,
    step integer NOT NULL,
    state trinity.batch_state DEFAULT 'leased'::trinity.batch_state NOT NULL,
    worker_id bigint NOT NULL,
    setting_id bigint NOT NULL,
    policy_version integer NOT NULL,
    versions_ahead integer DEFAULT 0 NOT NULL,
    included_version integer,
    size integer NOT NULL,
    epoch integer DEFAULT 0 NOT NULL,
    sampler text NOT NULL,
    seed bigint NOT NULL,
    query text NOT NULL,
    snapshot text,
    max_staleness integer,
    parameters jsonb,
    floor bigint,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    committed_at timestamp with time zone,
    reopened_at timestamp with time zone,
    CONSTRAINT batch_included_only_if_committed_check CHECK (((included_version IS NULL) OR (state = 'committed'::trinity.batch_state))),
    CONSTRAINT batch_not_empty_check CHECK ((size > 0)),
    CONSTRAINT batch_reopened_at_iff_reopened_check CHECK (((state = 'reopened'::trinity.batch_state) = (reopened_at IS NOT NULL)))
);

ALTER TABLE trinity.batch ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME trinity.batch_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE trinity.batch_item (
    batch_id bigint NOT NULL,
    ordinal integer NOT NULL,
    experience_id bigint NOT NULL,
    preference_id bigint,
    probability double precision,
    weight double precision DEFAULT '1'::double precision NOT NULL,
    reward double precision,
    advantage double precision,
    staleness integer
);

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
   FROM ((trinity.batch b
     JOIN trinity.run r ON ((r.id = b.run_id)))
     JOIN LATERAL ( SELECT count(*) AS experiences,
            avg(item.reward) AS reward,
            min(item.staleness) AS staleness_min,
            avg(item.staleness) AS staleness_mean,
            max(item.staleness) AS staleness_max
           FROM trinity.batch_item item
          WHERE (item.batch_id = b.id)) i ON (true));

CREATE TABLE trinity.call (
    agent_id bigint NOT NULL,
    number integer NOT NULL,
    digest bytea NOT NULL,
    path text,
    model text,
    prompt text NOT NULL,
    codec text NOT NULL,
    num_tokens integer NOT NULL,
    data bytea,
    finish_reason text NOT NULL,
    replaced jsonb,
    left_out text,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT call_has_tokens_check CHECK (((number >= 0) AND (num_tokens > 0)))
);
ALTER TABLE ONLY trinity.call ALTER COLUMN data SET STORAGE EXTERNAL;

CREATE TABLE trinity.decision (
    id bigint NOT NULL,
    review_id bigint NOT NULL,
    side smallint,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    xact bigint DEFAULT ((pg_current_xact_id())::text)::bigint NOT NULL,
    CONSTRAINT decision_known_side_check CHECK ((side = ANY (ARRAY['-1'::integer, 0, 1])))
);

ALTER TABLE trinity.decision ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME trinity.decision_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE VIEW trinity.dispute_view AS
SELECT
    NULL::text AS run,
    NULL::bigint AS review_id,
    NULL::bigint AS experience_id,
    NULL::bigint AS other_id,
    NULL::text AS name,
    NULL::bigint AS verdicts,
    NULL::smallint AS "least",
    NULL::smallint AS "greatest",
    NULL::double precision AS mean,
    NULL::jsonb AS said;

CREATE TABLE trinity.drop (
    id bigint NOT NULL,
    run_id bigint NOT NULL,
    experience_id bigint,
    preference_id bigint,
    group_id bigint,
    stage text NOT NULL,
    step text,
    reason text NOT NULL,
    detail jsonb,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT drop_about_one_row_check CHECK ((num_nonnulls(experience_id, preference_id, group_id) = 1))
);

ALTER TABLE trinity.drop ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME trinity.drop_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE trinity.task (
    id bigint NOT NULL,
    taskset_id bigint NOT NULL,
    key text NOT NULL,
    payload jsonb NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    ordinal integer NOT NULL,
    prompt_digest bytea NOT NULL,
    level double precision GENERATED ALWAYS AS (
CASE
    WHEN (jsonb_typeof((payload -> 'level'::text)) IS DISTINCT FROM 'number'::text) THEN NULL::double precision
    WHEN (abs(((payload -> 'level'::text))::numeric) < '1000000000000000'::numeric) THEN (round(((payload -> 'level'::text))::numeric, 15))::double precision
    ELSE NULL::double precision
END) STORED,
    CONSTRAINT task_has_prompt_check CHECK (((payload ? 'prompt'::text) OR (payload ? 'messages'::text)))
);

CREATE TABLE trinity.task_stat (
    run_id bigint NOT NULL,
    task_id bigint NOT NULL,
    issued integer DEFAULT 0 NOT NULL,
    scored integer DEFAULT 0 NOT NULL,
    solved integer DEFAULT 0 NOT NULL,
    alpha double precision DEFAULT '1'::double precision NOT NULL,
    beta double precision DEFAULT '1'::double precision NOT NULL,
    issued_at timestamp with time zone,
    CONSTRAINT task_stat_solved_within_scored_check CHECK ((solved <= scored))
);

CREATE TABLE trinity.taskset (
    id bigint NOT NULL,
    name text NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL
);

CREATE VIEW trinity.drop_view AS
 SELECT r.name AS run,
    d.stage,
    d.step,
    d.reason,
    s.name AS taskset,
    width_bucket(e.response_length, ARRAY[0, 32, 128, 512, 2048, 8192]) AS length_class,
    width_bucket((f.beta / (f.alpha + f.beta)), (0)::double precision, (1)::double precision, 4) AS difficulty,
    min(e.response_length) AS shortest,
    max(e.response_length) AS longest,
    count(d.experience_id) AS rows,
    count(d.group_id) AS groups,
    count(d.preference_id) AS preferences
   FROM ((((((trinity.drop d
     JOIN trinity.run r ON ((r.id = d.run_id)))
     LEFT JOIN trinity.experience e ON ((e.id = d.experience_id)))
     LEFT JOIN trinity.rollout_group g ON ((g.id = COALESCE(d.group_id, e.group_id))))
     LEFT JOIN trinity.task t ON ((t.id = g.task_id)))
     LEFT JOIN trinity.taskset s ON ((s.id = t.taskset_id)))
     LEFT JOIN trinity.task_stat f ON (((f.run_id = d.run_id) AND (f.task_id = g.task_id) AND (f.scored > 0))))
  GROUP BY r.name, d.stage, d.step, d.reason, s.name, (width_bucket(e.response_length, ARRAY[0, 32, 128, 512, 2048, 8192])), (width_bucket((f.beta / (f.alpha + f.beta)), (0)::double precision, (1)::double precision, 4));

CREATE TABLE trinity.evaluation (
    id bigint NOT NULL,
    run_id bigint NOT NULL,
    taskset_id bigint NOT NULL,
    version integer NOT NULL,
    samples smallint NOT NULL,
    temperature double precision NOT NULL,
    max_new_tokens integer NOT NULL,
    seed bigint NOT NULL,
    solved_reward double precision NOT NULL,
    setting_id bigint NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    finished_at timestamp with time zone,
    error text,
    CONSTRAINT evaluation_given_up_is_finished_check CHECK (((error IS NULL) OR (finished_at IS NOT NULL))),
    CONSTRAINT evaluation_positive_check CHECK (((samples > 0) AND (temperature >= (0)::double precision) AND (max_new_tokens > 0)))
);

ALTER TABLE trinity.evaluation ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME trinity.evaluation_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE VIEW trinity.evaluation_task_view AS
SELECT
    NULL::bigint AS evaluation_id,
    NULL::text AS run,
    NULL::text AS taskset,
    NULL::integer AS version,
    NULL::text AS task,
    NULL::bigint AS group_id,
    NULL::smallint AS samples,
    NULL::bigint AS judged,
    NULL::bigint AS failed,
    NULL::bigint AS solved,
    NULL::double precision AS reward,
    NULL::double precision AS best,
    NULL::double precision[] AS rewards;

CREATE TABLE trinity.policy_version (
    run_id bigint NOT NULL,
    version integer NOT NULL,
    step integer NOT NULL,
    checkpoint text,
    checkpoint_hash text NOT NULL,
    weights text,
    published_at timestamp with time zone DEFAULT now() NOT NULL,
    resume_from text,
    resume_hash text,
    resume_address text,
    withdrawn_at timestamp with time zone,
    skipped integer DEFAULT 0 NOT NULL,
    CONSTRAINT policy_version_checkpoint_has_weights_check CHECK (((resume_from IS NULL) OR ((checkpoint IS NOT NULL) AND (resume_hash IS NOT NULL)))),
    CONSTRAINT policy_version_not_negative_check CHECK (((version >= 0) AND (step >= 0))),
    CONSTRAINT policy_version_skips_numbers_below_check CHECK (((skipped >= 0) AND (skipped <= version))),
    CONSTRAINT policy_version_uploaded_is_kept_check CHECK (((resume_address IS NULL) OR (resume_from IS NOT NULL))),
    CONSTRAINT policy_version_weights_are_kept_check CHECK (((weights IS NULL) OR (checkpoint IS NOT NULL))),
    CONSTRAINT policy_version_withdrawn_has_no_files_check CHECK (((withdrawn_at IS NULL) OR (checkpoint IS NULL)))
);

CREATE VIEW trinity.evaluation_view AS
 SELECT v.id,
    r.name AS run,
    s.name AS taskset,
    v.version,
    p.step,
    v.samples,
    v.temperature,
    v.max_new_tokens,
    g.tasks,
    g.judged,
    g.failed,
    (((g.tasks * v.samples) - g.judged) - g.failed) AS waiting,
    one.mean,
    one.mean_low,
    one.mean_high,
    one.pass AS pass_1,
    one.pass_low AS pass_1_low,
    one.pass_high AS pass_1_high,
    k.tasks_at_k,
    k.best,
    k.pass AS pass_k,
    k.pass_low AS pass_k_low,
    k.pass_high AS pass_k_high,
    v.created_at,
    v.finished_at,
    v.error
   FROM ((((((trinity.evaluation v
     JOIN trinity.run r ON ((r.id = v.run_id)))
     JOIN trinity.taskset s ON ((s.id = v.taskset_id)))
     JOIN trinity.policy_version p ON (((p.run_id = v.run_id) AND (p.version = v.version))))
     CROSS JOIN LATERAL ( SELECT count(*) AS tasks,
            (COALESCE(sum(w.judged), (0)::numeric))::bigint AS judged,
            (COALESCE(sum(w.failed), (0)::numeric))::bigint AS failed
           FROM trinity.evaluation_task_view w
          WHERE (w.evaluation_id = v.id)) g)
     CROSS JOIN LATERAL trinity.evaluation_at(v.id, 1) one(tasks, mean, mean_low, mean_high, tasks_at_k, best, best_low, best_high, pass, pass_low, pass_high))
     CROSS JOIN LATERAL trinity.evaluation_at(v.id, (v.samples)::integer) k(tasks, mean, mean_low, mean_high, tasks_at_k, best, best_low, best_high, pass, pass_low, pass_high));

ALTER TABLE trinity.experience ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME trinity.experience_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE trinity.rollout (
    id bigint NOT NULL,
    run_id bigint NOT NULL,
    group_id bigint NOT NULL,
    ordinal smallint NOT NULL,
    attempt integer NOT NULL,
    greedy boolean DEFAULT false NOT NULL,
    state trinity.rollout_state NOT NULL,
    worker_id bigint,
    model text,
    version_min integer,
    version_max integer,
    finish_reason text,
    error text,
    output text,
    started_at timestamp with time zone,
    finished_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT rollout_error_iff_failed_check CHECK (((state = 'failed'::trinity.rollout_state) = (error IS NOT NULL))),
    CONSTRAINT rollout_versions_in_order_check CHECK ((version_min <= version_max))
);

CREATE VIEW trinity.experience_view AS
 SELECT e.id,
    r.name AS run,
    e.state,
    e.group_id,
    m.ordinal AS member,
    e.step,
    t.key AS task,
    x.prompt,
    x.response,
    e.reward,
    e.version_min,
    e.version_max,
        CASE
            WHEN ((latest.skipped = 0) AND (e.version_max <= latest.version)) THEN (latest.version - e.version_min)
            WHEN (e.version_min IS NOT NULL) THEN trinity.staleness(e.run_id, latest.version, e.version_min, e.version_max)
            ELSE NULL::integer
        END AS staleness_now,
    e.use_count,
    e.prompt_length,
    e.response_length,
    m.model,
    m.finish_reason,
    m.greedy,
    e.held_out,
    g.evaluation_id,
    e.created_at
   FROM ((((((trinity.experience e
     JOIN trinity.run r ON ((r.id = e.run_id)))
     LEFT JOIN trinity.experience_text x ON ((x.experience_id = COALESCE(e.source_id, e.id))))
     LEFT JOIN trinity.rollout m ON ((m.id = e.rollout_id)))
     LEFT JOIN trinity.rollout_group g ON ((g.id = e.group_id)))
     LEFT JOIN trinity.task t ON ((t.id = g.task_id)))
     LEFT JOIN LATERAL ( SELECT p.version,
            p.skipped
           FROM trinity.policy_version p
          WHERE ((p.run_id = e.run_id) AND (p.checkpoint IS NOT NULL))
          ORDER BY p.version DESC
         LIMIT 1) latest ON (true));

CREATE TABLE trinity.group_priority (
    id bigint NOT NULL,
    run_id bigint NOT NULL,
    group_id bigint NOT NULL,
    attempt integer DEFAULT 0 NOT NULL,
    taken_at timestamp with time zone,
    priority double precision,
    processor_version integer,
    policy_version integer,
    computed_xact bigint,
    experience_id bigint,
    step text,
    error text,
    failed_at timestamp with time zone,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT group_priority_computed_by_a_transaction_check CHECK (((priority IS NULL) = (computed_xact IS NULL))),
    CONSTRAINT group_priority_failed_with_an_error_check CHECK (((failed_at IS NULL) OR ((priority IS NULL) AND (error IS NOT NULL)))),
    CONSTRAINT group_priority_priority_in_range_check CHECK (((priority = (0)::double precision) OR ((priority >= (0.000000000000000001)::double precision) AND (priority <= ('1000000000000000000'::numeric)::double precision))))
)
WITH (fillfactor='70', autovacuum_vacuum_threshold='1000', autovacuum_vacuum_scale_factor='0.01', autovacuum_vacuum_insert_scale_factor='0.05', autovacuum_analyze_scale_factor='0.02', autovacuum_vacuum_cost_delay='0');

CREATE TABLE trinity.payload (
    experience_id bigint NOT NULL,
    codec text NOT NULL,
    num_tokens integer NOT NULL,
    data bytea,
    archive_row bigint,
    archive_number smallint DEFAULT '0'::smallint NOT NULL,
    pruned_at timestamp with time zone,
    CONSTRAINT payload_has_tokens_check CHECK ((num_tokens > 0)),
    CONSTRAINT payload_in_one_place_check CHECK ((num_nonnulls(data, archive_row, pruned_at) = 1))
)
WITH (toast.autovacuum_vacuum_scale_factor='0.05');
ALTER TABLE ONLY trinity.payload ALTER COLUMN data SET STORAGE EXTERNAL;

CREATE TABLE trinity.synthesis (
    id bigint NOT NULL,
    run_id bigint NOT NULL,
    group_id bigint NOT NULL,
    experience_id bigint,
    worker_id bigint,
    attempt integer DEFAULT 0 NOT NULL,
    processor_version integer,
    refused jsonb,
    step text,
    error text,
    failed_at timestamp with time zone,
    finished_at timestamp with time zone,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT synthesis_ended_once_check CHECK (((failed_at IS NULL) OR (finished_at IS NULL))),
    CONSTRAINT synthesis_failed_with_an_error_check CHECK (((failed_at IS NULL) OR (error IS NOT NULL)))
)
WITH (fillfactor='70', autovacuum_vacuum_threshold='1000', autovacuum_vacuum_scale_factor='0.01', autovacuum_vacuum_insert_scale_factor='0.05', autovacuum_analyze_scale_factor='0.02', autovacuum_vacuum_cost_delay='0');

CREATE VIEW trinity.failure_view AS
 SELECT r.name AS run,
    e.id AS experience_id,
    e.group_id,
    e.version_max AS version,
    d.stage,
    d.step,
    (d.detail ->> 'error'::text) AS error,
    d.created_at AS failed_at,
        CASE
            WHEN (p.data IS NULL) THEN 'its arrays are archived or pruned'::text
            WHEN (g.state = ANY (ARRAY['open'::trinity.group_state, 'complete'::trinity.group_state])) THEN NULL::text
            WHEN ((g.state = 'dropped'::trinity.group_state) AND (of_group.stage = 'group'::text) AND (EXISTS ( SELECT
               FROM (trinity.experience s
                 JOIN trinity.payload q ON ((q.experience_id = s.id)))
              WHERE ((s.group_id = g.id) AND (q.pruned_at IS NOT NULL))))) THEN 'arrays of its group are pruned'::text
            WHEN ((g.state = 'dropped'::trinity.group_state) AND (of_group.stage = 'group'::text)) THEN NULL::text
            WHEN (g.state = 'dropped'::trinity.group_state) THEN 'its group was dropped after it'::text
            ELSE 'its group became ready without it'::text
        END AS obstacle
   FROM (((((trinity.drop d
     JOIN trinity.run r ON ((r.id = d.run_id)))
     JOIN trinity.experience e ON ((e.id = d.experience_id)))
     JOIN trinity.rollout_group g ON ((g.id = e.group_id)))
     LEFT JOIN trinity.drop of_group ON ((of_group.group_id = g.id)))
     LEFT JOIN trinity.payload p ON ((p.experience_id = e.id)))
  WHERE (d.reason = ANY (ARRAY['clean_failed'::text, 'clean_crashed'::text, 'score_failed'::text, 'score_crashed'::text]))
UNION ALL
 SELECT r.name AS run,
    p.experience_id,
    p.group_id,
    g.version_max AS version,
    'priority'::text AS stage,
    p.step,
    p.error,
    p.failed_at,
    NULL::text AS obstacle
   FROM ((trinity.group_priority p
     JOIN trinity.run r ON ((r.id = p.run_id)))
     JOIN trinity.rollout_group g ON ((g.id = p.group_id)))
  WHERE ((p.failed_at IS NOT NULL) AND (NOT (EXISTS ( SELECT
           FROM trinity.group_priority l
          WHERE ((l.group_id = p.group_id) AND (l.id > p.id) AND ((l.priority IS NOT NULL) OR (l.failed_at IS NOT NULL)))))))
UNION ALL
 SELECT r.name AS run,
    s.experience_id,
    s.group_id,
    g.version_max AS version,
    'synthesis'::text AS stage,
    s.step,
    s.error,
    s.failed_at,
    NULL::text AS obstacle
   FROM ((trinity.synthesis s
     JOIN trinity.run r ON ((r.id = s.run_id)))
     JOIN trinity.rollout_group g ON ((g.id = s.group_id)))
  WHERE (s.failed_at IS NOT NULL);

ALTER TABLE trinity.group_priority ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME trinity.group_priority_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE trinity.label (
    id bigint NOT NULL,
    review_id bigint NOT NULL,
    author text NOT NULL,
    state trinity.label_state DEFAULT 'draft'::trinity.label_state NOT NULL,
    value smallint,
    swapped boolean,
    blind boolean,
    seconds double precision,
    attempt integer DEFAULT 1 NOT NULL,
    leased_until timestamp with time zone,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    decided_at timestamp with time zone,
    CONSTRAINT label_decided_iff_no_draft_check CHECK (((state = 'draft'::trinity.label_state) = (decided_at IS NULL))),
    CONSTRAINT label_leased_iff_draft_check CHECK (((state = 'draft'::trinity.label_state) = (leased_until IS NOT NULL))),
    CONSTRAINT label_seconds_finite_check CHECK (((seconds >= (0)::double precision) AND (seconds < 'Infinity'::double precision))),
    CONSTRAINT label_value_iff_submitted_check CHECK (((state = 'submitted'::trinity.label_state) = (value IS NOT NULL)))
);

ALTER TABLE trinity.label ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME trinity.label_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE trinity.preference (
    id bigint NOT NULL,
    run_id bigint NOT NULL,
    chosen_id bigint NOT NULL,
    rejected_id bigint NOT NULL,
    source text NOT NULL,
    margin double precision,
    state trinity.experience_state DEFAULT 'ready'::trinity.experience_state NOT NULL,
    held_out boolean DEFAULT false NOT NULL,
    use_count integer DEFAULT 0 NOT NULL,
    worker_id bigint,
    attempt integer DEFAULT 0 NOT NULL,
    extra jsonb,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    ready_xact bigint DEFAULT ((pg_current_xact_id())::text)::bigint NOT NULL,
    origin_id bigint,
    seed bigint,
    gives_labels boolean DEFAULT false NOT NULL,
    upheld boolean,
    place bigint GENERATED ALWAYS AS (hashint8extended(origin_id, (seed + use_count))) STORED,
    CONSTRAINT preference_leased_by_a_worker_check CHECK (((state <> 'leased'::trinity.experience_state) OR (worker_id IS NOT NULL))),
    CONSTRAINT preference_two_experiences_check CHECK ((chosen_id <> rejected_id))
)
WITH (fillfactor='70', autovacuum_vacuum_threshold='1000', autovacuum_vacuum_scale_factor='0.01', autovacuum_vacuum_insert_scale_factor='0.05', autovacuum_analyze_scale_factor='0.02', autovacuum_vacuum_cost_delay='0');

CREATE TABLE trinity.worker (
    id bigint NOT NULL,
    run_id bigint NOT NULL,
    role trinity.worker_role NOT NULL,
    setting_id bigint NOT NULL,
    host text NOT NULL,
    pid integer NOT NULL,
    login text DEFAULT SESSION_USER NOT NULL,
    started_at timestamp with time zone DEFAULT now() NOT NULL,
    heartbeat_at timestamp with time zone DEFAULT now() NOT NULL,
    stopped_at timestamp with time zone,
    exclusive boolean DEFAULT false NOT NULL,
    session_pid integer,
    staged_version integer,
    broken_weights text,
    broadcast_at text,
    engine_dtype text,
    CONSTRAINT worker_dtype_of_an_explorer_check CHECK (((engine_dtype IS NULL) OR ((role = 'explore'::trinity.worker_role) AND (engine_dtype = ANY (ARRAY['float32'::text, 'bfloat16'::text, 'float16'::text]))))),
    CONSTRAINT worker_is_of_a_trainer_check CHECK (((broadcast_at IS NULL) OR (role = 'train'::trinity.worker_role)))
)
WITH (fillfactor='50');

CREATE VIEW trinity.lease_view AS
 SELECT r.name AS run,
    w.id AS worker,
    w.role,
    w.host,
    w.pid,
    round(EXTRACT(epoch FROM (clock_timestamp() - w.heartbeat_at)), 1) AS silent_seconds,
    ((w.stopped_at IS NULL) AND trinity.is_alive(w.heartbeat_at, (30)::double precision)) AS alive,
    held.groups,
    held.rows,
    held.batches
   FROM ((trinity.worker w
     JOIN trinity.run r ON ((r.id = w.run_id)))
     CROSS JOIN LATERAL ( SELECT ( SELECT count(*) AS count
                   FROM trinity.rollout_group g
                  WHERE (g.worker_id = w.id)) AS groups,
            ((( SELECT count(*) AS count
                   FROM trinity.experience e
                  WHERE (e.judge_id = w.id)) + ( SELECT count(*) AS count
                   FROM ((trinity.batch b
                     JOIN trinity.batch_item i ON ((i.batch_id = b.id)))
                     JOIN trinity.experience e ON (((e.id = i.experience_id) AND (e.worker_id = w.id) AND (e.state = 'leased'::trinity.experience_state))))
                  WHERE ((b.run_id = w.run_id) AND (b.worker_id = w.id) AND (b.state = 'leased'::trinity.batch_state)))) + ( SELECT count(*) AS count
                   FROM trinity.preference p
                  WHERE (p.worker_id = w.id))) AS rows,
            ( SELECT count(*) AS count
                   FROM trinity.batch b
                  WHERE ((b.run_id = w.run_id) AND (b.worker_id = w.id) AND (b.state = 'leased'::trinity.batch_state))) AS batches) held)
  WHERE ((w.stopped_at IS NULL) OR (((held.groups + held.rows) + held.batches) > 0));

CREATE TABLE trinity.metric (
    id bigint NOT NULL,
    run_id bigint NOT NULL,
    role trinity.worker_role NOT NULL,
    step integer NOT NULL,
    name text NOT NULL,
    value double precision NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL
);

ALTER TABLE trinity.metric ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME trinity.metric_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE trinity.minhash (
    experience_id bigint NOT NULL,
    bands bigint[] NOT NULL,
    CONSTRAINT minhash_has_bands_check CHECK ((cardinality(bands) > 0))
);

CREATE TABLE trinity.origin (
    id bigint NOT NULL,
    synthesis_id bigint NOT NULL,
    run_id bigint NOT NULL,
    source_task_id bigint NOT NULL,
    task_id bigint,
    experience_id bigint,
    step text NOT NULL,
    digest text NOT NULL,
    detail jsonb,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT origin_of_one_thing_check CHECK ((num_nonnulls(task_id, experience_id) = 1))
);

ALTER TABLE trinity.origin ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME trinity.origin_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE VIEW trinity.origin_view AS
 SELECT o.task_id,
    o.experience_id,
    o.step,
    r.name AS source_run,
    s.experience_id AS source_experience_id,
    s.group_id AS source_group_id,
    o.source_task_id,
    e.version_max AS source_version,
    e.reward AS source_reward,
    s.processor_version,
    o.detail,
    o.created_at
   FROM (((trinity.origin o
     JOIN trinity.synthesis s ON ((s.id = o.synthesis_id)))
     JOIN trinity.run r ON ((r.id = o.run_id)))
     LEFT JOIN trinity.experience e ON ((e.id = s.experience_id)));

CREATE TABLE trinity.overlap (
    id bigint NOT NULL,
    task_id bigint NOT NULL,
    of_task_id bigint,
    experience_id bigint,
    measure text NOT NULL,
    share double precision NOT NULL,
    text text NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT overlap_is_share_check CHECK (((share > (0)::double precision) AND (share <= (1)::double precision))),
    CONSTRAINT overlap_of_one_text_check CHECK ((num_nonnulls(of_task_id, experience_id) = 1))
);

ALTER TABLE trinity.overlap ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME trinity.overlap_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE VIEW trinity.overlap_view AS
 SELECT o.id,
    r.name AS run,
    o.experience_id,
    COALESCE(o.of_task_id, g.task_id) AS task_id,
    s.name AS taskset,
    o.task_id AS evaluated_task_id,
    b.name AS evaluated_taskset,
    o.measure,
    o.share,
    o.text,
    (e.state)::text AS state,
    o.created_at
   FROM (((((((trinity.overlap o
     JOIN trinity.task k ON ((k.id = o.task_id)))
     JOIN trinity.taskset b ON ((b.id = k.taskset_id)))
     LEFT JOIN trinity.experience e ON ((e.id = o.experience_id)))
     LEFT JOIN trinity.run r ON ((r.id = e.run_id)))
     LEFT JOIN trinity.rollout_group g ON ((g.id = e.group_id)))
     LEFT JOIN trinity.task t ON ((t.id = COALESCE(o.of_task_id, g.task_id))))
     LEFT JOIN trinity.taskset s ON ((s.id = t.taskset_id)));

CREATE TABLE trinity.pairing (
    run_id bigint NOT NULL,
    id bigint NOT NULL,
    group_id bigint NOT NULL
)
WITH (fillfactor='70', autovacuum_vacuum_threshold='1000', autovacuum_vacuum_scale_factor='0.01', autovacuum_vacuum_insert_scale_factor='0.05', autovacuum_analyze_scale_factor='0.02', autovacuum_vacuum_cost_delay='0');

ALTER TABLE trinity.pairing ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME trinity.pairing_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE trinity.park (
    id bigint NOT NULL,
    run_id bigint NOT NULL,
    agent_id bigint NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    parked_at timestamp with time zone,
    state jsonb,
    record jsonb,
    version_min integer,
    wake_at timestamp with time zone,
    answer jsonb,
    answered_at timestamp with time zone,
    answered_by text,
    resumed_at timestamp with time zone,
    resumed_attempt integer,
    left_at timestamp with time zone,
    CONSTRAINT park_answer_iff_answered_check CHECK (((answered_at IS NULL) = (answer IS NULL))),
    CONSTRAINT park_left_after_it_was_resumed_check CHECK (((left_at IS NULL) OR (resumed_at IS NOT NULL))),
    CONSTRAINT park_parked_with_state_check CHECK ((((parked_at IS NULL) = (state IS NULL)) AND ((parked_at IS NULL) = (record IS NULL)))),
    CONSTRAINT park_resumed_from_a_park_check CHECK (((resumed_at IS NULL) OR ((parked_at IS NOT NULL) AND (resumed_attempt IS NOT NULL))))
);

ALTER TABLE trinity.park ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME trinity.park_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE VIEW trinity.parked_view AS
 SELECT r.name AS run,
    p.run_id,
    p.id AS ticket,
    a.group_id,
    a.ordinal AS member,
    g.task_id,
    p.parked_at,
    p.wake_at,
    p.answered_at,
    p.state,
    p.answer
   FROM (((trinity.park p
     JOIN trinity.agent a ON (((a.id = p.agent_id) AND (a.ended_at IS NULL))))
     JOIN trinity.rollout_group g ON (((g.id = a.group_id) AND (g.completed_at IS NULL))))
     JOIN trinity.run r ON ((r.id = p.run_id)))
  WHERE ((p.parked_at IS NOT NULL) AND (p.left_at IS NULL) AND ((p.resumed_attempt IS NULL) OR (g.worker_id IS NULL) OR (p.resumed_attempt <> g.attempt)));

CREATE VIEW trinity.policy_progress AS
 SELECT r.name AS run,
    p.version,
    p.step,
    p.published_at,
    count(e.id) AS experiences,
    avg(trinity.reward_at_training(e.id, e.rollout_id, e.reward)) AS reward,
    avg(e.reward) AS reward_now,
    avg(e.response_length) AS response_length,
    count(e.id) FILTER (WHERE (e.state = 'trained'::trinity.experience_state)) AS trained,
    count(e.id) FILTER (WHERE (e.state = ANY (ARRAY['dropped'::trinity.experience_state, 'expired'::trinity.experience_state]))) AS dropped,
    ( SELECT m.value
           FROM trinity.metric m
          WHERE ((m.run_id = p.run_id) AND (m.name = 'publish/visible'::text) AND (m.step = p.step))
          ORDER BY m.id DESC
         LIMIT 1) AS visible,
    ( SELECT m.value
           FROM trinity.metric m
          WHERE ((m.run_id = p.run_id) AND (m.name = 'publish/visible_last_ten'::text) AND (m.step = p.step))
          ORDER BY m.id DESC
         LIMIT 1) AS visible_last_ten,
    ( SELECT m.value
           FROM trinity.metric m
          WHERE ((m.run_id = p.run_id) AND (m.name = 'publish/changed'::text) AND (m.step = p.step))
          ORDER BY m.id DESC
         LIMIT 1) AS changed,
    ( SELECT m.value
           FROM trinity.metric m
          WHERE ((m.run_id = p.run_id) AND (m.name = 'publish/noise'::text) AND (m.step = p.step))
          ORDER BY m.id DESC
         LIMIT 1) AS noise
   FROM ((trinity.policy_version p
     JOIN trinity.run r ON ((r.id = p.run_id)))
     LEFT JOIN trinity.experience e ON (((e.run_id = p.run_id) AND (e.version_min = p.version) AND (NOT e.held_out))))
  GROUP BY r.name, p.run_id, p.version, p.step, p.published_at;

ALTER TABLE trinity.preference ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME trinity.preference_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE trinity.processing (
    id bigint NOT NULL,
    experience_id bigint NOT NULL,
    processor text NOT NULL,
    processor_version integer NOT NULL,
    attempt integer NOT NULL,
    outcome trinity.processing_outcome NOT NULL,
    step text,
    error text,
    detail jsonb,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT processing_error_iff_failed_check CHECK (((outcome = 'failed'::trinity.processing_outcome) = (error IS NOT NULL)))
);

ALTER TABLE trinity.processing ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME trinity.processing_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE trinity.rescore (
    group_id bigint NOT NULL,
    worker_id bigint,
    attempt integer DEFAULT 1 NOT NULL
)
WITH (fillfactor='70', autovacuum_vacuum_threshold='1000', autovacuum_vacuum_scale_factor='0.01', autovacuum_vacuum_insert_scale_factor='0.05', autovacuum_analyze_scale_factor='0.02', autovacuum_vacuum_cost_delay='0');

CREATE TABLE trinity.retention (
    run_id bigint NOT NULL,
    family text NOT NULL,
    num_rows bigint DEFAULT '0'::bigint NOT NULL,
    num_bytes bigint DEFAULT '0'::bigint NOT NULL,
    removed_at timestamp with time zone,
    CONSTRAINT retention_known_family_check CHECK ((family = ANY (ARRAY['payloads'::text, 'calls'::text, 'metrics'::text, 'processing'::text])))
);

CREATE TABLE trinity.review (
    id bigint NOT NULL,
    run_id bigint NOT NULL,
    experience_id bigint NOT NULL,
    other_id bigint,
    source text NOT NULL,
    name text NOT NULL,
    weight double precision NOT NULL,
    wanted integer NOT NULL,
    lowest smallint NOT NULL,
    highest smallint NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    closed_at timestamp with time zone,
    CONSTRAINT review_pair_in_order_check CHECK ((other_id > experience_id)),
    CONSTRAINT review_scale_in_order_check CHECK ((lowest < highest)),
    CONSTRAINT review_scale_of_a_pair_check CHECK (((other_id IS NULL) OR ((lowest = '-1'::integer) AND (highest = 1)))),
    CONSTRAINT review_wants_a_verdict_check CHECK ((wanted >= 1)),
    CONSTRAINT review_weight_finite_check CHECK (((weight > '-Infinity'::double precision) AND (weight < 'Infinity'::double precision)))
);

ALTER TABLE trinity.review ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME trinity.review_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE VIEW trinity.reward_change_view AS
 SELECT r.name AS run,
    i.experience_id,
    b.step,
    b.included_version,
    i.reward AS reward_used,
    e.reward AS reward_now,
    v.created_at AS changed_at,
    v.source,
    v.created_by AS changed_by
   FROM ((((trinity.batch b
     JOIN trinity.run r ON ((r.id = b.run_id)))
     JOIN trinity.batch_item i ON ((i.batch_id = b.id)))
     JOIN trinity.experience e ON ((e.id = i.experience_id)))
     LEFT JOIN LATERAL ( SELECT a.id,
            a.created_at,
            a.source,
            a.created_by
           FROM trinity.reward_event a
          WHERE (a.rollout_id = e.rollout_id)
        UNION ALL
         SELECT a.id,
            a.created_at,
            a.source,
            a.created_by
           FROM trinity.reward_event a
          WHERE (a.experience_id = ANY (ARRAY[e.id, e.source_id]))
  ORDER BY 1 DESC
 LIMIT 1) v ON (true))
  WHERE ((b.state = 'committed'::trinity.batch_state) AND ((i.reward IS NULL) OR (i.reward IS DISTINCT FROM e.reward)) AND
        CASE
            WHEN (i.reward IS NULL) THEN (v.created_at > b.created_at)
            ELSE (i.reward IS DISTINCT FROM e.reward)
        END);

ALTER TABLE trinity.reward_event ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME trinity.reward_event_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE VIEW trinity.reward_part_view AS
 SELECT DISTINCT ON (e.id, v.name) r.name AS run,
    e.id AS experience_id,
    v.name,
    v.value,
    v.weight,
    v.source,
    v.created_by,
    v.processor_version,
    v.created_at,
    v.id AS event_id,
    trinity.reward_share(v.value, v.weight, v.source) AS share
   FROM ((trinity.experience e
     LEFT JOIN trinity.run r ON ((r.id = e.run_id)))
     CROSS JOIN LATERAL ( SELECT a.id,
            a.run_id,
            a.rollout_id,
            a.experience_id,
            a.source,
            a.name,
            a.value,
            a.weight,
            a.created_by,
            a.processor_version,
            a.detail,
            a.created_at,
            a.xact
           FROM trinity.reward_event a
          WHERE (a.rollout_id = e.rollout_id)
        UNION ALL
         SELECT a.id,
            a.run_id,
            a.rollout_id,
            a.experience_id,
            a.source,
            a.name,
            a.value,
            a.weight,
            a.created_by,
            a.processor_version,
            a.detail,
            a.created_at,
            a.xact
           FROM trinity.reward_event a
          WHERE (a.experience_id = ANY (ARRAY[e.id, e.source_id]))) v)
  ORDER BY e.id, v.name, v.id DESC;

ALTER TABLE trinity.rollout_group ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME trinity.rollout_group_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

ALTER TABLE trinity.rollout ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME trinity.rollout_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

ALTER TABLE trinity.run ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME trinity.run_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE trinity.run_setting (
    id bigint NOT NULL,
    run_id bigint NOT NULL,
    config jsonb NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    created_by text DEFAULT SESSION_USER NOT NULL,
    host text
);

ALTER TABLE trinity.run_setting ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME trinity.run_setting_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE VIEW trinity.run_view AS
 SELECT r.id,
    r.name AS run,
    r.kind,
    r.state,
        CASE
            WHEN (r.deleting_at IS NOT NULL) THEN 'being deleted'::text
            WHEN (r.kind = 'data'::trinity.run_kind) THEN 'data set'::text
            WHEN w.are_to_stop THEN 'stopping'::text
            WHEN (r.state = 'finished'::trinity.run_state) THEN 'finished'::text
            WHEN (w.run_id IS NULL) THEN 'new'::text
            WHEN (w.alive > 0) THEN 'active'::text
            WHEN w.is_crashed THEN 'crashed'::text
            ELSE 'stopped'::text
        END AS status,
    COALESCE(w.alive, (0)::bigint) AS alive,
    w.seen_at,
    r.created_at,
    r.finished_at
   FROM (trinity.run r
     LEFT JOIN ( SELECT a.run_id,
            max(a.newest) AS seen_at,
            count(*) FILTER (WHERE a.is_alive) AS alive,
            bool_or((a.is_alive AND (a.started_at <= a.stop_asked_at))) AS are_to_stop,
            bool_or(((a.heartbeat_at >= (a.newest - '00:00:30'::interval)) AND COALESCE((a.stopped_at > (a.heartbeat_at + '00:00:30'::interval)), true))) AS is_crashed
           FROM ( SELECT w_1.run_id,
                    w_1.started_at,
                    w_1.heartbeat_at,
                    w_1.stopped_at,
                    o.stop_asked_at,
                    ((w_1.stopped_at IS NULL) AND trinity.is_alive(w_1.heartbeat_at, (30)::double precision)) AS is_alive,
                    max(w_1.heartbeat_at) OVER (PARTITION BY w_1.run_id) AS newest
                   FROM (trinity.worker w_1
                     JOIN trinity.run o ON ((o.id = w_1.run_id)))) a
          GROUP BY a.run_id) w ON ((w.run_id = r.id)));

CREATE TABLE trinity.schema_version (
    version_num character varying(32) NOT NULL
);

CREATE TABLE trinity.score (
    experience_id bigint NOT NULL,
    name text NOT NULL,
    digest text NOT NULL,
    data bytea NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT score_known_name_check CHECK ((name = ANY (ARRAY['reference'::text, 'teacher'::text]))),
    CONSTRAINT score_whole_numbers_check CHECK (((octet_length(data) % 4) = 0))
);
ALTER TABLE ONLY trinity.score ALTER COLUMN data SET STORAGE EXTERNAL;

CREATE VIEW trinity.sequence_view AS
 SELECT r.name AS run,
    e.group_id,
    m.ordinal AS member,
    e.rollout_id,
    e.step,
    e.id AS experience_id,
    (e.state)::text AS state,
    NULL::text AS left_out,
    q.calls,
    q.models,
    q.paths,
    (e.prompt_length + e.response_length) AS num_tokens,
    e.response_length AS num_trained,
    e.reward
   FROM ((((trinity.experience e
     JOIN trinity.run r ON ((r.id = e.run_id)))
     JOIN trinity.rollout m ON ((m.id = e.rollout_id)))
     JOIN trinity.experience_text x ON ((x.experience_id = e.id)))
     CROSS JOIN LATERAL ( SELECT (sum(((o.value ->> 'calls'::text))::integer))::integer AS calls,
            array_agg(DISTINCT (o.value ->> 'model'::text)) AS models,
            array_agg(DISTINCT (o.value ->> 'path'::text)) AS paths
           FROM jsonb_array_elements(x.requests) o(value)) q)
UNION ALL
 SELECT r.name AS run,
    m.group_id,
    m.ordinal AS member,
    m.id AS rollout_id,
    NULL::smallint AS step,
    NULL::bigint AS experience_id,
    NULL::text AS state,
    c.left_out,
    1 AS calls,
    ARRAY[c.model] AS models,
    ARRAY[c.path] AS paths,
    c.num_tokens,
    0 AS num_trained,
    NULL::double precision AS reward
   FROM (((trinity.rollout m
     JOIN trinity.run r ON ((r.id = m.run_id)))
     JOIN trinity.agent a ON (((a.group_id = m.group_id) AND (a.ordinal = m.ordinal) AND (a.attempt = m.attempt))))
     JOIN trinity.call c ON (((c.agent_id = a.id) AND (c.left_out IS NOT NULL))));

CREATE TABLE trinity.setback (
    id bigint NOT NULL,
    run_id bigint NOT NULL,
    worker_id bigint NOT NULL,
    known_version integer NOT NULL,
    known_step integer NOT NULL,
    last_step integer NOT NULL,
    num_rows integer,
    first_version integer,
    last_version integer,
    resumed_version integer NOT NULL,
    adopted_version integer,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT setback_lost_something_check CHECK (((last_step > known_step) OR (last_version IS NOT NULL))),
    CONSTRAINT setback_versions_together_check CHECK (((first_version IS NULL) = (last_version IS NULL)))
);

ALTER TABLE trinity.setback ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME trinity.setback_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE VIEW trinity.setting_view AS
 WITH RECURSIVE leaf AS (
         SELECT s_1.id,
            s_1.run_id,
            k.key,
            k.value
           FROM (trinity.run_setting s_1
             CROSS JOIN LATERAL jsonb_each(s_1.config) k(key, value))
        UNION ALL
         SELECT l.id,
            l.run_id,
            ((l.key || '.'::text) || k.key),
            k.value
           FROM (leaf l
             CROSS JOIN LATERAL jsonb_each(
                CASE
                    WHEN (jsonb_typeof(l.value) = 'object'::text) THEN l.value
                    ELSE '{}'::jsonb
                END) k(key, value))
        ), key AS (
         SELECT leaf.id,
            leaf.run_id,
            leaf.key,
            leaf.value
           FROM leaf
          WHERE ((jsonb_typeof(leaf.value) <> 'object'::text) OR (leaf.value = '{}'::jsonb))
        ), setting AS (
         SELECT s_1.id,
            s_1.run_id,
            s_1.config,
            s_1.created_at,
            s_1.created_by,
            s_1.host,
            lag(s_1.id) OVER (PARTITION BY s_1.run_id ORDER BY s_1.id) AS before_id
           FROM trinity.run_setting s_1
        )
 SELECT r.name AS run,
    s.id AS setting_id,
    ( SELECT min(b.step) AS min
           FROM trinity.batch b
          WHERE ((b.setting_id = s.id) AND (b.run_id = s.run_id))) AS since_step,
    change.key,
    change.before,
    change.after,
    s.created_at AS changed_at,
    s.created_by AS changed_by,
    s.host
   FROM ((setting s
     JOIN trinity.run r ON ((r.id = s.run_id)))
     CROSS JOIN LATERAL ( SELECT COALESCE(a.key, b.key) AS key,
            b.value AS before,
            a.value AS after
           FROM (( SELECT k.key,
                    k.value
                   FROM key k
                  WHERE (k.id = s.id)) a
             FULL JOIN ( SELECT k.key,
                    k.value
                   FROM key k
                  WHERE (k.id = s.before_id)) b ON ((b.key = a.key)))
          WHERE (a.value IS DISTINCT FROM b.value)) change)
  WHERE (s.before_id IS NOT NULL);

CREATE VIEW trinity.state_time_view AS
SELECT
    NULL::text AS run,
    NULL::text AS state,
    NULL::bigint AS rows,
    NULL::double precision AS mean,
    NULL::double precision AS median,
    NULL::double precision AS p95;

CREATE TABLE trinity.step_list (
    run_id bigint NOT NULL,
    processor text NOT NULL,
    version integer NOT NULL,
    steps jsonb NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL
);

CREATE TABLE trinity.store_instance (
    is_only boolean DEFAULT true NOT NULL,
    id uuid DEFAULT gen_random_uuid() NOT NULL,
    copy_of uuid,
    system_identifier bigint NOT NULL,
    database_oid bigint NOT NULL,
    timeline integer NOT NULL,
    home text,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT store_instance_one_row_check CHECK (is_only)
);

CREATE TABLE trinity.sweep (
    family text NOT NULL,
    after_id bigint DEFAULT '0'::bigint NOT NULL,
    ended_at timestamp with time zone,
    CONSTRAINT sweep_after_a_row_check CHECK ((after_id >= 0)),
    CONSTRAINT sweep_known_family_check CHECK ((family = ANY (ARRAY['payloads'::text, 'calls'::text, 'metrics'::text, 'processing'::text])))
);

ALTER TABLE trinity.synthesis ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME trinity.synthesis_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

ALTER TABLE trinity.task ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME trinity.task_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE trinity.task_pass (
    run_id bigint NOT NULL,
    taskset_id bigint NOT NULL,
    issued integer DEFAULT 0 NOT NULL,
    walk text NOT NULL,
    number integer DEFAULT 0 NOT NULL,
    first integer DEFAULT 0 NOT NULL,
    size integer NOT NULL,
    "position" integer DEFAULT 0 NOT NULL,
    level double precision,
    CONSTRAINT task_pass_known_walk_check CHECK ((walk = ANY (ARRAY['shuffled'::text, 'sequential'::text, 'easy_to_hard'::text]))),
    CONSTRAINT task_pass_place_in_order_check CHECK (((number >= 0) AND (first >= 0) AND (size >= 0) AND ("position" >= 0)))
);

ALTER TABLE trinity.taskset ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME trinity.taskset_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE VIEW trinity.verdict_agreement_view AS
 WITH verdict AS (
         SELECT q.run_id,
            q.source,
            q.name,
            (q.other_id IS NOT NULL) AS is_pair,
            q.lowest,
            q.highest,
            l.review_id,
            l.author,
            (l.value)::double precision AS value,
            count(*) OVER (PARTITION BY l.review_id) AS given
           FROM (trinity.label l
             JOIN trinity.review q ON ((q.id = l.review_id)))
          WHERE (l.state = 'submitted'::trinity.label_state)
        ), pairable AS (
         SELECT dense_rank() OVER (ORDER BY v.run_id, v.source, v.name, v.is_pair, v.lowest, v.highest) AS kind,
            v.run_id,
            v.source,
            v.name,
            v.is_pair,
            v.lowest,
            v.highest,
            v.review_id,
            v.author,
            v.value,
            v.given
           FROM verdict v
          WHERE (v.given > 1)
        ), equals AS (
         SELECT c.kind,
            sum((((c.times * (c.times - 1)))::numeric / ((c.given)::numeric - 1.0))) AS within
           FROM ( SELECT p.kind,
                    p.review_id,
                    p.given,
                    p.value,
                    count(*) AS times
                   FROM pairable p
                  GROUP BY p.kind, p.review_id, p.given, p.value) c
          GROUP BY c.kind
        ), all_equals AS (
         SELECT c.kind,
            sum((c.times * (c.times - 1))) AS among
           FROM ( SELECT p.kind,
                    p.value,
                    count(*) AS times
                   FROM pairable p
                  GROUP BY p.kind, p.value) c
          GROUP BY c.kind
        ), spread AS (
         SELECT c.kind,
            sum(((c.given)::double precision * c.variance)) AS within
           FROM ( SELECT p.kind,
                    p.review_id,
                    p.given,
                    var_samp(p.value) AS variance
                   FROM pairable p
                  GROUP BY p.kind, p.review_id, p.given) c
          GROUP BY c.kind
        ), total AS (
         SELECT p.kind,
            p.run_id,
            p.source,
            p.name,
            p.is_pair,
            p.lowest,
            p.highest,
            (count(*))::double precision AS verdicts,
            count(DISTINCT p.review_id) AS reviews,
            count(DISTINCT p.author) AS people,
            var_samp(p.value) AS variance
           FROM pairable p
          GROUP BY p.kind, p.run_id, p.source, p.name, p.is_pair, p.lowest, p.highest
        )
 SELECT r.name AS run,
    t.source,
    t.name,
    t.is_pair,
    t.lowest,
    t.highest,
    t.reviews,
    (t.verdicts)::bigint AS verdicts,
    t.people,
    ((1)::double precision - (((1)::double precision - ((e.within)::double precision / t.verdicts)) / NULLIF(((1)::double precision - ((a.among)::double precision / (t.verdicts * (t.verdicts - (1)::double precision)))), (0)::double precision))) AS alpha_nominal,
    ((1)::double precision - ((s.within / t.verdicts) / NULLIF(t.variance, (0)::double precision))) AS alpha_interval
   FROM ((((total t
     JOIN equals e ON ((e.kind = t.kind)))
     JOIN all_equals a ON ((a.kind = t.kind)))
     JOIN spread s ON ((s.kind = t.kind)))
     JOIN trinity.run r ON ((r.id = t.run_id)));

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
   FROM ((trinity.label l
     JOIN trinity.review q ON ((q.id = l.review_id)))
     JOIN trinity.run r ON ((r.id = q.run_id)));

ALTER TABLE trinity.worker ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME trinity.worker_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

INSERT INTO trinity.batch VALUES
	(1, 1, 1, 'committed', 3, 1, 0, 0, 1, 1, 0, 'fifo', 0, 'WITH picked AS MATERIALIZED (
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
WHERE (e.state = ''ready'') IS TRUE AND e.source_id IS NULL
ORDER BY e.group_id, e.id', '750:750:', NULL, '{"max_uses": 1}', 1, '2026-11-27 22:19:46.003377+00', '2026-11-27 22:19:46.028142+00', NULL),
	(2, 1, 2, 'committed', 3, 1, 1, 0, 2, 2, 0, 'fifo', 0, 'WITH picked AS MATERIALIZED (
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
WHERE (e.state = ''ready'') IS TRUE AND e.source_id IS NULL
ORDER BY e.group_id, e.id', '755:755:', NULL, '{"max_uses": 1}', 2, '2026-11-27 22:19:46.07513+00', '2026-11-27 22:19:46.130816+00', NULL),
	(3, 1, 3, 'leased', 3, 1, 2, 0, NULL, 1, 0, 'fifo', 0, 'WITH picked AS MATERIALIZED (
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
WHERE (e.state = ''ready'') IS TRUE AND e.source_id IS NULL
ORDER BY e.group_id, e.id', '760:760:', NULL, '{"max_uses": 1}', 4, '2026-11-27 22:19:46.165068+00', NULL, NULL);

INSERT INTO trinity.batch_item VALUES
	(1, 0, 1, NULL, NULL, 1, 1, 0.5, 0),
	(1, 1, 2, NULL, NULL, 1, 0, -0.5, 0),
	(2, 0, 3, NULL, NULL, 1, 1, 0.5, 1),
	(2, 1, 4, NULL, NULL, 1, 0, -0.5, 1),
	(2, 2, 5, NULL, NULL, 1, 1, 0.5, 1),
	(2, 3, 6, NULL, NULL, 1, 0, -0.5, 1),
	(3, 0, 7, NULL, NULL, 1, 1, 0.5, 2),
	(3, 1, 8, NULL, NULL, 1, 0, -0.5, 2);

INSERT INTO trinity.experience VALUES
	(1, 1, 1, 1, NULL, 0, 'trained', false, 0, 0, 1, 0, 1, 3, 2, NULL, 3, NULL, '2026-11-27 22:19:45.411626+00', NULL, NULL, false, DEFAULT, DEFAULT, DEFAULT, DEFAULT, DEFAULT),
	(2, 1, 1, 2, NULL, 0, 'trained', false, 0, 0, 0, 0, 1, 3, 2, NULL, 3, NULL, '2026-11-27 22:19:45.411626+00', NULL, NULL, false, DEFAULT, DEFAULT, DEFAULT, DEFAULT, DEFAULT),
	(3, 1, 2, 3, NULL, 0, 'trained', false, 0, 0, 1, 0, 1, 3, 2, NULL, 3, NULL, '2026-11-27 22:19:45.411626+00', NULL, NULL, false, DEFAULT, DEFAULT, DEFAULT, DEFAULT, DEFAULT),
	(4, 1, 2, 4, NULL, 0, 'trained', false, 0, 0, 0, 0, 1, 3, 2, NULL, 3, NULL, '2026-11-27 22:19:45.411626+00', NULL, NULL, false, DEFAULT, DEFAULT, DEFAULT, DEFAULT, DEFAULT),
	(5, 1, 3, 5, NULL, 0, 'trained', false, 0, 0, 1, 0, 1, 3, 2, NULL, 3, NULL, '2026-11-27 22:19:45.411626+00', NULL, NULL, false, DEFAULT, DEFAULT, DEFAULT, DEFAULT, DEFAULT),
	(6, 1, 3, 6, NULL, 0, 'trained', false, 0, 0, 0, 0, 1, 3, 2, NULL, 3, NULL, '2026-11-27 22:19:45.411626+00', NULL, NULL, false, DEFAULT, DEFAULT, DEFAULT, DEFAULT, DEFAULT),
	(7, 1, 4, 7, NULL, 0, 'leased', false, 0, 0, 1, 0, 0, 3, 2, 3, 3, NULL, '2026-11-27 22:19:45.411626+00', NULL, NULL, false, DEFAULT, DEFAULT, DEFAULT, DEFAULT, DEFAULT),
	(8, 1, 4, 8, NULL, 0, 'leased', false, 0, 0, 0, 0, 0, 3, 2, 3, 3, NULL, '2026-11-27 22:19:45.411626+00', NULL, NULL, false, DEFAULT, DEFAULT, DEFAULT, DEFAULT, DEFAULT);

INSERT INTO trinity.experience_text VALUES
	(1, 'prompt', '1.0', NULL, NULL, NULL, NULL, NULL, NULL),
	(2, 'prompt', '0.0', NULL, NULL, NULL, NULL, NULL, NULL),
	(3, 'prompt', '1.0', NULL, NULL, NULL, NULL, NULL, NULL),
	(4, 'prompt', '0.0', NULL, NULL, NULL, NULL, NULL, NULL),
	(5, 'prompt', '1.0', NULL, NULL, NULL, NULL, NULL, NULL),
	(6, 'prompt', '0.0', NULL, NULL, NULL, NULL, NULL, NULL),
	(7, 'prompt', '1.0', NULL, NULL, NULL, NULL, NULL, NULL),
	(8, 'prompt', '0.0', NULL, NULL, NULL, NULL, NULL, NULL);

INSERT INTO trinity.pairing OVERRIDING SYSTEM VALUE VALUES
	(1, 1, 1),
	(1, 2, 2),
	(1, 3, 3),
	(1, 4, 4);

INSERT INTO trinity.payload VALUES
	(1, 'compact-1', 5, '\x0101000102030418000080bf000000bf010000000200000000000000', NULL, 0, NULL),
	(2, 'compact-1', 5, '\x0101000102030418000080bf000000bf010000000200000000000000', NULL, 0, NULL),
	(3, 'compact-1', 5, '\x0101000102030418000080bf000000bf010000000200000000000000', NULL, 0, NULL),
	(4, 'compact-1', 5, '\x0101000102030418000080bf000000bf010000000200000000000000', NULL, 0, NULL),
	(5, 'compact-1', 5, '\x0101000102030418000080bf000000bf010000000200000000000000', NULL, 0, NULL),
	(6, 'compact-1', 5, '\x0101000102030418000080bf000000bf010000000200000000000000', NULL, 0, NULL),
	(7, 'compact-1', 5, '\x0101000102030418000080bf000000bf010000000200000000000000', NULL, 0, NULL),
	(8, 'compact-1', 5, '\x0101000102030418000080bf000000bf010000000200000000000000', NULL, 0, NULL);

INSERT INTO trinity.policy_version VALUES
	(1, 0, 0, 'version-0', 'hash 0', NULL, '2026-11-27 22:19:45.163439+00', NULL, NULL, NULL, NULL, 0),
	(1, 1, 1, 'version-1', 'hash 1', NULL, '2026-11-27 22:19:46.0556+00', 'checkpoint-1', 'hash of checkpoint 1', NULL, NULL, 0),
	(1, 2, 2, 'version-2', 'hash 2', NULL, '2026-11-27 22:19:46.15113+00', 'checkpoint-2', 'hash of checkpoint 2', NULL, NULL, 0);

INSERT INTO trinity.processing VALUES
	(1, 1, 'clean', 1, 1, 'passed', NULL, NULL, NULL, '2026-11-27 22:19:45.648921+00'),
	(2, 2, 'clean', 1, 1, 'passed', NULL, NULL, NULL, '2026-11-27 22:19:45.648921+00'),
	(3, 3, 'clean', 1, 1, 'passed', NULL, NULL, NULL, '2026-11-27 22:19:45.648921+00'),
	(4, 4, 'clean', 1, 1, 'passed', NULL, NULL, NULL, '2026-11-27 22:19:45.648921+00'),
	(5, 5, 'clean', 1, 1, 'passed', NULL, NULL, NULL, '2026-11-27 22:19:45.648921+00'),
	(6, 6, 'clean', 1, 1, 'passed', NULL, NULL, NULL, '2026-11-27 22:19:45.648921+00'),
	(7, 7, 'clean', 1, 1, 'passed', NULL, NULL, NULL, '2026-11-27 22:19:45.648921+00'),
	(8, 8, 'clean', 1, 1, 'passed', NULL, NULL, NULL, '2026-11-27 22:19:45.648921+00'),
	(9, 1, 'score', 1, 2, 'passed', NULL, NULL, NULL, '2026-11-27 22:19:45.763476+00'),
	(10, 2, 'score', 1, 2, 'passed', NULL, NULL, NULL, '2026-11-27 22:19:45.763476+00'),
	(11, 3, 'score', 1, 2, 'passed', NULL, NULL, NULL, '2026-11-27 22:19:45.763476+00'),
	(12, 4, 'score', 1, 2, 'passed', NULL, NULL, NULL, '2026-11-27 22:19:45.763476+00'),
	(13, 5, 'score', 1, 2, 'passed', NULL, NULL, NULL, '2026-11-27 22:19:45.763476+00'),
	(14, 6, 'score', 1, 2, 'passed', NULL, NULL, NULL, '2026-11-27 22:19:45.763476+00'),
	(15, 7, 'score', 1, 2, 'passed', NULL, NULL, NULL, '2026-11-27 22:19:45.763476+00'),
	(16, 8, 'score', 1, 2, 'passed', NULL, NULL, NULL, '2026-11-27 22:19:45.763476+00');

INSERT INTO trinity.reward_event VALUES
	(1, 1, 1, NULL, 'score', 'score', 1, 1, NULL, 1, NULL, '2026-11-27 22:19:45.763476+00', 746),
	(2, 1, 2, NULL, 'score', 'score', 0, 1, NULL, 1, NULL, '2026-11-27 22:19:45.763476+00', 746),
	(3, 1, 3, NULL, 'score', 'score', 1, 1, NULL, 1, NULL, '2026-11-27 22:19:45.763476+00', 746),
	(4, 1, 4, NULL, 'score', 'score', 0, 1, NULL, 1, NULL, '2026-11-27 22:19:45.763476+00', 746),
	(5, 1, 5, NULL, 'score', 'score', 1, 1, NULL, 1, NULL, '2026-11-27 22:19:45.763476+00', 746),
	(6, 1, 6, NULL, 'score', 'score', 0, 1, NULL, 1, NULL, '2026-11-27 22:19:45.763476+00', 746),
	(7, 1, 7, NULL, 'score', 'score', 1, 1, NULL, 1, NULL, '2026-11-27 22:19:45.763476+00', 746),
	(8, 1, 8, NULL, 'score', 'score', 0, 1, NULL, 1, NULL, '2026-11-27 22:19:45.763476+00', 746);

INSERT INTO trinity.rollout VALUES
	(1, 1, 1, 0, 1, false, 'finished', 1, NULL, 0, 0, 'stop', NULL, NULL, '2026-11-27 22:19:45.407849+00', '2026-11-27 22:19:45.407849+00'),
	(2, 1, 1, 1, 1, false, 'finished', 1, NULL, 0, 0, 'stop', NULL, NULL, '2026-11-27 22:19:45.408247+00', '2026-11-27 22:19:45.408247+00'),
	(3, 1, 2, 0, 1, false, 'finished', 1, NULL, 0, 0, 'stop', NULL, NULL, '2026-11-27 22:19:45.408333+00', '2026-11-27 22:19:45.408333+00'),
	(4, 1, 2, 1, 1, false, 'finished', 1, NULL, 0, 0, 'stop', NULL, NULL, '2026-11-27 22:19:45.408407+00', '2026-11-27 22:19:45.408407+00'),
	(5, 1, 3, 0, 1, false, 'finished', 1, NULL, 0, 0, 'stop', NULL, NULL, '2026-11-27 22:19:45.408516+00', '2026-11-27 22:19:45.408516+00'),
	(6, 1, 3, 1, 1, false, 'finished', 1, NULL, 0, 0, 'stop', NULL, NULL, '2026-11-27 22:19:45.408589+00', '2026-11-27 22:19:45.408589+00'),
	(7, 1, 4, 0, 1, false, 'finished', 1, NULL, 0, 0, 'stop', NULL, NULL, '2026-11-27 22:19:45.408656+00', '2026-11-27 22:19:45.408656+00'),
	(8, 1, 4, 1, 1, false, 'finished', 1, NULL, 0, 0, 'stop', NULL, NULL, '2026-11-27 22:19:45.408719+00', '2026-11-27 22:19:45.408719+00');

INSERT INTO trinity.rollout_group VALUES
	(1, 1, 1, NULL, 'trained', NULL, 2, 2, 0, 0, 0, 2, 0.5, 0.5, 1, DEFAULT, NULL, 1, '2026-11-27 22:19:45.223375+00', '2026-11-27 22:19:45.411626+00', 748, '2026-11-27 22:19:45.935619+00', 1, NULL, DEFAULT),
	(2, 1, 2, NULL, 'trained', NULL, 2, 2, 0, 0, 0, 2, 0.5, 0.5, 1, DEFAULT, NULL, 1, '2026-11-27 22:19:45.223375+00', '2026-11-27 22:19:45.411626+00', 748, '2026-11-27 22:19:45.935619+00', 1, NULL, DEFAULT),
	(3, 1, 3, NULL, 'trained', NULL, 2, 2, 0, 0, 0, 2, 0.5, 0.5, 1, DEFAULT, NULL, 1, '2026-11-27 22:19:45.223375+00', '2026-11-27 22:19:45.411626+00', 748, '2026-11-27 22:19:45.935619+00', 1, NULL, DEFAULT),
	(4, 1, 4, NULL, 'leased', NULL, 2, 2, 0, 0, 0, 2, 0.5, 0.5, 1, DEFAULT, 3, 1, '2026-11-27 22:19:45.223375+00', '2026-11-27 22:19:45.411626+00', 748, '2026-11-27 22:19:45.935619+00', 0, NULL, DEFAULT);

INSERT INTO trinity.run VALUES
	(1, 'run', 'train', 'active', '{"name": "run", "seed": 0, "algorithm": {"name": "sft"}, "processors": {"pair": {"margin": 0.0}}}', DEFAULT, DEFAULT, 'rows', '2026-11-27 22:19:45.020196+00', NULL, NULL, NULL);

INSERT INTO trinity.run_setting VALUES
	(1, 1, '{"name": "run", "seed": 0, "algorithm": {"name": "sft"}, "processors": {"pair": {"margin": 0.0}}}', '2026-11-27 22:19:45.020196+00', 'postgres', 'vm');

INSERT INTO trinity.schema_version VALUES
	('0001');

INSERT INTO trinity.task VALUES
	(1, 1, '5859ef4e-83be-06b9-8c1c-14ed55d5a3b1', '{"answer": "0", "prompt": "task 0"}', '2026-11-27 22:19:44.902392+00', 0, '\xf838fc08a7d9e31209013c6826543c5b', DEFAULT),
	(2, 1, '35b4aaea-0949-9e54-e32f-73619a6f79a7', '{"answer": "1", "prompt": "task 1"}', '2026-11-27 22:19:44.902392+00', 1, '\xcc5daf26edcf4540ef4306619d42ee4c', DEFAULT),
	(3, 1, '278bc343-21fd-c203-45d9-265626a1dbea', '{"answer": "2", "prompt": "task 2"}', '2026-11-27 22:19:44.902392+00', 2, '\xaa5de87e0e61ab62e9526281dc037a62', DEFAULT),
	(4, 1, '83fde252-6eb3-ad18-8644-91d849162182', '{"answer": "3", "prompt": "task 3"}', '2026-11-27 22:19:44.902392+00', 3, '\x51febb216a8363cf246338857349e299', DEFAULT),
	(5, 1, '70350bd0-b2c8-6df5-2562-d3ac61679af7', '{"answer": "4", "prompt": "task 4"}', '2026-11-27 22:19:44.902392+00', 4, '\xa7be368b6c26038a7717c87f70d67fd3', DEFAULT),
	(6, 1, '2051b65d-72ce-92f8-18b2-5ef4dc1489ef', '{"answer": "5", "prompt": "task 5"}', '2026-11-27 22:19:44.902392+00', 5, '\x225722a796f16a1dc5a807f2ee435a3a', DEFAULT),
	(7, 1, '83c162f2-103e-8029-c97e-29fe7416a95c', '{"answer": "6", "prompt": "task 6"}', '2026-11-27 22:19:44.902392+00', 6, '\x392b456735eb8ec99f81f637c6dc6bc2', DEFAULT),
	(8, 1, 'b3faa669-8a21-29ae-4b4c-9d2244866315', '{"answer": "7", "prompt": "task 7"}', '2026-11-27 22:19:44.902392+00', 7, '\x1ebf02feb88bbeb2bad9d8ece3787348', DEFAULT);

INSERT INTO trinity.task_pass VALUES
	(1, 1, 4, 'sequential', 0, 0, 8, 4, NULL);

INSERT INTO trinity.task_stat VALUES
	(1, 1, 1, 2, 1, 2, 2, '2026-11-27 22:19:45.223375+00'),
	(1, 2, 1, 2, 1, 2, 2, '2026-11-27 22:19:45.223375+00'),
	(1, 3, 1, 2, 1, 2, 2, '2026-11-27 22:19:45.223375+00'),
	(1, 4, 1, 2, 1, 2, 2, '2026-11-27 22:19:45.223375+00');

INSERT INTO trinity.taskset VALUES
	(1, 'tasks', '2026-11-27 22:19:44.902392+00');

INSERT INTO trinity.worker VALUES
	(1, 1, 'explore', 1, 'vm', 4034, 'postgres', '2026-11-27 22:19:45.020196+00', '2026-11-27 22:19:45.020196+00', NULL, false, NULL, NULL, NULL, NULL, NULL),
	(2, 1, 'process', 1, 'vm', 4034, 'postgres', '2026-11-27 22:19:45.020196+00', '2026-11-27 22:19:45.020196+00', NULL, false, NULL, NULL, NULL, NULL, NULL),
	(3, 1, 'train', 1, 'vm', 4034, 'postgres', '2026-11-27 22:19:45.020196+00', '2026-11-27 22:19:45.020196+00', NULL, false, NULL, NULL, NULL, NULL, NULL);

SELECT pg_catalog.setval('trinity.agent_id_seq', 1, false);

SELECT pg_catalog.setval('trinity.batch_id_seq', 3, true);

SELECT pg_catalog.setval('trinity.decision_id_seq', 1, false);

SELECT pg_catalog.setval('trinity.drop_id_seq', 1, false);

SELECT pg_catalog.setval('trinity.evaluation_id_seq', 1, false);

SELECT pg_catalog.setval('trinity.experience_id_seq', 8, true);

SELECT pg_catalog.setval('trinity.group_priority_id_seq', 1, false);

SELECT pg_catalog.setval('trinity.label_id_seq', 1, false);

SELECT pg_catalog.setval('trinity.metric_id_seq', 1, false);

SELECT pg_catalog.setval('trinity.origin_id_seq', 1, false);

SELECT pg_catalog.setval('trinity.overlap_id_seq', 1, false);

SELECT pg_catalog.setval('trinity.pairing_id_seq', 4, true);

SELECT pg_catalog.setval('trinity.park_id_seq', 1, false);

SELECT pg_catalog.setval('trinity.preference_id_seq', 1, false);

SELECT pg_catalog.setval('trinity.processing_id_seq', 16, true);

SELECT pg_catalog.setval('trinity.review_id_seq', 1, false);

SELECT pg_catalog.setval('trinity.reward_event_id_seq', 8, true);

SELECT pg_catalog.setval('trinity.rollout_group_id_seq', 4, true);

SELECT pg_catalog.setval('trinity.rollout_id_seq', 8, true);

SELECT pg_catalog.setval('trinity.run_id_seq', 1, true);

SELECT pg_catalog.setval('trinity.run_setting_id_seq', 1, true);

SELECT pg_catalog.setval('trinity.setback_id_seq', 1, false);

SELECT pg_catalog.setval('trinity.synthesis_id_seq', 1, false);

SELECT pg_catalog.setval('trinity.task_id_seq', 8, true);

SELECT pg_catalog.setval('trinity.taskset_id_seq', 1, true);

SELECT pg_catalog.setval('trinity.worker_id_seq', 3, true);

ALTER TABLE ONLY trinity.agent
    ADD CONSTRAINT agent_pkey PRIMARY KEY (id);

ALTER TABLE ONLY trinity.archive
    ADD CONSTRAINT archive_pkey PRIMARY KEY (run_id, number);

ALTER TABLE ONLY trinity.archive
    ADD CONSTRAINT archive_run_id_store_key UNIQUE (run_id, store);

ALTER TABLE ONLY trinity.batch_item
    ADD CONSTRAINT batch_item_pkey PRIMARY KEY (batch_id, ordinal);

ALTER TABLE ONLY trinity.batch
    ADD CONSTRAINT batch_pkey PRIMARY KEY (id);

ALTER TABLE ONLY trinity.call
    ADD CONSTRAINT call_pkey PRIMARY KEY (agent_id, number);

ALTER TABLE ONLY trinity.decision
    ADD CONSTRAINT decision_pkey PRIMARY KEY (id);

ALTER TABLE ONLY trinity.drop
    ADD CONSTRAINT drop_experience_id_key UNIQUE (experience_id);

ALTER TABLE ONLY trinity.drop
    ADD CONSTRAINT drop_group_id_key UNIQUE (group_id);

ALTER TABLE ONLY trinity.drop
    ADD CONSTRAINT drop_pkey PRIMARY KEY (id);

ALTER TABLE ONLY trinity.drop
    ADD CONSTRAINT drop_preference_id_key UNIQUE (preference_id);

ALTER TABLE ONLY trinity.evaluation
    ADD CONSTRAINT evaluation_id_version_key UNIQUE (id, version);

ALTER TABLE ONLY trinity.evaluation
    ADD CONSTRAINT evaluation_pkey PRIMARY KEY (id);

ALTER TABLE ONLY trinity.experience
    ADD CONSTRAINT experience_pkey PRIMARY KEY (id);

ALTER TABLE ONLY trinity.experience_text
    ADD CONSTRAINT experience_text_pkey PRIMARY KEY (experience_id);

ALTER TABLE ONLY trinity.group_priority
    ADD CONSTRAINT group_priority_pkey PRIMARY KEY (id);

ALTER TABLE ONLY trinity.label
    ADD CONSTRAINT label_pkey PRIMARY KEY (id);

ALTER TABLE ONLY trinity.label
    ADD CONSTRAINT label_review_id_author_key UNIQUE (review_id, author);

ALTER TABLE ONLY trinity.metric
    ADD CONSTRAINT metric_pkey PRIMARY KEY (id);

ALTER TABLE ONLY trinity.minhash
    ADD CONSTRAINT minhash_pkey PRIMARY KEY (experience_id);

ALTER TABLE ONLY trinity.origin
    ADD CONSTRAINT origin_pkey PRIMARY KEY (id);

ALTER TABLE ONLY trinity.origin
    ADD CONSTRAINT origin_run_id_digest_key UNIQUE (run_id, digest);

ALTER TABLE ONLY trinity.overlap
    ADD CONSTRAINT overlap_pkey PRIMARY KEY (id);

ALTER TABLE ONLY trinity.overlap
    ADD CONSTRAINT overlap_task_id_of_task_id_experience_id_measure_key UNIQUE NULLS NOT DISTINCT (task_id, of_task_id, experience_id, measure);

ALTER TABLE ONLY trinity.pairing
    ADD CONSTRAINT pairing_pkey PRIMARY KEY (run_id, id);

ALTER TABLE ONLY trinity.park
    ADD CONSTRAINT park_pkey PRIMARY KEY (id);

ALTER TABLE ONLY trinity.payload
    ADD CONSTRAINT payload_pkey PRIMARY KEY (experience_id);

ALTER TABLE ONLY trinity.policy_version
    ADD CONSTRAINT policy_version_pkey PRIMARY KEY (run_id, version);

ALTER TABLE ONLY trinity.preference
    ADD CONSTRAINT preference_pkey PRIMARY KEY (id);

ALTER TABLE ONLY trinity.preference
    ADD CONSTRAINT preference_run_id_chosen_id_rejected_id_key UNIQUE (run_id, chosen_id, rejected_id);

ALTER TABLE ONLY trinity.processing
    ADD CONSTRAINT processing_pkey PRIMARY KEY (experience_id, processor, processor_version, attempt);

ALTER TABLE ONLY trinity.rescore
    ADD CONSTRAINT rescore_pkey PRIMARY KEY (group_id);

ALTER TABLE ONLY trinity.retention
    ADD CONSTRAINT retention_pkey PRIMARY KEY (run_id, family);

ALTER TABLE ONLY trinity.review
    ADD CONSTRAINT review_pkey PRIMARY KEY (id);

ALTER TABLE ONLY trinity.reward_event
    ADD CONSTRAINT reward_event_pkey PRIMARY KEY (id);

ALTER TABLE ONLY trinity.rollout
    ADD CONSTRAINT rollout_group_id_ordinal_attempt_key UNIQUE (group_id, ordinal, attempt);

ALTER TABLE ONLY trinity.rollout_group
    ADD CONSTRAINT rollout_group_pkey PRIMARY KEY (id);

ALTER TABLE ONLY trinity.rollout
    ADD CONSTRAINT rollout_pkey PRIMARY KEY (id);

ALTER TABLE ONLY trinity.run
    ADD CONSTRAINT run_name_key UNIQUE (name);

ALTER TABLE ONLY trinity.run
    ADD CONSTRAINT run_pkey PRIMARY KEY (id);

ALTER TABLE ONLY trinity.run_setting
    ADD CONSTRAINT run_setting_pkey PRIMARY KEY (id);

ALTER TABLE ONLY trinity.run_setting
    ADD CONSTRAINT run_setting_run_id_id_key UNIQUE (run_id, id);

ALTER TABLE ONLY trinity.schema_version
    ADD CONSTRAINT schema_version_pkc PRIMARY KEY (version_num);

ALTER TABLE ONLY trinity.score
    ADD CONSTRAINT score_pkey PRIMARY KEY (experience_id, name);

ALTER TABLE ONLY trinity.setback
    ADD CONSTRAINT setback_pkey PRIMARY KEY (id);

ALTER TABLE ONLY trinity.step_list
    ADD CONSTRAINT step_list_pkey PRIMARY KEY (run_id, processor, version);

ALTER TABLE ONLY trinity.store_instance
    ADD CONSTRAINT store_instance_pkey PRIMARY KEY (is_only);

ALTER TABLE ONLY trinity.sweep
    ADD CONSTRAINT sweep_pkey PRIMARY KEY (family);

ALTER TABLE ONLY trinity.synthesis
    ADD CONSTRAINT synthesis_group_id_key UNIQUE (group_id);

ALTER TABLE ONLY trinity.synthesis
    ADD CONSTRAINT synthesis_pkey PRIMARY KEY (id);

ALTER TABLE ONLY trinity.task_pass
    ADD CONSTRAINT task_pass_pkey PRIMARY KEY (run_id, taskset_id);

ALTER TABLE ONLY trinity.task
    ADD CONSTRAINT task_pkey PRIMARY KEY (id);

ALTER TABLE ONLY trinity.task_stat
    ADD CONSTRAINT task_stat_pkey PRIMARY KEY (run_id, task_id);

ALTER TABLE ONLY trinity.task
    ADD CONSTRAINT task_taskset_id_key_key UNIQUE (taskset_id, key);

ALTER TABLE ONLY trinity.task
    ADD CONSTRAINT task_taskset_id_ordinal_key UNIQUE (taskset_id, ordinal);

ALTER TABLE ONLY trinity.taskset
    ADD CONSTRAINT taskset_name_key UNIQUE (name);

ALTER TABLE ONLY trinity.taskset
    ADD CONSTRAINT taskset_pkey PRIMARY KEY (id);

ALTER TABLE ONLY trinity.worker
    ADD CONSTRAINT worker_pkey PRIMARY KEY (id);

CREATE INDEX agent_group_id_ordinal_idx ON trinity.agent USING btree (group_id, ordinal);

CREATE UNIQUE INDEX agent_key_hash_key ON trinity.agent USING btree (key_hash);

CREATE UNIQUE INDEX agent_live_member_key ON trinity.agent USING btree (group_id, ordinal) WHERE (ended_at IS NULL);

CREATE INDEX batch_item_experience_id_idx ON trinity.batch_item USING btree (experience_id);

CREATE INDEX batch_item_preference_idx ON trinity.batch_item USING btree (preference_id) WHERE (preference_id IS NOT NULL);

CREATE UNIQUE INDEX batch_step_key ON trinity.batch USING btree (run_id, step) WHERE (state <> 'reopened'::trinity.batch_state);

CREATE INDEX decision_review_id_id_idx ON trinity.decision USING btree (review_id, id);

CREATE INDEX drop_run_id_reason_idx ON trinity.drop USING btree (run_id, reason);

CREATE UNIQUE INDEX evaluation_once_key ON trinity.evaluation USING btree (run_id, version, taskset_id, samples, temperature, max_new_tokens, seed);

CREATE INDEX evaluation_open_idx ON trinity.evaluation USING btree (run_id, id) WHERE (finished_at IS NULL);

CREATE INDEX experience_group_idx ON trinity.experience USING btree (group_id) WHERE (group_id IS NOT NULL);

CREATE UNIQUE INDEX experience_import_key ON trinity.experience USING btree (run_id, import_key) WHERE (import_key IS NOT NULL);

CREATE INDEX experience_judge_idx ON trinity.experience USING btree (judge_id) WHERE (judge_id IS NOT NULL);

CREATE INDEX experience_open_idx ON trinity.experience USING btree (run_id, to_judge, id) WHERE (to_judge IS NOT NULL);

CREATE INDEX experience_place_idx ON trinity.experience USING btree (run_id, pass_number, place, id) WHERE (pass_number IS NOT NULL);

CREATE INDEX experience_ready_idx ON trinity.experience USING btree (run_id, id) WHERE is_offered;

CREATE UNIQUE INDEX experience_rollout_key ON trinity.experience USING btree (rollout_id, step, run_id) WHERE (rollout_id IS NOT NULL);

CREATE UNIQUE INDEX experience_source_key ON trinity.experience USING btree (source_id, run_id) WHERE (source_id IS NOT NULL);

CREATE INDEX group_priority_due_idx ON trinity.group_priority USING btree (run_id, id) WHERE ((priority IS NULL) AND (failed_at IS NULL));

CREATE INDEX group_priority_group_id_id_idx ON trinity.group_priority USING btree (group_id, id);

CREATE INDEX label_author_decided_at_idx ON trinity.label USING btree (author, decided_at);

CREATE INDEX metric_run_id_name_step_idx ON trinity.metric USING btree (run_id, name, step);

CREATE INDEX minhash_bands_idx ON trinity.minhash USING gin (bands) WITH (fastupdate=off);

CREATE INDEX origin_experience_id_idx ON trinity.origin USING btree (experience_id) WHERE (experience_id IS NOT NULL);

CREATE INDEX origin_source_task_id_idx ON trinity.origin USING btree (source_task_id);

CREATE INDEX origin_synthesis_id_idx ON trinity.origin USING btree (synthesis_id);

CREATE INDEX origin_task_id_idx ON trinity.origin USING btree (task_id) WHERE (task_id IS NOT NULL);

CREATE INDEX overlap_experience_id_idx ON trinity.overlap USING btree (experience_id) WHERE (experience_id IS NOT NULL);

CREATE INDEX overlap_of_task_id_idx ON trinity.overlap USING btree (of_task_id) WHERE (of_task_id IS NOT NULL);

CREATE INDEX park_agent_id_idx ON trinity.park USING btree (agent_id);

CREATE UNIQUE INDEX park_current_key ON trinity.park USING btree (agent_id) WHERE ((parked_at IS NOT NULL) AND (left_at IS NULL));

CREATE INDEX park_run_id_id_idx ON trinity.park USING btree (run_id, id);

CREATE UNIQUE INDEX park_ticket_key ON trinity.park USING btree (agent_id) WHERE (parked_at IS NULL);

CREATE INDEX preference_chosen_id_idx ON trinity.preference USING btree (chosen_id);

CREATE INDEX preference_place_idx ON trinity.preference USING btree (run_id, use_count, place, id) WHERE ((state = 'ready'::trinity.experience_state) AND (place IS NOT NULL));

CREATE INDEX preference_ready_idx ON trinity.preference USING btree (run_id, id) WHERE (state = 'ready'::trinity.experience_state);

CREATE INDEX preference_rejected_id_idx ON trinity.preference USING btree (rejected_id);

CREATE INDEX preference_worker_idx ON trinity.preference USING btree (worker_id) WHERE (worker_id IS NOT NULL);

CREATE INDEX rescore_worker_id_idx ON trinity.rescore USING btree (worker_id);

CREATE INDEX review_experience_id_idx ON trinity.review USING btree (experience_id);

CREATE INDEX review_open_idx ON trinity.review USING btree (run_id, id) WHERE (closed_at IS NULL);

CREATE INDEX review_other_id_idx ON trinity.review USING btree (other_id);

CREATE UNIQUE INDEX review_pair_key ON trinity.review USING btree (experience_id, other_id) WHERE (other_id IS NOT NULL);

CREATE UNIQUE INDEX review_row_key ON trinity.review USING btree (experience_id, source, name) WHERE (other_id IS NULL);

CREATE INDEX review_run_id_idx ON trinity.review USING btree (run_id);

CREATE INDEX reward_event_experience_id_name_id_idx ON trinity.reward_event USING btree (experience_id, name, id) WHERE (experience_id IS NOT NULL);

CREATE INDEX reward_event_rollout_id_name_id_idx ON trinity.reward_event USING btree (rollout_id, name, id) WHERE (rollout_id IS NOT NULL);

CREATE UNIQUE INDEX rollout_finished_member_key ON trinity.rollout USING btree (group_id, ordinal) WHERE (state = 'finished'::trinity.rollout_state);

CREATE INDEX rollout_group_chance_idx ON trinity.rollout_group USING btree (run_id, octave, hashint8extended(id, (0)::bigint)) INCLUDE (id, version_min, version_max) WHERE (state = 'ready'::trinity.group_state);

CREATE INDEX rollout_group_evaluation_idx ON trinity.rollout_group USING btree (evaluation_id, completed_at, id) WHERE (evaluation_id IS NOT NULL);

CREATE INDEX rollout_group_live_idx ON trinity.rollout_group USING btree (run_id, state, id) WHERE (state = ANY (ARRAY['open'::trinity.group_state, 'complete'::trinity.group_state, 'ready'::trinity.group_state, 'leased'::trinity.group_state]));

CREATE INDEX rollout_group_place_idx ON trinity.rollout_group USING btree (run_id, use_count, place, id) WHERE ((state = 'ready'::trinity.group_state) AND (place IS NOT NULL));

CREATE INDEX rollout_group_run_id_task_id_idx ON trinity.rollout_group USING btree (run_id, task_id);

CREATE UNIQUE INDEX rollout_group_source_key ON trinity.rollout_group USING btree (source_id, run_id) WHERE (source_id IS NOT NULL);

CREATE INDEX rollout_group_version_idx ON trinity.rollout_group USING btree (run_id, version_min, id) WHERE (state = 'ready'::trinity.group_state);

CREATE INDEX rollout_group_worker_idx ON trinity.rollout_group USING btree (worker_id) WHERE (worker_id IS NOT NULL);

CREATE INDEX setback_run_id_idx ON trinity.setback USING btree (run_id);

CREATE INDEX synthesis_due_idx ON trinity.synthesis USING btree (run_id, id) WHERE ((finished_at IS NULL) AND (failed_at IS NULL));

CREATE INDEX task_level_idx ON trinity.task USING btree (taskset_id, COALESCE(level, 'Infinity'::double precision), ordinal);

CREATE INDEX task_taskset_id_prompt_digest_idx ON trinity.task USING btree (taskset_id, prompt_digest);

CREATE UNIQUE INDEX worker_exclusive_idx ON trinity.worker USING btree (run_id, role) WHERE (exclusive AND (stopped_at IS NULL));

CREATE INDEX worker_running_idx ON trinity.worker USING btree (run_id, id) WHERE (stopped_at IS NULL);

CREATE OR REPLACE VIEW trinity.dispute_view AS
 SELECT r.name AS run,
    q.id AS review_id,
    q.experience_id,
    q.other_id,
    q.name,
    count(*) AS verdicts,
    min(l.value) AS "least",
    max(l.value) AS "greatest",
    (avg(l.value))::double precision AS mean,
    jsonb_object_agg(l.author, l.value) AS said
   FROM ((trinity.label l
     JOIN trinity.review q ON ((q.id = l.review_id)))
     JOIN trinity.run r ON ((r.id = q.run_id)))
  WHERE (l.state = 'submitted'::trinity.label_state)
  GROUP BY r.name, q.id
 HAVING (min(l.value) < max(l.value));

CREATE OR REPLACE VIEW trinity.evaluation_task_view AS
 SELECT v.id AS evaluation_id,
    r.name AS run,
    s.name AS taskset,
    v.version,
    t.key AS task,
    g.id AS group_id,
    v.samples,
    count(a.reward) AS judged,
    count(*) FILTER (WHERE a.has_failed) AS failed,
    count(*) FILTER (WHERE (a.reward >= v.solved_reward)) AS solved,
    avg(a.reward) AS reward,
    max(a.reward) AS best,
    array_agg(a.reward ORDER BY a.reward) FILTER (WHERE (a.reward IS NOT NULL)) AS rewards
   FROM (((((trinity.evaluation v
     JOIN trinity.run r ON ((r.id = v.run_id)))
     JOIN trinity.taskset s ON ((s.id = v.taskset_id)))
     JOIN trinity.rollout_group g ON ((g.evaluation_id = v.id)))
     JOIN trinity.task t ON ((t.id = g.task_id)))
     LEFT JOIN LATERAL ( SELECT ((m.state = 'failed'::trinity.rollout_state) OR bool_or((e.state = 'dropped'::trinity.experience_state))) AS has_failed,
                CASE
                    WHEN bool_and(((e.state)::text = 'evaluated'::text)) THEN sum(e.reward)
                    ELSE NULL::double precision
                END AS reward
           FROM (trinity.rollout m
             LEFT JOIN trinity.experience e ON (((e.rollout_id = m.id) AND (e.source_id IS NULL))))
          WHERE ((m.group_id = g.id) AND ((m.state)::text <> 'refused'::text))
          GROUP BY m.id) a ON (true))
  GROUP BY v.id, r.name, s.name, t.key, g.id;

CREATE OR REPLACE VIEW trinity.state_time_view AS
 WITH judged AS (
         SELECT r.name AS run,
            e.id,
            e.created_at AS written_at,
            g.ready_at,
            min(p.created_at) FILTER (WHERE (p.processor = 'clean'::text)) AS cleaned_at,
            min(p.created_at) FILTER (WHERE (p.processor = 'score'::text)) AS scored_at
           FROM (((trinity.run r
             JOIN trinity.experience e ON (((e.run_id = r.id) AND (e.source_id IS NULL) AND (NOT e.held_out))))
             JOIN trinity.processing p ON (((p.experience_id = e.id) AND (p.outcome = 'passed'::trinity.processing_outcome))))
             JOIN trinity.rollout_group g ON ((g.id = e.group_id)))
          GROUP BY r.name, e.id, g.ready_at
        ), drawn AS (
         SELECT r.name AS run,
            b.created_at AS drawn_at,
            b.committed_at,
            v.published_at,
            COALESCE(lag(COALESCE(b.reopened_at, b.committed_at)) OVER (PARTITION BY r.name, i.experience_id, i.preference_id ORDER BY b.id), q.created_at, g.ready_at,
                CASE
                    WHEN (e.source_id IS NOT NULL) THEN e.created_at
                    ELSE NULL::timestamp with time zone
                END) AS ready_at
           FROM ((((((trinity.run r
             JOIN trinity.batch b ON ((b.run_id = r.id)))
             JOIN trinity.batch_item i ON ((i.batch_id = b.id)))
             JOIN trinity.experience e ON ((e.id = i.experience_id)))
             LEFT JOIN trinity.preference q ON ((q.id = i.preference_id)))
             LEFT JOIN trinity.rollout_group g ON (((g.id = e.group_id) AND (g.run_id = b.run_id))))
             LEFT JOIN trinity.policy_version v ON (((v.run_id = b.run_id) AND (v.version = b.included_version))))
        ), stay AS (
         SELECT r.name AS run,
            1 AS place,
            'exploring'::text AS state,
            m.started_at AS since,
            m.finished_at AS until
           FROM ((trinity.run r
             JOIN trinity.rollout m ON (((m.run_id = r.id) AND (m.state = 'finished'::trinity.rollout_state))))
             LEFT JOIN trinity.rollout_group g ON ((g.id = m.group_id)))
          WHERE (g.evaluation_id IS NULL)
        UNION ALL
         SELECT j.run,
            s_1.place,
            s_1.state,
            s_1.since,
            s_1.until
           FROM (judged j
             CROSS JOIN LATERAL ( VALUES (2,'raw'::text,j.written_at,j.cleaned_at), (3,'clean'::text,j.cleaned_at,j.scored_at), (4,'scored'::text,j.scored_at,j.ready_at)) s_1(place, state, since, until))
        UNION ALL
         SELECT d.run,
            s_1.place,
            s_1.state,
            s_1.since,
            s_1.until
           FROM (drawn d
             CROSS JOIN LATERAL ( VALUES (5,'ready'::text,d.ready_at,d.drawn_at), (6,'leased'::text,d.drawn_at,d.committed_at), (7,'trained'::text,d.committed_at,d.published_at)) s_1(place, state, since, until))
        )
 SELECT s.run,
    s.state,
    count(*) AS rows,
    (avg(EXTRACT(epoch FROM (s.until - s.since))))::double precision AS mean,
    percentile_cont((0.5)::double precision) WITHIN GROUP (ORDER BY ((EXTRACT(epoch FROM (s.until - s.since)))::double precision)) AS median,
    percentile_cont((0.95)::double precision) WITHIN GROUP (ORDER BY ((EXTRACT(epoch FROM (s.until - s.since)))::double precision)) AS p95
   FROM stay s
  WHERE ((s.since IS NOT NULL) AND (s.until IS NOT NULL))
  GROUP BY s.run, s.place, s.state
  ORDER BY s.run, s.place;

ALTER TABLE ONLY trinity.agent
    ADD CONSTRAINT agent_group_id_fkey FOREIGN KEY (group_id) REFERENCES trinity.rollout_group(id) ON DELETE CASCADE;

ALTER TABLE ONLY trinity.archive
    ADD CONSTRAINT archive_run_id_fkey FOREIGN KEY (run_id) REFERENCES trinity.run(id) ON DELETE CASCADE;

ALTER TABLE ONLY trinity.archive
    ADD CONSTRAINT archive_worker_id_fkey FOREIGN KEY (worker_id) REFERENCES trinity.worker(id);

ALTER TABLE ONLY trinity.batch_item
    ADD CONSTRAINT batch_item_batch_id_fkey FOREIGN KEY (batch_id) REFERENCES trinity.batch(id) ON DELETE CASCADE;

ALTER TABLE ONLY trinity.batch_item
    ADD CONSTRAINT batch_item_preference_id_fkey FOREIGN KEY (preference_id) REFERENCES trinity.preference(id) ON DELETE CASCADE;

ALTER TABLE ONLY trinity.batch
    ADD CONSTRAINT batch_run_id_fkey FOREIGN KEY (run_id) REFERENCES trinity.run(id) ON DELETE CASCADE;

ALTER TABLE ONLY trinity.batch
    ADD CONSTRAINT batch_run_id_included_version_fkey FOREIGN KEY (run_id, included_version) REFERENCES trinity.policy_version(run_id, version);

ALTER TABLE ONLY trinity.batch
    ADD CONSTRAINT batch_run_id_policy_version_fkey FOREIGN KEY (run_id, policy_version) REFERENCES trinity.policy_version(run_id, version);

ALTER TABLE ONLY trinity.batch
    ADD CONSTRAINT batch_run_id_setting_id_fkey FOREIGN KEY (run_id, setting_id) REFERENCES trinity.run_setting(run_id, id);

ALTER TABLE ONLY trinity.batch
    ADD CONSTRAINT batch_worker_id_fkey FOREIGN KEY (worker_id) REFERENCES trinity.worker(id);

ALTER TABLE ONLY trinity.call
    ADD CONSTRAINT call_agent_id_fkey FOREIGN KEY (agent_id) REFERENCES trinity.agent(id) ON DELETE CASCADE;

ALTER TABLE ONLY trinity.decision
    ADD CONSTRAINT decision_review_id_fkey FOREIGN KEY (review_id) REFERENCES trinity.review(id) ON DELETE CASCADE;

ALTER TABLE ONLY trinity.drop
    ADD CONSTRAINT drop_experience_id_fkey FOREIGN KEY (experience_id) REFERENCES trinity.experience(id) ON DELETE CASCADE;

ALTER TABLE ONLY trinity.drop
    ADD CONSTRAINT drop_group_id_fkey FOREIGN KEY (group_id) REFERENCES trinity.rollout_group(id) ON DELETE CASCADE;

ALTER TABLE ONLY trinity.drop
    ADD CONSTRAINT drop_preference_id_fkey FOREIGN KEY (preference_id) REFERENCES trinity.preference(id) ON DELETE CASCADE;

ALTER TABLE ONLY trinity.drop
    ADD CONSTRAINT drop_run_id_fkey FOREIGN KEY (run_id) REFERENCES trinity.run(id) ON DELETE CASCADE;

ALTER TABLE ONLY trinity.evaluation
    ADD CONSTRAINT evaluation_run_id_fkey FOREIGN KEY (run_id) REFERENCES trinity.run(id) ON DELETE CASCADE;

ALTER TABLE ONLY trinity.evaluation
    ADD CONSTRAINT evaluation_run_id_setting_id_fkey FOREIGN KEY (run_id, setting_id) REFERENCES trinity.run_setting(run_id, id);

ALTER TABLE ONLY trinity.evaluation
    ADD CONSTRAINT evaluation_run_id_version_fkey FOREIGN KEY (run_id, version) REFERENCES trinity.policy_version(run_id, version);

ALTER TABLE ONLY trinity.evaluation
    ADD CONSTRAINT evaluation_taskset_id_fkey FOREIGN KEY (taskset_id) REFERENCES trinity.taskset(id);

ALTER TABLE ONLY trinity.experience
    ADD CONSTRAINT experience_rollout_id_fkey FOREIGN KEY (rollout_id) REFERENCES trinity.rollout(id);

ALTER TABLE ONLY trinity.experience
    ADD CONSTRAINT experience_run_id_fkey FOREIGN KEY (run_id) REFERENCES trinity.run(id) ON DELETE CASCADE;

ALTER TABLE ONLY trinity.experience
    ADD CONSTRAINT experience_source_id_fkey FOREIGN KEY (source_id) REFERENCES trinity.experience(id);

ALTER TABLE ONLY trinity.experience_text
    ADD CONSTRAINT experience_text_experience_id_fkey FOREIGN KEY (experience_id) REFERENCES trinity.experience(id) ON DELETE CASCADE;

ALTER TABLE ONLY trinity.group_priority
    ADD CONSTRAINT group_priority_group_id_fkey FOREIGN KEY (group_id) REFERENCES trinity.rollout_group(id) ON DELETE CASCADE;

ALTER TABLE ONLY trinity.label
    ADD CONSTRAINT label_review_id_fkey FOREIGN KEY (review_id) REFERENCES trinity.review(id) ON DELETE CASCADE;

ALTER TABLE ONLY trinity.metric
    ADD CONSTRAINT metric_run_id_fkey FOREIGN KEY (run_id) REFERENCES trinity.run(id) ON DELETE CASCADE;

ALTER TABLE ONLY trinity.minhash
    ADD CONSTRAINT minhash_experience_id_fkey FOREIGN KEY (experience_id) REFERENCES trinity.experience(id) ON DELETE CASCADE;

ALTER TABLE ONLY trinity.origin
    ADD CONSTRAINT origin_experience_id_fkey FOREIGN KEY (experience_id) REFERENCES trinity.experience(id) ON DELETE CASCADE;

ALTER TABLE ONLY trinity.origin
    ADD CONSTRAINT origin_synthesis_id_fkey FOREIGN KEY (synthesis_id) REFERENCES trinity.synthesis(id) ON DELETE CASCADE;

ALTER TABLE ONLY trinity.origin
    ADD CONSTRAINT origin_task_id_fkey FOREIGN KEY (task_id) REFERENCES trinity.task(id) ON DELETE CASCADE;

ALTER TABLE ONLY trinity.overlap
    ADD CONSTRAINT overlap_experience_id_fkey FOREIGN KEY (experience_id) REFERENCES trinity.experience(id) ON DELETE CASCADE;

ALTER TABLE ONLY trinity.overlap
    ADD CONSTRAINT overlap_of_task_id_fkey FOREIGN KEY (of_task_id) REFERENCES trinity.task(id) ON DELETE CASCADE;

ALTER TABLE ONLY trinity.overlap
    ADD CONSTRAINT overlap_task_id_fkey FOREIGN KEY (task_id) REFERENCES trinity.task(id) ON DELETE CASCADE;

ALTER TABLE ONLY trinity.pairing
    ADD CONSTRAINT pairing_run_id_fkey FOREIGN KEY (run_id) REFERENCES trinity.run(id) ON DELETE CASCADE;

ALTER TABLE ONLY trinity.park
    ADD CONSTRAINT park_agent_id_fkey FOREIGN KEY (agent_id) REFERENCES trinity.agent(id) ON DELETE CASCADE;

ALTER TABLE ONLY trinity.payload
    ADD CONSTRAINT payload_experience_id_fkey FOREIGN KEY (experience_id) REFERENCES trinity.experience(id) ON DELETE CASCADE;

ALTER TABLE ONLY trinity.policy_version
    ADD CONSTRAINT policy_version_run_id_fkey FOREIGN KEY (run_id) REFERENCES trinity.run(id) ON DELETE CASCADE;

ALTER TABLE ONLY trinity.preference
    ADD CONSTRAINT preference_chosen_id_fkey FOREIGN KEY (chosen_id) REFERENCES trinity.experience(id) ON DELETE CASCADE;

ALTER TABLE ONLY trinity.preference
    ADD CONSTRAINT preference_rejected_id_fkey FOREIGN KEY (rejected_id) REFERENCES trinity.experience(id) ON DELETE CASCADE;

ALTER TABLE ONLY trinity.preference
    ADD CONSTRAINT preference_run_id_fkey FOREIGN KEY (run_id) REFERENCES trinity.run(id) ON DELETE CASCADE;

ALTER TABLE ONLY trinity.processing
    ADD CONSTRAINT processing_experience_id_fkey FOREIGN KEY (experience_id) REFERENCES trinity.experience(id) ON DELETE CASCADE;

ALTER TABLE ONLY trinity.rescore
    ADD CONSTRAINT rescore_group_id_fkey FOREIGN KEY (group_id) REFERENCES trinity.rollout_group(id) ON DELETE CASCADE;

ALTER TABLE ONLY trinity.retention
    ADD CONSTRAINT retention_run_id_fkey FOREIGN KEY (run_id) REFERENCES trinity.run(id) ON DELETE CASCADE;

ALTER TABLE ONLY trinity.review
    ADD CONSTRAINT review_experience_id_fkey FOREIGN KEY (experience_id) REFERENCES trinity.experience(id) ON DELETE CASCADE;

ALTER TABLE ONLY trinity.review
    ADD CONSTRAINT review_other_id_fkey FOREIGN KEY (other_id) REFERENCES trinity.experience(id) ON DELETE CASCADE;

ALTER TABLE ONLY trinity.review
    ADD CONSTRAINT review_run_id_fkey FOREIGN KEY (run_id) REFERENCES trinity.run(id) ON DELETE CASCADE;

ALTER TABLE ONLY trinity.reward_event
    ADD CONSTRAINT reward_event_experience_id_fkey FOREIGN KEY (experience_id) REFERENCES trinity.experience(id) ON DELETE CASCADE;

ALTER TABLE ONLY trinity.reward_event
    ADD CONSTRAINT reward_event_rollout_id_fkey FOREIGN KEY (rollout_id) REFERENCES trinity.rollout(id) ON DELETE CASCADE;

ALTER TABLE ONLY trinity.reward_event
    ADD CONSTRAINT reward_event_run_id_fkey FOREIGN KEY (run_id) REFERENCES trinity.run(id) ON DELETE CASCADE;

ALTER TABLE ONLY trinity.rollout_group
    ADD CONSTRAINT rollout_group_evaluation_id_fkey FOREIGN KEY (evaluation_id) REFERENCES trinity.evaluation(id);

ALTER TABLE ONLY trinity.rollout_group
    ADD CONSTRAINT rollout_group_evaluation_id_version_max_fkey FOREIGN KEY (evaluation_id, version_max) REFERENCES trinity.evaluation(id, version);

ALTER TABLE ONLY trinity.rollout_group
    ADD CONSTRAINT rollout_group_evaluation_id_version_min_fkey FOREIGN KEY (evaluation_id, version_min) REFERENCES trinity.evaluation(id, version);

ALTER TABLE ONLY trinity.rollout
    ADD CONSTRAINT rollout_group_id_fkey FOREIGN KEY (group_id) REFERENCES trinity.rollout_group(id) ON DELETE CASCADE;

ALTER TABLE ONLY trinity.rollout_group
    ADD CONSTRAINT rollout_group_run_id_fkey FOREIGN KEY (run_id) REFERENCES trinity.run(id) ON DELETE CASCADE;

ALTER TABLE ONLY trinity.rollout_group
    ADD CONSTRAINT rollout_group_source_id_fkey FOREIGN KEY (source_id) REFERENCES trinity.rollout_group(id);

ALTER TABLE ONLY trinity.rollout_group
    ADD CONSTRAINT rollout_group_task_id_fkey FOREIGN KEY (task_id) REFERENCES trinity.task(id);

ALTER TABLE ONLY trinity.rollout_group
    ADD CONSTRAINT rollout_group_worker_id_fkey FOREIGN KEY (worker_id) REFERENCES trinity.worker(id);

ALTER TABLE ONLY trinity.run_setting
    ADD CONSTRAINT run_setting_run_id_fkey FOREIGN KEY (run_id) REFERENCES trinity.run(id) ON DELETE CASCADE;

ALTER TABLE ONLY trinity.score
    ADD CONSTRAINT score_experience_id_fkey FOREIGN KEY (experience_id) REFERENCES trinity.experience(id) ON DELETE CASCADE;

ALTER TABLE ONLY trinity.setback
    ADD CONSTRAINT setback_run_id_fkey FOREIGN KEY (run_id) REFERENCES trinity.run(id) ON DELETE CASCADE;

ALTER TABLE ONLY trinity.step_list
    ADD CONSTRAINT step_list_run_id_fkey FOREIGN KEY (run_id) REFERENCES trinity.run(id) ON DELETE CASCADE;

ALTER TABLE ONLY trinity.synthesis
    ADD CONSTRAINT synthesis_group_id_fkey FOREIGN KEY (group_id) REFERENCES trinity.rollout_group(id) ON DELETE CASCADE;

ALTER TABLE ONLY trinity.task_pass
    ADD CONSTRAINT task_pass_run_id_fkey FOREIGN KEY (run_id) REFERENCES trinity.run(id) ON DELETE CASCADE;

ALTER TABLE ONLY trinity.task_pass
    ADD CONSTRAINT task_pass_taskset_id_fkey FOREIGN KEY (taskset_id) REFERENCES trinity.taskset(id) ON DELETE CASCADE;

ALTER TABLE ONLY trinity.task_stat
    ADD CONSTRAINT task_stat_run_id_fkey FOREIGN KEY (run_id) REFERENCES trinity.run(id) ON DELETE CASCADE;

ALTER TABLE ONLY trinity.task_stat
    ADD CONSTRAINT task_stat_task_id_fkey FOREIGN KEY (task_id) REFERENCES trinity.task(id) ON DELETE CASCADE;

ALTER TABLE ONLY trinity.task
    ADD CONSTRAINT task_taskset_id_fkey FOREIGN KEY (taskset_id) REFERENCES trinity.taskset(id) ON DELETE CASCADE;

ALTER TABLE ONLY trinity.worker
    ADD CONSTRAINT worker_run_id_fkey FOREIGN KEY (run_id) REFERENCES trinity.run(id) ON DELETE CASCADE;

ALTER TABLE ONLY trinity.worker
    ADD CONSTRAINT worker_run_id_setting_id_fkey FOREIGN KEY (run_id, setting_id) REFERENCES trinity.run_setting(run_id, id);
