"""What the tables refuse, each by the name of its constraint, and that those names follow one rule."""

from collections.abc import Iterator
from contextlib import closing
from enum import StrEnum

import psycopg
import pytest
from psycopg.rows import DictRow
from sqlalchemy import PrimaryKeyConstraint, Table, UniqueConstraint

from tests.support.postgres import new_database
from trinity_db.postgres.connection import connect
from trinity_db.schema import states
from trinity_db.schema.tables import models

# One row of each kind, and a second one where two are needed to break a rule.
ROWS = """
INSERT INTO trinity.run (id, name, kind, config, draws)
VALUES (1, 'one', 'train', '{}', 'groups'), (2, 'two', 'train', '{}', 'groups');
INSERT INTO trinity.run_setting (id, run_id, config) VALUES (1, 1, '{}'), (2, 2, '{}');
INSERT INTO trinity.taskset (id, name) VALUES (1, 'tasks');
INSERT INTO trinity.task (id, taskset_id, key, ordinal, prompt_digest, payload)
VALUES (1, 1, 'key', 0, '', '{"prompt": "1+1"}');
INSERT INTO trinity.task_stat (run_id, task_id) VALUES (1, 1);
INSERT INTO trinity.worker (id, run_id, role, setting_id, host, pid) VALUES (1, 1, 'train', 1, 'host', 1);
INSERT INTO trinity.policy_version (run_id, version, step, checkpoint_hash) VALUES (1, 0, 0, '');
INSERT INTO trinity.evaluation
    (id, run_id, taskset_id, version, samples, temperature, max_new_tokens, seed, solved_reward, setting_id)
VALUES (1, 1, 1, 0, 4, 1, 8, 0, 1, 1);
INSERT INTO trinity.rollout_group (id, run_id, task_id, expected, arrived) VALUES (1, 1, 1, 8, 2);
INSERT INTO trinity.agent (id, run_id, group_id, ordinal, attempt, retry, worker_id, key_hash)
VALUES (1, 1, 1, 2, 1, 0, 1, '\\x01'), (2, 1, 1, 3, 1, 0, 1, '\\x02');
INSERT INTO trinity.call (agent_id, number, digest, prompt, codec, num_tokens, data, finish_reason)
VALUES (1, 0, '', '', '', 1, '', 'stop');
INSERT INTO trinity.park
    (id, run_id, agent_id, parked_at, state, record, resumed_at, resumed_attempt, left_at)
VALUES (1, 1, 1, now(), '1', '{}', now(), 1, now()), (2, 1, 1, now(), 'null', '{}', NULL, NULL, NULL);
INSERT INTO trinity.rollout (id, run_id, group_id, ordinal, attempt, state)
VALUES (1, 1, 1, 0, 1, 'finished'), (2, 1, 1, 1, 1, 'finished');
INSERT INTO trinity.experience (id, run_id, group_id, rollout_id, state, version_min, version_max, import_key)
VALUES (1, 1, 1, 1, 'ready', 0, 0, '00000000-0000-0000-0000-000000000001'),
       (2, 1, 1, 2, 'ready', 0, 0, NULL);
INSERT INTO trinity.experience (id, run_id, group_id, rollout_id, state, source_id)
VALUES (3, 2, 1, 1, 'ready', 1);
INSERT INTO trinity.score (experience_id, name, digest, data) VALUES (1, 'teacher', '', '\\x00000000');
INSERT INTO trinity.preference (id, run_id, chosen_id, rejected_id, source) VALUES (1, 1, 1, 2, 'pair');
INSERT INTO trinity.review
    (id, run_id, experience_id, other_id, source, name, weight, wanted, lowest, highest)
VALUES (1, 1, 1, NULL, 'human', 'human', 1, 1, 0, 1), (2, 1, 1, 2, 'human', 'human', 1, 1, -1, 1);
INSERT INTO trinity.label (id, review_id, author, leased_until) VALUES (1, 1, 'ann', now());
INSERT INTO trinity.batch
    (id, run_id, step, worker_id, setting_id, policy_version, size, sampler, seed, query)
VALUES (1, 1, 1, 1, 1, 0, 1, 'fifo', 0, '');
INSERT INTO trinity.processing (experience_id, processor, processor_version, attempt, outcome)
VALUES (1, 'clean', 1, 1, 'passed');
INSERT INTO trinity."drop" (run_id, experience_id, stage, reason) VALUES (1, 1, 'clean', 'empty');
"""

