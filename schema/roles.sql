-- The rights of each role of a run. `trinity-db db roles` runs this file and can be repeated; `--print` shows it.
-- The roles cannot log in. Create logins as members, one for each role, or one for each machine.
-- The tables' owner and superusers keep all rights: no policy below applies to them.

DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['trinity_explorer', 'trinity_processor', 'trinity_trainer', 'trinity_labeller',
                                'trinity_reader'] LOOP
        IF to_regrole(name) IS NULL THEN
            EXECUTE format('CREATE ROLE %I NOLOGIN', name);
        END IF;
    END LOOP;
END $$;

-- All roles read everything. Their earlier rights are revoked.
REVOKE ALL ON ALL TABLES IN SCHEMA trinity
    FROM trinity_explorer, trinity_processor, trinity_trainer, trinity_labeller, trinity_reader;
REVOKE ALL ON ALL SEQUENCES IN SCHEMA trinity
    FROM trinity_explorer, trinity_processor, trinity_trainer, trinity_labeller, trinity_reader;
GRANT USAGE ON SCHEMA trinity
    TO trinity_explorer, trinity_processor, trinity_trainer, trinity_labeller, trinity_reader;
GRANT SELECT ON ALL TABLES IN SCHEMA trinity
    TO trinity_explorer, trinity_processor, trinity_trainer, trinity_labeller, trinity_reader;
GRANT SELECT ON ALL SEQUENCES IN SCHEMA trinity
    TO trinity_explorer, trinity_processor, trinity_trainer, trinity_labeller, trinity_reader;

-- Every worker writes its own row and its metrics, and releases the leases of dead workers. The first role to start
-- creates the run.
GRANT INSERT (name, kind, config, draws) ON trinity.run TO trinity_explorer, trinity_processor, trinity_trainer;
GRANT INSERT (run_id, config, host) ON trinity.run_setting TO trinity_explorer, trinity_processor, trinity_trainer;
ALTER TABLE trinity.run_setting ENABLE ROW LEVEL SECURITY;
DROP POLICY IF EXISTS is_read ON trinity.run_setting;
CREATE POLICY is_read ON trinity.run_setting FOR SELECT USING (true);
-- Only the statement that creates the run may write a setting: the run is not visible to it yet. The owner writes later ones.
DROP POLICY IF EXISTS begins_a_run ON trinity.run_setting;
CREATE POLICY begins_a_run ON trinity.run_setting FOR INSERT TO trinity_explorer, trinity_processor, trinity_trainer
    WITH CHECK (NOT EXISTS (SELECT FROM trinity.run r WHERE r.id = run_id));
-- A statement that waits does not see a run that another session creates meanwhile. Both times are those of their transaction.
CREATE OR REPLACE FUNCTION trinity.refuse_setting()
RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF pg_has_role(current_user, (SELECT c.relowner FROM pg_class c WHERE c.oid = TG_RELID), 'USAGE')
       OR EXISTS (SELECT FROM trinity.run r WHERE r.id = NEW.run_id AND r.created_at = NEW.created_at) THEN
        RETURN NULL;
    END IF;
    RAISE insufficient_privilege USING MESSAGE = format('login %s may write settings only of a run that it creates', session_user);
END $$;
CREATE OR REPLACE TRIGGER begins_a_run AFTER INSERT ON trinity.run_setting FOR EACH ROW EXECUTE FUNCTION trinity.refuse_setting();
-- A worker's role and run never change. A right to update the whole table would include the right to lock all of it.
GRANT INSERT (run_id, role, setting_id, host, pid, exclusive), UPDATE (heartbeat_at, stopped_at, session_pid)
    ON trinity.worker TO trinity_explorer, trinity_processor, trinity_trainer;
GRANT UPDATE (staged_version, broken_weights, engine_dtype) ON trinity.worker TO trinity_explorer;
GRANT UPDATE (broadcast_at) ON trinity.worker TO trinity_trainer;
GRANT INSERT (run_id, role, step, name, value) ON trinity.metric
    TO trinity_explorer, trinity_processor, trinity_trainer;
GRANT UPDATE (worker_id) ON trinity.rollout_group, trinity.experience
    TO trinity_explorer, trinity_processor, trinity_trainer;
GRANT DELETE, UPDATE (worker_id) ON trinity.rescore TO trinity_explorer, trinity_processor, trinity_trainer;

