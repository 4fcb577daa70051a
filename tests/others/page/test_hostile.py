"""What models and strangers wrote is text: none of it runs, and nothing is fetched for it."""

import json
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser

from tests.others.page.browser import Served, Visit
from tests.support.rows import Scene, rollout, trajectory
from trinity_db.data.dataset import open_writer
from trinity_db.data.records.records import Task

MARK = "window.hacked=1"
ATTACKS = [
    f"<script>{MARK}</script>",
    f"</script><script>{MARK}</script>",
    f"<img src=x onerror='{MARK}'>",
    f"<svg onload={MARK}></svg>",
    f"[a link](javascript:{MARK})",
    f"javascript:{MARK}",
    f"{{{{ constructor.constructor('{MARK}')() }}}}",
    "`${" + MARK + "}`",
    f"<a href='javascript:{MARK}'>x</a><form action='http://elsewhere.example'><button>x</button></form>",
    "<style>@import url(http://elsewhere.example/x.css);</style><img src='http://elsewhere.example/x.png'>",
    "\u202e\x1b[31m\ufeff\u2028",
]
TEXT = "\n".join(ATTACKS)
NAME = "".join(ATTACKS[:3])
"""Of a data set: one line that prints."""
KEYS = {":options": MARK, ":onClick": f"() => {{{MARK}}}", "__proto__": {"hacked": 1}, "<b>": TEXT}

MESSAGES = [{"role": TEXT, "content": TEXT, **KEYS}, {"role": "user", "content": [KEYS]}]


@pytest.fixture(scope="module", autouse=True)
def store(scene: Scene) -> None:
    """Each text in the store is one with all attacks."""
    open_writer(scene.database, "tasks", "tasks")([Task({"prompt": TEXT, **KEYS})])
    open_writer(scene.database, "trajectories", NAME)([trajectory(1, TEXT, 1.0)])
    scene.evaluate(9)
    groups = scene.claim(9)
    scene.write(
        [rollout(group, member, TEXT) for group in groups[:-1] for member in group.members]
        + [rollout(groups[-1], 0, TEXT), rollout(groups[-1], 1, error=TEXT)]
    )
    with scene.database.transaction() as tx:
        tx.execute(
            """UPDATE trinity.experience_text
               SET prompt = %(text)s, messages = %(messages)s, state = %(text)s""",
            {"text": TEXT, "messages": json.dumps(MESSAGES)},
        )
        tx.execute(
            """INSERT INTO trinity.reward_event (run_id, rollout_id, source, name, value, created_by, detail)
               SELECT run_id, rollout_id, %(text)s, %(text)s, 1, %(text)s, %(detail)s FROM trinity.experience
               WHERE rollout_id IS NOT NULL""",
            {"text": TEXT, "detail": json.dumps(KEYS)},
        )
        tx.execute(
            """INSERT INTO trinity."drop" (run_id, experience_id, stage, step, reason, detail)
               SELECT run_id, id, 'clean', %(text)s, %(text)s, %(detail)s FROM trinity.experience""",
            {"text": TEXT, "detail": json.dumps(KEYS)},
        )
        tx.execute(
            "UPDATE trinity.rollout SET model = %s, finish_reason = %s WHERE state = 'finished'", [TEXT, TEXT]
        )
        tx.execute(
            """INSERT INTO trinity.metric (run_id, role, step, name, value)
               SELECT id, 'train', 1, unnest(%s::text[]), 1 FROM trinity.run""",
            [[TEXT, ":options", "reward"]],
        )
        tx.execute("UPDATE trinity.worker SET host = %s", [TEXT])
        tx.execute("UPDATE trinity.taskset SET name = %s WHERE name = 'tasks'", [TEXT])
        tx.execute("UPDATE trinity.evaluation SET error = %s, finished_at = now()", [TEXT])


def paths(scene: Scene) -> list[str]:
    """Every kind of page, with the attacks in its links too."""
    group, id = scene.rows(
        "SELECT max(group_id), max(id) FROM trinity.experience WHERE group_id IS NOT NULL"
    )[0]
    imported = scene.value("SELECT e.id FROM trinity.experience e JOIN trinity.run r ON r.id = e.run_id"
                           " WHERE r.kind = 'data'")  # fmt: skip
    evaluation, task = scene.rows(
        """SELECT g.evaluation_id, t.id FROM trinity.rollout_group g
           JOIN trinity.task t ON t.id = g.task_id
           WHERE g.evaluation_id IS NOT NULL AND t.payload ->> 'prompt' = %s""",
        TEXT,
    )[0]
    text = quote(" ".join(ATTACKS), safe="")
    return [
        "/", "/run/run", f"/run/{quote(NAME, safe='')}", f"/run/{text}", "/experiences",
        "/verdicts", f"/verdicts/{quote(NAME, safe='')}", f"/verdicts/{text}", f"/verdicts/run?queue={text}",
        f"/group/{group}",
        f"/experience/{id}", f"/experience/{imported}", f"/group/{text}", f"/experience/1?start={text}",
        f"/experiences?run={text}", f"/experiences?text={text}", f"/experiences?version={text}",
        f"/compare?run=run&run={text}", f"/compare?run=run&metric={text}&metric=:options",
        f"/compare?over={text}",
        f"/tasks?run=run&text={text}", f"/tasks?run={text}&taskset={text}&solved={text}", "/tasks?run=run",
        f"/task/{task}?run=run", f"/task/{task}?run={text}", f"/task/{text}?run={text}&a={text}",
        "/evaluation?run=run", f"/evaluation?run={text}&taskset={text}", f"/evaluation/{evaluation}",
        f"/evaluation/{text}?solved={text}",
        f"/experiences?task={text}&reason={text}&reward_from={text}&state={text}",
    ]  # fmt: skip


def test_no_text_of_the_store_or_of_a_link_runs(scene: Scene, browser: Browser, page: Served) -> None:
    visit = Visit.begin(browser, page)
    for path in paths(scene):
        visit.open(path)
        if path.startswith("/experience/") and "start" not in path:
            visit.page.wait_for_function("!document.body.innerText.includes('Loading the tokens')")
        assert visit.page.evaluate("window.hacked") is None, path
        assert visit.page.evaluate("({}).hacked") is None, path
        assert visit.page.locator(".page :is(script, img, style, iframe, object)").count() == 0, path
        assert visit.page.locator(".page form:not(.filters)").count() == 0, path
        links = visit.page.evaluate("[...document.querySelectorAll('a')].map(a => a.getAttribute('href'))")
        assert [link for link in links if not link.startswith(("/", "#"))] == [], path
    assert [one for one in visit.complaints if "status of 404" not in one] == []  # such a link leads nowhere
    assert visit.elsewhere() == []
    visit.page.context.close()


def test_the_texts_are_shown_as_they_stand(scene: Scene, browser: Browser, page: Served) -> None:
    visit = Visit.begin(browser, page)
    id = scene.value("SELECT max(id) FROM trinity.experience WHERE group_id IS NOT NULL")
    visit.open(f"/experience/{id}")
    shown = visit.page.locator(".turn.assistant pre").text_content() or ""
    assert shown == TEXT
    judged = [row[7] for row in visit.rows("rewards")]
    assert all(f":options: {MARK}" in one for one in judged)
    visit.page.context.close()
