"""People judge rows and pairs: who gets which, what follows from a verdict, and what the next draw sees."""

import contextlib
import itertools
import os
import random
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial

import krippendorff
import numpy as np
import psycopg
import pytest

from tests.support.postgres import by_login, execute
from tests.support.replays import difference
from tests.support.rows import Scene, at_once, import_records, trajectory
from trinity_db.errors import ConfigError, LeaseLost, NotFound, TrinityError
from trinity_db.postgres.connection import Database, Transaction, connect
from trinity_db.postgres.logins import make_login, open_to_roles
from trinity_db.schema.states import LabelState
from trinity_db.store import finish_groups, offline, reviews, rewards, runs, verdicts
from trinity_db.store.finish_groups import Rules
from trinity_db.store.reviews import Question
from trinity_db.store.verdicts import PersonVerdict, ReviewClaim

LABELLER = f"labels_{os.getpid()}"
REWARDS = "SELECT reward FROM trinity.experience WHERE run_id = %s ORDER BY id"
STATES = "SELECT state FROM trinity.rollout_group ORDER BY id"


class People:
    """The queue of a scene's run, a transaction for each verb."""

    def __init__(self, scene: Scene, pairs: bool = False) -> None:
        self.scene = scene
        self.pairs = pairs

    def ask(self, question: Question | None = None, ids: Sequence[int] | None = None) -> int:
        with self.scene.database.transaction() as tx:
            if self.pairs:
                return reviews.ask_pairs(tx, self.scene.run, question or Question())
            ids = ids if ids is not None else self.rows()
            return reviews.ask_rows(tx, self.scene.run.id, ids, question or Question())

    def rows(self) -> list[int]:
        of_run = "SELECT id FROM trinity.experience WHERE run_id = %s ORDER BY id"
        return self.scene.values(of_run, self.scene.run.id)

    def claim(self, author: str, seconds: float = 60) -> ReviewClaim | None:
        with self.scene.database.transaction() as tx:
            return verdicts.claim(tx, self.scene.run.id, author, self.pairs, seconds)

    def say(self, author: str, *values: int | None) -> list[ReviewClaim]:
        """Judge what comes next; None: discard it."""
        claims = []
        for value in values:
            claim = self.claim(author)
            assert claim is not None
            with self.scene.database.transaction() as tx:
                if value is None:
                    verdicts.discard(tx, claim, author)
                else:
                    verdicts.submit(tx, claim, author, value, seconds=1.5)
            claims.append(claim)
        return claims

    def undo(self, author: str) -> ReviewClaim | None:
        with self.scene.database.transaction() as tx:
            last = verdicts.last_decided(tx, self.scene.run.id, author, self.pairs)
            return None if last is None else verdicts.undo(tx, last, author)

    def decide(self, claim: ReviewClaim, author: str, value: int) -> None:
        with self.scene.database.transaction() as tx:
            verdicts.submit(tx, claim, author, value)

    def end(self, claim: ReviewClaim) -> None:
        """Let a claim end, as when its holder is gone."""
        with self.scene.database.transaction() as tx:
            tx.execute(
                "UPDATE trinity.label SET leased_until = now() - interval '1 s' WHERE id = %s",
                [claim.label_id],
            )

    @property
    def rewards(self) -> list[float | None]:
        return self.scene.values(REWARDS, self.scene.run.id)


@pytest.fixture
def people(scene: Scene) -> People:
    """Two ready groups, with rewards 1 and 0 each, and nothing asked yet."""
    scene.make_ready(2)
    return People(scene)


def test_a_verdict_is_a_reward_event_and_the_next_draw_knows_it(scene: Scene, people: People) -> None:
    first, *_ = people.rows()
    assert people.ask(ids=[first]) == 1
    drawn = scene.draw(step=1, size=1)
    people.say("ann", 1)
    event = "SELECT source, name, value, weight, created_by FROM trinity.reward_event WHERE source = 'human'"
    assert scene.rows(event) == [("human", "human", 1.0, 1.0, "ann")]
    assert people.rewards == [2.0, 0.0, 1.0, 0.0], "it adds to what the score step said"
    assert drawn is not None
    used = "SELECT reward FROM trinity.batch_item WHERE batch_id = %s ORDER BY ordinal"
    assert scene.values(used, drawn.id) == [1.0, 0.0], "what a batch used stays"
    scene.reopen(0)
    again = scene.draw(step=1, size=1)
    assert again is not None
    assert scene.values(used, again.id) == [2.0, 0.0]
    [said] = scene.rows("SELECT author, state, value, seconds, review_id FROM trinity.verdict_view")
    assert said[:4] == ("ann", "submitted", 1, 1.5)


