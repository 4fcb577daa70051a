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
DROP VIEW IF EXISTS trinity.state_time_view;
DROP VIEW IF EXISTS trinity.setting_view;
DROP VIEW IF EXISTS trinity.awaited_reward_view;
DROP VIEW IF EXISTS trinity.reward_change_view;
DROP VIEW IF EXISTS trinity.lease_view;
DROP VIEW IF EXISTS trinity.drop_view;
DROP VIEW IF EXISTS trinity.batch_view;
DROP VIEW IF EXISTS trinity.policy_progress;
DROP VIEW IF EXISTS trinity.experience_view;
DROP FUNCTION IF EXISTS trinity.drawable(bigint, integer, integer);
DROP FUNCTION IF EXISTS trinity.floor_of(bigint);
DROP FUNCTION IF EXISTS trinity.is_learned_from(double precision, boolean);
DROP FUNCTION IF EXISTS trinity.derived_priority(double precision);
DROP FUNCTION IF EXISTS trinity.is_alive(timestamptz, double precision);
DROP FUNCTION IF EXISTS trinity.staleness(integer, integer, integer);
-- create

-- How far the versions that sampled a row are from a version, on either side. After a run went back to an older version,
-- waiting rows may be of later versions that were withdrawn, and these are as far away as older ones. Never negative. It
-- reads no table, so that the planner puts it into the statement.
CREATE FUNCTION trinity.staleness(version integer, oldest integer, newest integer)
RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT greatest(staleness.version - staleness.oldest, staleness.newest - staleness.version)
$$;

-- Whether a worker is alive, given the time of its last heartbeat: that time is at most a lease away from now. A time in
-- the future means that the server's clock was set back. If it is further away than a lease, the worker counts as dead; a
-- living worker sends another heartbeat within seconds.
CREATE FUNCTION trinity.is_alive(heartbeat_at timestamptz, lease_seconds double precision)
RETURNS boolean LANGUAGE sql VOLATILE
AS $$ SELECT abs(extract(epoch FROM clock_timestamp() - heartbeat_at)) <= lease_seconds $$;

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

-- The id below which no rollout group of a run is live any more: batch.floor of its last batch; 0 before the first. A
-- table of one row, so that the planner puts it into the statement.
CREATE FUNCTION trinity.floor_of(run_id bigint)
RETURNS TABLE (floor bigint)
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT coalesce((SELECT b.floor FROM trinity.batch b
                     WHERE b.run_id = floor_of.run_id AND b.state <> 'reopened' ORDER BY b.step DESC LIMIT 1), 0)
$$;

-- The rollout groups of a run that a draw may take now: those that are ready and within the staleness limit, counted
-- from a version. NULL as the limit: there is none. drawable_groups says the same of a draw that was recorded.
CREATE FUNCTION trinity.drawable(run_id bigint, version integer, max_staleness integer)
RETURNS TABLE (id bigint, octave smallint)
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT g.id, g.octave
    FROM trinity.rollout_group g
    WHERE g.run_id = drawable.run_id AND g.state = 'ready'
      AND (trinity.staleness(drawable.version, g.version_min, g.version_max) > drawable.max_staleness) IS NOT TRUE
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
       trinity.staleness(latest.version, e.version_min, e.version_max) AS staleness_now,
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
LEFT JOIN LATERAL (SELECT max(p.version) AS version FROM trinity.policy_version p
                   WHERE p.run_id = e.run_id AND p.checkpoint IS NOT NULL) latest ON true;
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
COMMENT ON COLUMN trinity.experience_view.staleness_now IS 'Latest policy version whose checkpoint is kept, less version_min; in policy versions';
COMMENT ON COLUMN trinity.experience_view.use_count IS 'How many committed batches used it';
COMMENT ON COLUMN trinity.experience_view.prompt_length IS 'Length of the prompt in tokens';
COMMENT ON COLUMN trinity.experience_view.response_length IS 'Length of the response in tokens';
COMMENT ON COLUMN trinity.experience_view.model IS 'Model that wrote it; NULL if a policy version of its run did';
COMMENT ON COLUMN trinity.experience_view.finish_reason IS 'Why its rollout ended, as stop or length';
COMMENT ON COLUMN trinity.experience_view.greedy IS 'Whether it was sampled at temperature 0, to be compared with';
COMMENT ON COLUMN trinity.experience_view.held_out IS 'Whether it is kept for evaluation and never drawn';
COMMENT ON COLUMN trinity.experience_view.evaluation_id IS 'The evaluation that it is a part of; NULL if it is for training';
COMMENT ON COLUMN trinity.experience_view.created_at IS 'Time at which it was written';

-- Each policy version with the experiences that it wrote to be trained on: how many, with which reward and of which length.
CREATE VIEW trinity.policy_progress AS
SELECT r.name AS run,
       p.version,
       p.step,
       p.published_at,
       count(e.id) AS experiences,
       avg(e.reward) AS reward,
       avg(e.response_length) AS response_length,
       count(e.id) FILTER (WHERE e.state = 'trained') AS trained,
       count(e.id) FILTER (WHERE e.state IN ('dropped', 'expired')) AS dropped
