"""The tasks of a run and one task over versions say what the rows say."""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from statistics import mean
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Browser, expect

from tests.others.page.browser import Served, Visit, home_of, served
from tests.others.page.solving import VERSIONS, attempts, fill
from tests.support.postgres import by_login, new_database
from tests.support.rows import Scene, attempt, claim_rows, finish_rows, import_records, trajectory
from trinity_db.page.questions import ROWS
from trinity_db.postgres.connection import Database
from trinity_db.schema.states import Outcome
from trinity_db.store import processing


@pytest.fixture(scope="module", autouse=True)
def store(scene: Scene) -> None:
    fill(scene)


def rates(scene: Scene) -> dict[str, tuple[int, int]]:
    """How many attempts at each task solved it, and how many were judged, by the prompt."""
    counted: dict[str, list[bool]] = defaultdict(list)
    for one in attempts(scene):
        counted[one.prompt].append(one.reward >= 1)
    return {prompt: (sum(solved), len(solved)) for prompt, solved in counted.items()}


def test_a_run_has_its_tasks_with_what_the_rows_say(scene: Scene, visit: Visit) -> None:
    visit.open("/tasks?run=run")
    shown = {row[0]: row for row in visit.rows("tasks")}
    expected = rates(scene)
    assert set(shown) == set(expected)
    assert len(expected) == 8
    for prompt, (solved, judged) in expected.items():
        earned_there = [one.reward for one in attempts(scene) if one.prompt == prompt]
        row = shown[prompt]
        assert row[1:5] == ["tasks", f"{solved / judged:.1%}", f"{solved} of {judged}", "2"]
        assert row[5] == f"{mean(earned_there):.3f}"
        # A uniform prior, then the attempts: the mean of the chance to fail, in quarters.
        fails = (judged - solved + 1) / (judged + 2)
        assert row[6] == f"{min(int(4 * fails), 3) + 1} of 4"
        assert row[7] == "1"


@pytest.mark.parametrize("solved", ["never", "sometimes", "always"])
def test_tasks_are_filtered_by_how_often_they_are_solved(scene: Scene, visit: Visit, solved: str) -> None:
    visit.open(f"/tasks?run=run&solved={solved}")
    expected = {
        prompt
        for prompt, (right, judged) in rates(scene).items()
        if {"never": right == 0, "always": right == judged, "sometimes": 0 < right < judged}[solved]
    }
    assert {row[0] for row in visit.rows("tasks")} == expected
    assert expected


def test_the_form_of_tasks_makes_the_link(scene: Scene, visit: Visit) -> None:
    visit.open("/tasks")
    assert visit.page.get_by_text("Choose a run above").is_visible()
    visit.page.get_by_label("run", exact=True).select_option("run")
    visit.page.get_by_role("button", name="Show").click()
    visit.page.wait_for_url("**run=run**")
    visit.page.get_by_role("region", name="tasks").wait_for()
    visit.page.get_by_label("order").select_option("lowest pass rate first")
    visit.page.get_by_label("text of the prompt").fill("TASK")
    visit.page.get_by_label("text of the prompt").press("Enter")
    visit.page.wait_for_url("**sort=lowest**")
    given = parse_qs(urlsplit(visit.page.url).query)
    assert given == {"run": ["run"], "sort": ["lowest"], "text": ["TASK"]}
    assert visit.page.get_by_text("8 tasks that meet the other filters were searched").is_visible()
    shares = [float(row[2].rstrip("%")) for row in visit.rows("tasks")]
    assert shares == sorted(shares)
    assert len(shares) == 8


@pytest.mark.parametrize("query", ["text=none", "taskset=none", "text=%25", "solved=never&text=task 1"])
def test_filters_that_no_task_meets_say_so(visit: Visit, query: str) -> None:
    visit.open(f"/tasks?run=run&{query}")
    assert visit.page.get_by_text("No task of this run meets these filters").is_visible()


@pytest.mark.parametrize(
    "path",
    [
        "/tasks?run=none", "/tasks?run=run&solved=often", "/tasks?run=run&sort=x", "/tasks?run=run&rank=1",
        "/tasks?run=run&rank=nan&below=1", "/tasks?run=run&rank=1&below=x", "/task/x", "/task/1",
        "/task/999999?run=run", "/task/1?run=none", "/task/1?run=run&a=x", "/task/1?run=run&b=-1",
        "/evaluation?run=none", "/evaluation?run=run&a=x", "/evaluation?run=run&before=x", "/evaluation/x",
        "/evaluation/999999", "/evaluation/1?solved=x", "/evaluation/1?after=x",
    ],
)  # fmt: skip
def test_a_wrong_value_in_a_link_is_told(visit: Visit, path: str) -> None:
    visit.open(path)
    assert visit.page.get_by_role("alert").filter(visible=True).inner_text()