-- An explorer writes groups that it holds and their rollouts, and no rewards. run.seed is generated, so the right to update it
-- is only the right to lock the row: explorers are serialised with that lock, and so are processors that record their steps.
GRANT UPDATE (seed) ON trinity.run TO trinity_explorer, trinity_processor;
GRANT INSERT (run_id, task_id, issued, issued_at), UPDATE (issued, issued_at) ON trinity.task_stat TO trinity_explorer;
GRANT INSERT, UPDATE (issued, walk, number, first, size, position, level) ON trinity.task_pass TO trinity_explorer;
GRANT INSERT (run_id, task_id, expected, worker_id), UPDATE (attempt, arrived, failed, version_min, version_max, state, completed_at)
    ON trinity.rollout_group TO trinity_explorer;
GRANT INSERT, UPDATE (version_min, version_max, shares_reward) ON trinity.rollout TO trinity_explorer;
GRANT INSERT (id, run_id, group_id, rollout_id, step, state, held_out, version_min, version_max, prompt_length, response_length)
    ON trinity.experience TO trinity_explorer;
GRANT INSERT ON trinity.experience_text, trinity.payload, trinity."drop" TO trinity_explorer;
GRANT USAGE ON SEQUENCE trinity.rollout_id_seq, trinity.experience_id_seq TO trinity_explorer;
GRANT INSERT (run_id, group_id, ordinal, attempt, retry, worker_id, key_hash, rewards, started_at),
    UPDATE (ended_at, worker_id, rewards)
    ON trinity.agent TO trinity_explorer;
GRANT INSERT (agent_id, number, digest, prompt, codec, num_tokens, data, finish_reason, replaced, path, model), DELETE,
    UPDATE (agent_id, prompt, data, left_out)
    ON trinity.call TO trinity_explorer;
GRANT INSERT (run_id, agent_id),
    UPDATE (agent_id, parked_at, state, record, version_min, wake_at, resumed_at, resumed_attempt, left_at)
    ON trinity.park TO trinity_explorer;

-- A processor writes verdicts, rewards, states up to ready, pairs and the archive, but no batches and no versions.
GRANT INSERT ON trinity.processing, trinity.reward_event, trinity."drop", trinity.pairing, trinity.score, trinity.task_stat,
    trinity.archive, trinity.step_list, trinity.rescore TO trinity_processor;
GRANT INSERT (run_id, chosen_id, rejected_id, source, margin, held_out, origin_id, seed) ON trinity.preference TO trinity_processor;
GRANT UPDATE (attempt) ON trinity.rescore TO trinity_processor;
GRANT UPDATE (state, attempt, reward, seed, priority) ON trinity.experience TO trinity_processor;
GRANT INSERT (run_id, group_id), DELETE, UPDATE (attempt, taken_at, priority, processor_version, policy_version, computed_xact,
        experience_id, step, error, failed_at)
    ON trinity.group_priority TO trinity_processor;
-- Results of processors: tasks, and responses in data sets, from which no run learns before it adopts them.
GRANT INSERT (run_id, group_id),
    UPDATE (worker_id, attempt, experience_id, step, error, failed_at, finished_at, processor_version, refused)
    ON trinity.synthesis TO trinity_processor;
GRANT INSERT ON trinity.origin TO trinity_processor;
GRANT INSERT (name) ON trinity.taskset TO trinity_processor;
GRANT INSERT (taskset_id, key, payload, prompt_digest, ordinal) ON trinity.task TO trinity_processor;
GRANT INSERT (run_id, step, state, import_key) ON trinity.experience TO trinity_processor;
GRANT INSERT ON trinity.experience_text TO trinity_processor;
GRANT UPDATE (state, ready_xact, ready_at, reward_count, reward_mean, reward_variance, priority)
    ON trinity.rollout_group TO trinity_processor;
GRANT UPDATE (scored, solved, alpha, beta) ON trinity.task_stat TO trinity_processor;
GRANT UPDATE (seed) ON trinity.preference TO trinity_processor;
GRANT UPDATE (worker_id, attempt, num_rows, num_bytes) ON trinity.archive TO trinity_processor;
GRANT UPDATE (data, archive_row, archive_number, pruned_at) ON trinity.payload TO trinity_processor;
-- It deletes rows past the retention of their run's configuration; the policies below permit no others.
GRANT INSERT (run_id, family), UPDATE (num_rows, num_bytes, removed_at) ON trinity.retention TO trinity_processor;
GRANT INSERT (family), UPDATE (after_id, ended_at) ON trinity.sweep TO trinity_processor;
GRANT DELETE ON trinity.metric, trinity.processing TO trinity_processor;
GRANT UPDATE (data) ON trinity.call TO trinity_processor;
-- It locks the oldest checkpoint meanwhile, and may not change versions.
GRANT UPDATE (step) ON trinity.policy_version TO trinity_processor;
-- The first role that owns files creates the store's instance. Later only a trainer changes it.
GRANT INSERT (system_identifier, database_oid, timeline, home) ON trinity.store_instance TO trinity_processor;
GRANT DELETE, UPDATE (run_id) ON trinity.pairing TO trinity_processor;
-- A row passed by another version of the step gets other bands.
GRANT INSERT, UPDATE (bands) ON trinity.minhash TO trinity_processor;
GRANT INSERT ON trinity.overlap TO trinity_processor;

