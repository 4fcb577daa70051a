"""Each page says what SQL says, at every width, by keyboard, and tells what to do where there is nothing."""

from contextlib import closing
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Browser, expect

from tests.others.page.browser import Served, Visit, home_of, served
from tests.support.postgres import by_login, new_database
from tests.support.rows import Scene, attempt, demonstration, import_records, rollout
from trinity_db.insight import status
from trinity_db.page.flow import ENDS, WAY
from trinity_db.page.questions import ROWS
from trinity_db.postgres.connection import Database
from trinity_db.schema.states import ExperienceState
from trinity_db.store import rewards

NAME = "run"


@pytest.fixture(scope="module", autouse=True)
def store(scene: Scene) -> None:
    """Three groups trained in one step, one that is ready, and one with a failed member."""
    scene.make_ready(3, rewards=(1.0, 0.0, 0.5))
    scene.train(step=1, size=3)
    scene.publish(1, step=1)
    scene.record(1, {"reward": 0.5, "loss": 0.25, "sample/staleness_mean": 0.0})
    scene.record(1, {"publish/visible": 0.98, "publish/changed": 0.05, "publish/noise": 0.001})
    scene.record(1, {"sampling/engine_logp_difference/mean": 0.03})
    scene.record(2, {"reward": 0.75, "loss": 0.125})
    scene.make_ready(1, rewards=(1.0, 0.0))
    (group,) = scene.claim(1)
    scene.write([rollout(group, 0, "7"), rollout(group, 1, error="the tool was <gone>")])
    detail = {"why": "it answers", "marks": [1, 2]}
    first = scene.value("SELECT min(rollout_id) FROM trinity.experience")
    with scene.database.transaction() as tx:
        rewards.record(
            tx, scene.run.id, "person", [rewards.RewardEvent(first, "clear", 2.0, 0.5, detail=detail)]
        )


def test_runs_have_the_counts_of_sql(scene: Scene, visit: Visit) -> None:
    counted = dict(scene.rows("SELECT state::text, count(*) FROM trinity.experience GROUP BY 1"))
    [row] = visit.rows("runs")
    assert row[:6] == [NAME, "active", "explore, process, train", "1", "1", row[5]]
    assert float(row[5]) == pytest.approx(
        float(scene.value("SELECT avg(reward) FROM trinity.batch_item")), abs=5e-4
    )
    waiting = sum(counted.get(state, 0) for state in ("raw", "clean", "scored"))
    assert row[7:12] == [str(n) for n in (waiting, counted["ready"], 0, counted["trained"], 0)]


def test_a_run_has_its_curves_states_and_processes(scene: Scene, visit: Visit) -> None:
    visit.open(f"/run/{NAME}")
    counted = dict(scene.rows("SELECT state::text, count(*)::text FROM trinity.experience GROUP BY 1"))
    assert flow(visit) == {state: counted.get(state, "0") for state in (*WAY, *ENDS)}
    assert [row[0] for row in visit.rows("processes")] == ["explore", "process", "train"]
    assert {row[3] for row in visit.rows("processes")} == {"alive"}
    assert [row[0] for row in visit.rows("rewards by policy version")] == ["1", "0"]
    visit.page.locator(".chart svg path").first.wait_for(state="attached")
    titles = [title.split(" ")[0] for title in visit.page.locator(".charts h3").all_inner_texts()]
    assert titles == ["Reward", "Staleness", "Visible", "Changed", "Rounding", "Engine", "Loss"]
    assert visit.page.get_by_text("about 0.03 if one of them is in bfloat16").is_visible()
    assert visit.page.get_by_text("No training step yet").is_hidden()


def test_a_run_reads_rewards_of_the_newest_rows_and_status_of_all(scene: Scene, visit: Visit) -> None:
    rows = [reward for (reward,) in scene.rows("SELECT reward FROM trinity.experience ORDER BY id DESC")]
    newest, every = ([reward for reward in part if reward is not None] for part in (rows[:3], rows))
    for limit, part in ((3, newest), (None, every)):
        [said] = [one for one in status.detail(scene.database, NAME, limit)["rewards"] if not one["version"]]
        assert said["experiences"] == len(rows)
        assert said["reward_now"] == pytest.approx(sum(part) / len(part))
    assert sum(newest) / len(newest) != pytest.approx(sum(every) / len(every))
    visit.open(f"/run/{NAME}")
    assert visit.page.get_by_text("at most the 2,000 newest rows of each").is_visible()


