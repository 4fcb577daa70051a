"""What holds after a run was disturbed, by whatever: asked of an `Aftermath`, the fixture `after`.

Modules that disturb runs import these tests: each has a fixture `after` of its own.
"""

from collections import Counter
from contextlib import closing
from random import Random

from tests.chaos.aftermath import Aftermath
from tests.chaos.experiment import BATCH_SIZE
from trinity_db.arrays import codec
from trinity_db.postgres.connection import Database
from trinity_db.store import replay

REPLAYED_BATCHES = 40
COMMANDS = 2  # of these by the command, which takes seconds


def test_no_process_gave_up(after: Aftermath) -> None:
    gave_up = [member for member in after.crew.members if member.gave_up and member.ended is not None]
    assert not [f"{member.name}: {member.ended}" for member in gave_up]


def test_every_process_stopped_at_sigterm_with_0(after: Aftermath) -> None:
    stopped = {member.name: member.ended and member.ended.code for member in after.crew.places}
    assert set(stopped.values()) == {0}, stopped


def test_no_process_ended_with_a_traceback(after: Aftermath) -> None:
    ends = [(member.name, member.ended.stderr) for member in after.crew.members if member.ended is not None]
    assert len(ends) == len(after.crew.members)
    assert not [f"{name}: {said}" for name, said in ends if "Traceback" in said]


def test_every_acknowledged_rollout_is_stored_once_as_it_was(after: Aftermath) -> None:
    assert after.acknowledged
    assert len(set(after.acknowledged)) == len(after.acknowledged)
    assert after.lost == []


def test_every_member_of_a_group_is_there_once_or_has_failed(after: Aftermath) -> None:
    wrong = after.store.rows(
        """
        SELECT g.id, g.state::text, g.expected, g.arrived, g.failed,
               array_agg(r.ordinal ORDER BY r.ordinal) AS members
        FROM rollout_group g
        LEFT JOIN rollout r ON r.group_id = g.id AND r.state IN ('finished', 'failed')
        GROUP BY g.id
        HAVING count(r.id) <> count(DISTINCT r.ordinal)
            OR count(r.id) FILTER (WHERE r.state = 'finished') <> g.arrived
            OR count(r.id) FILTER (WHERE r.state = 'failed') <> g.failed
            OR g.state <> 'open' AND count(r.id) <> g.expected
            OR g.state = 'open' AND count(r.id) >= g.expected
        """
    )
    assert wrong == []
    assert after.store.value("SELECT count(*) FROM rollout WHERE state = 'failed'") > 0


def test_no_row_has_more_committed_uses_than_allowed(after: Aftermath) -> None:
    assert after.twice == []


def test_use_counts_are_those_of_the_committed_batches(after: Aftermath) -> None:
    wrong = after.store.rows(
        """
        SELECT e.id, e.state::text, e.use_count, count(b.id) AS uses
        FROM experience e
        LEFT JOIN batch_item i ON i.experience_id = e.id
        LEFT JOIN batch b ON b.id = i.batch_id AND b.state = 'committed'
        GROUP BY e.id
        HAVING e.use_count <> count(b.id) OR (e.state = 'trained') <> (count(b.id) >= %(max_uses)s)
        """,
        max_uses=after.max_uses,
    )
    assert wrong == []


def test_use_counts_of_groups_are_those_of_their_rows(after: Aftermath) -> None:
    """Also of groups with uses left, whose rows a crash gave back."""
    wrong = after.store.rows(
        """
        SELECT g.id, g.state::text, g.use_count, count(DISTINCT b.id) AS uses
        FROM rollout_group g
        LEFT JOIN experience e ON e.group_id = g.id AND e.run_id = g.run_id
        LEFT JOIN batch_item i ON i.experience_id = e.id
        LEFT JOIN batch b ON b.id = i.batch_id AND b.state = 'committed'
        GROUP BY g.id
        HAVING g.use_count <> count(DISTINCT b.id)
        """
    )
    assert wrong == []
    used = "SELECT max(use_count) FROM rollout_group"
    assert after.store.value(used) == after.max_uses


def test_every_version_includes_each_step_up_to_its_own_once(after: Aftermath) -> None:
    wrong = after.store.rows(
        """
        SELECT p.version, p.step, count(b.id) AS batches, count(DISTINCT b.step) AS steps, max(b.step) AS last
        FROM policy_version p
        LEFT JOIN batch b ON b.run_id = p.run_id AND b.state = 'committed' AND b.included_version <= p.version
        WHERE p.withdrawn_at IS NULL
        GROUP BY p.run_id, p.version
        HAVING count(b.id) <> p.step OR count(DISTINCT b.step) <> p.step OR coalesce(max(b.step), 0) <> p.step
        """
    )
    assert wrong == []
    assert after.store.value("SELECT max(version) FROM policy_version") > 0