NEW_PRIORITY = (
    "INSERT INTO trinity.group_priority (run_id, group_id, priority, computed_xact, failed_at, error) VALUES "
)
NEW_OVERLAP = "INSERT INTO trinity.overlap (task_id, of_task_id, experience_id, measure, share, text) VALUES "
NEW_SYNTHESIS = "INSERT INTO trinity.synthesis (run_id, group_id, error, failed_at, finished_at) VALUES "
NEW_ORIGIN = (
    "INSERT INTO trinity.origin (synthesis_id, run_id, source_task_id, task_id, experience_id, step, digest)"
    " VALUES "
)
NEW_ROLLOUT = "INSERT INTO trinity.rollout (run_id, group_id, ordinal, attempt, state, error) VALUES "
NEW_PASS = "INSERT INTO trinity.task_pass (run_id, taskset_id, walk, size, position) VALUES "
NEW_ROW = (
    "INSERT INTO trinity.experience (run_id, group_id, rollout_id, state, source_id, import_key) VALUES "
)
EVALUATED = "UPDATE trinity.rollout_group SET state = 'evaluating', evaluation_id = 1, "
NEW_EVENT = (
    "INSERT INTO trinity.reward_event (run_id, rollout_id, experience_id, source, name, value) VALUES "
)
NEW_SETBACK = (
    "INSERT INTO trinity.setback (run_id, worker_id, known_version, known_step, last_step, first_version,"
    " last_version, resumed_version) VALUES "
)
NEW_INSTANCE = (
    "INSERT INTO trinity.store_instance (is_only, system_identifier, database_oid, timeline) VALUES "
)
NEW_SCORE = "INSERT INTO trinity.score (experience_id, name, digest, data) VALUES "
NEW_WEIGHT = "INSERT INTO trinity.reward_event (run_id, rollout_id, source, name, value, weight) VALUES "
NEW_PAIR = "INSERT INTO trinity.preference (run_id, chosen_id, rejected_id, source) VALUES "
NEW_BATCH = (
    "INSERT INTO trinity.batch"
    " (run_id, step, state, worker_id, setting_id, policy_version, size, sampler, seed, query)"
    " VALUES "
)
NEW_DROP = (
    'INSERT INTO trinity."drop" (run_id, experience_id, preference_id, group_id, stage, reason) VALUES '
)
NEW_PROCESSING = (
    "INSERT INTO trinity.processing (experience_id, processor, processor_version, attempt, outcome, error)"
    " VALUES "
)

NEW_REVIEW = (
    "INSERT INTO trinity.review"
    " (run_id, experience_id, other_id, source, name, weight, wanted, lowest, highest) VALUES "
)

