"""Insert rows of `data`'s mean size in bulk, for measures that do not time writing."""

from contextlib import closing

import numpy as np
import psycopg

from benchmarks import data
from benchmarks.scene import Scene
from trinity_db.arrays import codec

PROMPT_TOKENS = sum(data.PROMPT_TOKENS) // 2
RESPONSE_TOKENS = 420

# Foreign keys hold by construction; checking them would take most of the time.
FILL = """
SET LOCAL session_replication_role = replica;
CREATE TEMP TABLE made ON COMMIT DROP AS
SELECT nextval('trinity.rollout_group_id_seq') AS id FROM generate_series(1, {num_groups});
CREATE TEMP TABLE member ON COMMIT DROP AS
SELECT made.id AS group_id, n AS ordinal, nextval('trinity.rollout_id_seq') AS rollout_id,
       nextval('trinity.experience_id_seq') AS id
FROM made, generate_series(0, {group_size} - 1) n;

INSERT INTO trinity.rollout_group (id, run_id, task_id, state, expected, arrived, version_min, completed_at)
OVERRIDING SYSTEM VALUE
SELECT made.id, {run_id},
       (SELECT min(t.id) FROM trinity.task t) + made.id % (SELECT count(*) FROM trinity.task), 'complete',
       {group_size}, {group_size}, 0, now()
FROM made;
INSERT INTO trinity.rollout
    (id, run_id, group_id, ordinal, attempt, state, version_min, version_max, finish_reason)
OVERRIDING SYSTEM VALUE
SELECT rollout_id, {run_id}, group_id, ordinal, 1, 'finished', 0, 0, 'stop' FROM member;
INSERT INTO trinity.experience
    (id, run_id, group_id, rollout_id, state, version_min, version_max, prompt_length, response_length)
OVERRIDING SYSTEM VALUE
SELECT id, {run_id}, group_id, rollout_id, '{state}', 0, 0, {prompt_tokens}, {response_tokens}
FROM member;
INSERT INTO trinity.experience_text (experience_id, prompt, response)
SELECT id, left(words.text, 4 * {prompt_tokens}), left(words.text, 4 * {response_tokens})
FROM member, (SELECT string_agg(md5(n::text), ' ') AS text FROM generate_series(1, 60) n) words;
INSERT INTO trinity.payload (experience_id, codec, num_tokens, data)
SELECT id, '{codec}', {prompt_tokens} + {response_tokens}, decode('{payload}', 'hex') FROM member;
"""


def fill(scene: Scene, num_rows: int, state: str) -> None:
    """Insert whole groups of rows in this state at version 0."""
    statement = FILL.format(
        num_groups=num_rows // data.GROUP_SIZE,
        group_size=data.GROUP_SIZE,
        run_id=scene.run_id,
        state=state,
        prompt_tokens=PROMPT_TOKENS,
        response_tokens=RESPONSE_TOKENS,
        codec=codec.CODEC,
        payload=_payload().hex(),
    )
    with closing(psycopg.connect(scene.url)) as connection, connection:
        connection.execute(statement.encode())


def _payload() -> bytes:
    token_ids = np.arange(PROMPT_TOKENS + RESPONSE_TOKENS, dtype=np.int32)
    logprobs = np.full(RESPONSE_TOKENS, -0.5, np.float32)
    versions = np.zeros(RESPONSE_TOKENS, np.int32)
    return codec.encode(codec.Payload(token_ids, token_ids >= PROMPT_TOKENS, logprobs, versions))