def test_the_lineage_of_the_last_version_is_every_committed_use_once(after: Aftermath) -> None:
    lineage = after.store.rows("SELECT * FROM lineage((SELECT max(version) FROM policy_version))")
    rows = Counter(row["experience_id"] for row in lineage)
    committed = after.store.rows(
        "SELECT i.experience_id FROM batch b JOIN batch_item i ON i.batch_id = b.id"
        " WHERE b.state = 'committed'"
    )
    assert rows == Counter(row["experience_id"] for row in committed)
    assert max(rows.values()) == after.max_uses


def test_no_group_is_split(after: Aftermath) -> None:
    """Not in any batch that was ever drawn, and no group in more committed ones than allowed."""
    split = after.store.rows(
        """
        WITH fit AS (
            SELECT e.group_id, count(*) AS members
            FROM experience e
            WHERE NOT EXISTS (SELECT FROM "drop" d WHERE d.experience_id = e.id AND d.stage <> 'draw')
            GROUP BY e.group_id
        )
        SELECT b.id AS batch, e.group_id, count(*) AS drawn, fit.members
        FROM batch b
        JOIN batch_item i ON i.batch_id = b.id
        JOIN experience e ON e.id = i.experience_id
        LEFT JOIN fit ON fit.group_id = e.group_id
        GROUP BY b.id, e.group_id, fit.members
        HAVING count(*) IS DISTINCT FROM fit.members
        """
    )
    assert split == []
    repeated = after.store.rows(
        """
        SELECT e.group_id, array_agg(DISTINCT b.id) AS batches
        FROM batch b JOIN batch_item i ON i.batch_id = b.id JOIN experience e ON e.id = i.experience_id
        WHERE b.state = 'committed' GROUP BY e.group_id HAVING count(DISTINCT b.id) > %(max_uses)s
        """,
        max_uses=after.max_uses,
    )
    assert repeated == []


def test_every_batch_has_as_many_groups_as_configured(after: Aftermath) -> None:
    sizes = after.store.rows(
        """
        SELECT DISTINCT b.size, count(DISTINCT e.group_id) AS groups
        FROM batch b JOIN batch_item i ON i.batch_id = b.id JOIN experience e ON e.id = i.experience_id
        GROUP BY b.id
        """
    )
    assert sizes == [{"size": BATCH_SIZE, "groups": BATCH_SIZE}]


def test_no_row_was_over_the_staleness_limit_at_its_draw(after: Aftermath) -> None:
    """Staleness anew: from the versions in the payload's bytes, and from what was published by then.

    Each version was made from the newest that was not withdrawn when it was published.
    """
    versions = after.store.rows(
        "SELECT version, published_at, withdrawn_at FROM policy_version ORDER BY version"
    )
    parents = {
        new["version"]: max(
            (
                old["version"]
                for old in versions
                if old["version"] < new["version"]
                and (old["withdrawn_at"] is None or old["withdrawn_at"] > new["published_at"])
            ),
            default=None,
        )
        for new in versions
    }

    def line(version: int | None) -> list[int]:
        found = []
        while version is not None:
            found.append(version)
            version = parents[version]
        return found

    def distance(one: int, other: int) -> int:
        theirs = line(other)
        return next(up + theirs.index(at) for up, at in enumerate(line(one)) if at in theirs)

    drawn = after.store.rows(
        """
        SELECT i.experience_id, i.staleness, b.policy_version, b.versions_ahead, b.state, e.version_min,
               p.codec, p.data, p.num_tokens,
               (SELECT max(v.version) FROM policy_version v
                WHERE v.run_id = b.run_id AND v.published_at <= b.created_at
                  AND (v.withdrawn_at IS NULL OR v.withdrawn_at > b.created_at)) AS latest,
               (SELECT count(*) FROM policy_version v
                WHERE v.run_id = b.run_id AND v.published_at > b.created_at AND v.step < b.step
                  AND v.withdrawn_at IS NULL) AS recorded_later
        FROM batch b
        JOIN batch_item i ON i.batch_id = b.id
        JOIN experience e ON e.id = i.experience_id
        JOIN payload p ON p.experience_id = e.id
        """
    )
    for row in drawn:
        sampled = codec.decode(row["codec"], row["data"], row["num_tokens"]).versions
        assert sampled is not None, row
        oldest, newest = int(sampled.min()), int(sampled.max())
        assert oldest == row["version_min"], row
        assert row["latest"] == row["policy_version"], row
        farthest = max(distance(row["latest"], end) for end in (oldest, newest))
        if row["state"] == "committed":  # a version of steps before this one was being written
            assert row["versions_ahead"] == row["recorded_later"], row
        assert row["staleness"] == farthest + row["versions_ahead"] <= after.max_staleness, row
    assert max(row["staleness"] for row in drawn) > 0


def test_nothing_is_leased_at_rest(after: Aftermath) -> None:
    held = after.store.rows(
        """
        SELECT 'row' AS what, id, state::text FROM experience WHERE worker_id IS NOT NULL OR state = 'leased'
        UNION ALL
        SELECT 'group', id, state::text FROM rollout_group WHERE worker_id IS NOT NULL OR state = 'leased'
        UNION ALL
        SELECT 'batch', id, state::text FROM batch
        WHERE state = 'leased' OR state = 'committed' AND included_version IS NULL
        """
    )
    assert held == []
    assert after.store.value("SELECT count(*) FROM worker WHERE stopped_at IS NULL") == 0