-- A trainer writes batches, versions, states from ready on and adopted rows, but no reward events.
GRANT UPDATE (state, finished_at, stop_asked_at) ON trinity.run TO trinity_trainer;
GRANT INSERT, UPDATE ON trinity.batch, trinity.policy_version, trinity.store_instance, trinity.setback TO trinity_trainer;
GRANT INSERT ON trinity.batch_item, trinity.experience, trinity.preference, trinity.pairing, trinity."drop", trinity.payload,
    trinity.score TO trinity_trainer;
GRANT UPDATE (state, attempt, use_count, prompt_length, response_length, ready_xact, seed) ON trinity.experience
    TO trinity_trainer;
GRANT UPDATE (state, use_count, seed, ready_xact, ready_at) ON trinity.rollout_group TO trinity_trainer;
GRANT UPDATE (state, worker_id, attempt, use_count, seed) ON trinity.preference TO trinity_trainer;

-- A trainer begins the evaluations of a version that it publishes, an explorer gives up evaluations that it cannot load, and a
-- processor ends them.
GRANT INSERT (run_id, taskset_id, version, samples, temperature, max_new_tokens, seed, solved_reward, setting_id)
    ON trinity.evaluation TO trinity_trainer;
GRANT INSERT (run_id, task_id, state, evaluation_id, expected, attempt) ON trinity.rollout_group TO trinity_trainer;
-- It adopts groups of other runs, and the attempts that these gain before it draws them.
GRANT INSERT (source_id, arrived, completed_at, reward_count, reward_mean, reward_variance),
    UPDATE (expected, arrived, reward_count, reward_mean, reward_variance)
    ON trinity.rollout_group TO trinity_trainer;
GRANT UPDATE (error, finished_at) ON trinity.evaluation TO trinity_trainer, trinity_explorer;
GRANT UPDATE (finished_at) ON trinity.evaluation TO trinity_processor;

-- A labeller writes reward events and pairs, and the numbers that depend on them.
GRANT INSERT (run_id, rollout_id, experience_id, source, name, value, weight, created_by, processor_version, detail)
    ON trinity.reward_event
    TO trinity_labeller;
GRANT INSERT (run_id, chosen_id, rejected_id, source, margin, extra, held_out, origin_id, seed, upheld, gives_labels),
    UPDATE (upheld)
    ON trinity.preference
    TO trinity_labeller;
GRANT INSERT (run_id, experience_id, other_id, source, name, weight, wanted, lowest, highest), UPDATE (closed_at)
    ON trinity.review
    TO trinity_labeller;
GRANT INSERT (review_id, author, state, value, swapped, blind, seconds, leased_until, decided_at),
    UPDATE (state, value, swapped, blind, seconds, attempt, leased_until, decided_at)
    ON trinity.label
    TO trinity_labeller;
GRANT INSERT (review_id, side) ON trinity.decision TO trinity_labeller;
GRANT INSERT (run_id, group_id) ON trinity.pairing, trinity.group_priority TO trinity_labeller;
GRANT UPDATE (answer, answered_at, answered_by) ON trinity.park TO trinity_labeller;
GRANT UPDATE (reward) ON trinity.experience TO trinity_labeller;
GRANT UPDATE (reward_count, reward_mean, reward_variance, priority) ON trinity.rollout_group TO trinity_labeller;
GRANT UPDATE (scored, solved, alpha, beta) ON trinity.task_stat TO trinity_labeller;
GRANT UPDATE (seed) ON trinity.preference TO trinity_labeller;

-- For roles that adopt pairs, and people who compare rows: update labels from pairs.
GRANT EXECUTE ON FUNCTION trinity.follow_labels(bigint[]) TO trinity_processor, trinity_trainer, trinity_labeller;

-- A role that opens a run or judges imported rows locks their taskset, and may not change it.
GRANT UPDATE (name) ON trinity.taskset TO trinity_explorer, trinity_processor, trinity_trainer, trinity_labeller;
ALTER TABLE trinity.taskset ENABLE ROW LEVEL SECURITY;
DROP POLICY IF EXISTS is_read ON trinity.taskset;
CREATE POLICY is_read ON trinity.taskset FOR SELECT USING (true);
DROP POLICY IF EXISTS processor_makes ON trinity.taskset;
CREATE POLICY processor_makes ON trinity.taskset FOR INSERT TO trinity_processor WITH CHECK (true);
DROP POLICY IF EXISTS is_locked ON trinity.taskset;
CREATE POLICY is_locked ON trinity.taskset FOR UPDATE
    TO trinity_explorer, trinity_processor, trinity_trainer, trinity_labeller USING (true) WITH CHECK (false);

