"""Doctor on the page: what the command says, by the login that the page reads by."""

import json

import pytest
from playwright.sync_api import expect

from tests.others.page.browser import WAIT_SECONDS, Visit
from tests.support.command_line import CommandLine
from tests.support.postgres import by_login
from tests.support.rows import Scene
from trinity_db.run import first_task

MILLISECONDS = 1000 * WAIT_SECONDS


def looked(visit: Visit) -> list[list[str]]:
    """The findings, once they are there."""
    expect(visit.page.get_by_role("status")).to_contain_text("ok.", timeout=MILLISECONDS)
    return visit.rows("findings")


def test_the_page_says_what_the_command_says(
    scene: Scene, visit: Visit, command_line: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    visit.open("/doctor")
    shown = {(level, what) for level, what, *_ in looked(visit)}
    monkeypatch.setenv("TRINITY_DB_URL", by_login(scene.database.url))
    said = json.loads(command_line("doctor", "--json").stdout)
    only_command = {first_task.WHAT}  # it loads a tokenizer
    assert shown == {(one["level"], one["what"]) for one in said if one["what"] not in only_command}
    assert next(iter(visit.rows("findings")))[0] == "fail", "fsync is off in tests, and stands first"


def test_what_the_login_may_not_see_is_told_with_what_to_do(scene: Scene, visit: Visit) -> None:
    visit.open("/doctor")
    [row] = [row for row in looked(visit) if row[1] == "server privileges"]
    assert "may not see the activity" in row[2]
    assert row[3] == "GRANT pg_read_all_stats TO reader"


def test_a_person_looks_again_by_keys(scene: Scene, visit: Visit) -> None:
    visit.open("/doctor")
    before = [row for row in looked(visit) if row[1] == "work runs"]
    scene.beside("another-run")
    button = visit.page.get_by_role("button", name="Check again")
    button.focus()
    visit.page.keyboard.press("Enter")
    table = visit.page.get_by_role("region", name="findings")
    expect(table).to_contain_text("another-run", timeout=MILLISECONDS)
    assert before != [row for row in visit.rows("findings") if row[1] == "work runs"]