REFUSED = [
    # runs
    (
        "run_name_key",
        "INSERT INTO trinity.run (name, kind, config, draws) VALUES ('one', 'train', '{}', 'rows')",
    ),
    ("run_draws_iff_train_check", "UPDATE trinity.run SET draws = NULL"),
    ("run_draws_iff_train_check", "UPDATE trinity.run SET kind = 'data'"),
    ("run_known_draws_check", "UPDATE trinity.run SET draws = 'kto'"),
    ("run_finished_at_iff_finished_check", "UPDATE trinity.run SET state = 'finished'"),
    ("run_finished_at_iff_finished_check", "UPDATE trinity.run SET finished_at = now()"),
    ("policy_version_not_negative_check", "UPDATE trinity.policy_version SET version = -1"),
    ("policy_version_skips_numbers_below_check", "UPDATE trinity.policy_version SET skipped = 1"),
    (
        "policy_version_withdrawn_has_no_files_check",
        "UPDATE trinity.policy_version SET checkpoint = 'version-000000', withdrawn_at = now()",
    ),
    (
        "policy_version_weights_are_kept_check",
        "UPDATE trinity.policy_version SET checkpoint = NULL, weights = 's3://bucket/version'",
    ),
    (
        "policy_version_checkpoint_has_weights_check",
        "UPDATE trinity.policy_version SET checkpoint = NULL, resume_from = 'checkpoint', resume_hash = ''",
    ),
    (
        "policy_version_uploaded_is_kept_check",
        "UPDATE trinity.policy_version SET resume_from = NULL, resume_address = 's3://bucket/checkpoint'",
    ),
    (
        "worker_is_of_a_trainer_check",
        "UPDATE trinity.worker SET role = 'explore', broadcast_at = '10.0.0.1:29400'",
    ),
    (
        "worker_dtype_of_an_explorer_check",
        "UPDATE trinity.worker SET role = 'train', engine_dtype = 'bfloat16'",
    ),
    (
        "worker_dtype_of_an_explorer_check",
        "UPDATE trinity.worker SET role = 'explore', engine_dtype = 'int8'",
    ),
    ("setback_versions_together_check", NEW_SETBACK + "(1, 1, 0, 0, 1, 2, NULL, 0)"),
    ("setback_lost_something_check", NEW_SETBACK + "(1, 1, 0, 3, 3, NULL, NULL, 0)"),
    (
        "retention_known_family_check",
        "INSERT INTO trinity.retention (run_id, family) VALUES (1, 'texts')",
    ),
    ("sweep_known_family_check", "INSERT INTO trinity.sweep (family) VALUES ('texts')"),
    ("sweep_after_a_row_check", "INSERT INTO trinity.sweep (family, after_id) VALUES ('metrics', -1)"),
    ("store_instance_one_row_check", NEW_INSTANCE + "(false, 1, 1, 1)"),
    ("store_instance_pkey", NEW_INSTANCE + "(true, 1, 1, 1), (true, 1, 1, 1)"),
    ("policy_version_not_negative_check", "UPDATE trinity.policy_version SET step = -1"),
    (
        "archive_of_the_run_check",
        "INSERT INTO trinity.archive (run_id, number, store, name)"
        " VALUES (1, 0, gen_random_uuid(), 'payload_2_ab')",
    ),
    # people
    ("review_row_key", NEW_REVIEW + "(1, 1, NULL, 'human', 'human', 1, 2, 0, 5)"),
    ("review_pair_key", NEW_REVIEW + "(1, 1, 2, 'other', 'other', 1, 1, -1, 1)"),
    ("review_pair_in_order_check", NEW_REVIEW + "(1, 2, 1, 'human', 'human', 1, 1, -1, 1)"),
    ("review_wants_a_verdict_check", "UPDATE trinity.review SET wanted = 0"),
    ("review_scale_in_order_check", "UPDATE trinity.review SET lowest = 1"),
    ("review_scale_of_a_pair_check", "UPDATE trinity.review SET lowest = 0"),
    ("review_weight_finite_check", "UPDATE trinity.review SET weight = 'NaN'"),
    (
        "label_review_id_author_key",
        "INSERT INTO trinity.label (review_id, author, leased_until) VALUES (1, 'ann', now())",
    ),
    ("label_value_iff_submitted_check", "UPDATE trinity.label SET value = 1"),
    ("label_leased_iff_draft_check", "UPDATE trinity.label SET leased_until = NULL"),
    ("label_decided_iff_no_draft_check", "UPDATE trinity.label SET decided_at = now()"),
    ("label_seconds_finite_check", "UPDATE trinity.label SET seconds = 'NaN'"),
    ("decision_known_side_check", "INSERT INTO trinity.decision (review_id, side) VALUES (2, 2)"),
    # tasks
    ("taskset_name_key", "INSERT INTO trinity.taskset (name) VALUES ('tasks')"),
    (
        "task_taskset_id_key_key",
        "INSERT INTO trinity.task (id, taskset_id, key, ordinal, prompt_digest, payload)"
        " SELECT 2, taskset_id, key, 1, prompt_digest, payload FROM trinity.task",
    ),
    (
        "task_taskset_id_ordinal_key",
        "INSERT INTO trinity.task (id, taskset_id, key, ordinal, prompt_digest, payload)"
        " SELECT 2, taskset_id, 'other', ordinal, prompt_digest, payload FROM trinity.task",
    ),
    ("task_pass_known_walk_check", NEW_PASS + "(1, 1, 'random', 1, 0)"),
    ("task_pass_place_in_order_check", NEW_PASS + "(1, 1, 'shuffled', 1, -1)"),
    ("task_has_prompt_check", """UPDATE trinity.task SET payload = '{"answer": "2"}'"""),
    ("task_stat_solved_within_scored_check", "UPDATE trinity.task_stat SET solved = 1"),
    # agents and their calls
    ("agent_key_hash_key", "UPDATE trinity.agent SET key_hash = '\\x01'"),
    ("agent_live_member_key", "UPDATE trinity.agent SET ordinal = 2"),
    ("call_has_tokens_check", "UPDATE trinity.call SET num_tokens = 0"),
    ("call_has_tokens_check", "UPDATE trinity.call SET number = -1"),
    ("park_current_key", "UPDATE trinity.park SET agent_id = 1, left_at = NULL"),
    ("park_ticket_key", "INSERT INTO trinity.park (run_id, agent_id) VALUES (1, 1), (1, 1)"),
    ("park_parked_with_state_check", "UPDATE trinity.park SET state = NULL"),
    ("park_parked_with_state_check", "UPDATE trinity.park SET record = NULL"),
    ("park_answer_iff_answered_check", "UPDATE trinity.park SET answered_at = now()"),
    ("park_resumed_from_a_park_check", "UPDATE trinity.park SET resumed_at = now(), resumed_attempt = NULL"),
    ("park_left_after_it_was_resumed_check", "UPDATE trinity.park SET left_at = now() WHERE id = 2"),
    # groups and rollouts
    ("rollout_group_members_within_expected_check", "UPDATE trinity.rollout_group SET arrived = 9"),
    ("rollout_group_members_within_expected_check", "UPDATE trinity.rollout_group SET failed = 7"),
    (
        "rollout_group_members_within_expected_check",
        "UPDATE trinity.rollout_group SET expected = 0, arrived = 0",
    ),
    (
        "rollout_group_versions_in_order_check",
        "UPDATE trinity.rollout_group SET version_min = 2, version_max = 1",
    ),
    ("rollout_group_completed_at_iff_not_open_check", "UPDATE trinity.rollout_group SET state = 'complete'"),
    (
        "rollout_group_completed_at_iff_not_open_check",
        "UPDATE trinity.rollout_group SET completed_at = now()",
    ),
    (
        "rollout_group_evaluated_iff_of_an_evaluation_check",
        "UPDATE trinity.rollout_group SET evaluation_id = 1",
    ),
    (
        "rollout_group_evaluated_iff_of_an_evaluation_check",
        "UPDATE trinity.rollout_group SET state = 'evaluating'",
    ),
    ("rollout_group_evaluation_id_version_min_fkey", EVALUATED + "version_min = 1"),
    ("rollout_group_evaluation_id_version_max_fkey", EVALUATED + "version_max = 1"),
    ("rollout_group_priority_in_range_check", "UPDATE trinity.rollout_group SET priority = 1e-19"),
    ("rollout_group_priority_in_range_check", "UPDATE trinity.rollout_group SET priority = 1e19"),
    ("group_priority_computed_by_a_transaction_check", NEW_PRIORITY + "(1, 1, 0.5, NULL, NULL, NULL)"),
    ("group_priority_failed_with_an_error_check", NEW_PRIORITY + "(1, 1, NULL, NULL, now(), NULL)"),
    ("group_priority_failed_with_an_error_check", NEW_PRIORITY + "(1, 1, 0.5, 7, now(), 'no number')"),
    ("group_priority_priority_in_range_check", NEW_PRIORITY + "(1, 1, 1e19, 7, NULL, NULL)"),
    ("synthesis_failed_with_an_error_check", NEW_SYNTHESIS + "(1, 1, NULL, now(), NULL)"),
    ("synthesis_ended_once_check", NEW_SYNTHESIS + "(1, 1, 'no answer', now(), now())"),
    ("synthesis_group_id_fkey", NEW_SYNTHESIS + "(1, 9, NULL, NULL, NULL)"),
    ("synthesis_group_id_key", NEW_SYNTHESIS + "(1, 1, NULL, NULL, NULL), (1, 1, NULL, NULL, NULL)"),
    ("origin_of_one_thing_check", NEW_ORIGIN + "(1, 1, 1, NULL, NULL, 'x', 'y')"),
    ("group_priority_group_id_fkey", NEW_PRIORITY + "(1, 9, NULL, NULL, NULL, NULL)"),
    ("rollout_error_iff_failed_check", NEW_ROLLOUT + "(1, 1, 2, 1, 'failed', NULL)"),
    ("rollout_error_iff_failed_check", NEW_ROLLOUT + "(1, 1, 2, 1, 'finished', 'no answer')"),
    ("rollout_group_id_ordinal_attempt_key", NEW_ROLLOUT + "(1, 1, 0, 1, 'failed', 'again')"),
    ("rollout_finished_member_key", NEW_ROLLOUT + "(1, 1, 0, 2, 'finished', NULL)"),
    ("rollout_group_id_fkey", NEW_ROLLOUT + "(1, 9, 0, 1, 'finished', NULL)"),
    ("rollout_versions_in_order_check", "UPDATE trinity.rollout SET version_min = 2, version_max = 1"),
    # evaluations
    ("evaluation_positive_check", "UPDATE trinity.evaluation SET samples = 0"),
    ("evaluation_positive_check", "UPDATE trinity.evaluation SET temperature = -1"),
    ("evaluation_given_up_is_finished_check", "UPDATE trinity.evaluation SET error = 'lost'"),
    ("evaluation_run_id_version_fkey", "UPDATE trinity.evaluation SET version = 1"),
    # experiences
    ("experience_evaluated_in_place_of_trained_check", "UPDATE trinity.experience SET held_out = true"),
    (
        "experience_only_held_out_are_evaluated_check",
        "UPDATE trinity.experience SET state = 'evaluated' WHERE id = 1",
    ),
    ("experience_leased_by_a_worker_check", "UPDATE trinity.experience SET state = 'leased'"),
    ("experience_reward_finite_check", "UPDATE trinity.experience SET reward = 'NaN'"),
    ("experience_reward_finite_check", "UPDATE trinity.experience SET reward = 'Infinity'"),
    ("experience_reward_finite_check", "UPDATE trinity.experience SET reward = '-Infinity'"),
    ("experience_versions_in_order_check", "UPDATE trinity.experience SET version_min = 1 WHERE id = 1"),
    ("experience_group_iff_rollout_check", "UPDATE trinity.experience SET rollout_id = NULL"),
    ("experience_group_iff_rollout_check", "UPDATE trinity.experience SET group_id = NULL"),
    ("experience_rollout_id_fkey", NEW_ROW + "(1, 1, 9, 'raw', NULL, NULL)"),
    ("experience_rollout_key", NEW_ROW + "(1, 1, 1, 'raw', NULL, NULL)"),
    ("experience_source_key", NEW_ROW + "(2, 1, 2, 'ready', 1, NULL)"),
    (
        "experience_import_key",
        NEW_ROW + "(1, NULL, NULL, 'ready', NULL, '00000000-0000-0000-0000-000000000001')",
    ),
    ("overlap_of_one_text_check", NEW_OVERLAP + "(1, NULL, NULL, '', 1, '')"),
    ("overlap_is_share_check", NEW_OVERLAP + "(1, 1, NULL, '', 0, '')"),
    ("minhash_has_bands_check", "INSERT INTO trinity.minhash VALUES (1, '{}')"),
    ("payload_has_tokens_check", "INSERT INTO trinity.payload VALUES (1, 'compact-1', 0, '')"),
    ("payload_in_one_place_check", "INSERT INTO trinity.payload VALUES (1, 'compact-1', 1, NULL, NULL)"),
    ("payload_in_one_place_check", "INSERT INTO trinity.payload VALUES (1, 'compact-1', 1, '', 1)"),
    ("score_pkey", NEW_SCORE + "(1, 'teacher', 'again', '')"),
    ("score_known_name_check", NEW_SCORE + "(2, 'critic', '', '')"),
    ("score_whole_numbers_check", NEW_SCORE + "(2, 'teacher', '', '\\x000000')"),
    ("score_experience_id_fkey", NEW_SCORE + "(9, 'teacher', '', '')"),
    # rewards
    ("reward_event_about_one_thing_check", NEW_EVENT + "(1, NULL, NULL, 'person', 'good', 1)"),
    ("reward_event_about_one_thing_check", NEW_EVENT + "(1, 1, 1, 'person', 'good', 1)"),
    ("reward_event_value_finite_check", NEW_EVENT + "(1, 1, NULL, 'person', 'good', 'NaN')"),
    ("reward_event_value_finite_check", NEW_EVENT + "(1, 1, NULL, 'person', 'good', '-Infinity')"),
    ("reward_event_weight_finite_check", NEW_WEIGHT + "(1, 1, 'person', 'good', 1, 'NaN')"),
    ("reward_event_weight_finite_check", NEW_WEIGHT + "(1, 1, 'person', 'good', 1, 'Infinity')"),
    # preferences
    ("preference_two_experiences_check", NEW_PAIR + "(1, 1, 1, 'person')"),
    ("preference_run_id_chosen_id_rejected_id_key", NEW_PAIR + "(1, 1, 2, 'person')"),
    ("preference_leased_by_a_worker_check", "UPDATE trinity.preference SET state = 'leased'"),
    # batches
    ("batch_step_key", NEW_BATCH + "(1, 1, 'leased', 1, 1, 0, 1, 'fifo', 0, '')"),
    ("batch_step_key", NEW_BATCH + "(1, 1, 'committed', 1, 1, 0, 1, 'fifo', 0, '')"),
    ("batch_reopened_at_iff_reopened_check", "UPDATE trinity.batch SET state = 'reopened'"),
    ("batch_reopened_at_iff_reopened_check", "UPDATE trinity.batch SET reopened_at = now()"),
    ("batch_not_empty_check", NEW_BATCH + "(1, 2, 'leased', 1, 1, 0, 0, 'fifo', 0, '')"),
    ("batch_included_only_if_committed_check", "UPDATE trinity.batch SET included_version = 0"),
    (
        "batch_included_only_if_committed_check",
        "UPDATE trinity.batch SET state = 'reopened', reopened_at = now(), included_version = 0",
    ),
    ("batch_run_id_policy_version_fkey", NEW_BATCH + "(1, 2, 'leased', 1, 1, 7, 1, 'fifo', 0, '')"),
    (
        "batch_run_id_included_version_fkey",
        "UPDATE trinity.batch SET state = 'committed', included_version = 7",
    ),
    # processing and drops
    ("processing_error_iff_failed_check", NEW_PROCESSING + "(1, 'clean', 1, 2, 'failed', NULL)"),
    ("processing_error_iff_failed_check", NEW_PROCESSING + "(1, 'clean', 1, 2, 'passed', 'why')"),
    (
        "processing_pkey",
        NEW_PROCESSING + "(1, 'clean', 1, 1, 'dropped', NULL)",
    ),
    ("drop_about_one_row_check", NEW_DROP + "(1, NULL, NULL, NULL, 'clean', 'empty')"),
    ("drop_about_one_row_check", NEW_DROP + "(1, 2, 1, NULL, 'clean', 'empty')"),
    ("drop_experience_id_key", NEW_DROP + "(1, 1, NULL, NULL, 'score', 'again')"),
]