-- Only a worker's own login changes its row, except that a trainer may mark an earlier trainer as gone.
ALTER TABLE trinity.worker ENABLE ROW LEVEL SECURITY;
DROP POLICY IF EXISTS is_read ON trinity.worker;
CREATE POLICY is_read ON trinity.worker FOR SELECT USING (true);
DROP POLICY IF EXISTS explorer_enters ON trinity.worker;
CREATE POLICY explorer_enters ON trinity.worker FOR INSERT TO trinity_explorer
    WITH CHECK (role = 'explore' AND login = session_user);
DROP POLICY IF EXISTS processor_enters ON trinity.worker;
CREATE POLICY processor_enters ON trinity.worker FOR INSERT TO trinity_processor
    WITH CHECK (role = 'process' AND login = session_user);
DROP POLICY IF EXISTS trainer_enters ON trinity.worker;
CREATE POLICY trainer_enters ON trinity.worker FOR INSERT TO trinity_trainer
    WITH CHECK (role = 'train' AND login = session_user);
DROP POLICY IF EXISTS is_own ON trinity.worker;
CREATE POLICY is_own ON trinity.worker FOR UPDATE USING (login = session_user);
DROP POLICY IF EXISTS trainer_replaces ON trinity.worker;
CREATE POLICY trainer_replaces ON trinity.worker FOR UPDATE TO trinity_trainer USING (role = 'train');

-- An explorer changes groups that are open or evaluating, except those held by a live worker of another login. The other roles
-- change groups that no explorer holds; the columns that they may update are listed above.
ALTER TABLE trinity.rollout_group ENABLE ROW LEVEL SECURITY;
DROP POLICY IF EXISTS is_read ON trinity.rollout_group;
CREATE POLICY is_read ON trinity.rollout_group FOR SELECT USING (true);
DROP POLICY IF EXISTS explorer_starts ON trinity.rollout_group;
CREATE POLICY explorer_starts ON trinity.rollout_group FOR INSERT TO trinity_explorer
    WITH CHECK (state = 'open' AND worker_id = ANY (ARRAY(SELECT w.id FROM trinity.worker w WHERE w.login = session_user)));
DROP POLICY IF EXISTS trainer_evaluates ON trinity.rollout_group;
CREATE POLICY trainer_evaluates ON trinity.rollout_group FOR INSERT TO trinity_trainer
    WITH CHECK (evaluation_id IS NOT NULL AND worker_id IS NULL);
DROP POLICY IF EXISTS trainer_adopts ON trinity.rollout_group;
CREATE POLICY trainer_adopts ON trinity.rollout_group FOR INSERT TO trinity_trainer
    WITH CHECK (source_id IS NOT NULL AND state = 'ready' AND evaluation_id IS NULL AND worker_id IS NULL
                AND EXISTS (SELECT FROM trinity.rollout_group s WHERE s.id = rollout_group.source_id AND s.run_id <> rollout_group.run_id));
DROP POLICY IF EXISTS explorer_moves ON trinity.rollout_group;
CREATE POLICY explorer_moves ON trinity.rollout_group FOR UPDATE TO trinity_explorer
    USING (state::text IN ('open', 'evaluating')
           AND (worker_id IS NULL
                OR worker_id <> ALL (ARRAY(SELECT w.id FROM trinity.worker w
                                           WHERE w.login <> session_user AND w.stopped_at IS NULL
                                             AND w.heartbeat_at >= clock_timestamp() - interval '30 s'))))
    WITH CHECK (state::text IN ('open', 'complete', 'evaluating', 'evaluated')
                AND (worker_id IS NULL
                     OR worker_id = ANY (ARRAY(SELECT w.id FROM trinity.worker w WHERE w.login = session_user))));
DROP POLICY IF EXISTS others_move ON trinity.rollout_group;
CREATE POLICY others_move ON trinity.rollout_group FOR UPDATE TO trinity_processor, trinity_trainer, trinity_labeller
    USING (true);

