"""Runs side by side: what is drawn is what SQL says, the link is the state, and wrong links are told."""

from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Browser

from tests.others.page.browser import Served, Visit
from tests.support.rows import Scene, demonstration, import_records
from trinity_db.page import comparison
from trinity_db.schema.states import WorkerRole
from trinity_db.store import runs, settings

STEPS = 1000  # more than a curve has points
OTHER = {"name": "other", "seed": 1, "trainer": {"steps": 10, "learning_rate": 0.1, "betas": [0.9, 0.5]}}


@pytest.fixture(scope="module", autouse=True)
def store(scene: Scene) -> Scene:
    """A run of 1,000 steps with two versions, and one of two steps whose settings were changed once."""
    with scene.database.transaction() as tx:
        tx.execute(
            """INSERT INTO trinity.metric (run_id, role, step, name, value, created_at)
               SELECT r.id, 'train', n, m, CASE m WHEN 'num_tokens' THEN 100 * n ELSE n END,
                      r.created_at + n * interval '1 min'
               FROM trinity.run r, generate_series(1, %s) n, unnest(ARRAY['loss', 'num_tokens']) m""",
            [STEPS],
        )
        tx.execute(
            """INSERT INTO trinity.batch (run_id, step, worker_id, setting_id, policy_version, size, sampler,
                                          seed, query, state, committed_at)
               SELECT w.run_id, %s, w.id, w.setting_id, 0, 1, 'fifo', 0, '', 'committed', now()
               FROM trinity.worker w WHERE w.id = %s""",
            [STEPS, scene.trainer],
        )
        tx.execute(
            """INSERT INTO trinity.policy_version (run_id, version, step, checkpoint, checkpoint_hash)
               VALUES (%s, 1, 500, 'version-1', '')""",
            [scene.run.id],
        )
    other = scene.beside("other", OTHER)
    other.publish(0, step=0)
    other.record(1, {"loss": 8.0, "entropy": 0.5, "num_tokens": 10.0})
    other.record(2, {"loss": 4.0, "num_tokens": 20.0})
    other.record(2, {"loss": 5.0, "num_tokens": 20.0})  # it was trained on again
    other.record(0, {"explore/tokens_per_second": 30.0}, WorkerRole.EXPLORE)
    other.record(0, {"explore/tokens_per_second": 50.0}, WorkerRole.EXPLORE)
    with scene.database.transaction() as tx:
        config = OTHER | {"trainer": {**OTHER["trainer"], "learning_rate": 0.2}}  # type: ignore[dict-item]
        settings.change(tx, runs.find(tx, "other"), config, "groups")
    return other


def asked(scene: Scene, over: str, *metrics: str) -> dict[str, Any]:
    """The curves of each run."""
    wanted = comparison.Selection(("run", "other"), metrics, over)
    found = comparison.comparison_query(wanted)(scene.database)
    return {one.row["name"]: dict(one.curves) for one in found.runs}


def test_a_curve_has_few_points_each_the_mean_of_its_steps(scene: Scene) -> None:
    points = asked(scene, "step", "loss")["run"]["loss"]
    assert len(points) <= comparison.POINTS + 1
    assert points[0] == (1.0, 1.5)  # steps 1 and 2: the width is 3, and 0 has none
    assert points[1] == (3.0, 4.0)
    assert points[-1] == (999.0, 999.5)


def test_a_step_that_was_trained_on_again_counts_once(scene: Scene) -> None:
    assert asked(scene, "step", "loss")["other"]["loss"] == [(1.0, 8.0), (2.0, 5.0)]


def test_curves_over_versions_tokens_and_time(scene: Scene) -> None:
    loss = asked(scene, "version", "loss")["run"]["loss"]
    assert [place for place, _ in loss] == [0.0, 1.0]
    assert loss[1][1] == pytest.approx(sum(range(501, 1001)) / 500, abs=3)
    assert asked(scene, "tokens", "loss")["other"]["loss"] == [(10.0, 8.0), (20.0, 5.0)]
    times = asked(scene, "time", "loss")["run"]["loss"]
    assert times[0] == (60.0, 1.5)
    assert times[-1][0] == 999 * 60.0


def test_what_explorers_measure_stands_at_the_step_of_their_version(scene: Scene) -> None:
    name = "explore/tokens_per_second"
    assert asked(scene, "step", name)["other"] == {name: [(0.0, 40.0)]}
    assert asked(scene, "version", name)["other"] == {name: [(0.0, 40.0)]}


def test_boxes_of_runs_lead_to_their_comparison(scene: Scene, visit: Visit) -> None:
    import_records(scene.database, "answers", [demonstration(1)])
    visit.open("/")
    assert visit.page.get_by_label("Compare answers").count() == 0
    visit.page.get_by_label("Compare run", exact=True).focus()
    visit.page.keyboard.press("Space")
    visit.page.get_by_label("Compare other").check()
    visit.page.get_by_role("button", name="Compare").click()
    visit.page.wait_for_url("**/compare?*")
    assert sorted(parse_qs(urlsplit(visit.page.url).query)["run"]) == ["other", "run"]
    assert visit.page.locator("ul.runs a").all_inner_texts() == ["other", "run"]
    assert visit.page.locator(".charts h3").all_inner_texts() == [
        "loss minimised by the step",
        "entropy nats per token",
    ]


