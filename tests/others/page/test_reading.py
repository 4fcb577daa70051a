"""What people read: questions in lists, and whole responses on the page of a row and where they judge."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect
from psycopg.types.json import Jsonb

from tests.others.page.browser import Visit, home_of, served
from tests.support.postgres import by_login, new_database
from tests.support.rows import Scene, demonstration, import_records, rollout
from trinity_db.page import judging, texts
from trinity_db.postgres.connection import Database
from trinity_db.store import reviews
from trinity_db.store.reviews import Question

LONG = "".join(f"{number:06} " for number in range(40_000)) + "the end"  # 280,007 characters
HEAD = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM<|im_end|>\n"
PROMPT = HEAD + "<|im_start|>user\nWhat is {n} plus 2?<|im_end|>\n<|im_start|>assistant\n"
MESSAGES = [
    {"role": "system", "content": "You are a helpful AI assistant named SmolLM"},
    {"role": "user", "content": "What is 1 plus 2?"},
    {"role": "assistant", "content": "3"},
    {"role": "user", "content": [{"type": "text", "text": "And twice"}, {"type": "text", "text": "that?"}]},
]


@pytest.fixture(scope="module")
def store(server: str, template: str) -> Iterator[Scene]:
    """Rows of a chat model, with messages and without; the last one has a long response. And a data set."""
    with new_database(server, template) as url, closing(Database(url)) as database:
        scene = Scene.open(database)
        (group,) = scene.claim(1, group_size=3)
        scene.write([rollout(group, 0, "6"), rollout(group, 1, "4"), rollout(group, 2, LONG)])
        import_records(database, "rich", [demonstration(1)])
        with database.transaction() as tx:
            tx.execute(
                "UPDATE trinity.experience_text SET prompt = %s WHERE response <> '6'",
                [PROMPT.format(n=2)],
            )
            tx.execute(
                "UPDATE trinity.experience_text SET prompt = %s, messages = %s WHERE response = '6'",
                [PROMPT.format(n=1), Jsonb(MESSAGES)],
            )
        yield scene


@pytest.fixture
def visit(store: Scene, browser: Browser, tmp_path: Path) -> Iterator[Visit]:
    """A person who may judge."""
    url = store.database.url
    environment = {"TRINITY_DB_URL": url, "TRINITY_DB_READ_URL": by_login(url)}
    with served(home_of(tmp_path) | environment, "--by", "ann") as page:
        visit = Visit.begin(browser, page)
        yield visit
        visit.page.context.close()
        assert visit.complaints == []


def row_of(scene: Scene, response: str) -> int:
    number: int = scene.value(
        "SELECT experience_id FROM trinity.experience_text WHERE response = %s", response
    )
    return number


def whole(page: Page, text: str) -> None:
    """Show all of a long text by its button."""
    while page.locator(".gap").count():
        hidden = page.locator(".gap").inner_text()
        page.locator(".gap").click()
        page.wait_for_function("hidden => document.querySelector('.gap')?.innerText !== hidden", arg=hidden)
    expect(page.locator("pre", has_text="the end")).to_have_text(text)


def test_people_read_questions_and_whole_responses(store: Scene, visit: Visit) -> None:
    visit.open("/experiences?run=run")
    shown = {row[-1]: row[-2] for row in visit.rows("experiences")}
    assert shown.pop("6") == "And twice that?"
    assert shown.pop("4") == "What is 2 plus 2?"
    [question] = shown.values()
    assert question == "What is 2 plus 2?"

    long = row_of(store, LONG)
    visit.open(f"/experience/{long}")
    text = visit.page.locator("pre", has_text="000000")
    head, tail = texts.SHOWN - texts.TAIL, texts.TAIL
    assert text.locator("span").all_inner_texts() == [LONG[:head], LONG[-tail:]]
    assert f"{len(LONG) - head - tail:,} characters are hidden" in text.inner_text()
    whole(visit.page, LONG)

    with store.database.transaction() as tx:
        reviews.ask_rows(tx, store.run.id, [long], Question())
    assert len(LONG) > judging.JUDGED
    visit.open("/verdicts/run")
    keys = visit.page.locator(".keys")
    expect(keys.get_by_role("alert")).to_contain_text("characters are hidden above")
    assert "the end" in visit.page.locator(".claim").inner_text()
    whole(visit.page, LONG)
    expect(keys.get_by_role("alert")).to_have_count(0)

    visit.open("/verdicts")
    queues = {row[0]: row for row in visit.rows("queues")}
    assert queues["rich"][2] == ""
    assert queues["run"][2] != ""
    visit.open("/verdicts/rich?queue=pairs")
    expect(visit.page.get_by_text("'rich' is a data set without pairs to compare")).to_be_visible()
    assert visit.page.get_by_text("Loading the queue").count() == 0