-- An explorer writes rollouts only for workers of its login: into groups that they hold or, if too late, as refused ones. It
-- cannot refuse rollouts on behalf of another login's worker that holds the group.
ALTER TABLE trinity.rollout ENABLE ROW LEVEL SECURITY;
DROP POLICY IF EXISTS is_read ON trinity.rollout;
CREATE POLICY is_read ON trinity.rollout FOR SELECT USING (true);
DROP POLICY IF EXISTS explorer_writes ON trinity.rollout;
CREATE POLICY explorer_writes ON trinity.rollout FOR INSERT TO trinity_explorer
    WITH CHECK (
        worker_id = ANY (ARRAY(SELECT w.id FROM trinity.worker w WHERE w.login = session_user))
        AND EXISTS (SELECT FROM trinity.rollout_group g
                    WHERE g.id = group_id AND g.run_id = rollout.run_id
                      AND CASE rollout.state
                          WHEN 'refused' THEN g.worker_id IS NULL OR g.attempt <> rollout.attempt OR g.worker_id = ANY (
                              ARRAY(SELECT w.id FROM trinity.worker w WHERE w.login = session_user))
                          ELSE g.state::text IN ('open', 'evaluating') AND g.worker_id = rollout.worker_id AND g.attempt = rollout.attempt END));
DROP POLICY IF EXISTS is_own ON trinity.rollout;
CREATE POLICY is_own ON trinity.rollout FOR UPDATE TO trinity_explorer
    USING (worker_id = ANY (ARRAY(SELECT w.id FROM trinity.worker w WHERE w.login = session_user)));

-- The statement that writes a rollout also writes its first step, and does not see the rollout yet: a visible rollout gets no
-- further first step. Later steps belong to rollouts of the same login.
-- An explorer releases rows of workers that are gone, and takes none.
ALTER TABLE trinity.experience ENABLE ROW LEVEL SECURITY;
DROP POLICY IF EXISTS is_read ON trinity.experience;
CREATE POLICY is_read ON trinity.experience FOR SELECT USING (true);
DROP POLICY IF EXISTS explorer_writes ON trinity.experience;
CREATE POLICY explorer_writes ON trinity.experience FOR INSERT TO trinity_explorer
    WITH CHECK (
        CASE WHEN step = 0 THEN
            NOT EXISTS (SELECT FROM trinity.rollout r WHERE r.id = rollout_id)
            AND EXISTS (SELECT FROM trinity.rollout_group g
                        WHERE g.id = group_id AND g.run_id = experience.run_id
                          AND (experience.state = 'dropped'
                               OR CASE WHEN experience.held_out
                                       THEN experience.state = 'clean' AND g.state::text = 'evaluating'
                                       ELSE experience.state = 'raw' AND g.state = 'open' END AND g.worker_id = ANY (
                                   ARRAY(SELECT w.id FROM trinity.worker w WHERE w.login = session_user))))
        ELSE
            EXISTS (SELECT FROM trinity.rollout r
                    WHERE r.id = rollout_id AND r.group_id = experience.group_id AND r.run_id = experience.run_id
                      AND r.worker_id = ANY (ARRAY(SELECT w.id FROM trinity.worker w WHERE w.login = session_user))
                      AND experience.held_out = (SELECT g.evaluation_id IS NOT NULL FROM trinity.rollout_group g
                                                 WHERE g.id = r.group_id)
                      AND experience.state = CASE WHEN r.state = 'refused' THEN 'dropped'
                                                  WHEN r.state = 'finished' AND experience.held_out THEN 'clean'
                                                  WHEN r.state = 'finished' THEN 'raw' END::trinity.experience_state)
        END);
DROP POLICY IF EXISTS trainer_adopts ON trinity.experience;
CREATE POLICY trainer_adopts ON trinity.experience FOR INSERT TO trinity_trainer WITH CHECK (source_id IS NOT NULL);
DROP POLICY IF EXISTS processor_makes ON trinity.experience;
CREATE POLICY processor_makes ON trinity.experience FOR INSERT TO trinity_processor
    WITH CHECK (state = 'ready' AND group_id IS NULL AND source_id IS NULL
                AND EXISTS (SELECT FROM trinity.run r WHERE r.id = run_id AND r.kind = 'data'));
DROP POLICY IF EXISTS explorer_gives_back ON trinity.experience;
CREATE POLICY explorer_gives_back ON trinity.experience FOR UPDATE TO trinity_explorer
    USING (state IN ('raw', 'clean', 'scored')
           AND (worker_id IS NULL
                OR worker_id <> ALL (ARRAY(SELECT w.id FROM trinity.worker w
                                           WHERE w.login <> session_user AND w.stopped_at IS NULL
                                             AND w.heartbeat_at >= clock_timestamp() - interval '30 s'))))
    WITH CHECK (worker_id IS NULL);
DROP POLICY IF EXISTS others_move ON trinity.experience;
CREATE POLICY others_move ON trinity.experience FOR UPDATE TO trinity_processor, trinity_trainer, trinity_labeller
    USING (true);

