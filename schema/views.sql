-- Views and functions for questions that people and statements ask often. Each upgrade makes them anew.
DROP FUNCTION IF EXISTS trinity.reward_in(bigint, pg_snapshot);
DROP FUNCTION IF EXISTS trinity.drawable_groups(bigint);
DROP FUNCTION IF EXISTS trinity.probes(bigint, bigint, double precision, double precision);
DROP FUNCTION IF EXISTS trinity.cell_bits(bigint, bigint, double precision);
DROP FUNCTION IF EXISTS trinity.key(bigint, double precision, bigint);
DROP FUNCTION IF EXISTS trinity.unit(bigint);
DROP FUNCTION IF EXISTS trinity.chance(bigint, bigint);
DROP FUNCTION IF EXISTS trinity.lineage(integer, text);
DROP FUNCTION IF EXISTS trinity.evaluation_difference(bigint, bigint, integer);
DROP VIEW IF EXISTS trinity.evaluation_view;
DROP FUNCTION IF EXISTS trinity.evaluation_at(bigint, integer);
DROP VIEW IF EXISTS trinity.evaluation_task_view;
DROP FUNCTION IF EXISTS trinity.pass_at(bigint, bigint, integer);
DROP VIEW IF EXISTS trinity.parked_view;
DROP FUNCTION IF EXISTS trinity.parked_members(bigint, integer);
DROP VIEW IF EXISTS trinity.state_time_view;
DROP VIEW IF EXISTS trinity.setting_view;
DROP VIEW IF EXISTS trinity.awaited_reward_view;
DROP VIEW IF EXISTS trinity.dispute_view;
DROP VIEW IF EXISTS trinity.verdict_agreement_view;
DROP VIEW IF EXISTS trinity.verdict_view;
DROP VIEW IF EXISTS trinity.agreement_view;
DROP VIEW IF EXISTS trinity.reward_change_view;
DROP VIEW IF EXISTS trinity.lease_view;
DROP VIEW IF EXISTS trinity.run_view;
DROP VIEW IF EXISTS trinity.origin_view;
DROP VIEW IF EXISTS trinity.failure_view;
DROP VIEW IF EXISTS trinity.overlap_view;
DROP VIEW IF EXISTS trinity.drop_view;
DROP VIEW IF EXISTS trinity.batch_view;
DROP VIEW IF EXISTS trinity.policy_progress;
DROP FUNCTION IF EXISTS trinity.reward_at_training(bigint, bigint, double precision);
DROP VIEW IF EXISTS trinity.reward_part_view;
DROP VIEW IF EXISTS trinity.experience_view;
DROP FUNCTION IF EXISTS trinity.question(text, jsonb);
DROP FUNCTION IF EXISTS trinity.drawable(bigint, integer, integer);
DROP FUNCTION IF EXISTS trinity.floor_of(bigint);
DROP FUNCTION IF EXISTS trinity.adoptable_rows(bigint);
DROP FUNCTION IF EXISTS trinity.is_awaited(bigint, bigint, text);
DROP FUNCTION IF EXISTS trinity.follow_labels(bigint[]);
DROP FUNCTION IF EXISTS trinity.label_in(bigint, pg_snapshot);
DROP FUNCTION IF EXISTS trinity.side_in(bigint, bigint, pg_snapshot);
DROP FUNCTION IF EXISTS trinity.reward_share(double precision, double precision, text);
DROP FUNCTION IF EXISTS trinity.reward_share(double precision, double precision, jsonb);
DROP FUNCTION IF EXISTS trinity.is_learned_from(double precision, boolean);
DROP FUNCTION IF EXISTS trinity.derived_priority(double precision);
DROP FUNCTION IF EXISTS trinity.is_alive(timestamptz, double precision);
DROP FUNCTION IF EXISTS trinity.kept_until(bigint, text);
DROP FUNCTION IF EXISTS trinity.staleness(integer, integer, integer);
DROP FUNCTION IF EXISTS trinity.staleness(bigint, integer, integer, integer);
DROP FUNCTION IF EXISTS trinity.oldest_within(bigint, integer, integer);
DROP FUNCTION IF EXISTS trinity.unbroken_since(bigint, integer);
DROP FUNCTION IF EXISTS trinity.distance(bigint, integer, integer);
-- create

-- How many publications lie between two versions of a run. If one of them was withdrawn, the way between them leads up to
-- the version that both come from, and down to the other one. A version's place on its line is its number less
-- policy_version.skipped. If a number has no row, the server lost its version, whose line went on from the row below.
--
-- Numbers are given in the order of publication, and a run only goes back to a version that its newest one comes from. So
-- two versions both come from the one before the lowest place that lies between their numbers. If as many numbers are
-- skipped below both, each number between them is of a version that comes from the one before.
CREATE FUNCTION trinity.distance(run_id bigint, version integer, other integer)
RETURNS integer
LANGUAGE sql STABLE PARALLEL SAFE AS $$
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

-- How far the versions that sampled a row are from a version: the larger distance of the oldest and the newest of them.
CREATE FUNCTION trinity.staleness(run_id bigint, version integer, oldest integer, newest integer)
RETURNS integer
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT greatest(trinity.distance(staleness.run_id, staleness.version, staleness.oldest),
                    CASE WHEN staleness.newest <> staleness.oldest
                         THEN trinity.distance(staleness.run_id, staleness.version, staleness.newest) END)
$$;

-- The lowest number from which on each version, up to the given one, comes from the version just before it; 0 in a run that
-- never went back. From there on the distance from the given version is the difference of the numbers.
CREATE FUNCTION trinity.unbroken_since(run_id bigint, version integer)
RETURNS integer
LANGUAGE sql STABLE PARALLEL SAFE AS $$
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

-- Every version with a lower number than this one is farther from the given version than the limit.
CREATE FUNCTION trinity.oldest_within(run_id bigint, version integer, max_distance integer)
RETURNS integer
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN latest.skipped = 0 THEN latest.version - oldest_within.max_distance
                ELSE coalesce((SELECT p.version + 1 FROM trinity.policy_version p
                               WHERE p.run_id = oldest_within.run_id AND p.version <= latest.version
                                 AND p.version - p.skipped < latest.version - latest.skipped - oldest_within.max_distance
                               ORDER BY p.version DESC LIMIT 1), 0) END
    FROM trinity.policy_version latest
    WHERE latest.run_id = oldest_within.run_id AND latest.version = oldest_within.version
$$;

-- Whether a worker is alive, given the time of its last heartbeat: that time is at most a lease away from now. A time in
-- the future means that the server's clock was set back. If it is further away than a lease, the worker counts as dead; a
-- living worker sends another heartbeat within seconds.
CREATE FUNCTION trinity.is_alive(heartbeat_at timestamptz, lease_seconds double precision)
RETURNS boolean LANGUAGE sql VOLATILE
AS $$ SELECT abs(extract(epoch FROM clock_timestamp() - heartbeat_at)) <= lease_seconds $$;

-- How long a run keeps rows of a family, as its configuration says; NULL: for ever. Calls are kept as payloads are.
-- Replaced and never dropped: the policies of roles.sql read it. So it uses no operators of the login that calls it.
CREATE OR REPLACE FUNCTION trinity.kept_for(run_id bigint, family text)
RETURNS interval LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT (r.config #>> ARRAY['processors', 'retention', CASE kept_for.family WHEN 'calls' THEN 'payloads' ELSE kept_for.family END])::interval
    FROM trinity.run r
    WHERE r.id = kept_for.run_id
$$;

-- The moment before which processors remove rows of a family of a run. NULL: they remove none, because the run keeps all,
-- its processors have not started in this store, or it is being deleted.
CREATE FUNCTION trinity.kept_until(run_id bigint, family text)
RETURNS timestamptz LANGUAGE sql STABLE
AS $$
    SELECT now() - trinity.kept_for(t.run_id, t.family)
    FROM trinity.retention t JOIN trinity.run r ON r.id = t.run_id
    WHERE t.run_id = kept_until.run_id AND t.family = kept_until.family AND r.deleting_at IS NULL
$$;

-- The priority of a group that follows from the rewards of its attempts, given their variance: their deviation, within
-- the range that a priority may have. A group without a variance has the least.
CREATE FUNCTION trinity.derived_priority(variance double precision)
RETURNS double precision
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT least(greatest(sqrt(derived_priority.variance), 0.01), 1e18)
$$;

-- Whether an adopted row with this reward may be drawn: in a run that learns from labels every row that has a reward, in
-- others every row that is not known to be bad. experience.place, which the server computes, says the same.
CREATE FUNCTION trinity.is_learned_from(reward double precision, draws_labels boolean)
RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT (is_learned_from.reward > 0) IS TRUE OR (is_learned_from.reward IS NOT NULL) = is_learned_from.draws_labels
$$;

-- What a reward event adds to the reward: its value times its weight. NULL if a person or a program gave it the weight 0,
-- as if people took all their verdicts back, so that a row about which nothing else is said has no reward, and no reward
-- of 0. Of a processing step a weight of 0 counts as 0.
CREATE FUNCTION trinity.reward_share(value double precision, weight double precision, source text)
RETURNS double precision
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN reward_share.weight <> 0 OR reward_share.source IN ('score', 'rescore')
                THEN reward_share.value * reward_share.weight END
$$;

-- Whether a row still waits for a source of rewards. It does not if the source gave a reward outside the queue of people,
-- or if people have given all verdicts in the queue that they were asked for, also if none of these has a value. Verdicts
-- with weight 0 stand beside the reward, so that no row waits for them.
CREATE FUNCTION trinity.is_awaited(experience_id bigint, rollout_id bigint, source text)
RETURNS boolean
LANGUAGE sql STABLE AS $$
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

-- What people had decided of two rows, as a snapshot saw it: 1 if they found the first one better, -1 the other one, 0
-- neither; NULL if no verdict of theirs counted. A snapshot of NULL sees all.
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

-- What pairs say of an experience, as a snapshot saw them: 1 if it is the chosen one of each pair that gives labels, 0 if it
-- is the rejected one of each; NULL if it is in none, or pairs contradict one another. A pair that people decided otherwise
-- says nothing. A snapshot of NULL sees all, what the transaction itself wrote too.
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
          -- A pair that came from another run may have the source of a review that is not decided yet.
          AND EXISTS (SELECT FROM trinity.decision d
                      WHERE d.review_id = v.id AND pg_visible_in_snapshot(d.xact::text::xid8, label_in.seen) IS NOT FALSE)
    ) q ON true
    WHERE p.gives_labels AND pg_visible_in_snapshot(p.ready_xact::text::xid8, label_in.seen) IS NOT FALSE
      AND coalesce(q.side > 0, q.source IS DISTINCT FROM p.source)
