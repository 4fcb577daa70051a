-- Experiences: questions, drops, failures, overlaps, origins and parked attempts.

-- Question of a prompt, for display: the last user message. For a prompt without messages, the text after the last user turn
-- marker of common chat templates, without further markers; a prompt without markers is shown completely. Markers are searched
-- in the last 20,000 characters. The cost is bounded: messages over 64 KiB in the table are not read, and of a prompt over 1 MB
-- only the first 20,000 characters.
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

-- Every experience with its text, its reward, its current staleness and its number of uses. staleness_now grows with each
-- published version; batch_item.staleness is the staleness at the draw. Rows that were not judged have no reward and
-- sort before the best: order by reward desc nulls last.
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
COMMENT ON COLUMN trinity.experience_view.id IS 'Id of the experience';
COMMENT ON COLUMN trinity.experience_view.run IS 'Name of its run';
COMMENT ON COLUMN trinity.experience_view.state IS 'raw, clean, scored, ready, leased, trained, dropped or expired; evaluated in an evaluation';
COMMENT ON COLUMN trinity.experience_view.group_id IS 'Its rollout group; NULL for an imported row without one';
COMMENT ON COLUMN trinity.experience_view.member IS 'Number of its rollout in the group, from 0';
COMMENT ON COLUMN trinity.experience_view.step IS 'Position in its rollout, from 0';
COMMENT ON COLUMN trinity.experience_view.task IS 'Key of the task';
COMMENT ON COLUMN trinity.experience_view.prompt IS 'Prompt as text';
COMMENT ON COLUMN trinity.experience_view.response IS 'Response as text';
COMMENT ON COLUMN trinity.experience_view.reward IS 'Current reward; NULL without one';
COMMENT ON COLUMN trinity.experience_view.version_min IS 'Oldest policy version that sampled any of its tokens';
COMMENT ON COLUMN trinity.experience_view.version_max IS 'Newest policy version that sampled any of its tokens';
COMMENT ON COLUMN trinity.experience_view.staleness_now IS 'Number of publications between the latest policy version and the farthest that sampled any of its tokens; NULL for an adopted or imported row, which no version of the run sampled';
COMMENT ON COLUMN trinity.experience_view.use_count IS 'Number of committed batches that used it';
COMMENT ON COLUMN trinity.experience_view.prompt_length IS 'Length of the prompt in tokens';
COMMENT ON COLUMN trinity.experience_view.response_length IS 'Length of the response in tokens';
COMMENT ON COLUMN trinity.experience_view.model IS 'Model that sampled it; NULL if a policy version of its run did';
COMMENT ON COLUMN trinity.experience_view.finish_reason IS 'Reason why its rollout ended, such as stop or length';
COMMENT ON COLUMN trinity.experience_view.greedy IS 'Whether it was sampled at temperature 0, as a baseline';
COMMENT ON COLUMN trinity.experience_view.held_out IS 'Whether it is held out for evaluation and never drawn';
COMMENT ON COLUMN trinity.experience_view.evaluation_id IS 'Its evaluation; NULL if it is for training';
COMMENT ON COLUMN trinity.experience_view.created_at IS 'Time at which it was written';

-- The sequences of each attempt of a program, one row each, and the calls that are left out of training, one row each. A
-- sequence answers several calls if each prompt continues the one before. Side calls of an agent, such as a title for the
-- conversation, are sequences of their own; the names of models tell them apart if the agent gives them another one.
CREATE VIEW trinity.sequence_view AS
SELECT r.name AS run,
       e.group_id,
       m.ordinal AS member,
       e.rollout_id,
       e.step,
       e.id AS experience_id,
       e.state::text AS state,
       NULL::text AS left_out,
       q.calls,
       q.models,
       q.paths,
       e.prompt_length + e.response_length AS num_tokens,
       e.response_length AS num_trained,
       e.reward
FROM trinity.experience e
JOIN trinity.run r ON r.id = e.run_id
JOIN trinity.rollout m ON m.id = e.rollout_id
JOIN trinity.experience_text x ON x.experience_id = e.id
CROSS JOIN LATERAL (SELECT sum((o.value ->> 'calls')::integer)::integer AS calls,
                           array_agg(DISTINCT o.value ->> 'model') AS models,
                           array_agg(DISTINCT o.value ->> 'path') AS paths
                    FROM jsonb_array_elements(x.requests) o) q
UNION ALL
SELECT r.name, m.group_id, m.ordinal, m.id, NULL, NULL, NULL, c.left_out, 1, ARRAY[c.model], ARRAY[c.path], c.num_tokens, 0,
       NULL