def test_runs_are_told_apart_by_letter_and_dashes(visit: Visit) -> None:
    visit.open("/compare?run=run&run=other&metric=loss")
    visit.page.locator(".chart svg path").first.wait_for(state="attached")
    assert visit.page.locator(".sample line").evaluate_all(
        "all => all.map(one => [one.getAttribute('stroke-dasharray'), getComputedStyle(one).stroke])"
    ) == [[None, "rgb(79, 131, 232)"], ["7 4", "rgb(224, 121, 58)"]]
    drawn = visit.page.locator(".chart svg path[stroke='#e0793a']").first
    assert drawn.get_attribute("stroke-dasharray") == "7,4"
    assert {"A", "B"} <= set(visit.page.locator(".chart svg text").all_text_contents())


def test_metrics_and_axis_are_chosen_and_the_link_keeps_them(visit: Visit) -> None:
    visit.open("/compare?run=run&run=other&metric=loss")
    visit.page.locator("details.choices summary").focus()
    visit.page.keyboard.press("Enter")
    names = visit.page.locator("details.choices label").all_inner_texts()
    assert names == ["loss", "entropy", "explore/tokens_per_second", "num_tokens"]
    visit.page.get_by_label("explore/tokens_per_second").check()
    visit.page.get_by_label("over").select_option("version")
    visit.page.get_by_role("button", name="Show").click()
    visit.page.wait_for_url("**over=version**")
    query = parse_qs(urlsplit(visit.page.url).query)
    assert query == {
        "run": ["run", "other"],
        "over": ["version"],
        "metric": ["loss", "explore/tokens_per_second"],
    }
    visit.page.get_by_text("Over policy version.").wait_for()
    assert visit.page.get_by_label("over").input_value() == "version"
    assert visit.page.locator(".charts h3").all_inner_texts() == [
        "loss minimised by the step",
        "explore/tokens_per_second",
    ]


def test_settings_that_differ_stand_side_by_side_with_their_changes(visit: Visit) -> None:
    visit.open("/compare?run=other&run=run")
    settings = {row[0]: row[1:] for row in visit.rows("settings that differ")}
    changed = settings["trainer.learning_rate"]
    assert changed[0].startswith("0.2\n0.1 until 20")
    assert changed[1] == "not set"
    assert settings["seed"] == ["1", "0"]
    assert settings["trainer.betas"] == ["[0.9, 0.5]", "not set"]
    assert "name" not in settings
    visit.open("/compare?run=other")
    assert [row[0] for row in visit.rows("settings that differ")] == ["trainer.learning_rate"]
    visit.page.get_by_text("3 settings are equal").click()
    assert dict(visit.rows("equal settings")) == {
        "seed": "1",
        "trainer.betas": "[0.9, 0.5]",
        "trainer.steps": "10",
    }


def test_last_figures_are_those_of_sql(visit: Visit) -> None:
    visit.open("/compare?run=run&run=other&metric=loss&metric=entropy")
    figures = {row[0]: row[1:] for row in visit.rows("last figures")}
    assert figures["loss"] == ["1000", "5"]
    assert figures["entropy"] == ["", "0.5"]
    assert figures["trained tokens"] == ["100,000", "20"]
    assert figures["policy version"] == ["1", "0"]
    assert figures["trainer step"] == ["1,000", ""]


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("", "0 runs are selected"),
        ("&".join(f"run={n}" for n in range(7)), "7 runs are selected"),
        ("run=run&over=weight", "'weight' is not an axis"),
        ("run=run&" + "&".join(f"metric={n}" for n in range(13)), "13 metrics are selected"),
        ("run=none", "There is no run 'none'"),
        ("run=no%00ne&run=run", "There is no run 'none'"),
        ("run=answers", "'answers' is a data set"),
    ],
)
def test_a_link_that_cannot_be_shown_is_told(visit: Visit, query: str, said: str) -> None:
    visit.open(f"/compare?{query}")
    assert said in visit.page.get_by_role("alert").inner_text()


def test_a_metric_that_no_run_has_is_told(visit: Visit) -> None:
    visit.open("/compare?run=run&metric=none")
    assert visit.page.get_by_text("No run has measured this yet").is_visible()


@pytest.mark.parametrize("width", [360, 2560])
def test_the_comparison_fits_its_window(browser: Browser, page: Served, width: int) -> None:
    visit = Visit.begin(browser, page, width)
    visit.open("/compare?run=run&run=other")
    visit.page.locator("details.choices summary").click()
    assert visit.page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    visit.page.context.close()
    assert visit.complaints == []