$$;

-- The id below which no rollout group of a run is live any more: batch.floor of its last batch; 0 before the first. A
-- table of one row, so that the planner puts it into the statement.
CREATE FUNCTION trinity.floor_of(run_id bigint)
RETURNS TABLE (floor bigint)
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT coalesce((SELECT b.floor FROM trinity.batch b
                     WHERE b.run_id = floor_of.run_id AND b.state <> 'reopened' ORDER BY b.step DESC LIMIT 1), 0)
$$;

-- The rollout groups of a run that a draw may take now: those that are ready and within the staleness limit, counted
-- from a version. NULL as the limit: there is none. drawable_groups says the same of a draw that was recorded. If
-- the difference of the numbers tells the staleness, no table is read for it: this case comes first.
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

-- The rows of a rollout group that another run may adopt: those that its own run sampled, and that are ready, were
-- trained on, or became too stale for it. Rows that were dropped and rows of evaluations are left out. Rows whose arrays
-- were pruned cannot be adopted after all, and greedy ones only with their group, whose others are compared with them.
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

-- What a prompt asks, for lists that people read: the last message of the user. Of a prompt without messages it is the
-- text after the last mark of a user's turn in common chat templates, without further marks; a prompt without such marks
-- is shown whole. Marks are looked for in the last 20,000 characters. The cost is bounded: messages that take over 64 KiB in
-- the table are not read, and of a prompt of over 1 MB only the first 20,000 characters are.
CREATE FUNCTION trinity.question(prompt text, messages jsonb)
RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
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
$$;

-- Every experience with its text, its reward, how stale it is now and how often it was used. staleness_now grows with
-- each published version; batch_item.staleness says how stale a row was when a step drew it. Rows that were not judged
-- have no reward and sort before the best: order by reward desc nulls last.
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
       CASE WHEN latest.skipped = 0 AND e.version_max <= latest.version THEN latest.version - e.version_min
            WHEN e.version_min IS NOT NULL
            THEN trinity.staleness(e.run_id, latest.version, e.version_min, e.version_max) END AS staleness_now,
       e.use_count,
       e.prompt_length,
       e.response_length,
       m.model,
       m.finish_reason,
       m.greedy,
       e.held_out,
       g.evaluation_id,
       e.created_at
FROM trinity.experience e
JOIN trinity.run r ON r.id = e.run_id
LEFT JOIN trinity.experience_text x ON x.experience_id = coalesce(e.source_id, e.id)
LEFT JOIN trinity.rollout m ON m.id = e.rollout_id
LEFT JOIN trinity.rollout_group g ON g.id = e.group_id
LEFT JOIN trinity.task t ON t.id = g.task_id
LEFT JOIN LATERAL (SELECT p.version, p.skipped FROM trinity.policy_version p
                   WHERE p.run_id = e.run_id AND p.checkpoint IS NOT NULL
                   ORDER BY p.version DESC LIMIT 1) latest ON true;
COMMENT ON COLUMN trinity.experience_view.id IS 'Number of the experience';
COMMENT ON COLUMN trinity.experience_view.run IS 'Name of its run';
COMMENT ON COLUMN trinity.experience_view.state IS 'raw, clean, scored, ready, leased, trained, dropped or expired; evaluated in an evaluation';
COMMENT ON COLUMN trinity.experience_view.group_id IS 'Its rollout group; NULL for an imported row without one';
COMMENT ON COLUMN trinity.experience_view.member IS 'Which member of its group its rollout is, from 0';
COMMENT ON COLUMN trinity.experience_view.step IS 'Which step of its rollout it is, from 0';
COMMENT ON COLUMN trinity.experience_view.task IS 'Key of the task';
COMMENT ON COLUMN trinity.experience_view.prompt IS 'Prompt as text';
COMMENT ON COLUMN trinity.experience_view.response IS 'Response as text';
COMMENT ON COLUMN trinity.experience_view.reward IS 'Reward as it is now; NULL before the first';
COMMENT ON COLUMN trinity.experience_view.version_min IS 'Oldest policy version that wrote any of its tokens';
COMMENT ON COLUMN trinity.experience_view.version_max IS 'Newest policy version that wrote any of its tokens';
COMMENT ON COLUMN trinity.experience_view.staleness_now IS 'How many publications lie between the latest policy version and the farthest that wrote any of its tokens; NULL for an adopted or imported row, which no version of the run wrote';
COMMENT ON COLUMN trinity.experience_view.use_count IS 'How many committed batches used it';
COMMENT ON COLUMN trinity.experience_view.prompt_length IS 'Length of the prompt in tokens';
COMMENT ON COLUMN trinity.experience_view.response_length IS 'Length of the response in tokens';
COMMENT ON COLUMN trinity.experience_view.model IS 'Model that wrote it; NULL if a policy version of its run did';
COMMENT ON COLUMN trinity.experience_view.finish_reason IS 'Why its rollout ended, as stop or length';
COMMENT ON COLUMN trinity.experience_view.greedy IS 'Whether it was sampled at temperature 0, to be compared with';
COMMENT ON COLUMN trinity.experience_view.held_out IS 'Whether it is kept for evaluation and never drawn';
COMMENT ON COLUMN trinity.experience_view.evaluation_id IS 'The evaluation that it is a part of; NULL if it is for training';
COMMENT ON COLUMN trinity.experience_view.created_at IS 'Time at which it was written';

-- What the reward of each experience is made of. THE RULE: of the statements about an experience, about the one that it
-- was adopted from and about its rollout, the latest of each name counts, and the reward is the sum of their values, each
-- times its weight. A statement with weight 0 stands beside the reward. `refresh_rewards` computes rewards from this view.
-- Where no statement counts, the reward is what pairs say, by label_in.
--
-- A rescore follows the rule by what it writes. Under a name whose latest statement is a person's or a program's, it
-- writes none. What a step that was asked again says no more, or a step that the run has no more, it repeats with weight
-- 0. So of each step the statements of one pass count, and a correction by a person is kept.
CREATE VIEW trinity.reward_part_view AS
SELECT DISTINCT ON (e.id, v.name)
       r.name AS run,
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
FROM trinity.experience e
LEFT JOIN trinity.run r ON r.id = e.run_id
CROSS JOIN LATERAL (
    SELECT a.* FROM trinity.reward_event a WHERE a.rollout_id = e.rollout_id
    UNION ALL
    SELECT a.* FROM trinity.reward_event a WHERE a.experience_id = ANY(ARRAY[e.id, e.source_id])
) v
ORDER BY e.id, v.name, v.id DESC;
COMMENT ON COLUMN trinity.reward_part_view.run IS 'Name of the run';
COMMENT ON COLUMN trinity.reward_part_view.experience_id IS 'The experience';
COMMENT ON COLUMN trinity.reward_part_view.name IS 'Name under which the statement counts';
COMMENT ON COLUMN trinity.reward_part_view.value IS 'What it says';
COMMENT ON COLUMN trinity.reward_part_view.weight IS 'Factor of the value in the reward; 0: it stands beside the reward';
COMMENT ON COLUMN trinity.reward_part_view.source IS 'Where it comes from: explore, score, rescore, import or a source that a person named';
COMMENT ON COLUMN trinity.reward_part_view.created_by IS 'The person or program that gave it; NULL if unknown';
COMMENT ON COLUMN trinity.reward_part_view.processor_version IS 'Version of the list of steps that made it, as in step_list of the processor score; NULL where no step did';
COMMENT ON COLUMN trinity.reward_part_view.created_at IS 'Time at which it was recorded';
COMMENT ON COLUMN trinity.reward_part_view.event_id IS 'Number of the reward event';
COMMENT ON COLUMN trinity.reward_part_view.share IS
    'What it adds to the reward: value times weight; NULL if a person or a program gave the weight 0';

-- Gives these experiences, which are locked, the rewards that pairs say, where no statement about them counts. It has the
-- rights of the tables' owner: a trainer adopts pairs and may set no rewards, and this sets none but those that follow.
CREATE FUNCTION trinity.follow_labels(ids bigint[])
RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    UPDATE trinity.experience e SET reward = said.label
    FROM (SELECT n.id, trinity.label_in(n.id, NULL) AS label FROM unnest(follow_labels.ids) AS n (id)) said
    WHERE e.id = said.id AND e.draws_labels AND e.reward IS DISTINCT FROM said.label
      -- A sum, and no NOT EXISTS, which the planner would make a join with the statements about all rows of the store.
      AND (SELECT sum(v.share) FROM trinity.reward_part_view v WHERE v.experience_id = e.id) IS NULL
