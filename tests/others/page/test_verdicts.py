"""People judge in the browser, by keys alone: what is stored, what they see of it, and what can go wrong."""

import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, expect

from tests.others.page.browser import WAIT_SECONDS, Visit, home_of, served
from tests.others.page.test_hostile import ATTACKS, TEXT
from tests.support.postgres import by_login, execute, new_database
from tests.support.rows import Scene
from trinity_db.postgres.connection import Database, connect
from trinity_db.postgres.logins import make_login, open_to_roles
from trinity_db.schema.states import LabelState
from trinity_db.store import reviews, verdicts
from trinity_db.store.reviews import Question

LABELLER = f"page_labeller_{os.getpid()}"
SAID = """SELECT state::text, value, blind FROM trinity.label
          WHERE author = %s AND state <> 'draft' ORDER BY decided_at"""
HELD = "SELECT count(*) FROM trinity.label WHERE state = 'draft' AND leased_until > now() AND author = %s"
NAME = "run"
PAIRS = f"/verdicts/{NAME}?queue=pairs"
ROWS = f"/verdicts/{NAME}"

# The command itself, whose statements that write are ended early.
HASTY = """
from trinity_db.cli import main
from trinity_db.page import writer
writer.WRITE_SECONDS = 1.0
main()
"""


@dataclass
class Person:
    """A person with a page that gives verdicts in the person's name."""

    visit: Visit

    @property
    def keys(self) -> Locator:
        return self.visit.page.locator(".keys")

    @property
    def claim(self) -> Locator:
        return self.visit.page.locator(".claim")

    def open(self, path: str) -> None:
        """Another page, once it takes keys."""
        self.visit.open(path)
        self.ready()

    def ready(self) -> None:
        expect(self.keys).to_have_attribute("data-takes", "true")

    def press(self, key: str) -> str:
        """Press a key once the page takes it; what the page says of it."""
        self.ready()
        turn = self.keys.get_attribute("data-turn")
        assert turn is not None
        self.visit.page.keyboard.press(key)
        expect(self.keys).not_to_have_attribute("data-turn", turn)
        return self.visit.page.locator("[role=status]").first.inner_text()

    def ids(self) -> list[int]:
        """The experiences that are judged now."""
        self.ready()
        heading = self.claim.locator("h2").first.inner_text()
        return [int(number) for number in re.findall(r"\d+", heading)]

    def texts(self) -> list[str]:
        """The responses of the pair, A first."""
        self.ready()
        return self.claim.locator(".beside pre").all_inner_texts()


@pytest.fixture
def scene(server: str, template: str) -> Iterator[Scene]:
    """A run that learns from pairs; nothing was explored yet."""
    with new_database(server, template) as url, closing(Database(url)) as database:
        with closing(connect(url)) as owner:
            open_to_roles(owner)
            make_login(owner, LABELLER, "trinity_labeller")
        yield Scene.open(database, num_tasks=50, algorithm="dpo")
        execute(url, "DROP ROLE {}", LABELLER)


@pytest.fixture
def person(scene: Scene, browser: Browser, tmp_path: Path) -> Iterator[Callable[[str, str], Person]]:
    """Opens a page of a person's own, by a login that may do no more than a labeller."""
    url = scene.database.url
    environment = {"TRINITY_DB_URL": by_login(url, LABELLER), "TRINITY_DB_READ_URL": by_login(url)}
    with ExitStack() as stack:

        def open_page(name: str, path: str) -> Person:
            page = stack.enter_context(served(home_of(tmp_path) | environment, "--by", name))
            person = Person(Visit.begin(browser, page))
            stack.callback(person.visit.page.context.close)
            person.visit.open(path)
            return person

        yield open_page


def ask_rows(scene: Scene, **question: int) -> None:
    with scene.database.transaction() as tx:
        ids = scene.values("SELECT id FROM trinity.experience ORDER BY id")
        reviews.ask_rows(tx, scene.run.id, ids, Question(**question))  # type: ignore[arg-type]


def ask_pairs(scene: Scene, verdicts: int) -> None:
    with scene.database.transaction() as tx:
        reviews.ask_pairs(tx, scene.run, Question(verdicts=verdicts))