@pytest.fixture(scope="module")
def connection(server: str, template: str) -> Iterator[psycopg.Connection[DictRow]]:
    """A connection to a store that holds the rows above."""
    with new_database(server, template) as url, closing(connect(url)) as connection:
        connection.execute(ROWS)
        connection.execute(
            "SELECT setval(oid, 100) FROM pg_class"
            " WHERE relkind = 'S' AND relnamespace = 'trinity'::regnamespace"
        )
        connection.commit()
        yield connection


@pytest.mark.parametrize(("constraint", "statement"), REFUSED)
def test_a_row_that_breaks_a_rule_is_refused_by_name(
    connection: psycopg.Connection[DictRow], constraint: str, statement: str
) -> None:
    with pytest.raises(psycopg.errors.IntegrityError) as error, connection.transaction(force_rollback=True):
        connection.execute(statement)
    assert error.value.diag.constraint_name == constraint


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE trinity.run SET state = 'finished', finished_at = now()",
        "UPDATE trinity.rollout_group SET arrived = 6, failed = 2",
        "UPDATE trinity.experience SET state = 'leased', worker_id = 1",
        "UPDATE trinity.experience SET reward = -1.7e308 WHERE id = 1",
        "UPDATE trinity.experience SET version_min = NULL, version_max = NULL",
        "UPDATE trinity.batch SET state = 'committed', included_version = 0",
        "UPDATE trinity.batch SET state = 'reopened', reopened_at = now(); "
        + NEW_BATCH
        + "(1, 1, 'leased', 1, 1, 0, 1, 'fifo', 0, '')",
        NEW_BATCH + "(1, 2, 'leased', 1, 1, 0, 1, 'fifo', 0, '')",
        NEW_ROLLOUT + "(1, 1, 0, 2, 'failed', 'no answer')",
        NEW_ROW + "(2, NULL, NULL, 'ready', NULL, '00000000-0000-0000-0000-000000000001')",
        NEW_EVENT + "(1, NULL, 1, 'person', 'good', 0)",
        NEW_PAIR + "(1, 2, 1, 'person')",
        NEW_DROP + "(1, NULL, 1, NULL, 'encode', 'row_dropped')",
    ],
)
def test_a_row_that_keeps_the_rules_is_taken(connection: psycopg.Connection[DictRow], statement: str) -> None:
    with connection.transaction(force_rollback=True):
        cursor = connection.execute(statement)
        written = [cursor.rowcount]
        while cursor.nextset():
            written.append(cursor.rowcount)
    assert min(written) > 0, "a rule is only kept by a row that is written"