$$;
REVOKE EXECUTE ON FUNCTION trinity.follow_labels(bigint[]) FROM PUBLIC;

-- The reward of an experience as it was at training: what the last committed batch with it used. Of a row that no batch
-- used with a reward, the reward that it would have if no rescore had judged it.
CREATE FUNCTION trinity.reward_at_training(experience_id bigint, rollout_id bigint, reward double precision)
RETURNS double precision
LANGUAGE sql STABLE AS $$
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

-- Each policy version with the experiences that it wrote to be trained on: their number, mean reward and mean length.
-- `reward` is that of training, so that judging rows again does not change it; `reward_now` follows. Also how much of the
-- update the version's weights show, as the trainer measured it.
CREATE VIEW trinity.policy_progress AS
SELECT r.name AS run,
       p.version,
       p.step,
       p.published_at,
       count(e.id) AS experiences,
       avg(trinity.reward_at_training(e.id, e.rollout_id, e.reward)) AS reward,
       avg(e.reward) AS reward_now,
       avg(e.response_length) AS response_length,
       count(e.id) FILTER (WHERE e.state = 'trained') AS trained,
       count(e.id) FILTER (WHERE e.state IN ('dropped', 'expired')) AS dropped,
       (SELECT m.value FROM trinity.metric m WHERE m.run_id = p.run_id AND m.name = 'publish/visible' AND m.step = p.step
        ORDER BY m.id DESC LIMIT 1) AS visible,
       (SELECT m.value FROM trinity.metric m WHERE m.run_id = p.run_id AND m.name = 'publish/visible_last_ten' AND m.step = p.step
        ORDER BY m.id DESC LIMIT 1) AS visible_last_ten,
       (SELECT m.value FROM trinity.metric m WHERE m.run_id = p.run_id AND m.name = 'publish/changed' AND m.step = p.step
        ORDER BY m.id DESC LIMIT 1) AS changed,
       (SELECT m.value FROM trinity.metric m WHERE m.run_id = p.run_id AND m.name = 'publish/noise' AND m.step = p.step
        ORDER BY m.id DESC LIMIT 1) AS noise
FROM trinity.policy_version p
JOIN trinity.run r ON r.id = p.run_id
LEFT JOIN trinity.experience e ON e.run_id = p.run_id AND e.version_min = p.version AND NOT e.held_out
GROUP BY r.name, p.run_id, p.version, p.step, p.published_at;
COMMENT ON COLUMN trinity.policy_progress.run IS 'Name of the run';
COMMENT ON COLUMN trinity.policy_progress.version IS 'Policy version';
COMMENT ON COLUMN trinity.policy_progress.step IS 'Trainer step after which it was published';
COMMENT ON COLUMN trinity.policy_progress.published_at IS 'Time at which it was published';
COMMENT ON COLUMN trinity.policy_progress.experiences IS 'Experiences whose oldest token it wrote';
COMMENT ON COLUMN trinity.policy_progress.reward IS 'Mean of their rewards as they were at training; of rows that no batch used, as they were before any rescore';
COMMENT ON COLUMN trinity.policy_progress.reward_now IS 'Mean of their rewards as they are now';
COMMENT ON COLUMN trinity.policy_progress.response_length IS 'Mean length of their responses in tokens';
COMMENT ON COLUMN trinity.policy_progress.trained IS 'How many of them are trained';
COMMENT ON COLUMN trinity.policy_progress.dropped IS 'How many of them are dropped or expired';
COMMENT ON COLUMN trinity.policy_progress.visible IS 'Metric publish/visible of the version: share of the update since version 0 that its weights show; NULL if it was not measured';
COMMENT ON COLUMN trinity.policy_progress.visible_last_ten IS 'Metric publish/visible_last_ten: the same since the version ten before';
COMMENT ON COLUMN trinity.policy_progress.changed IS 'Metric publish/changed: share of weights that differ from the version before';
COMMENT ON COLUMN trinity.policy_progress.noise IS 'Metric publish/noise: root mean square of the rounding error, as a share of that of the weights';

-- Every batch with statistics of its rows. Staleness is that of the draw, as in batch_item.
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
COMMENT ON COLUMN trinity.batch_view.id IS 'Number of the batch';
COMMENT ON COLUMN trinity.batch_view.run IS 'Name of its run';
COMMENT ON COLUMN trinity.batch_view.step IS 'Trainer step that it is for';
COMMENT ON COLUMN trinity.batch_view.state IS 'leased, committed or reopened';
COMMENT ON COLUMN trinity.batch_view.policy_version IS 'Latest published policy version at the draw';
COMMENT ON COLUMN trinity.batch_view.included_version IS 'First policy version that includes it; NULL before';
COMMENT ON COLUMN trinity.batch_view.epoch IS 'Passes over imported data finished before it; 0 in an online run';
COMMENT ON COLUMN trinity.batch_view.sampler IS 'Name of the sampler';
COMMENT ON COLUMN trinity.batch_view.seed IS 'Seed of the draw';
COMMENT ON COLUMN trinity.batch_view.size IS 'How much was drawn: groups, rows or pairs';
COMMENT ON COLUMN trinity.batch_view.experiences IS 'Rows in it';
COMMENT ON COLUMN trinity.batch_view.reward IS 'Mean of the rewards that were used';
COMMENT ON COLUMN trinity.batch_view.staleness_min IS 'Smallest staleness at the draw, in policy versions';
COMMENT ON COLUMN trinity.batch_view.staleness_mean IS 'Mean staleness at the draw, in policy versions';
COMMENT ON COLUMN trinity.batch_view.staleness_max IS 'Largest staleness at the draw, in policy versions';
COMMENT ON COLUMN trinity.batch_view.setting_id IS 'The run_setting under which its step was made';
COMMENT ON COLUMN trinity.batch_view.created_at IS 'Time of the draw';
COMMENT ON COLUMN trinity.batch_view.committed_at IS 'Time at which the step was recorded; NULL before';

-- Drops, counted by reason, taskset, length of the response in tokens, and difficulty. The difficulty is a quarter from 1
-- (easiest) to 4: the run estimates the chance to fail at the task, and this chance lies in it. NULL before the first
-- score.
CREATE VIEW trinity.drop_view AS
SELECT r.name AS run,
       d.stage,
       d.step,
       d.reason,
       s.name AS taskset,
       width_bucket(e.response_length, ARRAY[0, 32, 128, 512, 2048, 8192]) AS length_class,
       width_bucket(f.beta / (f.alpha + f.beta), 0, 1, 4) AS difficulty,
       min(e.response_length) AS shortest,
       max(e.response_length) AS longest,
       count(d.experience_id) AS rows,
       count(d.group_id) AS groups,
       count(d.preference_id) AS preferences
FROM trinity."drop" d
JOIN trinity.run r ON r.id = d.run_id
LEFT JOIN trinity.experience e ON e.id = d.experience_id
LEFT JOIN trinity.rollout_group g ON g.id = coalesce(d.group_id, e.group_id)
LEFT JOIN trinity.task t ON t.id = g.task_id
LEFT JOIN trinity.taskset s ON s.id = t.taskset_id
LEFT JOIN trinity.task_stat f ON f.run_id = d.run_id AND f.task_id = g.task_id AND f.scored > 0
GROUP BY r.name, d.stage, d.step, d.reason, s.name, length_class, difficulty;
COMMENT ON COLUMN trinity.drop_view.run IS 'Name of the run';
COMMENT ON COLUMN trinity.drop_view.stage IS 'Where it was dropped';
COMMENT ON COLUMN trinity.drop_view.step IS 'The processing step that dropped it or failed; NULL where no single step did';
COMMENT ON COLUMN trinity.drop_view.reason IS 'Why, in one word';
COMMENT ON COLUMN trinity.drop_view.taskset IS 'Name of the taskset';
COMMENT ON COLUMN trinity.drop_view.length_class IS 'Class of the response''s length, from 1; the classes begin at 0, 32, 128, 512, 2048 and 8192 tokens';
COMMENT ON COLUMN trinity.drop_view.difficulty IS 'Quarter of the estimated chance to fail at the task, 1 is the easiest; NULL before its first score';
COMMENT ON COLUMN trinity.drop_view.shortest IS 'Shortest response in tokens';
COMMENT ON COLUMN trinity.drop_view.longest IS 'Longest response in tokens';
COMMENT ON COLUMN trinity.drop_view.rows IS 'Experiences dropped';
COMMENT ON COLUMN trinity.drop_view.groups IS 'Rollout groups dropped';
COMMENT ON COLUMN trinity.drop_view.preferences IS 'Pairs dropped';

-- Text of tasks that are kept for evaluation in other tasks and in responses: evidence for a person to judge.
CREATE VIEW trinity.overlap_view AS
SELECT o.id,
       r.name AS run,
       o.experience_id,
       coalesce(o.of_task_id, g.task_id) AS task_id,
       s.name AS taskset,
       o.task_id AS evaluated_task_id,
       b.name AS evaluated_taskset,
       o.measure,
       o.share,
       o.text,
       e.state::text AS state,
       o.created_at