@pytest.mark.parametrize(
    "condition", ["reward > (select 1 union select 2)", "lag(reward) over () > 0 or nope", "pg_sleep(", "1"]
)
def test_a_condition_that_the_server_refuses_is_bad_input(people: People, condition: str) -> None:
    database = people.scene.database
    with pytest.raises(ConfigError, match="--ask"), database.transaction(read_only=True) as tx:
        reviews.find_rows(tx, people.scene.run, condition)


def test_who_asks_twice_asks_once(people: People) -> None:
    assert (people.ask(), people.ask()) == (4, 0)
    assert people.ask(Question(name="style")) == 4, "another name is another question"


def test_no_person_judges_a_row_twice_and_each_gets_as_many_as_it_wants(people: People) -> None:
    people.ask(Question(verdicts=2))
    ann = people.say("ann", 1, 1, 1, 1)
    assert people.claim("ann") is None
    bob = people.say("bob", 0, 0, 0, 0)
    assert [one.review_id for one in ann] == [one.review_id for one in bob]
    assert people.claim("cy") is None, "each has two verdicts"
    assert people.rewards == [1.5, 0.5, 1.5, 0.5], "the reward of the name is their mean"


def test_the_database_refuses_a_second_label_of_a_person(scene: Scene, people: People) -> None:
    people.ask()
    people.say("ann", 1)
    with pytest.raises(psycopg.errors.UniqueViolation), scene.database.transaction() as tx:
        tx.execute(
            "INSERT INTO trinity.label (review_id, author, leased_until)"
            " SELECT review_id, author, now() FROM trinity.label"
        )


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_amid_a_statement_leaves_a_database_that_works(
    scene: Scene, people: People, interrupt: type[BaseException]
) -> None:
    people.ask()
    claim = people.claim("ann")
    assert claim is not None

    def be_interrupted() -> None:
        with scene.database.transaction() as tx:
            tx.pgconn.send_query(b"SELECT pg_sleep(0)")  # as the driver leaves it when a signal comes
            raise interrupt

    with pytest.raises(interrupt):
        be_interrupted()
    with scene.database.transaction() as tx:
        verdicts.release(tx, claim)
    assert people.claim("bob") is not None


def test_labellers_at_once_never_get_the_same_claim(scene: Scene, people: People) -> None:
    scene.make_ready(8)
    people.ask()
    found: list[ReviewClaim | None] = []

    def claim(author: str, tx: Transaction) -> None:
        found.append(verdicts.claim(tx, scene.run.id, author, pairs=False))

    authors = ("ann", "ann", "bob", "cy", "dan", "eve")  # two windows of a person are two labellers too
    for _ in range(3):
        at_once(scene.database, [partial(claim, author) for author in authors])
    taken = [one.review_id for one in found if one is not None]
    assert len(taken) >= 12
    assert len(set(taken)) == len(taken)


def test_a_claim_comes_back_when_its_holder_is_gone(people: People) -> None:
    people.ask(ids=people.rows()[:1])
    lost = people.claim("ann")
    assert lost is not None
    assert people.claim("bob") is None
    people.end(lost)
    taken = people.claim("bob")
    assert taken is not None
    assert taken.review_id == lost.review_id
    with pytest.raises(LeaseLost):
        people.decide(lost, "ann", 1)
    people.decide(taken, "bob", 0)
    assert people.rewards[0] == 1.0


def test_the_same_person_goes_on_after_a_killed_session(people: People) -> None:
    people.ask(ids=people.rows()[:1])
    lost = people.claim("ann")
    assert lost is not None
    people.end(lost)
    again = people.claim("ann")
    assert again is not None
    assert (again.label_id, again.attempt) == (lost.label_id, lost.attempt + 1)
    with pytest.raises(LeaseLost):
        people.decide(lost, "ann", 1)