def test_fifty_pairs_judged_by_keys_alone_are_what_the_trainer_draws_next(
    scene: Scene, person: Callable[[str, str], Person]
) -> None:
    scene.make_ready(50, rewards=(0.5, 0.25))
    assert scene.draw_pairs(1, 64) is None, "no pair without people"
    ann = person("ann", "/")
    for key in ("Tab",) * 5 + ("Enter",):  # the link in the head
        ann.visit.page.keyboard.press(key)
    ann.visit.page.wait_for_url("**/verdicts")
    ann.visit.page.get_by_role("region", name="queues").get_by_role("link").nth(2).focus()
    ann.visit.page.keyboard.press("Enter")
    ann.visit.page.wait_for_url(f"**{PAIRS}")
    ann.ready()
    expected = []
    for number in range(50):
        ids, texts, key = ann.ids(), ann.texts(), "abt"[number % 3]
        first = ids if texts[0] == "0.5" else ids[::-1]
        assert set(texts) == {"0.5", "0.25"}
        said = ann.press(key)
        assert said == {"a": "A is better: stored.", "b": "B is better: stored.", "t": "tie: stored."}[key]
        if key != "t":
            expected.append(tuple(first if key == "a" else first[::-1]))
    expect(ann.claim).to_contain_text("Nothing to judge at the moment")
    facts = ann.visit.page.locator(".facts")
    expect(facts).to_contain_text("50 on pairs")
    batch = scene.draw_pairs(1, 64)
    assert batch is not None
    rows = scene.values(
        "SELECT experience_id FROM trinity.batch_item WHERE batch_id = %s ORDER BY ordinal", batch.id
    )
    assert sorted(zip(rows[::2], rows[1::2], strict=True)) == sorted(expected)
    scene.commit(batch)
    sentence = f"{len(expected)} of your verdicts are in batches, the last in step 1."
    expect(ann.visit.page.get_by_text(sentence)).to_be_visible()
    seconds = scene.values("SELECT seconds FROM trinity.label WHERE author = 'ann'")
    assert len(seconds) == 50
    assert all(0.3 <= one < WAIT_SECONDS for one in seconds), "from the look to the key"
    assert ann.visit.complaints == []


def test_an_undo_brings_the_last_one_back_and_what_followed_is_gone(
    scene: Scene, person: Callable[[str, str], Person]
) -> None:
    scene.make_ready(3, rewards=(0.5, 0.25))
    ann = person("ann", PAIRS)
    first = ann.ids()
    ann.press("a")
    second = ann.ids()
    ann.press("b")
    assert scene.value("SELECT count(*) FROM trinity.preference WHERE seed IS NOT NULL") == 2
    assert ann.press("u") == "The last verdict was undone."
    assert ann.ids() == second
    assert ann.press("u") == "The last verdict was undone."
    assert ann.ids() == first
    assert ann.press("u") == "There is no verdict to undo."
    assert scene.value("SELECT count(*) FROM trinity.preference WHERE seed IS NOT NULL") == 0
    ann.press("t")
    ann.press("d")
    ann.press("s")
    assert scene.rows(SAID, "ann") == [
        ("submitted", 0, True),
        ("discarded", None, True),
        ("skipped", None, True),
    ]
    expect(ann.claim).to_contain_text("Nothing to judge")
    ann.press("u")
    assert len(ann.ids()) == 2, "the last of a queue can be taken back too"


def test_rewards_are_seen_on_demand_alone_and_the_store_knows_it(
    scene: Scene, person: Callable[[str, str], Person]
) -> None:
    scene.make_ready(1, rewards=(0.125, 0.625))
    ask_rows(scene)
    ann = person("ann", ROWS)
    assert ann.claim.locator(".turn.assistant pre").inner_text() == "0.125"
    assert ann.visit.page.get_by_role("region", name="rewards").count() == 0
    ann.press("g")
    ann.press("r")
    assert ann.visit.rows("rewards") == [["score", "0.625", "1", "score"]]
    ann.press("b")
    ann.press("u")
    assert ann.visit.page.get_by_role("region", name="rewards").count() == 0
    ann.press("g")
    assert scene.rows(SAID, "ann") == [("submitted", 1, True), ("submitted", 1, False)]
    assert scene.values("SELECT reward FROM trinity.experience ORDER BY id") == [1.125, 1.625]