FROM trinity.overlap o
JOIN trinity.task k ON k.id = o.task_id
JOIN trinity.taskset b ON b.id = k.taskset_id
LEFT JOIN trinity.experience e ON e.id = o.experience_id
LEFT JOIN trinity.run r ON r.id = e.run_id
LEFT JOIN trinity.rollout_group g ON g.id = e.group_id
LEFT JOIN trinity.task t ON t.id = coalesce(o.of_task_id, g.task_id)
LEFT JOIN trinity.taskset s ON s.id = t.taskset_id;
COMMENT ON COLUMN trinity.overlap_view.id IS 'Number of the evidence';
COMMENT ON COLUMN trinity.overlap_view.run IS 'Name of the row''s run; NULL where it is about a task';
COMMENT ON COLUMN trinity.overlap_view.experience_id IS 'The experience whose response has the text; NULL where a task has it';
COMMENT ON COLUMN trinity.overlap_view.task_id IS 'The task that has the text, or at which the response is an attempt';
COMMENT ON COLUMN trinity.overlap_view.taskset IS 'Name of its taskset';
COMMENT ON COLUMN trinity.overlap_view.evaluated_task_id IS 'The task for evaluation whose text it is';
COMMENT ON COLUMN trinity.overlap_view.evaluated_taskset IS 'Name of its taskset';
COMMENT ON COLUMN trinity.overlap_view.measure IS 'How they were compared, such as 13 words';
COMMENT ON COLUMN trinity.overlap_view.share IS 'Share of the evaluated task''s runs of so many words that were found';
COMMENT ON COLUMN trinity.overlap_view.text IS 'The first of these runs of words';
COMMENT ON COLUMN trinity.overlap_view.state IS 'State of the experience now; NULL where it is about a task';
COMMENT ON COLUMN trinity.overlap_view.created_at IS 'Time at which it was found';

-- Dead letters: rows that a processing step could not judge, or that ended their processor, until it gave them up. Those
-- without an obstacle `trinity-db failed RUN --retry` gives back. A group that is ready or drawn stays as it is, since the
-- advantages of its rows are those of a whole group.
CREATE VIEW trinity.failure_view AS
SELECT r.name AS run,
       e.id AS experience_id,
       e.group_id,
       e.version_max AS version,
       d.stage,
       d.step,
       d.detail ->> 'error' AS error,
       d.created_at AS failed_at,
       CASE WHEN p.data IS NULL THEN 'its arrays are archived or pruned'
            WHEN g.state IN ('open', 'complete') THEN NULL
            WHEN g.state = 'dropped' AND of_group.stage = 'group'
                 AND EXISTS (SELECT FROM trinity.experience s JOIN trinity.payload q ON q.experience_id = s.id
                             WHERE s.group_id = g.id AND q.pruned_at IS NOT NULL)
            THEN 'arrays of its group are pruned'
            WHEN g.state = 'dropped' AND of_group.stage = 'group' THEN NULL
            WHEN g.state = 'dropped' THEN 'its group was dropped after it'
            ELSE 'its group became ready without it'
       END AS obstacle
FROM trinity."drop" d
JOIN trinity.run r ON r.id = d.run_id
JOIN trinity.experience e ON e.id = d.experience_id
JOIN trinity.rollout_group g ON g.id = e.group_id
LEFT JOIN trinity."drop" of_group ON of_group.group_id = g.id
LEFT JOIN trinity.payload p ON p.experience_id = e.id
WHERE d.reason IN ('clean_failed', 'clean_crashed', 'score_failed', 'score_crashed')
UNION ALL
SELECT r.name, p.experience_id, p.group_id, g.version_max, 'priority', p.step, p.error, p.failed_at, NULL
FROM trinity.group_priority p
JOIN trinity.run r ON r.id = p.run_id
JOIN trinity.rollout_group g ON g.id = p.group_id
WHERE p.failed_at IS NOT NULL
  AND NOT EXISTS (SELECT FROM trinity.group_priority l
                  WHERE l.group_id = p.group_id AND l.id > p.id AND (l.priority IS NOT NULL OR l.failed_at IS NOT NULL))
UNION ALL
SELECT r.name, s.experience_id, s.group_id, g.version_max, 'synthesis', s.step, s.error, s.failed_at, NULL
FROM trinity.synthesis s
JOIN trinity.run r ON r.id = s.run_id
JOIN trinity.rollout_group g ON g.id = s.group_id
WHERE s.failed_at IS NOT NULL;
COMMENT ON COLUMN trinity.failure_view.run IS 'Name of the run';
COMMENT ON COLUMN trinity.failure_view.experience_id IS 'The experience that could not be judged; NULL where a processor ended at a priority';
COMMENT ON COLUMN trinity.failure_view.group_id IS 'Its rollout group';
COMMENT ON COLUMN trinity.failure_view.version IS 'Newest policy version that wrote any of its tokens';
COMMENT ON COLUMN trinity.failure_view.stage IS 'The list of the step: clean, score, priority or synthesis. The last two are about a whole group, which is drawn as before';
COMMENT ON COLUMN trinity.failure_view.step IS 'The processing step that failed; NULL where the processor ended';
COMMENT ON COLUMN trinity.failure_view.error IS 'What it said at the last attempt';
COMMENT ON COLUMN trinity.failure_view.failed_at IS 'Time at which the row was given up';
COMMENT ON COLUMN trinity.failure_view.obstacle IS 'Why it cannot be judged again; NULL if it can';

-- What steps made from rows, with what it was made from. From a row of lineage() it leads back by the row's task, or, for a
-- row that was adopted, by its source_id.
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
FROM trinity.origin o
JOIN trinity.synthesis s ON s.id = o.synthesis_id
JOIN trinity.run r ON r.id = o.run_id
LEFT JOIN trinity.experience e ON e.id = s.experience_id;
COMMENT ON COLUMN trinity.origin_view.task_id IS 'The made task; NULL where a response was made';
COMMENT ON COLUMN trinity.origin_view.experience_id IS 'The made response, an imported row; NULL where a task was made';
COMMENT ON COLUMN trinity.origin_view.step IS 'The processing step that made it';
COMMENT ON COLUMN trinity.origin_view.source_run IS 'Name of the run of the source';
COMMENT ON COLUMN trinity.origin_view.source_experience_id IS 'The row that the step was shown';
COMMENT ON COLUMN trinity.origin_view.source_group_id IS 'Its rollout group';
COMMENT ON COLUMN trinity.origin_view.source_task_id IS 'Its task';
COMMENT ON COLUMN trinity.origin_view.source_version IS 'Newest policy version that wrote any of its tokens';
COMMENT ON COLUMN trinity.origin_view.source_reward IS 'Its reward now';
COMMENT ON COLUMN trinity.origin_view.processor_version IS 'Version of the list of steps, as in step_list';
COMMENT ON COLUMN trinity.origin_view.detail IS 'What else the step says, as the model and the tokens that it took';
COMMENT ON COLUMN trinity.origin_view.created_at IS 'Time at which it was made';

-- Rows that were trained on with another reward than they have now, with their latest reward event.
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
FROM trinity.batch b
JOIN trinity.run r ON r.id = b.run_id
JOIN trinity.batch_item i ON i.batch_id = b.id
JOIN trinity.experience e ON e.id = i.experience_id
LEFT JOIN LATERAL (
    SELECT a.id, a.created_at, a.source, a.created_by FROM trinity.reward_event a WHERE a.rollout_id = e.rollout_id
    UNION ALL
    SELECT a.id, a.created_at, a.source, a.created_by FROM trinity.reward_event a
    WHERE a.experience_id = ANY(ARRAY[e.id, e.source_id])
    ORDER BY id DESC
    LIMIT 1
) v ON true
WHERE b.state = 'committed'
  -- The next condition implies this one, which spares rows that did not change the look-up of their events.
  AND (i.reward IS NULL OR i.reward IS DISTINCT FROM e.reward)
  -- An item without a reward: the row had none, or none was recorded; then the time of the event tells.
  AND CASE WHEN i.reward IS NULL THEN v.created_at > b.created_at ELSE i.reward IS DISTINCT FROM e.reward END;
COMMENT ON COLUMN trinity.reward_change_view.run IS 'Name of the run';
COMMENT ON COLUMN trinity.reward_change_view.experience_id IS 'The experience';
COMMENT ON COLUMN trinity.reward_change_view.step IS 'Trainer step that used it';
COMMENT ON COLUMN trinity.reward_change_view.included_version IS 'First policy version that includes the step';
COMMENT ON COLUMN trinity.reward_change_view.reward_used IS 'Reward that the step used';
COMMENT ON COLUMN trinity.reward_change_view.reward_now IS 'Reward as it is now';
COMMENT ON COLUMN trinity.reward_change_view.changed_at IS 'Time of the latest reward event';
COMMENT ON COLUMN trinity.reward_change_view.source IS 'Source of that event';
COMMENT ON COLUMN trinity.reward_change_view.changed_by IS 'The person or program that gave it; NULL if unknown';

-- How far the marks of score steps agree with labels of people, or of another judge. A label is a reward event of a source
-- that is no role, such as human; it is compared with the mark whose name is the same behind the last slash. Of each name the
-- latest event about a row counts. Give labels a weight of 0 to keep them out of the reward.
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
COMMENT ON COLUMN trinity.agreement_view.name IS 'Name of the mark, such as model_judge/polite';
COMMENT ON COLUMN trinity.agreement_view.processor_version IS 'Version of the list of steps that marked';
COMMENT ON COLUMN trinity.agreement_view.judge IS 'Model that judged; NULL where the step names none';
COMMENT ON COLUMN trinity.agreement_view.source IS 'Source of the labels';
COMMENT ON COLUMN trinity.agreement_view.label IS 'Name of the labels';
COMMENT ON COLUMN trinity.agreement_view.rows IS 'Rows or rollouts that have both';
COMMENT ON COLUMN trinity.agreement_view.equal IS 'Share of them whose mark is the label';
COMMENT ON COLUMN trinity.agreement_view.kappa IS
    'The same beyond chance (Cohen): 1 for all, 0 for as many as chance gives; NULL where all have one mark';