def test_every_rule_that_is_checked_has_a_row_that_breaks_it(connection: psycopg.Connection[DictRow]) -> None:
    checks = connection.execute(
        "SELECT conname FROM pg_constraint WHERE connamespace = 'trinity'::regnamespace AND contype = 'c'"
    ).fetchall()
    assert {check["conname"] for check in checks} - {name for name, _ in REFUSED} == set()


def test_constraints_and_indexes_are_named_by_the_rule(connection: psycopg.Connection[DictRow]) -> None:
    suffixes = {"p": "_pkey", "f": "_fkey", "u": "_key", "c": "_check"}
    constraints = connection.execute(
        "SELECT r.relname, c.conname, c.contype::text FROM pg_constraint c"
        " JOIN pg_class r ON r.oid = c.conrelid"
        " WHERE c.connamespace = 'trinity'::regnamespace AND c.contype IN ('p', 'f', 'u', 'c')"
    ).fetchall()
    own = [row for row in constraints if row["relname"] != "schema_version"]
    assert len(own) > 60
    for row in own:
        assert row["conname"].startswith(f"{row['relname']}_"), row
        assert row["conname"].endswith(suffixes[row["contype"]]), row
    indexes = connection.execute(
        "SELECT tablename, indexname FROM pg_indexes WHERE schemaname = 'trinity'"
    ).fetchall()
    for row in indexes:
        assert row["indexname"].startswith(f"{row['tablename']}_"), row
        assert (
            row["indexname"].endswith(("_pkey", "_key", "_idx")) or row["indexname"] == "schema_version_pkc"
        ), row