def test_grades_are_keys_and_help_explains_all_of_them(
    scene: Scene, person: Callable[[str, str], Person]
) -> None:
    scene.make_ready(1)
    ask_rows(scene, lowest=1, highest=5)
    ann = person("ann", ROWS)
    grades = [f"{grade} grade {grade}" for grade in range(1, 6)]
    moves = ["s skip", "d discard", "u undo", "r rewards", "? help"]
    expect(ann.keys.locator("button")).to_have_text([*grades, *moves])
    ann.visit.page.keyboard.press("6")
    ann.visit.page.keyboard.press("?")
    expect(ann.keys.locator("dl")).to_contain_text("Leave it to others")
    ann.visit.page.keyboard.press("?")
    expect(ann.keys.locator("dl")).to_have_count(0)
    assert ann.press("4") == "grade 4: stored."
    ann.keys.get_by_role("button", name="2 grade 2").click()
    expect(ann.claim).to_contain_text("Nothing to judge")
    assert [row[1] for row in scene.rows(SAID, "ann")] == [4, 2]


def test_a_key_that_is_pressed_twice_or_held_judges_nothing_unseen(
    scene: Scene, person: Callable[[str, str], Person]
) -> None:
    scene.make_ready(2, rewards=(0.5, 0.25))
    ann = person("ann", PAIRS)
    first = ann.ids()
    ann.ready()
    script = """key => {
        const press = () => { for (const repeat of [false, false, true])
            document.dispatchEvent(new KeyboardEvent("keydown", {key, repeat, bubbles: true})); };
        const keys = document.querySelector(".keys");
        new MutationObserver(() => setTimeout(press, 100)).observe(keys, {attributeFilter: ["data-turn"]});
        press(); }"""
    turn = ann.keys.get_attribute("data-turn") or ""
    ann.visit.page.evaluate(script, "a")  # and again soon after the next pair is there
    expect(ann.keys).not_to_have_attribute("data-turn", turn)
    ann.ready()
    assert ann.ids() != first
    assert len(scene.rows(SAID, "ann")) == 1
    # A key that comes late, for a pair that is not shown any more.
    ann.visit.page.evaluate(
        "() => getElement(Number(document.querySelector('.keys').id.slice(1))).$emit('take', 'b', 1)"
    )
    assert ann.press("t") == "tie: stored."
    assert [row[1] for row in scene.rows(SAID, "ann")][1:] == [0]


def test_enter_that_is_held_on_a_button_judges_one_row(
    scene: Scene, person: Callable[[str, str], Person]
) -> None:
    scene.make_ready(3)
    ask_rows(scene)
    ann = person("ann", ROWS)
    ann.ready()
    ann.keys.get_by_role("button", name="g good").focus()
    turn = ann.keys.get_attribute("data-turn") or ""
    ann.visit.page.keyboard.down("Enter")
    expect(ann.keys).not_to_have_attribute("data-turn", turn)
    ann.ready()
    ann.visit.page.keyboard.down("Enter")  # Chromium is told that it is a repeat
    ann.visit.page.keyboard.up("Enter")
    assert ann.press("b") == "bad: stored."
    assert [row[1] for row in scene.rows(SAID, "ann")] == [1, 0]


def test_a_verdict_is_never_on_a_row_that_could_not_be_shown(
    scene: Scene, person: Callable[[str, str], Person]
) -> None:
    """The database takes a verdict, and fails before the page shows what comes next."""
    scene.make_ready(2)
    ask_rows(scene)
    ann = person("ann", ROWS)
    first = ann.ids()
    wait_for(lambda: scene.value(HELD, "ann") == 2, ann)
    with scene.database.transaction() as tx:
        tx.execute(
            """CREATE FUNCTION trinity.break_down() RETURNS trigger LANGUAGE plpgsql
               AS $$ BEGIN RAISE 'broken down' USING ERRCODE = '40001'; END $$"""
        )
        tx.execute(
            """CREATE TRIGGER break_down BEFORE UPDATE ON trinity.label FOR EACH ROW
               WHEN (new.state = 'draft') EXECUTE FUNCTION trinity.break_down()"""
        )
    turn = ann.keys.get_attribute("data-turn") or ""
    ann.visit.page.keyboard.press("g")
    expect(ann.visit.page.get_by_text("broken down")).to_be_visible()
    expect(ann.visit.page.get_by_text("good: stored.")).to_be_visible()
    expect(ann.keys).not_to_have_attribute("data-turn", turn)
    expect(ann.keys.locator("button")).to_have_text(["? help"])
    assert ann.claim.locator("h2").first.inner_text() == f"Experience {first[0]}"
    with scene.database.transaction() as tx:
        tx.execute("DROP FUNCTION trinity.break_down CASCADE")
    expect(ann.visit.page.get_by_text("broken down")).to_be_hidden()
    expect(ann.claim.locator("h2").first).not_to_have_text(f"Experience {first[0]}")
    ann.press("b")
    assert [row[1] for row in scene.rows(SAID, "ann")] == [1, 0]