COMMENT ON COLUMN trinity.agreement_view.pearson IS 'Correlation of marks and labels; NULL where one never differs';
COMMENT ON COLUMN trinity.agreement_view.spearman IS 'Correlation of their ranks, ties at their mean rank';
COMMENT ON COLUMN trinity.agreement_view.excess IS 'Mean of mark less label';

-- What people said of rows and pairs, and what they have claimed, one line for each person and review.
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
COMMENT ON COLUMN trinity.verdict_view.review_id IS 'The review';
COMMENT ON COLUMN trinity.verdict_view.experience_id IS 'The row that was judged, or the first one of the pair';
COMMENT ON COLUMN trinity.verdict_view.other_id IS 'The second row of the pair; NULL where one row was judged';
COMMENT ON COLUMN trinity.verdict_view.source IS 'Source of the reward events or the preference that follow';
COMMENT ON COLUMN trinity.verdict_view.name IS 'What was judged';
COMMENT ON COLUMN trinity.verdict_view.author IS 'The person';
COMMENT ON COLUMN trinity.verdict_view.state IS 'draft: claimed; submitted, discarded or skipped';
COMMENT ON COLUMN trinity.verdict_view.value IS
    'The verdict; in a pair 1: the first row is better, -1: the second, 0: neither. NULL unless submitted';
COMMENT ON COLUMN trinity.verdict_view.swapped IS
    'Whether the person saw the second row of the pair as A; NULL where it is one row';
COMMENT ON COLUMN trinity.verdict_view.blind IS 'Whether the person saw no rewards before the verdict; NULL if unknown';
COMMENT ON COLUMN trinity.verdict_view.seconds IS 'How long the person looked at it, in seconds; NULL if unknown';
COMMENT ON COLUMN trinity.verdict_view.decided_at IS 'Time of the verdict; NULL while it is a draft';
COMMENT ON COLUMN trinity.verdict_view.closed_at IS 'Time of the last verdict that was wanted; NULL while one is missing';
COMMENT ON COLUMN trinity.verdict_view.label_id IS 'Number of the label';

-- How far people agree with one another: Krippendorff's alpha of their verdicts, for values that are only equal or not
-- (nominal) and for grades whose distance counts (interval). Reviews with one verdict do not count, and each may have been
-- judged by other people. 1: all agree; 0: as by chance; below: less than by chance. Krippendorff, Content Analysis, 2004,
-- chapter 11: alpha is 1 less the disagreement within reviews over that of all verdicts.
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
COMMENT ON COLUMN trinity.verdict_agreement_view.name IS 'What was judged';
COMMENT ON COLUMN trinity.verdict_agreement_view.is_pair IS 'Whether pairs were compared; else rows were judged';
COMMENT ON COLUMN trinity.verdict_agreement_view.lowest IS 'Least value of a verdict';
COMMENT ON COLUMN trinity.verdict_agreement_view.highest IS 'Greatest value of a verdict';
COMMENT ON COLUMN trinity.verdict_agreement_view.reviews IS 'Rows or pairs with two verdicts or more';
COMMENT ON COLUMN trinity.verdict_agreement_view.verdicts IS 'Verdicts on them';
COMMENT ON COLUMN trinity.verdict_agreement_view.people IS 'People who gave them';
COMMENT ON COLUMN trinity.verdict_agreement_view.alpha_nominal IS
    'Krippendorff''s alpha where verdicts are equal or not; NULL if all are equal, as then chance is not known';
COMMENT ON COLUMN trinity.verdict_agreement_view.alpha_interval IS
    'The same where the squared distance of two verdicts counts';

-- Rows and pairs about which people do not agree.
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
COMMENT ON COLUMN trinity.dispute_view.review_id IS 'The review';
COMMENT ON COLUMN trinity.dispute_view.experience_id IS 'The row that was judged, or the first one of the pair';
COMMENT ON COLUMN trinity.dispute_view.other_id IS 'The second row of the pair; NULL where one row was judged';
COMMENT ON COLUMN trinity.dispute_view.name IS 'What was judged';
COMMENT ON COLUMN trinity.dispute_view.verdicts IS 'How many verdicts it has';
COMMENT ON COLUMN trinity.dispute_view.least IS 'The least of them';
COMMENT ON COLUMN trinity.dispute_view.greatest IS 'The greatest of them';
COMMENT ON COLUMN trinity.dispute_view.mean IS 'Their mean';
COMMENT ON COLUMN trinity.dispute_view.said IS 'The verdict of each person';

-- Rows that active runs with requires_reward wait for: the members of complete groups that the source has not judged yet,
-- without attempts that lost a step.
CREATE VIEW trinity.awaited_reward_view AS
SELECT r.name AS run,
       r.config ->> 'requires_reward' AS source,
       e.id AS experience_id,
       e.group_id,
       x.prompt,
       x.response,
       e.created_at
FROM trinity.run r
JOIN trinity.rollout_group g ON g.run_id = r.id AND g.state = 'complete'
JOIN trinity.experience e ON e.group_id = g.id AND e.state = 'scored'
LEFT JOIN trinity.experience_text x ON x.experience_id = e.id
WHERE r.state = 'active' AND r.config ->> 'requires_reward' IS NOT NULL
  AND NOT EXISTS (SELECT FROM trinity.experience lost WHERE lost.rollout_id = e.rollout_id AND lost.state = 'dropped')
  AND trinity.is_awaited(e.id, e.rollout_id, r.config ->> 'requires_reward');
COMMENT ON COLUMN trinity.awaited_reward_view.run IS 'Name of the run';
COMMENT ON COLUMN trinity.awaited_reward_view.source IS 'Source whose reward the run waits for';
COMMENT ON COLUMN trinity.awaited_reward_view.experience_id IS 'The experience to be judged';
COMMENT ON COLUMN trinity.awaited_reward_view.group_id IS 'Its rollout group';
COMMENT ON COLUMN trinity.awaited_reward_view.prompt IS 'Prompt as text';
COMMENT ON COLUMN trinity.awaited_reward_view.response IS 'Response as text';
COMMENT ON COLUMN trinity.awaited_reward_view.created_at IS 'Time at which it was written';

-- Changes of a run's configuration, a row for each key: the step from which on it applies, the time, and the login that
-- made it. The step is NULL until a batch is drawn under the change. The whole configuration of a step is in the
-- run_setting that its batch names.
CREATE VIEW trinity.setting_view AS
WITH RECURSIVE leaf AS (
    SELECT s.id, s.run_id, k.key, k.value FROM trinity.run_setting s CROSS JOIN LATERAL jsonb_each(s.config) k
    UNION ALL
    SELECT l.id, l.run_id, l.key || '.' || k.key, k.value
    FROM leaf l
    CROSS JOIN LATERAL jsonb_each(CASE WHEN jsonb_typeof(l.value) = 'object' THEN l.value ELSE '{}' END) k
),
key AS (
    SELECT id, run_id, key, value FROM leaf WHERE jsonb_typeof(value) <> 'object' OR value = '{}'
),
setting AS (
    SELECT s.*, lag(s.id) OVER (PARTITION BY s.run_id ORDER BY s.id) AS before_id FROM trinity.run_setting s
)
SELECT r.name AS run,
       s.id AS setting_id,
       (SELECT min(b.step) FROM trinity.batch b WHERE b.setting_id = s.id AND b.run_id = s.run_id) AS since_step,
       change.key,
       change.before,
       change.after,
       s.created_at AS changed_at,
       s.created_by AS changed_by,
       s.host
FROM setting s
JOIN trinity.run r ON r.id = s.run_id
CROSS JOIN LATERAL (
    SELECT coalesce(a.key, b.key) AS key, b.value AS before, a.value AS after
    FROM (SELECT k.key, k.value FROM key k WHERE k.id = s.id) a
    FULL JOIN (SELECT k.key, k.value FROM key k WHERE k.id = s.before_id) b ON b.key = a.key
    WHERE a.value IS DISTINCT FROM b.value
) change
WHERE s.before_id IS NOT NULL;
COMMENT ON COLUMN trinity.setting_view.run IS 'Name of the run';
COMMENT ON COLUMN trinity.setting_view.setting_id IS 'The run_setting that made the change';
COMMENT ON COLUMN trinity.setting_view.since_step IS 'First step drawn under it; NULL before there is one';
COMMENT ON COLUMN trinity.setting_view.key IS 'The key, by its path';
COMMENT ON COLUMN trinity.setting_view.before IS 'Its value before';
COMMENT ON COLUMN trinity.setting_view.after IS 'Its value from then on';
COMMENT ON COLUMN trinity.setting_view.changed_at IS 'Time of the change';
COMMENT ON COLUMN trinity.setting_view.changed_by IS 'Login that made it';
COMMENT ON COLUMN trinity.setting_view.host IS 'Machine on which it was made';