def test_no_name_was_cut_off(connection: psycopg.Connection[DictRow]) -> None:
    names = connection.execute(
        "SELECT conname AS name FROM pg_constraint WHERE connamespace = 'trinity'::regnamespace"
        " UNION SELECT relname FROM pg_class WHERE relnamespace = 'trinity'::regnamespace"
    ).fetchall()
    assert [row["name"] for row in names if len(row["name"]) >= 63] == []


def test_the_states_of_the_code_are_those_of_the_database(connection: psycopg.Connection[DictRow]) -> None:
    enums: dict[str, type[StrEnum]] = {
        "batch_state": states.BatchState,
        "experience_state": states.ExperienceState,
        "group_state": states.GroupState,
        "label_state": states.LabelState,
        "processing_outcome": states.Outcome,
        "rollout_state": states.RolloutState,
        "run_kind": states.RunKind,
        "run_state": states.RunState,
        "worker_role": states.WorkerRole,
    }
    found = connection.execute(
        "SELECT t.typname, array_agg(e.enumlabel::text ORDER BY e.enumsortorder) AS labels"
        " FROM pg_type t JOIN pg_enum e ON e.enumtypid = t.oid WHERE t.typnamespace = 'trinity'::regnamespace"
        " GROUP BY t.typname"
    ).fetchall()
    assert {row["typname"]: row["labels"] for row in found} == {
        name: [state.value for state in kind] for name, kind in enums.items()
    }


