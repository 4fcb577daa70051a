"""The file of people and the file of their keys: what is taken, what is kept, and what changes at once."""

import json
import logging
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.command_line import CommandLine
from trinity_db.errors import ConfigError
from trinity_db.page import keyring
from trinity_db.page.access import hashed
from trinity_db.page.keyring import KEYS, Keyring, read_people
from trinity_db.page.rights import Right, Visitor


@pytest.fixture
def people(tmp_path: Path) -> Path:
    path = tmp_path / "people.yaml"
    path.write_text("ann: manage\nbob: label\neve: look\n")
    return path


def test_each_person_gets_a_key_once_and_keeps_it(people: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    made = Keyring(people, home).complete()
    assert sorted(made) == ["ann", "bob", "eve"]
    assert all(len(key) == 43 for key in made.values()), "256 bits"
    again = Keyring(people, home)
    assert again.complete() == {}
    assert again.visitors() == {
        hashed(made["ann"]): Visitor("ann", Right.MANAGE),
        hashed(made["bob"]): Visitor("bob", Right.LABEL),
        hashed(made["eve"]): Visitor("eve", Right.LOOK),
    }


def test_the_home_has_hashes_that_only_its_owner_reads(people: Path, tmp_path: Path) -> None:
    made = Keyring(people, tmp_path / "home").complete()
    [file] = (tmp_path / "home").glob("*.json")
    assert (file.name, stat.S_IMODE(file.stat().st_mode)) == (KEYS, 0o600)
    assert not any(key in file.read_text() for key in made.values())
    file.chmod(0o644)
    Keyring(people, tmp_path / "home").renew("ann")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_pages_with_other_people_share_a_home_and_no_keys(people: Path, tmp_path: Path) -> None:
    first = Keyring(people, tmp_path / "home")
    made = first.complete()
    others = tmp_path / "others.yaml"
    others.write_text("ann: look\nzoe: look\n")
    second = Keyring(others, tmp_path / "home")
    theirs = second.complete()
    assert sorted(theirs) == ["ann", "zoe"]
    assert first.visitors().keys() == {hashed(key) for key in made.values()}
    assert second.visitors().keys() == {hashed(key) for key in theirs.values()}


def test_new_keys_that_are_made_at_once_are_all_good(people: Path, tmp_path: Path) -> None:
    Keyring(people, tmp_path / "home").complete()
    names = ["ann", "bob", "eve"] * 4
    with ThreadPoolExecutor(len(names)) as pool:
        made = [*pool.map(lambda name: Keyring(people, tmp_path / "home").renew(name), names)]
    known = Keyring(people, tmp_path / "home").visitors()
    assert sorted(visitor.name or "" for visitor in known.values()) == ["ann", "bob", "eve"]
    assert len({hashed(key) for key in made} & known.keys()) == 3


def test_a_file_that_could_not_be_read_for_a_moment_is_read_again(
    people: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ring = Keyring(people, tmp_path / "home")
    made = ring.complete()
    assert hashed(made["bob"]) in ring.visitors()

    def fails(path: Path) -> dict[str, Right]:
        raise ConfigError("too many open files")

    people.write_text("ann: manage\n")
    with monkeypatch.context() as patched:
        patched.setattr(keyring, "read_people", fails)
        assert hashed(made["bob"]) in ring.visitors()
    assert hashed(made["bob"]) not in ring.visitors()


def test_changes_of_both_files_hold_at_once(people: Path, tmp_path: Path) -> None:
    ring = Keyring(people, tmp_path)
    made = ring.complete()
    people.write_text("ann: look\nbob: label\n")
    assert {one.name: one.right for one in ring.visitors().values()} == {
        "ann": Right.LOOK,
        "bob": Right.LABEL,
    }
    another = Keyring(people, tmp_path).renew("ann")
    assert hashed(made["ann"]) not in ring.visitors()
    assert ring.visitors()[hashed(another)] == Visitor("ann", Right.LOOK)


def test_a_file_that_is_damaged_meanwhile_changes_nothing_and_is_told_once(
    people: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ring = Keyring(people, tmp_path)
    ring.complete()
    before = ring.visitors()
    people.write_text("ann: [manage\n")
    with caplog.at_level(logging.WARNING):
        assert [ring.visitors() for _ in range(3)] == [before] * 3
    assert len(caplog.records) == 1
    assert "Rights and keys are unchanged" in caplog.text


def test_a_person_who_was_removed_and_comes_back_has_another_key(people: Path, tmp_path: Path) -> None:
    made = Keyring(people, tmp_path).complete()
    people.write_text("ann: manage\n")
    assert Keyring(people, tmp_path).complete() == {}
    assert list(json.loads((tmp_path / KEYS).read_text())[str(people)]) == ["ann"]
    people.write_text("ann: manage\neve: look\n")
    again = Keyring(people, tmp_path).complete()
    assert list(again) == ["eve"]
    assert again["eve"] != made["eve"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("ann: lable\n", "ann: there is no right 'lable'; did you mean 'label'?"),
        ("ann: [look]\n", "ann: there is no right '['look']'"),
        ("ann:\n", "ann: there is no right 'None'"),
        ("ann: true\n", "ann: there is no right 'True'"),
        ("", "must hold keys and values, for example 'ann: manage'"),
        ("{}\n", "names nobody: write a line for each person, such as ann: manage"),
        ("- ann\n", "must hold keys and values, for example 'ann: manage'"),
        ("7: look\n", "7 is not a name: put it in quotes"),
        ('"a\\nb": look\n', "a name must be printable text in one line"),
        ('" ": look\n', "a name must be printable text in one line"),
        (f"{'a' * 201}: look\n", "a name may have 200 bytes each"),
        ("ann: look\nann: manage\n", "the key 'ann' appears twice"),
    ],
)
def test_a_file_of_people_that_is_wrong_is_refused_in_one_line(
    tmp_path: Path, text: str, reason: str
) -> None:
    path = tmp_path / "people.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as refused:
        read_people(path)
    assert reason in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("text", ["", "[]", '{"ann": 7}', '{"ann": "short"}', "[" * 100_000, '{"ann": "ä"}'])
def test_a_damaged_file_of_keys_is_refused(people: Path, tmp_path: Path, text: str) -> None:
    (tmp_path / KEYS).write_text(text)
    with pytest.raises(ConfigError, match="is damaged: remove it, and everyone gets a new key"):
        Keyring(people, tmp_path)


def test_new_key_prints_an_address_without_a_store(
    command_line: CommandLine, people: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRINITY_DB_HOME", str(tmp_path))
    monkeypatch.setenv("TRINITY_DB_URL", "postgresql://none@127.0.0.1:1/none")
    said = command_line(
        "page", "--people", str(people), "--address", "https://page.example.org", "--new-key", "eve"
    )
    address, _, key = said.output.strip().partition("?key=")
    assert address == "For eve: https://page.example.org/"
    assert Keyring(people, tmp_path).visitors() == {hashed(key): Visitor("eve", Right.LOOK)}