def test_a_late_verdict_counts_where_no_other_person_was_asked(people: People) -> None:
    people.ask(ids=people.rows()[:1])
    claim = people.claim("ann")
    assert claim is not None
    people.end(claim)
    people.decide(claim, "ann", 1)
    people.decide(claim, "ann", 1)  # sent again after an unclear commit
    assert people.rewards[0] == 2.0


def test_claims_that_are_renewed_stay_and_ended_ones_do_not_come_back(scene: Scene, people: People) -> None:
    people.ask()
    held, ended = people.claim("ann"), people.claim("ann")
    assert held is not None
    assert ended is not None
    people.end(ended)
    with scene.database.transaction() as tx:
        assert verdicts.renew(tx, [held, ended], 60) == {held.label_id}
        verdicts.release(tx, held)
    assert getattr(people.claim("bob"), "review_id", None) == held.review_id


def test_undo_takes_back_all_that_followed(scene: Scene, people: People) -> None:
    people.ask(Question(verdicts=2), ids=people.rows()[:1])
    people.say("ann", 1)
    people.say("bob", 0)
    assert people.rewards[0] == 1.5
    back = people.undo("bob")
    assert people.rewards[0] == 2.0, "ann's verdict alone counts"
    assert back is not None
    people.decide(back, "bob", 1)
    assert people.rewards[0] == 2.0
    people.undo("bob")
    people.undo("ann")
    assert people.rewards[0] == 1.0, "as if neither had said a thing"
    assert people.undo("ann") is None
    assert scene.value("SELECT count(*) FROM trinity.review WHERE closed_at IS NULL") == 1


def test_a_row_about_which_all_verdicts_are_taken_back_has_no_reward(scene: Scene) -> None:
    import_records(scene.database, "said", [trajectory(0, "one"), trajectory(0, "two")])
    run = Scene.open(scene.database, "learns", data=["said"], algorithm="kto")
    people = People(run)
    people.ask()
    people.say("ann", 1, 0)
    assert people.rewards == [1.0, 0.0]
    people.undo("ann")
    assert people.rewards == [1.0, None], "and not 0, which would call it bad"
    snapshot = "SELECT trinity.reward_in(id, pg_current_snapshot()) FROM trinity.experience WHERE run_id = %s"
    assert run.values(f"{snapshot} ORDER BY id", run.run.id) == [1.0, None]


def test_a_discarded_row_is_answered_and_a_skipped_one_is_left_to_others(people: People) -> None:
    people.ask(ids=people.rows()[:2])
    people.say("ann", None)
    assert people.rewards[0] == 1.0
    skipped = people.claim("ann")
    assert skipped is not None
    with people.scene.database.transaction() as tx:
        verdicts.skip(tx, skipped, "ann")
    assert people.claim("ann") is None
    [left] = people.say("bob", 1)
    assert left.review_id == skipped.review_id
    with people.scene.database.transaction() as tx:
        assert reviews.progress(tx, people.scene.run.id, "ann", pairs=False) == reviews.Progress(0, 0, 1)


def test_a_verdict_beyond_the_scale_is_refused(people: People) -> None:
    people.ask(Question(lowest=1, highest=5))
    claim = people.claim("ann")
    assert claim is not None
    assert claim.is_graded
    with pytest.raises(ConfigError, match="between 1 and 5"):
        people.decide(claim, "ann", 0)
    people.decide(claim, "ann", 5)
    assert people.rewards[0] == 6.0


@pytest.fixture
def waiting(scene: Scene) -> People:
    """A run that waits for people, with a whole group that has no reward yet."""
    with scene.database.transaction() as tx:
        tx.execute("""UPDATE trinity.run SET config = config || '{"requires_reward": "human"}'""")
        tx.execute("UPDATE trinity.run_setting SET config = (SELECT config FROM trinity.run)")
        tx.execute("UPDATE trinity.run SET draws = 'groups'")
    scene.explore(1, rewards=(1.0, 0.0, 0.5))
    with scene.database.transaction() as tx:
        tx.execute("UPDATE trinity.experience SET state = 'scored'")
    return People(scene)