def test_experiences_are_those_of_sql_newest_first(scene: Scene, visit: Visit) -> None:
    visit.open("/experiences")
    ids = scene.values("SELECT id::text FROM trinity.experience ORDER BY experience.id DESC")
    assert [row[0] for row in visit.rows("experiences")] == ids


@pytest.mark.parametrize(
    ("query", "condition"),
    [
        ("run=run&state=ready", "state = 'ready'"),
        ("version=0", "0 BETWEEN version_min AND version_max"),
        ("version=1", "1 BETWEEN version_min AND version_max"),
        ("reward_from=0.5&reward_to=0.9", "reward BETWEEN 0.5 AND 0.9"),
        (
            "text=0.5",
            "EXISTS (SELECT FROM trinity.experience_text WHERE experience_id = id AND response = '0.5')",
        ),
        ("text=%25", "false"),
        ("reason=unknown", "false"),
        ("state=dropped", "false"),
    ],
)
def test_a_filter_is_the_link(scene: Scene, visit: Visit, query: str, condition: str) -> None:
    visit.open(f"/experiences?{query}")
    if "text=" in query:
        visit.page.get_by_role("status").filter(has_text="Searched").wait_for()
    ids = scene.values(
        f"SELECT id::text FROM trinity.experience WHERE {condition} ORDER BY experience.id DESC"
    )
    assert [row[0] for row in visit.rows("experiences")] == ids
    if not ids:
        assert visit.page.get_by_text("No experience meets these filters").is_visible()


def test_the_task_of_a_group_leads_to_its_other_rows(scene: Scene, visit: Visit) -> None:
    group, key = scene.rows(
        "SELECT g.id, t.key FROM trinity.rollout_group g JOIN trinity.task t ON t.id = g.task_id ORDER BY 1"
    )[0]
    visit.open(f"/group/{group}")
    visit.page.get_by_role("link", name=key).click()
    visit.page.wait_for_url("**/experiences?*")
    ids = scene.values(
        "SELECT id::text FROM trinity.experience WHERE group_id = %s ORDER BY experience.id DESC", group
    )
    visit.page.get_by_role("region", name="experiences").wait_for()
    assert [row[0] for row in visit.rows("experiences")] == ids


def test_the_form_makes_the_link_and_wrong_values_are_told(visit: Visit) -> None:
    visit.open("/experiences")
    visit.page.get_by_label("run or data set").select_option("run")
    visit.page.get_by_label("state", exact=True).select_option("trained")
    visit.page.get_by_label("reward from").fill("0.4")
    visit.page.get_by_label("reward from").press("Enter")
    visit.page.wait_for_url("**state=trained**")
    given = parse_qs(urlsplit(visit.page.url).query)
    assert given == {"run": ["run"], "state": ["trained"], "reward_from": ["0.4"]}
    visit.page.wait_for_selector("form.filters")
    assert visit.page.get_by_label("state", exact=True).input_value() == "trained"
    for query in ("version=x", "reward_from=nan", "state=gone", "before=99999999999999999999", "run=none"):
        visit.open(f"/experiences?{query}")
        assert visit.page.get_by_role("alert").inner_text()


def test_a_group_stands_side_by_side_with_rewards_and_advantages(scene: Scene, visit: Visit) -> None:
    group = scene.value("SELECT min(group_id) FROM trinity.experience")
    visit.open(f"/group/{group}")
    attempts = visit.page.locator(".beside section").all_inner_texts()
    rows = scene.rows(
        """SELECT e.reward, i.advantage FROM trinity.experience e
           JOIN trinity.rollout m ON m.id = e.rollout_id
           JOIN trinity.batch_item i ON i.experience_id = e.id
           WHERE e.group_id = %s ORDER BY m.ordinal""",
        group,
    )
    assert len(attempts) == len(rows) == 3
    for said, (reward, advantage) in zip(attempts, rows, strict=True):
        assert f"reward {reward:.3f}" in said
        assert f"Step 1 (committed) used it with the advantage {advantage:.3f}" in said
        assert "policy version 1 includes it" in said
    assert "clear: 2 × 0.5, from person\nwhy: it answers\nmarks: [1, 2]" in attempts[0]