-- An explorer writes arrays in the statement that writes their row, which does not see the row yet. Imported rows have no arrays
-- until the trainer adds them. Texts need no policy: each row has one as soon as it is written or imported.
ALTER TABLE trinity.payload ENABLE ROW LEVEL SECURITY;
DROP POLICY IF EXISTS is_read ON trinity.payload;
CREATE POLICY is_read ON trinity.payload FOR SELECT USING (true);
DROP POLICY IF EXISTS explorer_writes ON trinity.payload;
CREATE POLICY explorer_writes ON trinity.payload FOR INSERT TO trinity_explorer
    WITH CHECK (NOT EXISTS (SELECT FROM trinity.experience e WHERE e.id = experience_id));
DROP POLICY IF EXISTS trainer_encodes ON trinity.payload;
CREATE POLICY trainer_encodes ON trinity.payload FOR INSERT TO trinity_trainer WITH CHECK (true);
-- A processor changes the arrays of finished rows only, which no step draws any longer. It only removes bytes: of rows in an
-- archive of the run (which never includes rows of evaluations), and of rows past the run's retention.
DROP POLICY IF EXISTS processor_archives ON trinity.payload;
CREATE POLICY processor_archives ON trinity.payload FOR UPDATE TO trinity_processor
    USING (EXISTS (SELECT FROM trinity.experience e
                   WHERE e.id = payload.experience_id
                     AND (e.state IN ('trained', 'dropped', 'expired', 'evaluated')
                          OR (e.state IN ('scored', 'ready')
                              AND EXISTS (SELECT FROM trinity.run r WHERE r.id = e.run_id AND r.state = 'finished')))))
    WITH CHECK (
        data IS NULL
        AND EXISTS (SELECT FROM trinity.experience e
                    WHERE e.id = payload.experience_id
                      AND CASE WHEN payload.pruned_at IS NULL
                          THEN e.state <> 'evaluated'
                               AND EXISTS (SELECT FROM trinity.archive a
                                           WHERE a.run_id = e.run_id AND a.number = payload.archive_number)
                          ELSE e.state IN ('trained', 'dropped', 'expired', 'evaluated')
                               AND e.created_at < now() - trinity.kept_for(e.run_id, 'payloads') END));

-- An explorer admits agents for groups that its login's workers hold, and takes over agents of workers that are gone. It also
-- takes over an attempt parked by another login's worker, even a live one, in a group that its own workers hold now.
ALTER TABLE trinity.agent ENABLE ROW LEVEL SECURITY;
DROP POLICY IF EXISTS is_read ON trinity.agent;
CREATE POLICY is_read ON trinity.agent FOR SELECT USING (true);
DROP POLICY IF EXISTS explorer_begins ON trinity.agent;
CREATE POLICY explorer_begins ON trinity.agent FOR INSERT TO trinity_explorer
    WITH CHECK (EXISTS (SELECT FROM trinity.rollout_group g JOIN trinity.worker w ON w.id = g.worker_id
                        WHERE g.id = group_id AND g.run_id = agent.run_id AND g.attempt = agent.attempt
                          AND w.id = agent.worker_id AND w.login = session_user));
DROP POLICY IF EXISTS explorer_moves ON trinity.agent;
CREATE POLICY explorer_moves ON trinity.agent FOR UPDATE TO trinity_explorer
    USING (worker_id <> ALL (ARRAY(SELECT w.id FROM trinity.worker w
                                   WHERE w.login <> session_user AND w.stopped_at IS NULL
                                     AND w.heartbeat_at >= clock_timestamp() - interval '30 s'))
           OR EXISTS (SELECT FROM trinity.rollout_group g JOIN trinity.worker w ON w.id = g.worker_id
                      WHERE g.id = group_id AND w.login = session_user));

-- Calls belong to agents that a worker of the explorer's login answers.
ALTER TABLE trinity.call ENABLE ROW LEVEL SECURITY;
DROP POLICY IF EXISTS is_read ON trinity.call;
CREATE POLICY is_read ON trinity.call FOR SELECT USING (true);
DROP POLICY IF EXISTS explorer_writes ON trinity.call;
CREATE POLICY explorer_writes ON trinity.call FOR INSERT TO trinity_explorer
    WITH CHECK (EXISTS (SELECT FROM trinity.agent a JOIN trinity.worker w ON w.id = a.worker_id
                        WHERE a.id = agent_id AND w.login = session_user));
DROP POLICY IF EXISTS explorer_deletes ON trinity.call;
CREATE POLICY explorer_deletes ON trinity.call FOR DELETE TO trinity_explorer
    USING (EXISTS (SELECT FROM trinity.agent a JOIN trinity.worker w ON w.id = a.worker_id
                   WHERE a.id = agent_id AND w.login = session_user));
