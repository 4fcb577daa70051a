"""The command itself, and what needs no browser: what it refuses, and how tokens are put together."""

import importlib.util
import socket
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from tests.support.command_line import CommandLine
from tests.support.postgres import by_login
from trinity_db.errors import ConfigError
from trinity_db.page.experience import items, lineage, turns
from trinity_db.page.experiences import read_filter
from trinity_db.page.questions import Filter
from trinity_db.postgres.connection import Database


def test_without_the_extra_one_line_says_what_to_install(
    command_line: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: Callable[..., Any] = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "nicegui" else found(name, *rest)
    )
    assert "pip install 'trinity-db[page]'" in command_line("page").complaint


def test_a_port_that_is_taken_is_told_with_a_way_out(
    command_line: CommandLine, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRINITY_DB_URL", by_login(database.url))
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        complaint = command_line("page", "--port", str(port)).complaint
    assert complaint.startswith(f"Port {port} of 127.0.0.1 cannot be used")
    assert "--port 0" in complaint


@pytest.mark.parametrize("name", ["TRINITY_DB_URL", "TRINITY_DB_READ_URL"])
def test_a_login_that_may_write_is_refused_with_a_way_to_one_that_reads(
    command_line: CommandLine, database: Database, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("TRINITY_DB_URL", by_login(database.url))
    monkeypatch.setenv(name, database.url)
    complaint = command_line("page", "--port", "0").complaint
    assert complaint.startswith("Login 'postgres' is a superuser, so the server would not keep the page from")
    assert "db roles --login NAME --as reader" in complaint
    assert "--write" not in complaint


def test_a_login_that_may_give_no_verdicts_and_a_name_that_is_none_are_refused(
    command_line: CommandLine, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRINITY_DB_URL", by_login(database.url))
    complaint = command_line("page", "--by", "ann").complaint
    assert complaint.startswith(
        "Login 'reader' may give no verdicts: let the store's owner GRANT trinity_labeller"
    )
    assert command_line("page", "--by", "a\nb").complaint.startswith("'--by' must be printable text")
    assert command_line("page", "--by", "").complaint.startswith("'--by' must be printable text")


def test_tokens_keep_their_numbers_wherever_a_page_of_them_begins() -> None:
    found = {
        "token_ids": [10, 11, 12, 13, 14, 15],
        "action_mask": [0, 1, 0, 0, 1, 1],
        "logprobs": [-0.1, -0.2, -0.3],
        "versions": [1, 2, 3],
    }
    whole = list(items(found, 0, list("abcdef")))
    assert whole == [
        ["a", 0, 0, None, None, None, False],
        ["b", 1, 1, 11, -0.1, 1, True],
        ["cd", 2, 3, None, None, None, False],
        ["e", 4, 4, 14, -0.2, 2, True],
        ["f", 5, 5, 15, -0.3, 3, True],
    ]
    assert list(items(found, 4, list("ef"))) == whole[3:]
    assert list(items(found, 0, list("abc")))[-1] == ["c", 2, 2, None, None, None, False]
    assert next(items(found | {"logprobs": None, "versions": None}, 1, ["b"]))[4:6] == [None, None]


def test_a_conversation_has_each_message_and_the_response() -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": "tool", "content": None, "name": "f"}]
    row = {"messages": messages, "prompt": "ignored", "response": "bye"}
    assert list(turns(row)) == [("user", "hi"), ("tool", '{\n "name": "f"\n}'), ("assistant", "bye")]
    assert list(turns({"messages": None, "prompt": "p", "response": "r"})) == [
        ("prompt", "p"),
        ("assistant", "r"),
    ]
    assert list(turns({"messages": None, "prompt": None, "response": None})) == []


def test_lineage_says_what_became_of_a_row() -> None:
    batch = {"id": 7, "step": 3, "state": "committed", "included_version": 4}
    assert "No policy version includes it" in lineage([])
    assert "No policy version includes it" in lineage([batch | {"state": "reopened"}])
    assert lineage([batch | {"included_version": None}]).endswith("no policy version includes that step yet.")
    assert "policy version 4 is the first to include that step" in lineage([batch])


def test_a_link_is_a_filter_and_what_is_empty_is_none() -> None:
    given = {"run": "a", "state": "", "version": " 3 ", "reward_to": "-1e3", "text": "50%", "unknown": "x"}
    assert read_filter(given) == Filter(run="a", version=3, reward_to=-1000.0, text="50%")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("version", "2147483648"),
        ("version", "-1"),
        ("before", "x"),
        ("reward_from", "inf"),
        ("state", "READY"),
    ],
)
def test_a_value_of_another_kind_is_refused(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=value):
        read_filter({name: value})