def test_a_verdict_waits_while_another_session_locks_the_store(
    scene: Scene, browser: Browser, tmp_path: Path
) -> None:
    """Each of its statements ends in time: no thread hangs, and Ctrl-C is heard."""
    scene.make_ready(2)
    ask_rows(scene)
    url = scene.database.url
    environment = {"TRINITY_DB_URL": by_login(url, LABELLER), "TRINITY_DB_READ_URL": by_login(url)}
    with served(home_of(tmp_path) | environment, "--by", "ann", program=("-c", HASTY)) as page:
        ann = Person(Visit.begin(browser, page))
        ann.open(ROWS)
        wait_for(lambda: scene.value(HELD, "ann") == 2, ann)
        with closing(connect(url)) as other, other.transaction():
            other.execute("LOCK TABLE trinity.label IN SHARE MODE")  # as a backup or a new index does
            ann.visit.page.keyboard.press("g")
            notice = ann.visit.page.get_by_text(
                "kept here and stored when the database answers: keep this page open"
            )
            expect(notice).to_be_visible()
            assert "statement timeout" in notice.inner_text()
        expect(ann.visit.page.get_by_text("Your verdict: stored.")).to_be_visible()
        assert scene.rows(SAID, "ann") == [("submitted", 1, True)]
        wait_for(lambda: scene.value(HELD, "ann") == 2, ann)
        with closing(connect(url)) as other, other.transaction():
            other.execute("LOCK TABLE trinity.label IN SHARE MODE")
            assert page.stop()[0] == 0
        ann.visit.page.context.close()


def test_who_saw_rewards_is_not_blind_after_the_page_is_loaded_again(
    scene: Scene, person: Callable[[str, str], Person]
) -> None:
    scene.make_ready(1)
    ask_rows(scene)
    ann = person("ann", ROWS)
    first = ann.ids()
    for _ in range(2):
        ann.press("r")
    assert ann.visit.page.get_by_role("region", name="rewards").count() == 1
    wait_for(lambda: scene.value(HELD, "ann") == 2, ann)
    ann.visit.open("/experiences")
    wait_for(lambda: scene.value(HELD, "ann") == 0, ann)
    ann.open(ROWS)
    assert ann.ids() == first
    ann.press("g")
    assert scene.rows(SAID, "ann") == [("submitted", 1, False)]


def test_two_people_judge_alike_rows_and_see_where_they_differ(
    scene: Scene, person: Callable[[str, str], Person]
) -> None:
    scene.make_ready(2, rewards=(0.5, 0.25))
    ask_pairs(scene, verdicts=2)
    ann, bob = person("ann", PAIRS), person("bob", PAIRS)
    assert ann.ids() == bob.ids(), "each pair wants two people"
    prefer = {"ann": "0.5", "bob": "0.25"}
    first = ann.ids()
    ann.press("a" if ann.texts()[0] == prefer["ann"] else "b")
    expect(bob.visit.page.get_by_role("region", name="verdicts by person")).to_contain_text("ann")
    assert bob.visit.page.get_by_role("region", name="judged differently").count() == 0
    bob.press("a" if bob.texts()[0] == prefer["bob"] else "b")
    bob.visit.open(PAIRS)
    bob.visit.page.get_by_role("region", name="judged differently").wait_for()
    bob.press("t")
    ann.press("t")
    bob.visit.open(PAIRS)
    table = bob.visit.page.get_by_role("region", name="judged differently")
    table.wait_for()
    [row] = bob.visit.rows("judged differently")
    better = scene.value("SELECT value FROM trinity.label WHERE author = 'ann' ORDER BY id LIMIT 1")
    words = {1: "first is better", -1: "second is better"}
    assert row == [*map(str, first), "human", f"ann: {words[better]}\nbob: {words[-better]}"]
    agreement = bob.visit.page.get_by_role("region", name="agreement")
    expect(agreement.locator("tbody tr")).to_have_count(1)
    alpha = scene.value("SELECT alpha_nominal FROM trinity.verdict_agreement_view")
    assert bob.visit.rows("agreement")[0][2:6] == ["2", "4", "2", f"{alpha:.3f}"]
    table.get_by_role("link").first.click()
    bob.visit.page.wait_for_url(f"**/experience/{first[0]}")
    expect(ann.visit.page.locator(".facts")).to_contain_text("2 on pairs")
    names = {row[0]: row[3] for row in ann.visit.rows("verdicts by person")}
    assert names["ann"] == "2"