def test_a_failed_attempt_stands_in_its_group(scene: Scene, visit: Visit) -> None:
    group = scene.value("SELECT max(id) FROM trinity.rollout_group")
    visit.open(f"/group/{group}")
    assert visit.page.get_by_text("the tool was <gone>").is_visible()
    assert visit.facts()["attempts"] == "1 arrived and 1 failed of 2"


def test_an_experience_has_its_conversation_tokens_and_lineage(scene: Scene, visit: Visit) -> None:
    id = scene.value("SELECT min(id) FROM trinity.experience")
    visit.open(f"/experience/{id}")
    assert visit.page.locator(".turn").all_inner_texts() == ["prompt\nprompt", "assistant\n1.0"]
    assert visit.page.get_by_text("policy version 1 is the first to include that step").is_visible()
    visit.page.wait_for_selector(".token")
    trained = visit.page.locator(".token").all()
    assert [one.get_attribute("title") for one in trained] == [
        "position 3, id 3, log-probability -1.000 nats, version 0",
        "position 4, id 4, log-probability -0.500 nats, version 0",
    ]
    assert visit.page.locator(".masked").get_attribute("title") == "positions 0 to 2, masked: not trained on"
    assert visit.page.locator(".version").all_inner_texts() == ["v0"]
    names = [row[2] for row in visit.rows("rewards")]
    assert names == scene.values(
        """SELECT v.name FROM trinity.reward_event v JOIN trinity.experience e ON e.rollout_id = v.rollout_id
           WHERE e.id = %s ORDER BY v.id""",
        id,
    )
    assert [row[0] for row in visit.rows("batches")] == ["1"]


def test_keys_and_touch_choose_a_token_and_read_its_numbers(scene: Scene, visit: Visit) -> None:
    visit.open(f"/experience/{scene.value('SELECT min(id) FROM trinity.experience')}")
    tokens = visit.page.get_by_role("region", name="tokens")
    tokens.focus()
    for _ in range(2):
        visit.page.keyboard.press("ArrowRight")
    numbers = visit.page.locator(".numbers")
    expect(numbers).to_have_text("position 3, id 3, log-probability -1.000 nats, version 0")
    visit.page.keyboard.press("ArrowLeft")
    expect(numbers).to_have_text("positions 0 to 2, masked: not trained on")
    tokens.locator(".token").last.click()
    expect(numbers).to_have_text("position 4, id 4, log-probability -0.500 nats, version 0")


def test_a_link_beyond_the_last_token_shows_the_last_ones(scene: Scene, visit: Visit) -> None:
    id = scene.value("SELECT min(id) FROM trinity.experience")
    visit.open(f"/experience/{id}?start={2**63 - 1}")
    visit.page.wait_for_selector(".token")
    assert visit.page.locator(".token").count() == 2


@pytest.mark.parametrize("path", ["/run/none", "/run/no%00ne", "/group/999999", "/experience/999999"])
def test_what_is_not_there_is_told(visit: Visit, path: str) -> None:
    visit.open(path)
    assert "There is no" in visit.page.get_by_role("alert").inner_text()


@pytest.mark.parametrize("path", ["/group/x", "/experience/-1", "/experience/1?start=x"])
def test_a_number_that_is_none_is_told(visit: Visit, path: str) -> None:
    visit.open(path)
    assert "whole numbers" in visit.page.get_by_role("alert").inner_text()


@pytest.mark.parametrize("width", [360, 2560])
def test_no_page_is_wider_than_its_window(scene: Scene, browser: Browser, page: Served, width: int) -> None:
    visit = Visit.begin(browser, page, width)
    group, id = scene.rows("SELECT min(group_id), min(id) FROM trinity.experience")[0]
    for path in (
        "/",
        f"/run/{NAME}",
        "/experiences",
        f"/group/{group}",
        f"/experience/{id}",
        "/similar",
        "/sql",
        "/doctor",
    ):
        visit.open(path)
        assert visit.page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, path
    visit.page.context.close()
    assert visit.complaints == []