-- Calls move to the agent that succeeds theirs. Calls of a written rollout may lose their tokens.
DROP POLICY IF EXISTS explorer_moves ON trinity.call;
CREATE POLICY explorer_moves ON trinity.call FOR UPDATE TO trinity_explorer
    USING (EXISTS (SELECT FROM trinity.agent a JOIN trinity.rollout_group g ON g.id = a.group_id
                   JOIN trinity.worker w ON w.id = g.worker_id
                   WHERE a.id = agent_id AND w.login = session_user));

-- Without their arrays they are kept.
DROP POLICY IF EXISTS processor_prunes ON trinity.call;
CREATE POLICY processor_prunes ON trinity.call FOR UPDATE TO trinity_processor
    USING (EXISTS (SELECT FROM trinity.agent a JOIN trinity.rollout_group g ON g.id = a.group_id
                   WHERE a.id = agent_id
                     AND coalesce(a.ended_at, g.completed_at) < now() - trinity.kept_for(a.run_id, 'calls')))
    WITH CHECK (data IS NULL);

-- Metrics and processing records are written once, and deleted when they are old. A login writes only metrics of its role:
-- metrics of trainers and processors choose which weights are kept.
ALTER TABLE trinity.metric ENABLE ROW LEVEL SECURITY;
DROP POLICY IF EXISTS is_read ON trinity.metric;
CREATE POLICY is_read ON trinity.metric FOR SELECT USING (true);
DROP POLICY IF EXISTS is_written ON trinity.metric;
DROP POLICY IF EXISTS explorer_measures ON trinity.metric;
CREATE POLICY explorer_measures ON trinity.metric FOR INSERT TO trinity_explorer WITH CHECK (role = 'explore');
DROP POLICY IF EXISTS processor_measures ON trinity.metric;
CREATE POLICY processor_measures ON trinity.metric FOR INSERT TO trinity_processor WITH CHECK (role = 'process');
DROP POLICY IF EXISTS trainer_measures ON trinity.metric;
CREATE POLICY trainer_measures ON trinity.metric FOR INSERT TO trinity_trainer WITH CHECK (role = 'train');
DROP POLICY IF EXISTS processor_prunes ON trinity.metric;
CREATE POLICY processor_prunes ON trinity.metric FOR DELETE TO trinity_processor
    USING (created_at < now() - trinity.kept_for(run_id, 'metrics'));
ALTER TABLE trinity.processing ENABLE ROW LEVEL SECURITY;
DROP POLICY IF EXISTS is_read ON trinity.processing;
CREATE POLICY is_read ON trinity.processing FOR SELECT USING (true);
DROP POLICY IF EXISTS is_written ON trinity.processing;
CREATE POLICY is_written ON trinity.processing FOR INSERT TO trinity_processor WITH CHECK (true);
DROP POLICY IF EXISTS processor_prunes ON trinity.processing;
CREATE POLICY processor_prunes ON trinity.processing FOR DELETE TO trinity_processor
    USING (EXISTS (SELECT FROM trinity.experience e
                   WHERE e.id = experience_id AND e.state IN ('trained', 'dropped', 'expired', 'evaluated')
                     AND processing.created_at < now() - trinity.kept_for(e.run_id, 'processing')));

-- A processor locks versions; only the trainer writes them.
ALTER TABLE trinity.policy_version ENABLE ROW LEVEL SECURITY;
DROP POLICY IF EXISTS is_read ON trinity.policy_version;
CREATE POLICY is_read ON trinity.policy_version FOR SELECT USING (true);
DROP POLICY IF EXISTS trainer_publishes ON trinity.policy_version;
CREATE POLICY trainer_publishes ON trinity.policy_version FOR INSERT TO trinity_trainer WITH CHECK (true);
DROP POLICY IF EXISTS trainer_changes ON trinity.policy_version;
CREATE POLICY trainer_changes ON trinity.policy_version FOR UPDATE TO trinity_trainer USING (true);
DROP POLICY IF EXISTS is_locked ON trinity.policy_version;
CREATE POLICY is_locked ON trinity.policy_version FOR UPDATE TO trinity_processor USING (true) WITH CHECK (false);

-- Processors and labellers pair rows of one run. A pair of which a row is held out is held out too, and so is not drawn.
ALTER TABLE trinity.preference ENABLE ROW LEVEL SECURITY;
DROP POLICY IF EXISTS is_read ON trinity.preference;
CREATE POLICY is_read ON trinity.preference FOR SELECT USING (true);
DROP POLICY IF EXISTS trainer_adopts ON trinity.preference;
CREATE POLICY trainer_adopts ON trinity.preference FOR INSERT TO trinity_trainer WITH CHECK (true);
DROP POLICY IF EXISTS others_pair ON trinity.preference;
CREATE POLICY others_pair ON trinity.preference FOR INSERT TO trinity_processor, trinity_labeller
    WITH CHECK ((seed IS NULL OR NOT held_out)
                AND 2 = (SELECT count(*) FROM trinity.experience e
                         WHERE e.id IN (chosen_id, rejected_id) AND e.run_id = preference.run_id
                           AND (preference.held_out OR NOT e.held_out)));