-- Runs and data sets with a status that follows from their workers. run.state only tells whether the configured work is
-- done: a killed supervisor writes nothing, so a stopped run stays `active` there. A worker is alive if its last
-- heartbeat is within its lease of 30 s. Without a living worker, the workers count that were alive together last: those
-- whose last heartbeat is at most a lease older than the newest one. If one of them did not sign off, or another process
-- took it for gone after its lease, the run crashed. In the first 30 s after a crash the run is still shown as active.
CREATE VIEW trinity.run_view AS
SELECT r.id,
       r.name AS run,
       r.kind,
       r.state,
       CASE WHEN r.deleting_at IS NOT NULL THEN 'being deleted'
            WHEN r.kind = 'data' THEN 'data set'
            WHEN w.are_to_stop THEN 'stopping'
            WHEN r.state = 'finished' THEN 'finished'
            WHEN w.run_id IS NULL THEN 'new'
            WHEN w.alive > 0 THEN 'active'
            WHEN w.is_crashed THEN 'crashed'
            ELSE 'stopped' END AS status,
       coalesce(w.alive, 0) AS alive,
       w.seen_at,
       r.created_at,
       r.finished_at
FROM trinity.run r
LEFT JOIN (
    SELECT a.run_id,
           max(a.newest) AS seen_at,
           count(*) FILTER (WHERE a.is_alive) AS alive,
           bool_or(a.is_alive AND a.started_at <= a.stop_asked_at) AS are_to_stop,
           bool_or(a.heartbeat_at >= a.newest - interval '30 s'
                   AND coalesce(a.stopped_at > a.heartbeat_at + interval '30 s', true)) AS is_crashed
    FROM (SELECT w.run_id, w.started_at, w.heartbeat_at, w.stopped_at, o.stop_asked_at,
                 w.stopped_at IS NULL AND trinity.is_alive(w.heartbeat_at, 30) AS is_alive,
                 max(w.heartbeat_at) OVER (PARTITION BY w.run_id) AS newest
          FROM trinity.worker w
          JOIN trinity.run o ON o.id = w.run_id) a
    GROUP BY a.run_id
) w ON w.run_id = r.id;
COMMENT ON COLUMN trinity.run_view.id IS 'Number of the run';
COMMENT ON COLUMN trinity.run_view.run IS 'Name of the run or data set';
COMMENT ON COLUMN trinity.run_view.kind IS 'train for a training effort, data for an imported data set';
COMMENT ON COLUMN trinity.run_view.state IS 'active or finished, as in run: whether the configured work is done';
COMMENT ON COLUMN trinity.run_view.status IS
    'active (a worker is alive), stopping (living workers were asked to stop), stopped (all workers signed off), crashed (a worker ended without signing off), new (no worker started yet), finished, being deleted, or data set';
COMMENT ON COLUMN trinity.run_view.alive IS 'Workers that gave a sign of life within 30 s and did not sign off';
COMMENT ON COLUMN trinity.run_view.seen_at IS 'Last sign of life of any of its workers; NULL before the first';
COMMENT ON COLUMN trinity.run_view.created_at IS 'Time at which it was made';
COMMENT ON COLUMN trinity.run_view.finished_at IS 'Time at which the configured work was done; NULL before';

-- Workers and what they hold now: every worker that has not stopped, or still holds something. A worker is alive if its
-- last heartbeat is within its lease of 30 s. Rows are experiences and preferences.
CREATE VIEW trinity.lease_view AS
SELECT r.name AS run,
       w.id AS worker,
       w.role,
       w.host,
       w.pid,
       round(extract(epoch FROM clock_timestamp() - w.heartbeat_at), 1) AS silent_seconds,
       w.stopped_at IS NULL AND trinity.is_alive(w.heartbeat_at, 30) AS alive,
       held.groups,
       held.rows,
       held.batches
FROM trinity.worker w
JOIN trinity.run r ON r.id = w.run_id
CROSS JOIN LATERAL (
    SELECT (SELECT count(*) FROM trinity.rollout_group g WHERE g.worker_id = w.id) AS groups,
           (SELECT count(*) FROM trinity.experience e WHERE e.judge_id = w.id)
           + (SELECT count(*)
              FROM trinity.batch b
              JOIN trinity.batch_item i ON i.batch_id = b.id
              JOIN trinity.experience e ON e.id = i.experience_id AND e.worker_id = w.id AND e.state = 'leased'
              WHERE b.run_id = w.run_id AND b.worker_id = w.id AND b.state = 'leased')
           + (SELECT count(*) FROM trinity.preference p WHERE p.worker_id = w.id) AS rows,
           (SELECT count(*) FROM trinity.batch b
            WHERE b.run_id = w.run_id AND b.worker_id = w.id AND b.state = 'leased') AS batches
) held
WHERE w.stopped_at IS NULL OR held.groups + held.rows + held.batches > 0;
COMMENT ON COLUMN trinity.lease_view.run IS 'Name of the run';
COMMENT ON COLUMN trinity.lease_view.worker IS 'Number of the worker';
COMMENT ON COLUMN trinity.lease_view.role IS 'explore, process or train';
COMMENT ON COLUMN trinity.lease_view.host IS 'Name of its machine';
COMMENT ON COLUMN trinity.lease_view.pid IS 'Its process id on that machine';
COMMENT ON COLUMN trinity.lease_view.silent_seconds IS 'Seconds since its last sign of life';
COMMENT ON COLUMN trinity.lease_view.alive IS 'Whether it works and gave a sign of life within 30 s';
COMMENT ON COLUMN trinity.lease_view.groups IS 'Rollout groups that it holds';
COMMENT ON COLUMN trinity.lease_view.rows IS 'Experiences and pairs that it holds';
COMMENT ON COLUMN trinity.lease_view.batches IS 'Batches that it holds';

-- Members of a group that are parked, whether each may go on now, and whether it is too old: a token of it, or of another
-- member, is of a version before `oldest`, so that the group would expire. `oldest` is NULL where there is no limit.
CREATE FUNCTION trinity.parked_members(group_id bigint, oldest integer)
RETURNS TABLE (ordinal smallint, is_due boolean, is_stale boolean, resumed_attempt integer)
LANGUAGE sql STABLE AS $$
    SELECT a.ordinal, p.answered_at IS NOT NULL OR (p.wake_at <= now()) IS TRUE OR s.is_stale, s.is_stale,
           p.resumed_attempt
    FROM trinity.agent a
    JOIN trinity.park p ON p.agent_id = a.id AND p.parked_at IS NOT NULL AND p.left_at IS NULL
    JOIN trinity.rollout_group g ON g.id = a.group_id
    CROSS JOIN LATERAL (SELECT g.evaluation_id IS NULL
                               AND (least(g.version_min, p.version_min) < parked_members.oldest) IS TRUE AS is_stale) s
    WHERE a.group_id = parked_members.group_id AND a.ended_at IS NULL
$$;

-- Attempts that are parked now: they wait for an answer, for a time, or, once they may go on, for an explorer.
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
FROM trinity.park p
JOIN trinity.agent a ON a.id = p.agent_id AND a.ended_at IS NULL
JOIN trinity.rollout_group g ON g.id = a.group_id AND g.completed_at IS NULL
JOIN trinity.run r ON r.id = p.run_id
WHERE p.parked_at IS NOT NULL AND p.left_at IS NULL
  AND (p.resumed_attempt IS NULL OR g.worker_id IS NULL OR p.resumed_attempt <> g.attempt);
COMMENT ON COLUMN trinity.parked_view.run IS 'Name of the run';
COMMENT ON COLUMN trinity.parked_view.run_id IS 'The run';
COMMENT ON COLUMN trinity.parked_view.ticket IS 'Number by which an answer is given';
COMMENT ON COLUMN trinity.parked_view.group_id IS 'The rollout group of the attempt';
COMMENT ON COLUMN trinity.parked_view.member IS 'Which member of the group it makes, from 0';
COMMENT ON COLUMN trinity.parked_view.task_id IS 'The task that it attempts';
COMMENT ON COLUMN trinity.parked_view.parked_at IS 'Time since which it is parked';
COMMENT ON COLUMN trinity.parked_view.wake_at IS 'Time at which it goes on without an answer; NULL: it waits for one';
COMMENT ON COLUMN trinity.parked_view.answered_at IS 'Time of the answer; NULL while there is none';
COMMENT ON COLUMN trinity.parked_view.state IS 'What the workflow gave when it parked';
COMMENT ON COLUMN trinity.parked_view.answer IS 'The answer; NULL while there is none';

