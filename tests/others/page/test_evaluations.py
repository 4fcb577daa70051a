"""Evaluations say what the rows say, and lead to them."""

from collections import defaultdict
from statistics import mean

import pytest
from playwright.sync_api import expect

from tests.others.page.browser import Visit
from tests.others.page.solving import attempts, fill
from tests.support.rows import Scene
from trinity_db.store import evaluations


@pytest.fixture(scope="module", autouse=True)
def store(scene: Scene) -> None:
    fill(scene)


def judged(scene: Scene, version: int) -> dict[int, list[float]]:
    """The rewards of the attempts that an evaluation judged, by task."""
    found: dict[int, list[float]] = defaultdict(list)
    for one in attempts(scene, evaluated=True):
        if one.version == version:
            found[one.task_id].append(one.reward)
    return found


def in_brackets(text: str) -> list[float]:
    """A figure with the limits of its interval."""
    return [float(part.strip("[],")) for part in text.split()]


def evaluations_read(visit: Visit) -> list[list[str]]:
    """The rows of evaluations, once each of them was read."""
    table = visit.page.get_by_role("region", name="evaluations", exact=True)
    expect(table).not_to_contain_text("being read")
    return visit.rows("evaluations")


def test_evaluations_have_the_figures_of_the_rows(scene: Scene, visit: Visit) -> None:
    visit.open("/evaluation?run=run")
    rows = evaluations_read(visit)
    assert [row[1:4] for row in rows] == [["tasks", "1", "2 at 0.5"], ["tasks", "0", "2 at 0.5"]]
    for row in rows:
        tasks = judged(scene, int(row[2]))
        assert len(tasks) == 6
        whole = [rewards for rewards in tasks.values() if len(rewards) == 2]
        figures = [in_brackets(text) for text in row[4:8]]
        for (figure, low, high), expected in zip(
            figures,
            [
                mean(mean(rewards) for rewards in tasks.values()),
                mean(max(rewards) for rewards in whole),
                mean(mean(reward >= 1 for reward in rewards) for rewards in tasks.values()),
                mean(any(reward >= 1 for reward in rewards) for rewards in whole),
            ],
            strict=True,
        ):
            assert figure == pytest.approx(expected, abs=6e-4)
            assert low < figure <= high
        assert row[8:] == ["8", "1", "4 attempts wait"]


def test_two_versions_differ_by_the_mean_of_the_differences_of_tasks(scene: Scene, visit: Visit) -> None:
    visit.open("/evaluation?run=run&a=0&b=1")
    table = visit.page.get_by_role("region", name="differences")
    expect(table).not_to_contain_text("being read")
    [row] = visit.rows("differences")
    before, after = judged(scene, 0), judged(scene, 1)
    both = before.keys() & after.keys()
    assert row[:3] == ["tasks", "2", str(len(both))]
    figure, low, high = in_brackets(row[3])
    assert figure == pytest.approx(mean(mean(after[id]) - mean(before[id]) for id in both), abs=6e-4)
    assert low < figure < high
    solved = [mean(r >= 1 for r in after[id]) - mean(r >= 1 for r in before[id]) for id in both]
    assert in_brackets(row[4])[0] == pytest.approx(mean(solved), abs=6e-4)
    visit.open("/evaluation?run=run&a=0&b=5")
    assert visit.page.get_by_text("These two versions have no comparable evaluation").is_visible()


def test_curves_of_evaluations_are_what_was_measured(scene: Scene, visit: Visit) -> None:
    with scene.database.transaction() as tx:
        found = evaluations.read(tx, scene.values("SELECT id FROM trinity.evaluation"))
    for one in found:
        scene.record(one["step"], evaluations.metrics(one))
    visit.open("/evaluation?run=run")
    visit.page.locator(".chart svg path").first.wait_for(state="attached")
    titles = [title.split(" ")[0] for title in visit.page.locator(".charts h3").all_inner_texts()]
    assert titles == ["Solved:", "Reward:"]


def test_a_figure_leads_to_its_tasks_and_these_to_their_rows(scene: Scene, visit: Visit) -> None:
    visit.open("/evaluation?run=run")
    evaluations_read(visit)
    visit.page.get_by_role("region", name="evaluations", exact=True).locator("tbody tr").first.locator(
        "td a"
    ).first.click()
    visit.page.get_by_role("heading", name="Tasks").wait_for()
    tasks = judged(scene, 1)
    found = {
        (row[0], row[2], row[3], row[5])
        for row in visit.rows("tasks")
        if row[2] != "0"  # the others wait
    }
    prompts = dict(scene.rows("SELECT id, payload ->> 'prompt' FROM trinity.task"))
    assert found == {
        (prompts[id], str(len(rewards)), str(sum(r >= 1 for r in rewards)), f"{mean(rewards):.3f}")
        for id, rewards in tasks.items()
    }
    visit.page.get_by_label("solved").select_option("never")
    visit.page.get_by_role("button", name="Show").click()
    visit.page.wait_for_url("**solved=never")
    visit.page.get_by_role("region", name="tasks").wait_for()
    never = {prompts[id] for id, rewards in tasks.items() if all(r < 1 for r in rewards)}
    assert {row[0] for row in visit.rows("tasks")} == never
    visit.page.get_by_role("region", name="tasks").get_by_role("link").nth(1).click()
    visit.page.wait_for_url("**/group/*")
