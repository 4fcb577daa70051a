"""Alerts with what shows them, the flow of rows, the balance of roles, and what happened to a run."""

from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.others.page.browser import Visit
from tests.support.rows import Scene, claim_rows, finish_rows, rollout
from tests.support.waiting import wait_until
from trinity_db.insight.checks import learning
from trinity_db.schema.states import Outcome, WorkerRole
from trinity_db.store import processing, runs, settings


@pytest.fixture(scope="module", autouse=True)
def store(scene: Scene) -> None:
    """A run whose rewards are all 0.25, whose attempts fail, and whose trainer waits; its entropy is gone."""
    with scene.database.transaction() as tx:
        tx.execute("UPDATE trinity.run SET draws = 'groups'")
    scene.make_ready(learning.FEWEST, rewards=(0.25, 0.25))
    for step in (1, 2, 3):
        scene.train(step, size=2)
    groups = scene.claim(learning.FEWEST + 5)
    scene.write(
        [rollout(group, member, error="<b>no</b> such tool") for group in groups for member in (0, 1)]
    )
    for step in range(1, 2 * learning.STEPS + 1):
        values = {"entropy": 1.0 / step**2, "step_time": 10.0, "time/wait_for_batch": 9.0}
        scene.record(step, values)
    scene.record(0, {"explore/time": 10.0, "explore/wait_for_training": 1.0}, WorkerRole.EXPLORE)
    scene.explore(1)
    dropped = claim_rows(scene)
    finish_rows(scene, [processing.StepVerdict(id, 1, Outcome.DROPPED, "too_short", {}) for id in dropped])
    with scene.database.transaction() as tx:
        tx.execute("UPDATE trinity.worker SET stopped_at = now()")
    with scene.database.transaction() as tx:
        run = runs.find(tx, "run")
        settings.change(tx, run, {**run.config, "trainer": {"steps": 8}}, "groups")


def alerts(visit: Visit) -> dict[str, list[str]]:
    return {row[0]: row[1:] for row in visit.rows("alerts")}


def test_a_stopped_run_is_shown_as_stopped_and_is_not_at_work(scene: Scene, visit: Visit) -> None:
    [row] = visit.rows("runs")
    assert row[1:3] == ["stopped", ""]
    assert alerts(visit) == {}
    assert visit.page.get_by_text("No alerts").is_visible()
    visit.open("/run/run")
    assert visit.facts()["state"] == "stopped"
    visit.open("/compare?run=run")
    assert dict(row[:2] for row in visit.rows("last figures"))["state"] == "stopped"


def test_alerts_of_a_run_are_the_doctors(scene: Scene, visit: Visit) -> None:
    visit.open("/run/run")
    with scene.database.transaction() as tx:
        told = [one for check in learning.CHECKS for one in check(tx, scene.run.id) if one.run == "run"]
    assert [one.what for one in told] == ["learn rewards", "learn attempts", "learn entropy", "learn pace"]
    shown = alerts(visit)
    assert {one.what: one.found for one in told} == {what: row[0] for what, row in shown.items()}
    assert "50 of its last 92 attempts failed: <b>no</b> such tool" in shown["learn attempts"][0]


@pytest.mark.parametrize(
    ("what", "path", "query"),
    [
        (
            "learn rewards",
            "/experiences",
            {"run": ["run"], "reward_from": ["0.249999"], "reward_to": ["0.250001"]},
        ),
        ("learn entropy", "/compare", {"run": ["run"], "metric": ["entropy"]}),
        ("learn pace", "/compare", {"run": ["run"], "metric": ["time/wait_for_batch"]}),
    ],
)
def test_an_alert_leads_to_what_shows_it(visit: Visit, what: str, path: str, query: dict[str, Any]) -> None:
    visit.open("/run/run")
    row = visit.page.get_by_role("region", name="alerts").locator("tr").filter(has_text=what)
    row.get_by_role("link").click()
    visit.page.wait_for_url(f"**{path}?*")
    assert parse_qs(urlsplit(visit.page.url).query) == query
    if path == "/experiences":
        visit.page.get_by_role("region", name="experiences").wait_for()
        assert len(visit.rows("experiences")) == 2 * learning.FEWEST
    else:
        visit.page.locator(".chart svg path").first.wait_for(state="attached")


def test_the_alert_of_failed_attempts_leads_to_their_group(visit: Visit) -> None:
    visit.open("/run/run")
    visit.page.get_by_role("region", name="alerts").get_by_role("link", name="group").click()
    visit.page.wait_for_url("**/group/*")
    visit.page.get_by_text("<b>no</b> such tool").first.wait_for()


def test_a_count_of_the_flow_leads_to_its_rows(scene: Scene, visit: Visit) -> None:
    visit.open("/run/run")
    trained = scene.value("SELECT count(*)::text FROM trinity.experience WHERE state = 'trained'")
    step = visit.page.get_by_label("on the way").get_by_role("link", name="trained")
    assert step.inner_text().split() == [trained, "trained"]
    step.focus()
    visit.page.keyboard.press("Enter")
    visit.page.wait_for_url("**/experiences?run=run&state=trained")
    visit.page.get_by_role("region", name="experiences").wait_for()
    assert str(len(visit.rows("experiences"))) == trained


def test_the_balance_says_what_each_role_does_and_waits_for(visit: Visit) -> None:
    visit.open("/run/run")
    explore, process, train = visit.rows("balance")
    assert explore[0] == "explore"
    assert explore[1].endswith(" rollouts/s")
    assert explore[2] == "10% of its time, for training"
    assert process[2] == "0 rows wait for it"
    assert train[1].endswith(" rows/s")
    assert train[2] == "90% of its time, for rollouts"


def test_events_are_told_newest_first(scene: Scene, visit: Visit) -> None:
    visit.open("/run/run")
    events = [row[1:] for row in visit.rows("events")]
    login = scene.value("SELECT session_user::text")
    assert events[0] == [f"settings changed by {login}", "trainer.steps: null → 8"]
    assert sorted(row[0] for row in events[1:4]) == ["explore ends", "process ends", "train ends"]
    assert ["2 drops", "too_short"] in events
    assert sorted(row[0] for row in events[-3:]) == ["explore starts", "process starts", "train starts"]


def test_a_setback_is_an_event(scene: Scene, visit: Visit) -> None:
    with scene.database.transaction() as tx:
        tx.execute(
            """INSERT INTO trinity.setback (run_id, worker_id, known_version, known_step, last_step, num_rows,
                                            resumed_version)
               VALUES (%s, %s, 0, 1, 3, 16, 0)""",
            [scene.run.id, scene.trainer],
        )
    visit.open("/run/run")
    event = ["server lost", "steps 2 to 3 (16 rows); continued from version 0"]
    # Visitors share what was read a moment ago: the page shows it at first, and then what is new.
    wait_until(lambda: visit.rows("events")[0][1:] == event, "the event is shown")
    wait_until(lambda: "work setbacks" in alerts(visit), "the alert is shown")


def test_a_run_that_learns_has_no_alerts(scene: Scene, visit: Visit) -> None:
    scene.beside("calm")
    visit.open("/run/calm")
    assert visit.page.get_by_text("No alerts").is_visible()
    assert visit.page.get_by_text("No experiences yet").is_visible()