-- How long rows of a run stay in each state, in seconds. Only stays that have ended count. The states begin and end:
-- exploring: from the start of an attempt to its last token, by the explorer's clock. raw: from the write to the clean
-- processor's verdict. clean: from there to the score processor's verdict. scored: from there until the group is ready; it
-- may wait for other members, or for a required reward. ready: from there to the draw, and after a commit or a reopening
-- to the next draw. leased: from the draw to the commit of its step. trained: from the commit until a published policy
-- version includes it. Imported rows begin at ready, when the run adopts them or the pair is made. The view reads a run's
-- whole history.
CREATE VIEW trinity.state_time_view AS
WITH judged AS (
    SELECT r.name AS run, e.id, e.created_at AS written_at, g.ready_at,
           min(p.created_at) FILTER (WHERE p.processor = 'clean') AS cleaned_at,
           min(p.created_at) FILTER (WHERE p.processor = 'score') AS scored_at
    FROM trinity.run r
    JOIN trinity.experience e ON e.run_id = r.id AND e.source_id IS NULL AND NOT e.held_out
    JOIN trinity.processing p ON p.experience_id = e.id AND p.outcome = 'passed'
    JOIN trinity.rollout_group g ON g.id = e.group_id
    GROUP BY r.name, e.id, g.ready_at
),
drawn AS (
    SELECT r.name AS run, b.created_at AS drawn_at, b.committed_at, v.published_at,
           coalesce(lag(coalesce(b.reopened_at, b.committed_at))
                        OVER (PARTITION BY r.name, i.experience_id, i.preference_id ORDER BY b.id),
                    q.created_at, g.ready_at, CASE WHEN e.source_id IS NOT NULL THEN e.created_at END) AS ready_at
    FROM trinity.run r
    JOIN trinity.batch b ON b.run_id = r.id
    JOIN trinity.batch_item i ON i.batch_id = b.id
    JOIN trinity.experience e ON e.id = i.experience_id
    LEFT JOIN trinity.preference q ON q.id = i.preference_id
    LEFT JOIN trinity.rollout_group g ON g.id = e.group_id AND g.run_id = b.run_id
    LEFT JOIN trinity.policy_version v ON v.run_id = b.run_id AND v.version = b.included_version
),
stay AS (
    SELECT r.name AS run, 1 AS place, 'exploring' AS state, m.started_at AS since, m.finished_at AS until
    FROM trinity.run r
    JOIN trinity.rollout m ON m.run_id = r.id AND m.state = 'finished'
    LEFT JOIN trinity.rollout_group g ON g.id = m.group_id
    WHERE g.evaluation_id IS NULL
    UNION ALL
    SELECT j.run, s.place, s.state, s.since, s.until
    FROM judged j
    CROSS JOIN LATERAL (VALUES (2, 'raw', j.written_at, j.cleaned_at),
                               (3, 'clean', j.cleaned_at, j.scored_at),
                               (4, 'scored', j.scored_at, j.ready_at)) AS s (place, state, since, until)
    UNION ALL
    SELECT d.run, s.place, s.state, s.since, s.until
    FROM drawn d
    CROSS JOIN LATERAL (VALUES (5, 'ready', d.ready_at, d.drawn_at),
                               (6, 'leased', d.drawn_at, d.committed_at),
                               (7, 'trained', d.committed_at, d.published_at)) AS s (place, state, since, until)
)
SELECT s.run,
       s.state,
       count(*) AS rows,
       avg(extract(epoch FROM s.until - s.since))::double precision AS mean,
       percentile_cont(0.5) WITHIN GROUP (ORDER BY extract(epoch FROM s.until - s.since)) AS median,
       percentile_cont(0.95) WITHIN GROUP (ORDER BY extract(epoch FROM s.until - s.since)) AS p95
FROM stay s
WHERE s.since IS NOT NULL AND s.until IS NOT NULL
GROUP BY s.run, s.place, s.state
ORDER BY s.run, s.place;
COMMENT ON COLUMN trinity.state_time_view.run IS 'Name of the run';
COMMENT ON COLUMN trinity.state_time_view.state IS 'State, or exploring for the time before the row was written';
COMMENT ON COLUMN trinity.state_time_view.rows IS 'How many stays in the state have ended';
COMMENT ON COLUMN trinity.state_time_view.mean IS 'Mean length of a stay in seconds';
COMMENT ON COLUMN trinity.state_time_view.median IS 'Median length of a stay in seconds';
COMMENT ON COLUMN trinity.state_time_view.p95 IS 'Length of a stay in seconds that 19 of 20 do not exceed';

-- Every row that a policy version was trained on, with its staleness at the draw. The run is the latest training run,
-- unless one is named. For a row that the run adopted it also gives the original: its number, the run or data set that it
-- is of, and the newest version of that run that sampled a token of it.
CREATE FUNCTION trinity.lineage(version integer, run text DEFAULT NULL)
RETURNS TABLE (batch_id bigint, step integer, ordinal integer, experience_id bigint, policy_version integer,
               included_version integer, reward double precision, advantage double precision, staleness integer,
               weight double precision, probability double precision, source_id bigint, source_run text,
               source_version integer)
LANGUAGE sql STABLE AS $$
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

-- The reward of an experience as a snapshot saw it: the weighted sum of the latest event of each name about the
-- experience, about the one it was adopted from, or about their rollout. Where none counts it is what pairs say, and without
-- events and pairs the reward that the experience came with.
CREATE FUNCTION trinity.reward_in(experience_id bigint, seen pg_snapshot)
RETURNS double precision
LANGUAGE sql STABLE AS $$
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

-- The rollout groups that a batch could have been drawn from, in its snapshot, from history alone. They were ready then,
-- in no batch that was being trained on, had uses left, had not expired, and were within the staleness limit of the batch.
-- A priority that follows from rewards or that steps computed is the one of that time; any other is the one of now.
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
      AND (trinity.staleness(b.run_id, b.policy_version, g.version_min, g.version_max) > b.max_staleness) IS NOT TRUE
      AND u.is_leased IS NOT TRUE AND coalesce(u.uses, 0) < b.max_uses
      AND NOT EXISTS (SELECT FROM expired WHERE expired.group_id = g.id)
$$;

-- The chance of draws: 64 bits that follow from a number and a seed. It hashes twice, since the upper half of the server's
-- hash is alike for numbers that are near each other.
CREATE FUNCTION trinity.chance(number bigint, seed bigint)
RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT hashint8extended(chance.number, hashint8extended(chance.number, chance.seed))
$$;

-- Such bits as a number between 0 and 1, both excluded: one of 2^52 that are equally far apart.
CREATE FUNCTION trinity.unit(hash bigint)
RETURNS double precision
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT ((unit.hash >> 12 & 4503599627370495)::double precision + 0.5) / 4503599627370496
$$;

-- A group's key in a draw by chance: exponential with the group's weight as its rate.
CREATE FUNCTION trinity.key(id bigint, weight double precision, seed bigint)
RETURNS double precision
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT -ln(trinity.unit(trinity.chance(8 * key.id + 5, key.seed))) / key.weight
$$;

-- How many bits of a hash name a cell of an octave, so that a cell holds `crowd` groups, or down to half of that. Told
-- from the first groups of the octave in the order of hashes: how many they are, and the highest hash among them.
CREATE FUNCTION trinity.cell_bits(groups bigint, highest bigint, crowd double precision)
RETURNS double precision
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT greatest(ceil(ln(cell_bits.groups / cell_bits.crowd / (cell_bits.highest / 2::float8 ^ 64 + 0.5))
                         / ln(2::float8)), 1)
$$;

-- The probes of a draw by chance, by time. `mark` lies between 0 and `rate`, the sum of the rates of all octaves, and so
-- picks an octave. `cell` is a hash in the cell that is probed, `place` one of its places, and `luck` decides whether the
-- group at that place is hit.
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

-- The chance that at least one of k attempts at a task solves it, estimated without bias from `samples` attempts that were
-- judged, if `solved` of them solved it: 1 - C(samples - solved, k) / C(samples, k), as a sum of logarithms, so that no number
-- overflows. NULL where fewer than k were judged.
CREATE FUNCTION trinity.pass_at(samples bigint, solved bigint, k integer)
RETURNS double precision
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN pass_at.k < 1 OR pass_at.samples < pass_at.k THEN NULL
                WHEN pass_at.samples - pass_at.solved < pass_at.k THEN 1
                ELSE 1 - exp(coalesce((SELECT sum(ln(1 - pass_at.k::double precision / i))
                                       FROM generate_series(pass_at.samples - pass_at.solved + 1, pass_at.samples) i), 0))
           END
$$;

-- The tasks of each evaluation with what their attempts earned. An attempt earns the sum of the rewards of its steps, as they
-- are now. A failed attempt, or one whose row no processor could judge, has no reward, and is never counted as a zero.
CREATE VIEW trinity.evaluation_task_view AS
SELECT v.id AS evaluation_id,
       r.name AS run,
       s.name AS taskset,
       v.version,
       t.key AS task,
       g.id AS group_id,
       v.samples,
       count(a.reward) AS judged,
       count(*) FILTER (WHERE a.has_failed) AS failed,
       count(*) FILTER (WHERE a.reward >= v.solved_reward) AS solved,
       avg(a.reward) AS reward,
       max(a.reward) AS best,
       array_agg(a.reward ORDER BY a.reward) FILTER (WHERE a.reward IS NOT NULL) AS rewards
FROM trinity.evaluation v
JOIN trinity.run r ON r.id = v.run_id
JOIN trinity.taskset s ON s.id = v.taskset_id
JOIN trinity.rollout_group g ON g.evaluation_id = v.id
JOIN trinity.task t ON t.id = g.task_id
LEFT JOIN LATERAL (
    SELECT m.state = 'failed' OR bool_or(e.state = 'dropped') AS has_failed,
           CASE WHEN bool_and(e.state::text = 'evaluated') THEN sum(e.reward) END AS reward
    FROM trinity.rollout m
    LEFT JOIN trinity.experience e ON e.rollout_id = m.id AND e.source_id IS NULL
    WHERE m.group_id = g.id AND m.state::text <> 'refused'
    GROUP BY m.id
) a ON true
GROUP BY v.id, r.name, s.name, t.key, g.id;
COMMENT ON COLUMN trinity.evaluation_task_view.evaluation_id IS 'Number of the evaluation';
COMMENT ON COLUMN trinity.evaluation_task_view.run IS 'Name of its run';
COMMENT ON COLUMN trinity.evaluation_task_view.taskset IS 'Name of the taskset';
COMMENT ON COLUMN trinity.evaluation_task_view.version IS 'The policy version that is evaluated';
COMMENT ON COLUMN trinity.evaluation_task_view.task IS 'Key of the task';
COMMENT ON COLUMN trinity.evaluation_task_view.group_id IS 'The rollout group of its attempts';
COMMENT ON COLUMN trinity.evaluation_task_view.samples IS 'How many attempts it is to have';
COMMENT ON COLUMN trinity.evaluation_task_view.judged IS 'How many attempts have a reward';
COMMENT ON COLUMN trinity.evaluation_task_view.failed IS 'How many attempts failed, or could not be judged';
COMMENT ON COLUMN trinity.evaluation_task_view.solved IS 'How many attempts have at least the reward that solves a task';
COMMENT ON COLUMN trinity.evaluation_task_view.reward IS 'Mean reward of the judged attempts; NULL without any';
COMMENT ON COLUMN trinity.evaluation_task_view.best IS 'Highest of their rewards';
COMMENT ON COLUMN trinity.evaluation_task_view.rewards IS 'All of their rewards, the lowest first';