FROM trinity.policy_version p
JOIN trinity.run r ON r.id = p.run_id
LEFT JOIN trinity.experience e ON e.run_id = p.run_id AND e.version_min = p.version AND NOT e.held_out
GROUP BY r.name, p.run_id, p.version, p.step, p.published_at;
COMMENT ON COLUMN trinity.policy_progress.run IS 'Name of the run';
COMMENT ON COLUMN trinity.policy_progress.version IS 'Policy version';
COMMENT ON COLUMN trinity.policy_progress.step IS 'Trainer step after which it was published';
COMMENT ON COLUMN trinity.policy_progress.published_at IS 'Time at which it was published';
COMMENT ON COLUMN trinity.policy_progress.experiences IS 'Experiences whose oldest token it wrote';
COMMENT ON COLUMN trinity.policy_progress.reward IS 'Mean of their rewards';
COMMENT ON COLUMN trinity.policy_progress.response_length IS 'Mean length of their responses in tokens';
COMMENT ON COLUMN trinity.policy_progress.trained IS 'How many of them are trained';
COMMENT ON COLUMN trinity.policy_progress.dropped IS 'How many of them are dropped or expired';

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
COMMENT ON COLUMN trinity.batch_view.included_version IS 'First policy version whose checkpoint includes it; NULL before';
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
  AND NOT EXISTS (SELECT FROM trinity.reward_event v
                  WHERE v.rollout_id = e.rollout_id AND v.source = r.config ->> 'requires_reward')
  AND NOT EXISTS (SELECT FROM trinity.reward_event v
                  WHERE v.experience_id = e.id AND v.source = r.config ->> 'requires_reward');
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
           (SELECT count(*) FROM trinity.experience e WHERE e.worker_id = w.id)
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
-- unless one is named.
CREATE FUNCTION trinity.lineage(version integer, run text DEFAULT NULL)
RETURNS TABLE (batch_id bigint, step integer, ordinal integer, experience_id bigint, policy_version integer,
               included_version integer, reward double precision, advantage double precision, staleness integer,
               weight double precision, probability double precision)
LANGUAGE sql STABLE AS $$
    SELECT b.id, b.step, i.ordinal, i.experience_id, b.policy_version, b.included_version, i.reward, i.advantage,
           i.staleness, i.weight, i.probability
    FROM trinity.batch b
    JOIN trinity.batch_item i ON i.batch_id = b.id
    WHERE b.run_id = (SELECT r.id FROM trinity.run r
                      WHERE CASE WHEN lineage.run IS NULL THEN r.kind = 'train' ELSE r.name = lineage.run END
                      ORDER BY r.id DESC LIMIT 1)
      AND b.state = 'committed'
      AND b.included_version <= lineage.version
    ORDER BY b.step, i.ordinal
$$;

-- The reward of an experience as a snapshot saw it: the weighted sum of the latest event of each name about the
-- experience, about the one it was adopted from, or about their rollout. Without any event it is the reward that the
-- experience came with.
CREATE FUNCTION trinity.reward_in(experience_id bigint, seen pg_snapshot)
RETURNS double precision
LANGUAGE sql STABLE AS $$
    WITH about AS MATERIALIZED (
        SELECT v.id, v.name, v.value * v.weight AS part, pg_visible_in_snapshot(v.xact::text::xid8, seen) AS is_seen
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
    SELECT CASE WHEN EXISTS (SELECT FROM about) THEN (SELECT sum(latest.part ORDER BY latest.name) FROM latest)
                ELSE (SELECT e.reward FROM trinity.experience e WHERE e.id = reward_in.experience_id) END
$$;

-- The rollout groups that a batch could have been drawn from, in its snapshot, from history alone. They were ready then,
-- in no batch that was being trained on, had uses left, had not expired, and were within the staleness limit of the batch.
-- A priority that follows from rewards is the one of that time; any other is the one of now.
CREATE FUNCTION trinity.drawable_groups(batch_id bigint)
RETURNS TABLE (group_id bigint, priority double precision)
LANGUAGE sql STABLE AS $$
    WITH drawn AS MATERIALIZED (
        SELECT b.*, b.snapshot::pg_snapshot AS seen, coalesce((b.parameters ->> 'max_uses')::integer, 1) AS max_uses,
               r.config #>> '{processors,group,priority}' = 'reward_std' AS has_derived_priorities
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
                ELSE g.priority END
    FROM drawn b
    JOIN trinity.rollout_group g ON g.run_id = b.run_id
    LEFT JOIN used u ON u.group_id = g.id
    WHERE pg_visible_in_snapshot(g.ready_xact::text::xid8, b.seen)
      AND (trinity.staleness(b.policy_version, g.version_min, g.version_max) > b.max_staleness) IS NOT TRUE
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
-- judged, of which `solved` solved it: 1 - C(samples - solved, k) / C(samples, k), as a sum of logarithms, so that no number
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