FROM trinity.rollout m
JOIN trinity.run r ON r.id = m.run_id
JOIN trinity.agent a ON a.group_id = m.group_id AND a.ordinal = m.ordinal AND a.attempt = m.attempt
JOIN trinity.call c ON c.agent_id = a.id AND c.left_out IS NOT NULL;
COMMENT ON COLUMN trinity.sequence_view.run IS 'Name of the run';
COMMENT ON COLUMN trinity.sequence_view.group_id IS 'Rollout group of the attempt';
COMMENT ON COLUMN trinity.sequence_view.member IS 'Number of the attempt in the group, from 0';
COMMENT ON COLUMN trinity.sequence_view.rollout_id IS 'Rollout of the attempt';
COMMENT ON COLUMN trinity.sequence_view.step IS 'Position of the sequence in its rollout, from 0; NULL for a call that is left out';
COMMENT ON COLUMN trinity.sequence_view.experience_id IS 'Experience of the sequence; NULL for a call that is left out';
COMMENT ON COLUMN trinity.sequence_view.state IS 'State of the experience; NULL for a call that is left out';
COMMENT ON COLUMN trinity.sequence_view.left_out IS 'Why the call is left out of training: model or repeated; NULL for a sequence';
COMMENT ON COLUMN trinity.sequence_view.calls IS 'Number of calls of programs that it answers; NULL if the workflow itself asked';
COMMENT ON COLUMN trinity.sequence_view.models IS 'Model names in these calls';
COMMENT ON COLUMN trinity.sequence_view.paths IS 'Paths of these calls, such as /v1/messages';
COMMENT ON COLUMN trinity.sequence_view.num_tokens IS 'Number of tokens';
COMMENT ON COLUMN trinity.sequence_view.num_trained IS 'Number of tokens that were sampled and may be trained';
COMMENT ON COLUMN trinity.sequence_view.reward IS 'Current reward; NULL without one';

-- Drops, counted by reason, taskset, length of the response in tokens, and difficulty. The difficulty is a quarter from 1
-- (easiest) to 4, which contains the run's estimate of the probability of failing at the task. NULL before the first score.
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
COMMENT ON COLUMN trinity.drop_view.stage IS 'Stage that dropped it';
COMMENT ON COLUMN trinity.drop_view.step IS 'Processing step that dropped it or failed; NULL without such a step';
COMMENT ON COLUMN trinity.drop_view.reason IS 'Reason in one word';
COMMENT ON COLUMN trinity.drop_view.taskset IS 'Name of the taskset';
COMMENT ON COLUMN trinity.drop_view.length_class IS 'Class of the response''s length, from 1; the classes begin at 0, 32, 128, 512, 2048 and 8192 tokens';
COMMENT ON COLUMN trinity.drop_view.difficulty IS 'Quarter of the estimated probability of failing at the task, 1 is the easiest; NULL before its first score';
COMMENT ON COLUMN trinity.drop_view.shortest IS 'Shortest response in tokens';
COMMENT ON COLUMN trinity.drop_view.longest IS 'Longest response in tokens';
COMMENT ON COLUMN trinity.drop_view.rows IS 'Experiences dropped';
COMMENT ON COLUMN trinity.drop_view.groups IS 'Rollout groups dropped';
COMMENT ON COLUMN trinity.drop_view.preferences IS 'Pairs dropped';

-- Text of evaluation tasks found in other tasks and in responses: evidence for a person to judge.
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
COMMENT ON COLUMN trinity.overlap_view.id IS 'Id of the evidence';
COMMENT ON COLUMN trinity.overlap_view.run IS 'Name of the row''s run; NULL for a task';
COMMENT ON COLUMN trinity.overlap_view.experience_id IS 'Experience whose response contains the text; NULL for a task';
COMMENT ON COLUMN trinity.overlap_view.task_id IS 'Task that contains the text, or that the response attempts';
COMMENT ON COLUMN trinity.overlap_view.taskset IS 'Name of its taskset';
COMMENT ON COLUMN trinity.overlap_view.evaluated_task_id IS 'Evaluation task whose text it is';
COMMENT ON COLUMN trinity.overlap_view.evaluated_taskset IS 'Name of its taskset';
COMMENT ON COLUMN trinity.overlap_view.measure IS 'Measure of the comparison, such as 13 words';
COMMENT ON COLUMN trinity.overlap_view.share IS 'Share of the evaluation task''s word sequences of that length that were found';
COMMENT ON COLUMN trinity.overlap_view.text IS 'First of these word sequences';
COMMENT ON COLUMN trinity.overlap_view.state IS 'Current state of the experience; NULL for a task';
COMMENT ON COLUMN trinity.overlap_view.created_at IS 'Time at which it was found';