-- What an evaluation says of k attempts at a task: their mean reward, the reward of the best of k, and the chance that one
-- of k solves the task, each as the mean over tasks. A task counts in the last two where at least k attempts were judged.
-- The limits are intervals at 95 %, clustered by task: attempts at one task are alike, so that only tasks count as
-- independent. Those of the rewards are normal, from the deviation between tasks. Those of the chance are Wilson's, with
-- tasks in place of trials: exact for one attempt at each task, a little too wide for more.
CREATE FUNCTION trinity.evaluation_at(evaluation_id bigint, k integer)
RETURNS TABLE (tasks bigint, mean double precision, mean_low double precision, mean_high double precision,
               tasks_at_k bigint, best double precision, best_low double precision, best_high double precision,
               pass double precision, pass_low double precision, pass_high double precision)
LANGUAGE sql STABLE AS $$
    WITH task AS (
        SELECT w.reward, trinity.pass_at(w.judged, w.solved, evaluation_at.k) AS pass,
               -- The reward in place i is the best of k with the chance that k attempts reach place i and none beyond.
               (SELECT sum(u.reward * (trinity.pass_at(w.judged, w.judged - u.place + 1, evaluation_at.k)
                                       - trinity.pass_at(w.judged, w.judged - u.place, evaluation_at.k)))
                FROM unnest(w.rewards) WITH ORDINALITY AS u (reward, place)) AS best
        FROM trinity.evaluation_task_view w
        WHERE w.evaluation_id = evaluation_at.evaluation_id
    ),
    total AS (
        SELECT count(task.reward) AS tasks, avg(task.reward) AS mean,
               1.959964 * stddev_samp(task.reward) / sqrt(count(task.reward)) AS mean_error,
               count(task.pass) AS tasks_at_k, avg(task.best) AS best,
               1.959964 * stddev_samp(task.best) / sqrt(count(task.best)) AS best_error,
               avg(task.pass) AS pass, 1.959964 ^ 2 / nullif(count(task.pass), 0) AS z
        FROM task
    )
    SELECT t.tasks, t.mean, t.mean - t.mean_error, t.mean + t.mean_error,
           t.tasks_at_k, t.best, t.best - t.best_error, t.best + t.best_error,
           t.pass,
           greatest((t.pass + t.z / 2 - sqrt(t.z * (greatest(t.pass * (1 - t.pass), 0) + t.z / 4))) / (1 + t.z), 0),
           least((t.pass + t.z / 2 + sqrt(t.z * (greatest(t.pass * (1 - t.pass), 0) + t.z / 4))) / (1 + t.z), 1)
    FROM total t
$$;

-- Every evaluation with what it says, from the rewards as they are now. mean is the mean reward of an attempt, best the
-- reward of the best of all `samples` attempts at a task, pass_1 and pass_k the chances that one and that `samples` attempts
-- solve a task. evaluation_at says the same for another k, and how the intervals at 95 % are made.
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
       g.tasks * v.samples - g.judged - g.failed AS waiting,
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
FROM trinity.evaluation v
JOIN trinity.run r ON r.id = v.run_id
JOIN trinity.taskset s ON s.id = v.taskset_id
JOIN trinity.policy_version p ON p.run_id = v.run_id AND p.version = v.version
CROSS JOIN LATERAL (
    SELECT count(*) AS tasks, coalesce(sum(w.judged), 0)::bigint AS judged, coalesce(sum(w.failed), 0)::bigint AS failed
    FROM trinity.evaluation_task_view w WHERE w.evaluation_id = v.id
) g
CROSS JOIN LATERAL trinity.evaluation_at(v.id, 1) one
CROSS JOIN LATERAL trinity.evaluation_at(v.id, v.samples) k;
COMMENT ON COLUMN trinity.evaluation_view.id IS 'Number of the evaluation';
COMMENT ON COLUMN trinity.evaluation_view.run IS 'Name of its run';
COMMENT ON COLUMN trinity.evaluation_view.taskset IS 'Name of the taskset';
COMMENT ON COLUMN trinity.evaluation_view.version IS 'The policy version that is evaluated';
COMMENT ON COLUMN trinity.evaluation_view.step IS 'Trainer step after which the version was published';
COMMENT ON COLUMN trinity.evaluation_view.samples IS 'Attempts at each task';
COMMENT ON COLUMN trinity.evaluation_view.temperature IS 'Sampling temperature';
COMMENT ON COLUMN trinity.evaluation_view.max_new_tokens IS 'Longest response in tokens';
COMMENT ON COLUMN trinity.evaluation_view.tasks IS 'Tasks that are attempted';
COMMENT ON COLUMN trinity.evaluation_view.judged IS 'Attempts that have a reward';
COMMENT ON COLUMN trinity.evaluation_view.failed IS 'Attempts that failed, or could not be judged; they are in no mean';
COMMENT ON COLUMN trinity.evaluation_view.waiting IS 'Attempts that have not ended, or have no reward yet';
COMMENT ON COLUMN trinity.evaluation_view.mean IS 'Mean over tasks of the mean reward of their attempts (mean@k)';
COMMENT ON COLUMN trinity.evaluation_view.mean_low IS 'Lower limit of its interval at 95 %; NULL with fewer than two tasks';
COMMENT ON COLUMN trinity.evaluation_view.mean_high IS 'Upper limit of that interval';
COMMENT ON COLUMN trinity.evaluation_view.pass_1 IS 'Chance that one attempt solves a task (pass@1)';
COMMENT ON COLUMN trinity.evaluation_view.pass_1_low IS 'Lower limit of its interval at 95 %';
COMMENT ON COLUMN trinity.evaluation_view.pass_1_high IS 'Upper limit of that interval';
COMMENT ON COLUMN trinity.evaluation_view.tasks_at_k IS 'Tasks all of whose attempts were judged: best and pass_k are of these';
COMMENT ON COLUMN trinity.evaluation_view.best IS 'Mean over tasks of the highest reward among all attempts (best@k)';
COMMENT ON COLUMN trinity.evaluation_view.pass_k IS 'Chance that one of samples attempts solves a task (pass@k)';
COMMENT ON COLUMN trinity.evaluation_view.pass_k_low IS 'Lower limit of its interval at 95 %';
COMMENT ON COLUMN trinity.evaluation_view.pass_k_high IS 'Upper limit of that interval';
COMMENT ON COLUMN trinity.evaluation_view.created_at IS 'Time at which it was begun';
COMMENT ON COLUMN trinity.evaluation_view.finished_at IS 'Time at which its last attempt was judged, or it was given up; NULL before';
COMMENT ON COLUMN trinity.evaluation_view.error IS 'Why it was given up; NULL if it was not';

-- The difference between two evaluations, over the tasks that both have: the second less the first. Tasks are matched by
-- their content, so that evaluations of other runs and tasksets can be compared. A task counts in the rewards where both
-- evaluations judged an attempt at it, in the chances where both judged at least k. The intervals at 95 % are normal, from
-- the deviation of the differences between tasks: hard tasks are hard for both, so that they are narrower than those of
-- each evaluation by itself.
CREATE FUNCTION trinity.evaluation_difference(before bigint, after bigint, k integer DEFAULT 1)
RETURNS TABLE (tasks bigint, mean double precision, mean_low double precision, mean_high double precision,
               tasks_at_k bigint, pass double precision, pass_low double precision, pass_high double precision)
LANGUAGE sql STABLE AS $$
    WITH task AS (
        SELECT b.reward - a.reward AS mean,
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
               1.959964 * stddev_samp(task.pass) / sqrt(count(task.pass)) AS pass_error
        FROM task
    )
    SELECT t.tasks, t.mean, t.mean - t.mean_error, t.mean + t.mean_error,
           t.tasks_at_k, t.pass, t.pass - t.pass_error, t.pass + t.pass_error
    FROM total t
$$;

-- For inspection: reads everything, writes nothing. Absent where the owner may not create roles.
DO $$
BEGIN
    CREATE ROLE trinity_reader NOLOGIN;
EXCEPTION
    WHEN duplicate_object OR unique_violation OR insufficient_privilege THEN NULL;
END $$;
DO $$
BEGIN
    GRANT USAGE ON SCHEMA trinity TO trinity_reader;
    GRANT SELECT ON ALL TABLES IN SCHEMA trinity TO trinity_reader;
    GRANT SELECT ON ALL SEQUENCES IN SCHEMA trinity TO trinity_reader;
EXCEPTION
    WHEN undefined_object THEN NULL;
END $$;

-- A client that names tables without their schema finds them: psql "$(trinity-db db url)". What a client creates still goes
-- where it went before. A search_path that the database has already stays, and so does that of another owner's database.
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_db_role_setting s CROSS JOIN unnest(s.setconfig) AS setting
                   WHERE s.setrole = 0 AND setting LIKE 'search\_path=%'
                     AND s.setdatabase = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())) THEN
        EXECUTE format('ALTER DATABASE %I SET search_path = "$user", public, trinity', current_database());
    END IF;
EXCEPTION
    WHEN insufficient_privilege THEN NULL;
END $$;