def test_every_row_is_accounted_for(after: Aftermath) -> None:
    (found,) = after.store.rows(
        """
        SELECT count(*) AS rows,
               count(*) FILTER (WHERE state IN ('raw', 'clean', 'scored', 'ready')) AS waiting,
               count(*) FILTER (WHERE state = 'trained') AS trained,
               count(*) FILTER (WHERE state IN ('dropped', 'expired')) AS gone,
               sum(use_count) AS uses,
               (SELECT count(*) FROM experience_text) AS texts,
               (SELECT count(*) FROM payload) AS payloads,
               (SELECT count(*) FROM rollout WHERE state <> 'failed' AND version_min IS NOT NULL) AS written,
               (SELECT count(*) FROM batch_item i JOIN batch b ON b.id = i.batch_id
                WHERE b.state = 'committed') AS committed,
               (SELECT count(DISTINCT d.experience_id) FROM "drop" d) AS drops
        FROM experience
        """
    )
    assert found["rows"] == found["waiting"] + found["trained"] + found["gone"]
    assert found["rows"] == found["written"] == found["texts"] == found["payloads"]
    assert found["uses"] == found["committed"] > 0
    assert found["gone"] == found["drops"] > 0


def test_groups_and_their_members_agree(after: Aftermath) -> None:
    """A group's state says what all its members but the dropped ones are."""
    wrong = after.store.rows(
        """
        SELECT g.id, g.state::text, array_agg(e.state::text) AS members
        FROM rollout_group g JOIN experience e ON e.group_id = g.id AND e.state <> 'dropped'
        GROUP BY g.id
        HAVING NOT bool_and(CASE g.state::text
            WHEN 'open' THEN e.state IN ('raw', 'clean', 'scored')
            WHEN 'complete' THEN e.state IN ('raw', 'clean', 'scored')
            WHEN 'ready' THEN e.state = 'ready'
            WHEN 'trained' THEN e.state = 'trained'
            WHEN 'dropped' THEN e.state = 'expired' END)
        """
    )
    assert wrong == []


def test_rewards_are_those_of_their_events_once(after: Aftermath) -> None:
    """A row that two processors scored, one of them late, has one event of each name."""
    wrong = after.store.rows(
        """
        SELECT e.id, e.reward, array_agg(v.value) AS events
        FROM experience e LEFT JOIN reward_event v ON v.rollout_id = e.rollout_id
        GROUP BY e.id
        HAVING count(v.id) <> (CASE WHEN e.reward IS NULL THEN 0 ELSE 1 END) OR sum(v.value) <> e.reward
        """
    )
    assert wrong == []


def test_refused_rollouts_count_nowhere_else(after: Aftermath) -> None:
    wrong = after.store.rows(
        """
        SELECT r.id, e.state::text, d.stage, d.reason, e.reward, e.use_count
        FROM rollout r
        JOIN experience e ON e.rollout_id = r.id
        LEFT JOIN "drop" d ON d.experience_id = e.id
        WHERE r.state = 'refused'
          AND ((e.state, d.stage, d.reason) IS DISTINCT FROM ('dropped', 'explore', 'late')
               OR e.reward IS NOT NULL
               OR EXISTS (SELECT FROM batch_item i WHERE i.experience_id = e.id)
               OR EXISTS (SELECT FROM processing p WHERE p.experience_id = e.id)
               OR EXISTS (SELECT FROM reward_event v WHERE v.rollout_id = r.id))
        """
    )
    assert wrong == []


def test_statistics_of_trained_groups_are_those_of_their_members(after: Aftermath) -> None:
    wrong = after.store.rows(
        """
        SELECT g.id, g.reward_count, count(e.reward) AS members, g.reward_mean, avg(e.reward) AS mean
        FROM rollout_group g JOIN experience e ON e.group_id = g.id AND e.state = 'trained'
        WHERE g.state = 'trained'
        GROUP BY g.id
        HAVING g.reward_count <> count(e.reward) OR abs(g.reward_mean - avg(e.reward)) > 1e-9
        """
    )
    assert wrong == []


def test_batches_are_drawn_again_as_they_were(after: Aftermath) -> None:
    """A sample of all batches, reopened ones too."""
    batches = after.store.value("SELECT array_agg(id ORDER BY id) FROM batch")
    sample = Random(after.seed).sample(batches, min(REPLAYED_BATCHES, len(batches)))
    for batch in sample[:COMMANDS]:
        ended = after.store.run("replay", str(batch), "--check")
        assert ended.code == 0, f"batch {batch}: {ended}"
    with closing(Database(after.store.url)) as database:
        for batch in sample:
            with database.transaction(read_only=True) as tx:
                found = replay.first_difference(tx, replay.find(tx, batch))
            assert found is None, f"batch {batch}: {found}"