@pytest.mark.parametrize("table", ["payload", "score"])
def test_numbers_are_stored_as_they_are(connection: psycopg.Connection[DictRow], table: str) -> None:
    stored = connection.execute(
        "SELECT attstorage::text FROM pg_attribute WHERE attrelid = %s::regclass AND attname = 'data'",
        [f"trinity.{table}"],
    ).fetchone()
    assert stored == {"attstorage": "e"}


def test_a_run_is_deleted_with_all_that_belongs_to_it(connection: psycopg.Connection[DictRow]) -> None:
    with connection.transaction(force_rollback=True):
        connection.execute("DELETE FROM trinity.run")
        left = {
            table.name
            for table in models.metadata.sorted_tables
            if connection.execute(f'SELECT FROM trinity."{table.name}"').fetchone() is not None
        }
    assert left == {"taskset", "task"}


def test_a_row_that_is_deleted_finds_what_goes_with_it_by_index() -> None:
    """But for runs and workers, which are few: they may look through a table once."""
    not_found = {
        (table.name, key.column_keys[0])
        for table in models.metadata.sorted_tables
        for key in table.foreign_key_constraints
        if key.ondelete == "CASCADE"
        and key.referred_table.name not in ("run", "worker")
        and key.column_keys[0] not in found_by_index(table)
    }
    # Tasksets are deleted by hand and seldom; an index would cost each claim. task_pass has few rows.
    assert not_found == {("task_stat", "task_id"), ("task_pass", "taskset_id")}