DROP POLICY IF EXISTS others_move ON trinity.preference;
CREATE POLICY others_move ON trinity.preference FOR UPDATE TO trinity_processor, trinity_trainer, trinity_labeller USING (true);

-- An explorer parks attempts of groups that its login's workers hold, and resumes them.
ALTER TABLE trinity.park ENABLE ROW LEVEL SECURITY;
DROP POLICY IF EXISTS is_read ON trinity.park;
CREATE POLICY is_read ON trinity.park FOR SELECT USING (true);
DROP POLICY IF EXISTS explorer_parks ON trinity.park;
CREATE POLICY explorer_parks ON trinity.park FOR INSERT TO trinity_explorer
    WITH CHECK (EXISTS (SELECT FROM trinity.agent a JOIN trinity.worker w ON w.id = a.worker_id
                        WHERE a.id = agent_id AND a.run_id = park.run_id AND w.login = session_user));
DROP POLICY IF EXISTS explorer_moves ON trinity.park;
CREATE POLICY explorer_moves ON trinity.park FOR UPDATE TO trinity_explorer
    USING (EXISTS (SELECT FROM trinity.agent a JOIN trinity.rollout_group g ON g.id = a.group_id
                   JOIN trinity.worker w ON w.id = g.worker_id
                   WHERE a.id = agent_id AND w.login = session_user));
DROP POLICY IF EXISTS people_answer ON trinity.park;
CREATE POLICY people_answer ON trinity.park FOR UPDATE TO trinity_labeller USING (true);

-- A processor moves rows and groups only until they are ready: a policy cannot compare a row with its old version. From ready on
-- they belong to the trainer, and finished rows stay unchanged. Nor may a processor move an archived payload, since its bytes
-- would be lost. The triggers call the function only for such changes, so others cost nothing. The operator is
-- schema-qualified, since a login may put a schema with other operators first in its search_path.
CREATE OR REPLACE FUNCTION trinity.refuse_processor()
RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    IF pg_catalog.pg_has_role(current_user, 'trinity_trainer', 'USAGE')
       OR pg_catalog.pg_has_role(current_user, (SELECT c.relowner FROM pg_catalog.pg_class c WHERE c.oid OPERATOR(pg_catalog.=) TG_RELID), 'USAGE') THEN
        RETURN NEW;
    END IF;
    RAISE insufficient_privilege USING MESSAGE =
        pg_catalog.format('login %s may not make this change to a row of %s: %s', session_user, TG_TABLE_NAME, TG_ARGV[0]);
END $$;
CREATE OR REPLACE TRIGGER processor_moves BEFORE UPDATE OF state ON trinity.experience FOR EACH ROW
    WHEN (OLD.state IS DISTINCT FROM NEW.state
          AND ((OLD.state IN ('raw', 'clean', 'scored')) IS NOT TRUE OR NEW.state IN ('leased', 'trained', 'expired')))
    EXECUTE FUNCTION trinity.refuse_processor('only a trainer moves rows that are ready or finished');
CREATE OR REPLACE TRIGGER processor_moves BEFORE UPDATE OF state ON trinity.rollout_group FOR EACH ROW
    WHEN (OLD.state IS DISTINCT FROM NEW.state
          AND (OLD.state::text IN ('ready', 'leased', 'trained', 'dropped', 'expired')
               OR NEW.state::text IN ('leased', 'trained', 'expired')))
    EXECUTE FUNCTION trinity.refuse_processor('only a trainer moves groups that are ready or finished');
CREATE OR REPLACE TRIGGER processor_archives BEFORE UPDATE OF data, archive_row, archive_number ON trinity.payload FOR EACH ROW
    WHEN (OLD.data IS NULL AND NEW.pruned_at IS NULL)
    EXECUTE FUNCTION trinity.refuse_processor('its arrays are archived or pruned already');
-- A row or pair with a seed is drawn. Therefore held-out ones get none, even from a labeller's login.
CREATE OR REPLACE TRIGGER held_out_stays BEFORE UPDATE OF seed ON trinity.experience FOR EACH ROW
    WHEN (NEW.held_out AND NEW.seed IS NOT NULL)
    EXECUTE FUNCTION trinity.refuse_processor('it is held out, and a seed would have it drawn');
CREATE OR REPLACE TRIGGER held_out_stays BEFORE UPDATE OF seed ON trinity.preference FOR EACH ROW
    WHEN (NEW.held_out AND NEW.seed IS NOT NULL)
    EXECUTE FUNCTION trinity.refuse_processor('it is held out, and a seed would have it drawn');
