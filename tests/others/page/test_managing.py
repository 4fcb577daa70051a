"""Runs are started from a form, stopped and prolonged in the browser; they outlive the page."""

import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from urllib.parse import urlencode

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.others.page.browser import Served, Visit, home_of, served
from tests.support.postgres import by_login, new_database
from tests.support.processes import is_alive
from tests.support.rows import task
from tests.support.waiting import wait_until
from trinity_db.data.dataset import open_writer
from trinity_db.postgres.connection import Database
from trinity_db.store import runs, workers
from trinity_db.worker.service import LEASE_SECONDS

SMALL = {
    "name": "small",
    "algorithm": "grpo",
    "explorer.group_size": "2",
    "explorer.concurrency": "8",
    "explorer.max_new_tokens": "2",
    "processors.score": "[position_match]",
    "trainer.batch_size": "1",
    "trainer.steps": "100000",
}
"""What a person writes into the form."""


@pytest.fixture(scope="module")
def database(server: str, template: str) -> Iterator[Database]:
    """A store with a taskset; its runs end before it goes."""
    with new_database(server, template) as url, closing(Database(url)) as database:
        open_writer(database, "tasks", "digits")([task(number) for number in range(5)])
        yield database
        for worker in alive(database, "small"):
            os.kill(parent(worker), signal.SIGTERM)
        wait_until(lambda: not alive(database, "small"), "nothing works on the store any more")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("work")


@pytest.fixture
def open_page(
    database: Database, folder: Path, browser: Browser, tmp_path: Path
) -> Iterator[Callable[..., tuple[Served, Visit]]]:
    """Serves a page and opens it in a browser."""
    environment = home_of(folder / "home") | {
        "TRINITY_DB_URL": database.url,
        "TRINITY_DB_READ_URL": by_login(database.url),
        "OMP_NUM_THREADS": "1",
    }
    with ExitStack() as stack:

        def open_page(*arguments: str, width: int = 1280) -> tuple[Served, Visit]:
            page = stack.enter_context(served(environment, *arguments, folder=folder))
            visit = Visit.begin(browser, page, width)
            stack.callback(visit.page.context.close)
            return page, visit

        yield open_page


def alive(database: Database, name: str) -> list[int]:
    """The processes of the workers of a run."""
    with database.transaction() as tx:
        if name not in runs.names(tx):
            return []
        found = workers.running(tx, runs.find(tx, name).id, LEASE_SECONDS)
    return [worker.pid for worker in found if worker.is_alive]


def steps(database: Database) -> int:
    with database.transaction() as tx:
        row = tx.execute("SELECT count(*) AS steps FROM trinity.batch WHERE state = 'committed'").fetchone()
    assert row is not None
    return int(row["steps"])