def test_two_windows_of_a_person_never_show_the_same_row(
    scene: Scene, person: Callable[[str, str], Person], browser: Browser
) -> None:
    scene.make_ready(3)
    ask_rows(scene)
    ann = person("ann", ROWS)
    other = Person(Visit.begin(browser, ann.visit.served))
    other.open(ROWS)
    assert ann.ids() != other.ids()
    other.visit.page.context.close()


def test_claims_are_given_back_when_the_person_leaves(
    scene: Scene, person: Callable[[str, str], Person]
) -> None:
    scene.make_ready(3)
    ask_rows(scene)
    ann = person("ann", ROWS)
    first = ann.ids()
    ann.press("r")
    wait_for(lambda: scene.value(HELD, "ann") == 2, ann)  # this one and the next
    ann.visit.open("/experiences")
    wait_for(lambda: scene.value(HELD, "ann") == 0, ann)
    ann.open(ROWS)
    assert ann.ids() == first
    assert ann.visit.served.stop() == (0, "")
    assert scene.value(HELD, "ann") == 0, "Ctrl-C gives them back too"


def wait_for(is_so: Callable[[], bool], person: Person) -> None:
    """Until something is so; the browser goes on meanwhile."""
    for _ in range(int(WAIT_SECONDS * 10)):
        if is_so():
            return
        person.visit.page.wait_for_timeout(100)
    raise AssertionError("it did not come about")


def test_a_row_that_another_person_has_by_now_is_told_and_the_next_one_comes(
    scene: Scene, person: Callable[[str, str], Person]
) -> None:
    scene.make_ready(1)
    ask_rows(scene)
    ann = person("ann", ROWS)
    wait_for(lambda: scene.value(HELD, "ann") == 2, ann)
    with scene.database.transaction() as tx:  # as after a night of the machine
        tx.execute("UPDATE trinity.label SET leased_until = now() - interval '1 s'")
        claim = verdicts.claim(tx, scene.run.id, "bob", pairs=False)
        assert claim is not None
        verdicts.submit(tx, claim, "bob", 1)
    assert [claim.experience_ids[0]] == ann.ids()
    assert ann.press("b").startswith("It was not stored. Another person judges this now")
    assert [claim.experience_ids[0]] != ann.ids()
    assert ann.press("g") == "good: stored."
    assert scene.rows(SAID, "ann") == [("submitted", 1, True)]
    assert scene.rows(SAID, "bob") == [("submitted", 1, None)]


def test_a_run_that_is_deleted_meanwhile_is_told(scene: Scene, person: Callable[[str, str], Person]) -> None:
    scene.make_ready(1)
    ask_rows(scene)
    ann = person("ann", ROWS)
    ann.ready()
    with scene.database.transaction() as tx:
        tx.execute("DELETE FROM trinity.run WHERE id = %s", [scene.run.id])
    ann.visit.page.keyboard.press("g")
    expect(ann.visit.page.locator(".notice").filter(visible=True).first).to_contain_text("deleted")
    notice = ann.visit.page.get_by_text("There is no run or data set 'run'")
    expect(notice).to_be_visible()
    expect(ann.keys).to_be_hidden()