def test_a_group_waits_until_each_member_has_its_verdicts(scene: Scene, waiting: People) -> None:
    with scene.database.transaction() as tx:
        assert reviews.ask_awaited(tx, scene.run.id, Question(verdicts=2)) == 3
        assert reviews.ask_awaited(tx, scene.run.id, Question(verdicts=2)) == 0
    waiting.say("ann", 1, 0, None)
    assert scene.settle(requires_reward="human") == 0
    waiting.say("bob", 1, 1, None)
    back = waiting.undo("bob")
    assert scene.settle(requires_reward="human") == 0, "a verdict that was taken back is missing"
    assert back is not None
    waiting.end(back)
    waiting.say("bob", None)
    assert scene.settle(requires_reward="human") == 1
    assert scene.values(STATES) == ["ready"]
    assert waiting.rewards == [1.0, 0.5, None]


def test_a_member_that_people_cannot_judge_is_dropped_without_a_reward(scene: Scene, waiting: People) -> None:
    waiting.ask()
    waiting.say("ann", 1, 0, None)
    assert scene.settle(requires_reward="human") == 1
    assert scene.values("SELECT state FROM trinity.experience ORDER BY id") == ["ready", "ready", "dropped"]
    assert scene.rows('SELECT stage, reason FROM trinity."drop"') == [("group", "no_verdict")]


def test_after_a_limit_of_time_a_group_goes_on_with_its_verdicts(scene: Scene, waiting: People) -> None:
    waiting.ask(Question(verdicts=2))
    waiting.say("ann", 1, 0)

    def settle(seconds: float) -> int:
        with scene.database.transaction() as tx:
            return finish_groups.settle_groups(
                tx, scene.run.id, Rules(2, requires_reward="human", wait_seconds=seconds), 10
            )

    assert settle(3600) == 0
    with scene.database.transaction() as tx:
        tx.execute("UPDATE trinity.rollout_group SET completed_at = now() - interval '2 h'")
    assert settle(3600) == 1
    assert scene.values(STATES) == ["ready"]
    assert waiting.rewards == [1.0, 0.0, None]
    assert scene.values('SELECT reason FROM trinity."drop"') == ["no_verdict"]
    drawn = scene.draw(step=1, size=1)
    assert drawn is not None
    used = "SELECT reward FROM trinity.batch_item WHERE batch_id = %s ORDER BY ordinal"
    assert scene.values(used, drawn.id) == [1.0, 0.0]


def test_a_verdict_stays_once_its_group_is_ready(scene: Scene, waiting: People) -> None:
    waiting.ask()
    waiting.say("ann", 1, 0, 1)
    assert scene.settle(requires_reward="human") == 1
    last = waiting.rows()[-1]
    with pytest.raises(ConfigError, match=f"trinity-db reward {last} VALUE"):
        waiting.undo("ann")
    [review] = scene.values("SELECT id FROM trinity.review WHERE experience_id = %s", last)
    with pytest.raises(ConfigError, match="keeps its reward"), scene.database.transaction() as tx:
        verdicts.give(tx, scene.run.id, review, "ann", PersonVerdict(LabelState.DISCARDED))
    assert waiting.rewards == [1.0, 0.0, 1.0]
    assert scene.values("SELECT state FROM trinity.label ORDER BY id") == ["submitted"] * 3
    with scene.database.transaction() as tx:
        rewards.judge(tx, [rewards.Judgement(last, 0.5, "human", "human", "ann", 1.0)])
    assert scene.draw(step=1, size=1) is not None
    assert waiting.rewards == [1.0, 0.0, 0.5]


def test_an_undo_that_is_sent_twice_takes_one_verdict_back(scene: Scene, waiting: People) -> None:
    waiting.ask()
    waiting.say("ann", 1, 0)
    with scene.database.transaction() as tx:
        last = verdicts.last_decided(tx, scene.run.id, "ann", pairs=False)
        assert last is not None
        first = verdicts.undo(tx, last, "ann")
    with scene.database.transaction() as tx:
        assert verdicts.undo(tx, last, "ann") == first
    assert sorted(scene.values("SELECT state::text FROM trinity.label")) == ["draft", "submitted"]