def task_of(scene: Scene, number: int) -> int:
    found: int = scene.value(
        "SELECT id FROM trinity.task WHERE payload ->> 'answer' = %s ORDER BY id LIMIT 1", str(number)
    )
    return found


def test_a_task_has_each_version_with_what_the_rows_say(scene: Scene, visit: Visit) -> None:
    id = task_of(scene, 2)
    visit.open(f"/task/{id}?run=run")
    expected = []
    for version in reversed(VERSIONS):
        for evaluated, name in ((False, "training"), (True, "evaluation")):
            of = [
                one.reward
                for one in attempts(scene, evaluated=evaluated)
                if (one.task_id, one.version) == (id, version)
            ]
            solved = sum(reward >= 1 for reward in of)
            expected.append(
                [str(version), name, "2", str(len(of)), str(solved), f"{solved / len(of):.1%}",
                 f"{mean(of):.3f}", "show"]
            )  # fmt: skip
    assert visit.rows("by policy version") == expected
    assert expected[0][5] != expected[2][5]
    assert visit.facts()["pass rate in training"] == "75.0%, 3 of 4 attempts"
    assert visit.page.locator(".page pre").first.inner_text().startswith("task 2\n")
    assert '"answer": "2"' in visit.page.locator(".page pre").first.inner_text()
    titles = visit.page.locator(".charts h3").all_inner_texts()
    assert [title.split("\n")[0].split(" ")[0] for title in titles] == ["Pass", "Mean"]
    assert visit.page.locator(".chart svg").count() == 2


def test_attempts_of_several_steps_count_as_the_counts_of_the_task_do(scene: Scene, visit: Visit) -> None:
    """Each earns what its steps earn; one that lost a step is not judged, one that is left out is."""
    steps = scene.beside("steps", {"processors": {"group": {"solved_reward": 3.0}}})
    [group] = steps.claim(1, group_size=4)
    steps.write(
        [
            attempt(group, member, said)
            for member, said in enumerate((["1", "2"], ["1", "1"], ["4"], ["1", "9"]))
        ]
    )
    *others, lost = claim_rows(steps)
    finish_rows(steps, [processing.StepVerdict(lost, 1, Outcome.DROPPED, "long")])
    finish_rows(steps, [processing.StepVerdict(id, 1) for id in others])
    steps.judge(processing.SCORE)
    assert steps.settle(solved_reward=3.0, keep="positives") == 1
    [(id, counted, solved)] = steps.rows(
        "SELECT task_id, scored, solved FROM trinity.task_stat WHERE run_id = %s", steps.run.id
    )
    assert (counted, solved) == (3, 2)
    visit.open(f"/task/{id}?run=steps")
    assert visit.rows("by policy version") == [
        ["0", "training", "4", "3", "2", "66.7%", f"{mean((3, 2, 4)):.3f}", "show"]
    ]
    assert visit.facts()["pass rate in training"] == "66.7%, 2 of 3 attempts"


def test_two_versions_stand_side_by_side_on_one_task(scene: Scene, visit: Visit) -> None:
    id = task_of(scene, 2)
    visit.open(f"/task/{id}?run=run")
    sides = visit.page.locator(".halves > section")
    assert [side.locator("h3").first.inner_text() for side in sides.all()] == ["Version 0", "Version 1"]
    for version, side in zip(VERSIONS, sides.all(), strict=True):
        rows = scene.rows(
            """SELECT e.id, e.group_id, e.reward FROM trinity.experience e
               JOIN trinity.rollout_group g ON g.id = e.group_id
               WHERE g.run_id = %s AND g.task_id = %s AND e.version_min = %s
               ORDER BY e.group_id DESC, e.id""",
            scene.run.id,
            id,
            version,
        )
        cards = side.locator("section").all()
        assert len(cards) == len(rows) == 4
        for card, (experience, group, reward) in zip(cards, rows, strict=True):
            assert f"reward {reward:.3f}" in card.inner_text()
            links = [link.get_attribute("href") for link in card.locator("a").all()]
            assert links == [f"/experience/{experience}", f"/group/{group}"]