def found_by_index(table: Table) -> set[str]:
    """The columns with which an index over all rows that have a value there begins."""
    rules = [rule for rule in table.constraints if isinstance(rule, PrimaryKeyConstraint | UniqueConstraint)]
    first = {rule.columns.keys()[0] for rule in rules}
    for index in table.indexes:
        name, where = index.columns.keys()[0], index.dialect_options["postgresql"]["where"]
        if where is None or str(where) == f"{name} IS NOT NULL":
            first.add(name)
    return first


def test_a_data_set_that_a_run_has_adopted_is_not_deleted(connection: psycopg.Connection[DictRow]) -> None:
    with (
        pytest.raises(psycopg.errors.ForeignKeyViolation) as error,
        connection.transaction(force_rollback=True),
    ):
        connection.execute("DELETE FROM trinity.run WHERE id = 1")
    assert error.value.diag.table_name == "experience"


def test_a_group_is_not_deleted_while_there_are_experiences_of_it(
    connection: psycopg.Connection[DictRow],
) -> None:
    with (
        pytest.raises(psycopg.errors.ForeignKeyViolation) as error,
        connection.transaction(force_rollback=True),
    ):
        connection.execute("DELETE FROM trinity.rollout_group WHERE id = 1")
    assert error.value.diag.constraint_name == "experience_rollout_id_fkey"


def test_rollouts_leave_with_their_run_although_only_their_group_names_it(
    connection: psycopg.Connection[DictRow],
) -> None:
    with connection.transaction(force_rollback=True):
        connection.execute("DELETE FROM trinity.run WHERE id = 2")
        connection.execute("DELETE FROM trinity.run WHERE id = 1")
        assert connection.execute("SELECT FROM trinity.rollout").fetchall() == []
