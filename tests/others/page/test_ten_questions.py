"""What newcomers ask, and the clicks that answer it from the first page; a form with its button is one."""

from dataclasses import dataclass

import pytest
from playwright.sync_api import Locator, expect

from tests.others.page.browser import Visit
from tests.others.page.solving import attempts, fill
from tests.support.rows import Scene
from trinity_db.insight.checks import learning
from trinity_db.store import reviews, verdicts
from trinity_db.store.reviews import Question

MAX_CLICKS = 3


@pytest.fixture(scope="module", autouse=True)
def store(scene: Scene) -> None:
    """Two versions with evaluations, dropped groups, a run with equal rewards, and people who disagree."""
    fill(scene)
    other = Scene.open(scene.database, "other", seed=1, algorithm="grpo")
    other.make_ready(learning.FEWEST, rewards=(0.0, 0.0))  # 1 would be a run that solves its tasks
    ids = scene.values("SELECT id FROM trinity.experience WHERE state = 'trained' ORDER BY id LIMIT 2")
    with scene.database.transaction() as tx:
        reviews.ask_rows(tx, scene.run.id, ids, Question(verdicts=2, lowest=1, highest=5))
    for author, value in (("ann", 5), ("bob", 1)):
        with scene.database.transaction() as tx:
            claim = verdicts.claim(tx, scene.run.id, author, pairs=False)
            assert claim is not None
            verdicts.submit(tx, claim, author, value)


@dataclass
class Walk:
    """A person who begins at the first page, and counts clicks."""

    visit: Visit
    clicks: int = 0

    def click(self, target: Locator) -> None:
        self.clicks += 1
        assert self.clicks <= MAX_CLICKS
        target.click()

    def follow(self, name: str, region: str | None = None) -> None:
        """The first link of a name, on the page or in one of its tables; wait for the page it leads to."""
        page = self.visit.page
        within = page if region is None else page.get_by_role("region", name=region, exact=True)
        before = page.url
        self.click(within.get_by_role("link", name=name, exact=True).first)
        page.wait_for_url(lambda url: url != before)
        page.wait_for_selector("h1")

    def fill_in(self, **choices: str) -> None:
        """Fill in the filters of a page, by the names that stand in the link, and press its button."""
        page = self.visit.page
        for name, value in choices.items():
            at = page.locator(f"form.filters [name={name}]")
            at.select_option(value) if at.evaluate("e => e.tagName") == "SELECT" else at.fill(value)
        before = page.url
        self.click(page.get_by_role("button", name="Show"))
        page.wait_for_url(lambda url: url != before)
        page.wait_for_selector("h1")

    def sees(self, text: str, region: str | None = None) -> None:
        page = self.visit.page
        expect(
            page.locator("#content") if region is None else page.get_by_role("region", name=region)
        ).to_contain_text(text)


@pytest.fixture
def walk(visit: Visit) -> Walk:
    return Walk(visit)


def test_why_does_this_run_not_learn(walk: Walk, scene: Scene) -> None:
    walk.sees("rewards are equal", "alerts")
    walk.follow("experiences", "alerts")
    [num_rows] = scene.values("SELECT count(*) FROM trinity.experience WHERE reward = 0 AND run_id = 2")
    assert len(walk.visit.rows("experiences")) == num_rows


def test_which_side_waits_for_the_other(walk: Walk) -> None:
    expect(walk.visit.page.get_by_role("columnheader", name="waits for")).to_be_visible()


def test_what_does_the_policy_say_now(walk: Walk, scene: Scene) -> None:
    walk.follow("run", "runs")
    walk.follow("Its experiences")
    newest = scene.value("SELECT max(id) FROM trinity.experience WHERE run_id = %s", scene.run.id)
    walk.follow(str(newest), "experiences")
    walk.sees("Conversation")


def test_what_did_a_version_say_to_this_task(walk: Walk, scene: Scene) -> None:
    walk.follow("Experiences")
    key = scene.value("SELECT key FROM trinity.task ORDER BY id LIMIT 1")
    walk.fill_in(run="run", task=key, version="0")
    [row, *_] = walk.visit.rows("experiences")
    walk.follow(row[0], "experiences")
    walk.sees("Conversation")


def test_which_tasks_does_it_never_solve(walk: Walk, scene: Scene) -> None:
    walk.follow("run", "runs")
    walk.follow("Its tasks")
    walk.fill_in(solved="never")
    best: dict[str, float] = {}
    for one in attempts(scene):
        best[one.prompt] = max(one.reward, best.get(one.prompt, 0.0))
    never = {prompt for prompt, reward in best.items() if reward < 1}
    assert {row[0] for row in walk.visit.rows("tasks")} == never != set()


def test_which_rows_were_dropped_and_why(walk: Walk) -> None:
    walk.follow("run", "runs")
    reason = walk.visit.rows("drops")[0][0]
    walk.follow(reason, "drops")
    expect(walk.visit.page.get_by_role("region", name="experiences")).to_contain_text("dropped")


def test_is_a_version_better_than_an_earlier_one_on_held_out_tasks(walk: Walk) -> None:
    walk.follow("run", "runs")
    walk.follow("Its evaluation")
    walk.visit.page.get_by_role("region", name="differences").wait_for()


def test_what_differs_between_two_runs(walk: Walk) -> None:
    page = walk.visit.page
    for box in page.get_by_role("region", name="runs").get_by_role("checkbox").all()[:2]:
        walk.click(box)
    walk.click(page.get_by_role("button", name="Compare"))
    page.wait_for_url("**/compare?**")
    walk.sees("seed", "settings that differ")


def test_which_step_used_this_row_and_which_version_includes_it(walk: Walk, scene: Scene) -> None:
    walk.follow("Experiences")
    walk.fill_in(state="trained")
    walk.follow(walk.visit.rows("experiences")[0][0], "experiences")
    assert walk.visit.rows("batches")[0]


def test_which_rows_did_two_people_judge_differently(walk: Walk) -> None:
    walk.follow("Verdicts")
    walk.follow("run", "queues")
    walk.sees("ann: 5", "judged differently")
    walk.sees("bob: 1", "judged differently")
