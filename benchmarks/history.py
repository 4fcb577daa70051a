"""A run in the middle of its life, made by the server in bulk: all tables as its roles would leave them.

Most groups are trained, in batches of 64 rows with a policy version each, which include all but the last
batches; one batch is in a trainer's hands, and some hundred groups are ready. The newest rows have arrays.
"""

from contextlib import closing

import psycopg

from benchmarks import data
from benchmarks.scene import Scene, payload
from trinity_db import arrays

BATCH_GROUPS = 8  # 64 rows
NUM_READY = 512  # groups
NUM_OPEN_BATCHES = 3  # committed, and in no checkpoint yet

# Keys hold by construction; checking them would take most of the time.
ONLINE = """
SET LOCAL session_replication_role = replica;
INSERT INTO trinity.worker (run_id, role, setting_id, host, pid, stopped_at)
SELECT s.run_id, r.role::trinity.worker_role, s.id, 'gone', 1, now()
FROM trinity.run_setting s, unnest(ARRAY['explore', 'process', 'train']) r (role)
WHERE s.run_id = {run_id};
INSERT INTO trinity.policy_version (run_id, version, step, checkpoint, checkpoint_hash)
SELECT {run_id}, n, n, CASE WHEN n > {versions} - 2 THEN 'version-' || n END, 'hash'
FROM generate_series(1, {versions}) n;

CREATE TEMP TABLE made ON COMMIT DROP AS
SELECT n - 1 AS number, nextval('trinity.rollout_group_id_seq') AS id,
       least((n - 1) / {batch_groups}, {versions}) AS version,
       CASE WHEN n <= {batch_groups} * {committed} THEN 'trained'
            WHEN n <= {batch_groups} * ({committed} + 1) THEN 'leased' ELSE 'ready' END AS state
FROM generate_series(1, {num_groups}) n;
CREATE TEMP TABLE member ON COMMIT DROP AS
SELECT made.*, n AS ordinal, nextval('trinity.rollout_id_seq') AS rollout_id,
       nextval('trinity.experience_id_seq') AS experience_id, (made.number + n) % 2 AS reward
FROM made, generate_series(0, {group_size} - 1) n;

INSERT INTO trinity.rollout_group
    (id, run_id, task_id, state, expected, arrived, version_min, reward_count, reward_mean, reward_variance,
     worker_id, completed_at)
OVERRIDING SYSTEM VALUE
SELECT id, {run_id}, (SELECT min(t.id) FROM trinity.task t) + id % (SELECT count(*) FROM trinity.task),
       state::trinity.group_state, {group_size}, {group_size}, version, {group_size}, 0.5, 0.25,
       CASE WHEN state = 'leased' THEN (SELECT max(id) FROM trinity.worker) END, now()
FROM made;
INSERT INTO trinity.rollout
    (id, run_id, group_id, ordinal, attempt, state, version_min, version_max, finish_reason, finished_at)
OVERRIDING SYSTEM VALUE
SELECT rollout_id, {run_id}, id, ordinal, 1, 'finished', version, version, 'stop', now() - interval '1 hour'
FROM member;
INSERT INTO trinity.experience
    (id, run_id, group_id, rollout_id, state, version_min, version_max, reward, use_count, prompt_length,
     response_length, attempt, worker_id)
OVERRIDING SYSTEM VALUE
SELECT experience_id, {run_id}, id, rollout_id, state::trinity.experience_state, version, version, reward,
       (state = 'trained')::integer, {prompt_tokens}, {response_tokens}, 2,
       CASE WHEN state = 'leased' THEN (SELECT max(id) FROM trinity.worker) END
FROM member;
INSERT INTO trinity.processing (experience_id, processor, processor_version, attempt, outcome)
SELECT experience_id, p, 1, 1 + (p = 'score')::integer, 'passed'
FROM member, unnest(ARRAY['clean', 'score']) p;
INSERT INTO trinity.reward_event (run_id, rollout_id, source, name, value)
SELECT {run_id}, rollout_id, 'score', 'exact_match', reward FROM member;
INSERT INTO trinity.batch
    (run_id, step, state, worker_id, setting_id, policy_version, included_version, size, sampler, seed, query,
     snapshot, committed_at)
SELECT {run_id}, n, CASE WHEN n > {committed} THEN 'leased' ELSE 'committed' END::trinity.batch_state,
       (SELECT max(id) FROM trinity.worker), (SELECT max(id) FROM trinity.run_setting),
       least(n - 1, {versions}), CASE WHEN n <= {versions} THEN n END,
       {batch_groups}, 'fifo', 0, '', '1:1:', CASE WHEN n <= {committed} THEN now() END
FROM generate_series(1, {committed} + 1) n;
INSERT INTO trinity.batch_item (batch_id, ordinal, experience_id, reward, advantage, staleness)
SELECT b.id, m.number % {batch_groups} * {group_size} + m.ordinal, m.experience_id, m.reward,
       m.reward - 0.5, 1
FROM member m JOIN trinity.batch b ON b.run_id = {run_id} AND b.step = m.number / {batch_groups} + 1
WHERE m.state <> 'ready';
INSERT INTO trinity.metric (run_id, role, step, name, value)
SELECT {run_id}, 'train', n, 'metric/' || m, 1
FROM generate_series(1, {committed}) n, generate_series(1, 8) m;
INSERT INTO trinity.task_stat (run_id, task_id, issued, scored)
SELECT {run_id}, g.task_id, count(*), {group_size} * count(*)
FROM trinity.rollout_group g WHERE g.run_id = {run_id} GROUP BY g.task_id;

CREATE TEMP TABLE recent ON COMMIT DROP AS
SELECT m.experience_id FROM member m ORDER BY m.number DESC LIMIT {with_arrays};
INSERT INTO trinity.experience_text (experience_id, prompt, response)
SELECT experience_id, left(words.text, 4 * {prompt_tokens}), left(words.text, 4 * {response_tokens})
FROM recent, (SELECT string_agg(md5(n::text), ' ') AS text FROM generate_series(1, 60) n) words;
INSERT INTO trinity.payload (experience_id, codec, num_tokens, data)
SELECT experience_id, '{codec}', {prompt_tokens} + {response_tokens}, decode('{payload}', 'hex') FROM recent;
"""


def online(scene: Scene, num_rows: int, with_arrays: int) -> None:
    """A run on live groups that has written so many rows, the newest of them with texts and arrays."""
    row = data.group(0)[0]
    num_groups = num_rows // data.GROUP_SIZE
    committed = (num_groups - NUM_READY) // BATCH_GROUPS - 1
    statement = ONLINE.format(
        run_id=scene.run_id,
        num_groups=num_groups,
        group_size=data.GROUP_SIZE,
        batch_groups=BATCH_GROUPS,
        committed=committed,
        versions=committed - NUM_OPEN_BATCHES,
        with_arrays=with_arrays,
        prompt_tokens=row.prompt_tokens,
        response_tokens=len(row.logprobs),
        codec=arrays.CODEC,
        payload=arrays.encode(payload(row)).hex(),
    )
    with closing(psycopg.connect(scene.url, autocommit=True)) as connection:
        with connection.transaction():
            connection.execute(statement.encode())
        connection.execute(b"VACUUM (ANALYZE)")