def test_an_undo_and_a_settlement_at_once_leave_no_group_without_a_reward(
    scene: Scene, waiting: People
) -> None:
    waiting.ask()
    waiting.say("ann", 1, 0, 1)

    def undo(tx: Transaction) -> None:
        last = verdicts.last_decided(tx, scene.run.id, "ann", pairs=False)
        assert last is not None
        verdicts.undo(tx, last, "ann")

    def settle(tx: Transaction) -> None:
        finish_groups.settle_groups(tx, scene.run.id, Rules(2, requires_reward="human"), 10)

    with contextlib.suppress(ConfigError):
        at_once(scene.database, [settle, undo])
    [state] = scene.values(STATES)
    assert (state == "ready") == (None not in waiting.rewards), (state, waiting.rewards)


def test_a_question_beside_the_reward_ends_no_wait(scene: Scene, waiting: People) -> None:
    waiting.ask(Question(name="clear", weight=0.0, lowest=1, highest=5))
    with scene.database.transaction() as tx:
        assert reviews.ask_awaited(tx, scene.run.id, Question()) == 3
        said = [rewards.Judgement(id, 1.0, "short", "human", "ann", 0.0) for id in waiting.rows()]
        rewards.judge(tx, said)
    waiting.say("ann", 4, 2, 1)
    assert scene.settle(requires_reward="human") == 0
    assert waiting.rewards == [None, None, None]
    waiting.say("ann", 1, 0, 1)
    assert scene.settle(requires_reward="human") == 1
    assert waiting.rewards == [1.0, 0.0, 1.0]


def test_an_undo_leaves_a_later_correction_by_hand(people: People) -> None:
    row = people.rows()[0]
    people.ask(ids=[row])
    people.say("ann", 1)
    with people.scene.database.transaction() as tx:
        rewards.judge(tx, [rewards.Judgement(row, 0.25, "human", "human", "boss", 1.0)])
    assert people.rewards[0] == 1.25
    back = people.undo("ann")
    assert back is not None
    assert people.rewards[0] == 1.25
    people.decide(back, "ann", 0)
    assert people.rewards[0] == 1.0, "what is said last counts"


def test_rows_that_will_not_be_trained_on_wait_for_no_verdict(people: People) -> None:
    people.ask()
    with people.scene.database.transaction() as tx:
        tx.execute("UPDATE trinity.experience SET state = 'dropped' WHERE id = %s", people.rows()[:1])
        found = reviews.progress(tx, people.scene.run.id, "ann", pairs=False)
    assert found == reviews.Progress(3, 3, 0)


def test_a_reward_by_hand_ends_the_wait_as_before(scene: Scene, waiting: People) -> None:
    waiting.ask()
    with scene.database.transaction() as tx:
        said = [rewards.Judgement(id, 1.0, "human", "human", "ann", 1.0) for id in waiting.rows()]
        rewards.judge(tx, said)
    assert scene.settle(requires_reward="human") == 1


@pytest.fixture
def pairs(scene: Scene) -> People:
    """A run that learns from pairs, over two groups without rewards."""
    import_records(scene.database, "said", [trajectory(n, word) for n in (0, 1) for word in ("one", "two")])
    run = Scene.open(scene.database, "learns", data=["said"], algorithm="dpo")
    run.encode()
    return People(run, pairs=True)


def drawn_pairs(run: Scene, step: int) -> list[tuple[int, int]]:
    """The pairs of a step, chosen and rejected, given back. The length of the run counts the same pairs."""
    batch = run.draw_pairs(step, 10)
    with run.database.transaction() as tx:
        trainable = offline.count_trainable(tx, run.run.id, "pairs")
    assert trainable == ({0: batch.size} if batch else {})
    if batch is None:
        return []
    rows = run.values(
        "SELECT experience_id FROM trinity.batch_item WHERE batch_id = %s ORDER BY ordinal", batch.id
    )
    assert difference(run, batch.id) is None, "the replay finds the same pairs"
    run.reopen(0)
    return sorted(zip(rows[::2], rows[1::2], strict=True))