def parent(pid: int) -> int:
    """The process that started another one: of a worker its supervisor."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def press(page: Page, name: str) -> None:
    """Press a button by the keyboard."""
    page.get_by_role("button", name=name, exact=True).focus()
    page.keyboard.press("Enter")


def fill_in_form_and_file(visit: Visit, folder: Path) -> str:
    """Fill in the form of a new run, change its file and discard the change. Returns the text of the file."""
    visit.page.get_by_role("link", name="Start a run").click()
    for name, value in SMALL.items():
        visit.page.locator(f"[name='{name}']").fill(value)
    assert visit.page.locator("[name=taskset]").input_value() == "digits"
    file = visit.page.get_by_role("textbox", name="File")
    expect(file).to_have_value(re.compile("steps: 100000"))
    expect(visit.page.locator("#command")).to_have_text("trinity-db run small.yaml")
    text = file.input_value()

    file.fill(text.replace("group_size", "grup_size"))
    press(visit.page, "Check")
    expect(visit.page.locator(".notice:visible")).to_have_text(
        re.compile("small.yaml: .*did you mean 'group_size'")
    )
    assert not (folder / "small.yaml").exists()

    field = visit.page.locator("[name=name]")
    expect(field).to_be_disabled()  # the file counts now, and not the form
    press(visit.page, "Discard the edits")
    expect(file).to_have_value(text)
    expect(field).to_be_enabled()
    field.fill("other")
    expect(file).to_have_value(re.compile("^name: other$", re.M))
    field.fill("small")
    press(visit.page, "Start")  # before the file follows the form
    expect(visit.page.locator(".notice:visible")).to_contain_text("was just updated from the form")
    expect(file).to_have_value(text)
    assert [*folder.glob("*.yaml")] == []
    return text


def test_a_run_is_started_outlives_the_page_is_stopped_and_prolonged(
    database: Database, folder: Path, open_page: Callable[..., tuple[Served, Visit]]
) -> None:
    page, visit = open_page("--by", "ann")
    text = fill_in_form_and_file(visit, folder)
    press(visit.page, "Start")
    visit.page.wait_for_url("**/run/small")
    assert (folder / "small.yaml").read_text() == text
    wait_until(lambda: steps(database) > 1, "the run trains")
    supervisor = parent(alive(database, "small")[0])
    assert os.getsid(supervisor) == supervisor
    assert os.getpriority(os.PRIO_PROCESS, supervisor) == os.getpriority(os.PRIO_PROCESS, 0)
    page.stop()
    assert is_alive(supervisor)

    _, visit = open_page("--by", "ann")
    visit.open("/run/small")
    press(visit.page, "Stop")
    expect(visit.page.get_by_role("button", name="Keep it running")).to_be_focused()  # before it moves again
    press(visit.page, "Stop it")
    expect(visit.page.get_by_text("Stopped. To continue")).to_be_visible()
    assert alive(database, "small") == []
    wait_until(lambda: not is_alive(supervisor), "its supervisor ends too")

    done = steps(database)
    visit.page.get_by_role("link", name="Resume or extend").click()
    file = visit.page.get_by_role("textbox", name="File")
    expect(file).to_have_value(text)
    expect(visit.page.locator("#command")).to_have_text("trinity-db run small.yaml --change")
    file.fill(text.replace("steps: 100000", f"steps: {done + 2}"))
    press(visit.page, "Start")
    visit.page.wait_for_url("**/run/small")
    assert f"steps: {done + 2}" in (folder / "small-2.yaml").read_text()
    wait_until(lambda: steps(database) == done + 2, "it goes on to its new end")
    assert visit.complaints == []


def test_a_run_that_ends_at_once_shows_its_last_words(
    folder: Path, open_page: Callable[..., tuple[Served, Visit]]
) -> None:
    _, visit = open_page("--by", "ann")
    visit.open("/start?name=lacking")
    file = visit.page.get_by_role("textbox", name="File")
    file.fill(re.sub("(?m)^taskset: .*$", "taskset: nothing", file.input_value()))
    press(visit.page, "Start")
    notice = visit.page.locator(".notice:visible")
    expect(notice).to_contain_text("The command ended with exit code 1.")
    expect(notice).to_contain_text("error: There is no taskset 'nothing' with tasks")
    expect(notice).to_contain_text(str(folder / "home" / "logs" / "lacking" / "run.log"))
    wait_until(lambda: [*folder.glob("lacking*.yaml")] == [], "a start that failed leaves no file")
    assert visit.complaints == []


def test_a_link_fills_in_no_code_and_no_folder(
    folder: Path, open_page: Callable[..., tuple[Served, Visit]]
) -> None:
    trap = f"{folder}/trap.py:judged"
    _, visit = open_page("--by", "ann")
    values = {
        "for": "agent", "name": "theirs", "model": str(folder), "explorer.workflow": trap,
        "processors.score": f"[{{name: '{trap}'}}]", "taskset": "unknown", "trainer.steps": "7",
    }  # fmt: skip
    visit.open(f"/start?{urlencode(values)}")
    text = visit.page.get_by_role("textbox", name="File").input_value()
    assert "trap.py" not in text
    assert str(folder) not in text
    assert "name: theirs" in text
    assert re.search(r"steps: 7$", text, re.M)
    expect(visit.page.locator(".notice:visible")).to_contain_text(
        "values for model, explorer.workflow, processors.score, taskset. A link may come from a stranger"
    )


def test_visitors_who_may_not_manage_are_offered_nothing(
    open_page: Callable[..., tuple[Served, Visit]],
) -> None:
    _, visit = open_page()
    assert visit.page.get_by_role("link", name="Start a run").count() == 0
    for place in ("/start", "/start?run=small"):
        visit.open(place)
        expect(visit.page.get_by_text("You may not start, stop or extend runs here")).to_be_visible()
        assert visit.page.locator("form, textarea, button.main").count() == 0
    visit.open("/run/small")
    assert visit.page.get_by_role("button", name="Stop").count() == 0
    assert visit.page.get_by_role("link", name="Resume or extend").count() == 0


@pytest.mark.parametrize("width", [360, 2560])
def test_the_form_fits(open_page: Callable[..., tuple[Served, Visit]], width: int) -> None:
    _, visit = open_page("--by", "ann", width=width)
    for purpose in ("grpo", "dpo", "agent"):
        visit.open(f"/start?for={purpose}")
        assert visit.page.get_by_role("textbox", name="File").input_value().count("\n") > 20
        assert visit.page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    assert visit.complaints == []