def test_the_versions_that_stand_side_by_side_are_chosen(scene: Scene, visit: Visit) -> None:
    visit.open(f"/task/{task_of(scene, 2)}?run=run")
    visit.page.get_by_label("version A").fill("1")
    visit.page.get_by_label("version B").fill("7")
    visit.page.get_by_role("button", name="Compare").press("Enter")
    visit.page.wait_for_url("**b=7**")
    heads = visit.page.locator(".halves > section > h3")
    expect(heads).to_have_text(["Version 1", "Version 7"])
    assert visit.page.get_by_text("This version has not attempted this task").is_visible()


def test_a_group_and_an_experience_lead_to_their_task(scene: Scene, visit: Visit) -> None:
    group, id, task_id = scene.rows(
        """SELECT g.id, e.id, g.task_id
           FROM trinity.rollout_group g JOIN trinity.experience e ON e.group_id = g.id
           WHERE g.run_id = %s ORDER BY e.id LIMIT 1""",
        scene.run.id,
    )[0]
    for path in (f"/group/{group}", f"/experience/{id}"):
        visit.open(path)
        visit.page.get_by_role("link", name="then and now").click()
        visit.page.wait_for_url(f"**/task/{task_id}?run=run")
        visit.page.get_by_role("heading", name="By policy version", exact=True).wait_for()


def test_a_run_leads_to_its_tasks_and_its_evaluation(scene: Scene, visit: Visit) -> None:
    for link, caption in (("Its tasks", "tasks"), ("Its evaluation", "evaluations")):
        visit.open("/run/run")
        visit.page.get_by_role("link", name=link).click()
        visit.page.get_by_role("region", name=caption).wait_for()


def test_a_data_set_has_no_links_to_tasks_and_evaluation(scene: Scene, visit: Visit) -> None:
    import_records(scene.database, "answers", [trajectory(1, "said", 1.0)])
    visit.open("/run/answers")
    assert visit.page.get_by_role("link", name="Its experiences").is_visible()
    assert visit.page.get_by_role("link", name="Its tasks").is_hidden()


def test_a_run_without_any_says_what_to_do(scene: Scene, visit: Visit) -> None:
    scene.beside("idle")
    visit.open("/tasks?run=idle")
    assert visit.page.get_by_text("This run has not attempted a task yet").is_visible()
    visit.open("/evaluation?run=idle")
    assert visit.page.get_by_text("Set evaluation: {taskset: NAME, every: 10}").is_visible()
    visit.open("/evaluation")
    assert visit.page.get_by_text("Choose a run above").is_visible()
    visit.open(f"/task/{task_of(scene, 0)}?run=idle")
    assert visit.page.get_by_text("No policy version of this run has attempted this task yet").is_visible()


@pytest.mark.parametrize("width", [360, 2560])
def test_no_page_of_tasks_is_wider_than_its_window(
    scene: Scene, browser: Browser, page: Served, width: int
) -> None:
    visit = Visit.begin(browser, page, width)
    evaluation = scene.value("SELECT min(id) FROM trinity.evaluation")
    paths = ("/tasks?run=run", f"/task/{task_of(scene, 2)}?run=run", "/evaluation?run=run")
    for path in (*paths, f"/evaluation/{evaluation}"):
        visit.open(path)
        if path == "/evaluation?run=run":
            expect(visit.page.locator(".page")).not_to_contain_text("being read")
        assert visit.page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, path
    visit.page.context.close()
    assert visit.complaints == []


@pytest.mark.parametrize("sort", ["", "&sort=lowest", "&sort=attempts", "&text=task"])
def test_pages_of_many_tasks_follow_one_another_without_a_gap(
    many: tuple[Scene, Served], browser: Browser, sort: str
) -> None:
    scene, page = many
    visit = Visit.begin(browser, page)
    visit.open(f"/tasks?run=run{sort}")
    seen = [row[0] for row in visit.rows("tasks")]
    assert len(seen) == ROWS
    visit.page.get_by_role("link", name="More").click()
    visit.page.wait_for_url("**below=**")
    visit.page.get_by_role("link", name="From the start").wait_for()
    seen += [row[0] for row in visit.rows("tasks")]
    assert visit.page.get_by_role("link", name="More").count() == 0
    assert sorted(seen) == sorted(scene.values("SELECT payload ->> 'prompt' FROM trinity.task"))
    visit.page.context.close()


@pytest.fixture(scope="module")
def many(
    server: str, template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Scene, Served]]:
    """A run that asked more tasks than a page has, each of them once."""
    home = home_of(tmp_path_factory.mktemp("home"))
    with (
        new_database(server, template) as url,
        closing(Database(url)) as database,
        served(home | {"TRINITY_DB_URL": by_login(url)}) as page,
    ):
        scene = Scene.open(database, num_tasks=ROWS + 10)
        scene.make_ready(ROWS + 10)
        yield scene, page