def test_pairs_that_people_compare_are_drawn_in_the_next_batch(pairs: People) -> None:
    run, rows = pairs.scene, pairs.rows()
    assert drawn_pairs(run, 1) == []
    assert (pairs.ask(), pairs.ask()) == (2, 0)
    first, second = pairs.say("ann", 1, -1)
    expected = [first.experience_ids, second.experience_ids[::-1]]
    assert sorted(expected) == drawn_pairs(run, 1)
    assert {*itertools.chain(*expected)} == set(rows)
    back = pairs.undo("ann")
    assert back is not None
    assert drawn_pairs(run, 1) == [expected[0]]
    pairs.decide(back, "ann", 0)
    assert drawn_pairs(run, 1) == [expected[0]], "a tie is no preference"
    back = pairs.undo("ann")
    assert back is not None
    pairs.decide(back, "ann", 1 if back.swapped == second.swapped else -1)
    assert drawn_pairs(run, 1) == sorted([expected[0], expected[1][::-1]])


def test_the_order_of_a_pair_is_drawn_by_lot_and_recorded(
    pairs: People, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = iter((0.1, 0.9))
    monkeypatch.setattr(random.SystemRandom, "random", lambda _: next(orders))
    pairs.ask()
    swapped, straight = pairs.say("ann", 1, 1)
    text = (
        "SELECT response FROM trinity.experience_text"
        " WHERE experience_id = (SELECT source_id FROM trinity.experience WHERE id = %s)"
    )
    for claim in (swapped, straight):
        shown = [pairs.scene.value(text, id) for id in claim.experience_ids]
        assert list(claim.responses) == shown
    said = pairs.scene.rows("SELECT swapped, value FROM trinity.label ORDER BY id")
    assert said == [(True, -1), (False, 1)], "the value is of the stored order"


def test_the_majority_of_a_pair_counts(pairs: People) -> None:
    pairs.ask(Question(verdicts=3))

    def prefer(author: str, first: bool) -> None:
        claim = pairs.claim(author)
        assert claim is not None
        pairs.decide(claim, author, 1 if first != claim.swapped else -1)

    rows = pairs.rows()
    prefer("ann", True)
    prefer("bob", False)
    assert drawn_pairs(pairs.scene, 1) == []
    prefer("cy", False)
    assert drawn_pairs(pairs.scene, 1) == [(rows[1], rows[0])]


def test_people_correct_a_pair_that_was_derived_from_rewards(scene: Scene) -> None:
    import_records(scene.database, "said", [trajectory(0, "good", 1.0), trajectory(0, "bad", 0.0)])
    run = Scene.open(scene.database, "learns", data=["said"], algorithm="dpo")
    run.encode()
    good, bad = People(run).rows()
    run.pair()
    assert drawn_pairs(run, 1) == [(good, bad)]
    people = People(run, pairs=True)
    people.ask()
    claim = people.claim("ann")
    assert claim is not None
    people.decide(claim, "ann", 1 if claim.experience_ids[0] == bad else -1)
    assert drawn_pairs(run, 1) == [(bad, good)]
    with scene.database.transaction() as tx:
        rewards.judge(tx, [rewards.Judgement(good, 3.0, "late", "robot", "r2", 1.0)])
    assert drawn_pairs(run, 1) == [(bad, good)], "rewards do not bring back what people decided"
    back = people.undo("ann")
    assert drawn_pairs(run, 1) == [(good, bad)], "without a verdict the rewards decide again"
    assert back is not None
    people.decide(back, "ann", 1 if back.experience_ids[0] == good else -1)
    with scene.database.transaction() as tx:
        rewards.judge(tx, [rewards.Judgement(bad, 9.0, "late", "robot", "r3", 1.0)])
    assert drawn_pairs(run, 1) == [(good, bad)], "a pair that people uphold needs no rewards that agree"


def test_pairs_of_a_data_set_are_compared_in_a_run(scene: Scene) -> None:
    import_records(scene.database, "said", [trajectory(0, "one"), trajectory(0, "two")])
    with pytest.raises(ConfigError, match="under data"), scene.database.transaction() as tx:
        reviews.ask_pairs(tx, runs.find(tx, "said"), Question())


def test_verdicts_from_elsewhere_count_once(scene: Scene, people: People) -> None:
    people.ask(Question(verdicts=2), ids=people.rows()[:1])
    review = scene.value("SELECT id FROM trinity.review")

    def give(author: str, verdict: PersonVerdict, review_id: int = review) -> str:
        with scene.database.transaction() as tx:
            return verdicts.give(tx, scene.run.id, review_id, author, verdict)

    good, bad = (PersonVerdict(LabelState.SUBMITTED, value, 3.0) for value in (1, 0))
    assert [give("ann", good), give("ann", good), give("ann", bad), give("bob", good)] == [
        "new",
        "known",
        "changed",
        "new",
    ]
    assert people.rewards[0] == 1.5
    events = "SELECT count(*) FROM trinity.reward_event WHERE source = 'human'"
    assert scene.value(events) == 3
    with pytest.raises(NotFound, match="no review"):
        give("ann", good, 99)


@pytest.fixture
def labeller(scene: Scene) -> Iterator[Scene]:
    """The scene by a login that may do no more than a labeller."""
    with closing(connect(scene.database.url)) as owner:
        open_to_roles(owner)
        make_login(owner, LABELLER, "trinity_labeller")
    with closing(Database(by_login(scene.database.url, LABELLER))) as database:
        yield replace(scene, database=database)
    execute(scene.database.url, "DROP ROLE {}", LABELLER)


def test_a_labeller_s_login_may_do_all_of_it_and_no_more(labeller: Scene, waiting: People) -> None:
    people = People(labeller)
    with labeller.database.transaction() as tx:
        assert reviews.ask_awaited(tx, labeller.run.id, Question()) == 3
    people.say("ann", 1, 0, None)
    back = people.undo("ann")
    assert back is not None
    with labeller.database.transaction() as tx:
        assert verdicts.renew(tx, [back])
        verdicts.release(tx, back)
        assert (
            verdicts.give(tx, labeller.run.id, back.review_id, "bob", PersonVerdict(LabelState.DISCARDED))
            == "new"
        )
    with waiting.scene.database.transaction() as tx:
        tx.execute("UPDATE trinity.experience SET state = 'ready'")
    pairs = People(labeller, pairs=True)
    pairs.ask()
    pairs.say("ann", 1)
    pairs.undo("ann")
    for statement in ("DELETE FROM trinity.label", "UPDATE trinity.review SET wanted = 9"):
        with pytest.raises(TrinityError, match="permission denied"), labeller.database.transaction() as tx:
            tx.execute(statement.encode())


def alpha(values: "np.ndarray[tuple[int, int], np.dtype[np.float64]]", level: str) -> float:
    found: float = krippendorff.alpha(reliability_data=values, level_of_measurement=level)
    return found


@pytest.mark.parametrize("seed", range(2))
def test_agreement_is_krippendorff_s_alpha(scene: Scene, seed: int) -> None:
    generator = np.random.default_rng(seed)
    truth = generator.integers(1, 6, 12)
    said = np.clip(truth + generator.integers(-1, 2, (4, 12)), 1, 5).astype(float)
    said[generator.random(said.shape) < 0.35] = np.nan
    scene.make_ready(6)
    people = People(scene)
    people.ask(Question(verdicts=4, lowest=1, highest=5))
    ids = scene.values("SELECT id FROM trinity.review ORDER BY id")
    with scene.database.transaction() as tx:
        for (person, row), value in np.ndenumerate(said):
            if not np.isnan(value):
                verdicts.give(
                    tx,
                    scene.run.id,
                    ids[row],
                    f"person {person}",
                    PersonVerdict(LabelState.SUBMITTED, int(value)),
                )
    [found] = scene.rows(
        "SELECT reviews, verdicts, alpha_nominal, alpha_interval FROM trinity.verdict_agreement_view"
    )
    given = (~np.isnan(said)).sum(axis=0)
    assert found[:2] == ((given > 1).sum(), given[given > 1].sum())
    assert found[2] == pytest.approx(alpha(said, "nominal"), abs=1e-12)
    assert found[3] == pytest.approx(alpha(said, "interval"), abs=1e-12)
    spread = np.nanmax(said, axis=0) > np.nanmin(said, axis=0)
    assert scene.value("SELECT count(*) FROM trinity.dispute_view") == spread.sum()


def test_agreement_is_unknown_where_all_say_the_same(scene: Scene, people: People) -> None:
    people.ask(Question(verdicts=2))
    people.say("ann", 1, 1)
    people.say("bob", 1, 1)
    found = "SELECT alpha_nominal, alpha_interval, people FROM trinity.verdict_agreement_view"
    assert scene.rows(found) == [(None, None, 2)]
    assert scene.values("SELECT review_id FROM trinity.dispute_view") == []