-- Dead letters: rows that a processing step could not judge, or that ended their processor, until it gave them up. `trinity-db
-- failed RUN --retry` returns rows without an obstacle to processing. A group that is ready or drawn stays unchanged, since the
-- advantages of its rows are those of a complete group.
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
COMMENT ON COLUMN trinity.failure_view.experience_id IS 'Experience that could not be judged; NULL if a processor crashed while computing a priority';
COMMENT ON COLUMN trinity.failure_view.group_id IS 'Its rollout group';
COMMENT ON COLUMN trinity.failure_view.version IS 'Newest policy version that sampled any of its tokens';
COMMENT ON COLUMN trinity.failure_view.stage IS 'List of the step: clean, score, priority or synthesis. The last two concern a whole group, which is drawn as before';
COMMENT ON COLUMN trinity.failure_view.step IS 'Processing step that failed; NULL if the processor crashed';
COMMENT ON COLUMN trinity.failure_view.error IS 'Error message of the last attempt';
COMMENT ON COLUMN trinity.failure_view.failed_at IS 'Time at which the row was given up';
COMMENT ON COLUMN trinity.failure_view.obstacle IS 'Reason why it cannot be judged again; NULL if it can';

-- Results that steps made from rows, with their sources. From a row of lineage(), follow the row's task or, for an adopted
-- row, its source_id.
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
COMMENT ON COLUMN trinity.origin_view.task_id IS 'Made task; NULL for a response';
COMMENT ON COLUMN trinity.origin_view.experience_id IS 'Made response, an imported row; NULL for a task';
COMMENT ON COLUMN trinity.origin_view.step IS 'Processing step that made it';
COMMENT ON COLUMN trinity.origin_view.source_run IS 'Name of the run of the source';
COMMENT ON COLUMN trinity.origin_view.source_experience_id IS 'Row that the step received';
COMMENT ON COLUMN trinity.origin_view.source_group_id IS 'Its rollout group';
COMMENT ON COLUMN trinity.origin_view.source_task_id IS 'Its task';
COMMENT ON COLUMN trinity.origin_view.source_version IS 'Newest policy version that sampled any of its tokens';
COMMENT ON COLUMN trinity.origin_view.source_reward IS 'Its current reward';
COMMENT ON COLUMN trinity.origin_view.processor_version IS 'Version of the list of steps, as in step_list';
COMMENT ON COLUMN trinity.origin_view.detail IS 'Further information from the step, such as the model and the tokens used';
COMMENT ON COLUMN trinity.origin_view.created_at IS 'Time at which it was made';

-- Parked members of a group, whether each may resume now, and whether it is too old: a token of it, or of another member, is
-- from a version before `oldest`, so that the group would expire. `oldest` is NULL without a limit.
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

-- Parked attempts: they wait for an answer, for a time or, once they may resume, for an explorer.
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
COMMENT ON COLUMN trinity.parked_view.run_id IS 'Run';
COMMENT ON COLUMN trinity.parked_view.ticket IS 'Number with which it is answered';
COMMENT ON COLUMN trinity.parked_view.group_id IS 'Rollout group of the attempt';
COMMENT ON COLUMN trinity.parked_view.member IS 'Number of the member in the group, from 0';
COMMENT ON COLUMN trinity.parked_view.task_id IS 'Attempted task';
COMMENT ON COLUMN trinity.parked_view.parked_at IS 'Time since which it is parked';
COMMENT ON COLUMN trinity.parked_view.wake_at IS 'Time at which it resumes without an answer; NULL: it waits for an answer';
COMMENT ON COLUMN trinity.parked_view.answered_at IS 'Time of the answer; NULL without one';
COMMENT ON COLUMN trinity.parked_view.state IS 'State from the workflow at the park';
COMMENT ON COLUMN trinity.parked_view.answer IS 'Answer; NULL without one';

-- Time that rows of a run spend in each state, in seconds. Only completed stays count. The states begin and end as follows.
-- exploring: from the start of an attempt to its last token, by the explorer's clock. raw: from the write to the clean
-- processor's verdict. clean: from there to the score processor's verdict. scored: from there until the group is ready; it
-- may wait for other members, or for a required reward. ready: from there to the draw, and after a commit or a reopening
-- to the next draw. leased: from the draw to the commit of its step. trained: from the commit until a published policy
-- version includes it. Imported rows begin at ready, when the run adopts them or the pair is made. The view reads a run's
-- complete history.
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
COMMENT ON COLUMN trinity.state_time_view.rows IS 'Number of completed stays in the state';
COMMENT ON COLUMN trinity.state_time_view.mean IS 'Mean length of a stay in seconds';
COMMENT ON COLUMN trinity.state_time_view.median IS 'Median length of a stay in seconds';
COMMENT ON COLUMN trinity.state_time_view.p95 IS '95th percentile of the length of a stay in seconds';
