"""What the tables refuse, each by the name of its constraint, and that those names follow one rule."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest
from psycopg.rows import DictRow

from tests.rows import Scene, task
from trinity_db.database import Database, connect
from trinity_db.schema import models, states
from trinity_db.schema.base import SCHEMA

# One row of every kind, each with the id of its kind's name in the statements below.
ROWS = """
INSERT INTO trinity.run (id, name, kind, config) VALUES (1, 'one', 'train', '{}'), (2, 'two', 'train', '{}');
INSERT INTO trinity.taskset (id, name) VALUES (1, 'tasks');
INSERT INTO trinity.task (id, taskset_id, key, payload) VALUES (1, 1, 'key', '{"prompt": "1+1"}');
INSERT INTO trinity.worker (id, run_id, role, host, pid) VALUES (1, 1, 'train', 'host', 1);
INSERT INTO trinity.policy_version (run_id, version, step, checkpoint_hash) VALUES (1, 0, 0, '');
INSERT INTO trinity.rollout_group (id, run_id, task_id, expected, arrived) VALUES (1, 1, 1, 8, 2);
INSERT INTO trinity.rollout (id, run_id, group_id, ordinal, attempt, state)
VALUES (1, 1, 1, 0, 1, 'finished'), (2, 1, 1, 1, 1, 'finished');
INSERT INTO trinity.experience (id, run_id, group_id, rollout_id, state, import_key, version_min, version_max)
VALUES (1, 1, 1, 1, 'ready', '00000000-0000-0000-0000-000000000001', 0, 0), (2, 1, 1, 2, 'ready', NULL, 0, 0);
INSERT INTO trinity.experience (id, run_id, group_id, rollout_id, state, source_id)
VALUES (3, 2, 1, 1, 'ready', 1);
INSERT INTO trinity.preference (id, run_id, chosen_id, rejected_id, source) VALUES (1, 1, 1, 2, 'pair');
INSERT INTO trinity.batch (id, run_id, step, worker_id, policy_version, size, sampler, seed, query)
VALUES (1, 1, 1, 1, 0, 1, 'fifo', 0, '');
INSERT INTO trinity.processing (experience_id, processor, processor_version, attempt, outcome)
VALUES (1, 'clean', 1, 1, 'passed');
INSERT INTO trinity."drop" (run_id, experience_id, stage, reason) VALUES (1, 1, 'clean', 'empty');
"""