def test_without_a_name_the_page_shows_the_queues_and_takes_no_verdict(
    scene: Scene, browser: Browser, tmp_path: Path
) -> None:
    scene.make_ready(1)
    ask_rows(scene, verdicts=2)
    say(scene, "ann", 1)
    with served(home_of(tmp_path) | {"TRINITY_DB_URL": by_login(scene.database.url)}) as page:
        visit = Visit.begin(browser, page)
        visit.open("/verdicts")
        assert visit.page.get_by_text("trinity-db page --by YOUR_NAME").is_visible()
        assert visit.rows("queues") == [[NAME, "2", "0", "0"]]
        visit.page.get_by_role("link", name=NAME, exact=True).click()
        visit.page.wait_for_url(f"**/verdicts/{NAME}")
        visit.page.get_by_role("region", name="verdicts by person").wait_for()
        assert visit.page.get_by_text("trinity-db page --by YOUR_NAME").is_visible()
        assert visit.facts() == {"wait": "2 rows"}
        [row] = visit.rows("verdicts by person")
        assert row[:6] == ["ann", "human", "rows", "1", "0", "0"]
        visit.page.keyboard.press("g")
        assert visit.page.locator(".keys, .claim").count() == 0
        assert scene.value("SELECT count(*) FROM trinity.label") == 1
        visit.open(f"/verdicts/{NAME}?queue=all")
        assert visit.page.get_by_role("alert").inner_text() == "A queue is rows or pairs."
        visit.page.context.close()
        assert visit.complaints == []


def say(scene: Scene, author: str, value: int) -> None:
    with scene.database.transaction() as tx:
        claim = verdicts.claim(tx, scene.run.id, author, pairs=False)
        assert claim is not None
        verdicts.decide(tx, claim, author, verdicts.PersonVerdict(LabelState.SUBMITTED, value, 2.0, True))


def test_a_hostile_pair_is_text(scene: Scene, person: Callable[[str, str], Person]) -> None:
    scene.make_ready(1, rewards=(0.5, 0.25))
    messages = [{"role": TEXT, "content": TEXT, ":onClick": "window.hacked=1"}]
    with scene.database.transaction() as tx:
        tx.execute(
            """UPDATE trinity.experience_text
               SET prompt = %(text)s, messages = %(messages)s, response = %(text)s || experience_id""",
            {"text": TEXT, "messages": json.dumps(messages)},
        )
        tx.execute(
            """INSERT INTO trinity.reward_event (run_id, rollout_id, source, name, value, created_by)
               SELECT run_id, rollout_id, %(text)s, %(text)s, 1, %(text)s FROM trinity.experience""",
            {"text": TEXT},
        )
    ann = person(ATTACKS[0], PAIRS)
    ids = ann.ids()
    shown = ann.claim.locator(".beside pre").all_text_contents()
    assert sorted(shown) == sorted(f"{TEXT}{id}" for id in ids)
    ann.press("r")
    ann.press("a")
    expect(ann.visit.page.get_by_role("region", name="verdicts by person")).to_contain_text(ATTACKS[0])
    page = ann.visit.page
    assert page.evaluate("window.hacked") is None
    assert page.locator(".page :is(script, img, style, iframe, object, form)").count() == 0
    assert (ann.visit.complaints, ann.visit.elsewhere()) == ([], [])


@pytest.mark.parametrize("width", [360, 390, 1440, 2560])
def test_two_responses_stand_side_by_side_where_there_is_room(
    scene: Scene, browser: Browser, person: Callable[[str, str], Person], width: int
) -> None:
    scene.make_ready(1, rewards=(0.5, 0.25))
    ann = person("ann", PAIRS)
    ann.visit.page.set_viewport_size({"width": width, "height": 900})
    ann.ready()
    boxes = [one.bounding_box() for one in ann.claim.locator(".beside section").all()]
    first, second = (box for box in boxes if box is not None)
    assert (first["y"] == second["y"]) == (width > 1000)
    assert ann.visit.page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    ann.visit.open("/verdicts")
    assert ann.visit.page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0


def test_the_next_one_is_seen_from_its_beginning(scene: Scene, person: Callable[[str, str], Person]) -> None:
    scene.make_ready(2)
    with scene.database.transaction() as tx:
        tx.execute("UPDATE trinity.experience_text SET response = repeat('a long line\n', 300)")
    ask_rows(scene)
    ann = person("ann", ROWS)
    ann.press("r")
    ann.visit.page.keyboard.press("End")
    ann.visit.page.wait_for_function("scrollY > 2000")
    assert ann.keys.get_by_role("button", name="g good").is_visible()
    ann.press("g")
    ann.visit.page.wait_for_function("scrollY < 500")
    expect(ann.claim.locator("h2").first).to_be_in_viewport()