def test_keys_alone_reach_a_run_and_the_theme(visit: Visit) -> None:
    for name in (
        "Skip to the content",
        "trinity-db",
        "Runs",
        "Experiences",
        "Verdicts",
        "SQL",
        "Doctor",
        "Light or dark",
    ):
        visit.page.keyboard.press("Tab")
        said = visit.page.evaluate("document.activeElement.ariaLabel || document.activeElement.innerText")
        assert said == name
    scheme = "getComputedStyle(document.documentElement).colorScheme"
    before = visit.page.evaluate(scheme)
    visit.page.keyboard.press("Enter")
    visit.page.wait_for_function(f"{scheme} !== '{before}'")
    chosen = visit.page.evaluate(scheme)
    visit.open("/experiences")
    assert visit.page.evaluate(scheme) == chosen
    visit.open("/")
    link = visit.page.get_by_role("link", name=NAME, exact=True)
    link.focus()
    visit.page.keyboard.press("Enter")
    visit.page.wait_for_url(f"**/run/{NAME}")


def test_the_run_follows_the_store_while_a_person_looks(scene: Scene, visit: Visit) -> None:
    visit.open("/experiences")
    visit.open(f"/run/{NAME}")
    before = flow(visit)["raw"]
    scene.write([rollout(group, member) for group in scene.claim(1) for member in group.members])
    now = scene.value("SELECT count(*)::text FROM trinity.experience WHERE state = 'raw'")
    assert now != before
    visit.page.locator(".flow a", has_text="raw").get_by_text(now, exact=True).wait_for()


def test_pages_of_many_experiences_follow_one_another(
    server: str, template: str, browser: Browser, tmp_path_factory: pytest.TempPathFactory
) -> None:
    home = home_of(tmp_path_factory.mktemp("home"))
    with (
        new_database(server, template) as url,
        closing(Database(url)) as database,
        served(home | {"TRINITY_DB_URL": by_login(url)}) as page,
    ):
        visit = Visit.begin(browser, page)
        assert visit.page.get_by_text("trinity-db demo makes one").is_visible()
        visit.open("/experiences")
        assert visit.page.get_by_text("There are no experiences in this store yet").is_visible()
        scene = Scene.open(database, num_tasks=ROWS)
        scene.explore(ROWS)
        visit.open("/experiences?run=run")
        seen = [row[0] for row in visit.rows("experiences")]
        visit.page.get_by_role("link", name="Older").click()
        visit.page.wait_for_url("**before=**")
        visit.page.get_by_role("link", name="Newest").wait_for()
        seen += [row[0] for row in visit.rows("experiences")]
        assert visit.page.get_by_role("link", name="Older").count() == 0
        assert seen == scene.values("SELECT id::text FROM trinity.experience ORDER BY experience.id DESC")
        visit.page.context.close()


def test_every_state_can_be_chosen(visit: Visit) -> None:
    visit.open("/experiences")
    shown = visit.page.locator("select[name=state] option").all_inner_texts()
    assert shown == ["any", *ExperienceState]


def test_a_data_set_has_no_curves_and_no_processes(scene: Scene, visit: Visit) -> None:
    import_records(scene.database, "answers", [demonstration(1)])
    visit.open("/run/answers")
    assert visit.facts()["state"] == "data set"
    assert flow(visit)["ready"] == "1"
    shown = visit.page.locator("h2").filter(visible=True).all_inner_texts()
    assert shown == ["Alerts", "Experiences by state", "Drops", "Events"]


def flow(visit: Visit) -> dict[str, str]:
    """The counts of the flow from one state to the next."""
    steps = [step.split() for step in visit.page.locator(".flow a").all_inner_texts()]
    return {state: count for count, state in steps}


def test_the_links_to_many_steps_fit_into_the_window(scene: Scene, visit: Visit) -> None:
    (group,) = scene.claim(1, group_size=1)
    scene.write([attempt(group, 0, ["step"] * 100)])
    visit.open(f"/experience/{scene.value('SELECT max(id) FROM trinity.experience')}")
    assert visit.page.locator(".explained a").count() == 100
    assert visit.page.locator(".explained a[aria-current]").inner_text() == "99"
    assert visit.page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
