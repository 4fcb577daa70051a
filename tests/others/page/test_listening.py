"""Where the page listens and where browsers find it: what is taken, and what is refused in one line."""

import re
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.command_line import CommandLine
from trinity_db.errors import ConfigError
from trinity_db.page.listening import Listening
from trinity_db.page.origin import Origin


@pytest.mark.parametrize(
    ("given", "origin"),
    [
        ("https://page.example.org", "https://page.example.org"),
        ("https://Page.Example.org:443/", "https://page.example.org"),
        ("https://page.example.org:8443", "https://page.example.org:8443"),
        ("http://10.0.0.7:80", "http://10.0.0.7"),
        ("http://[2001:DB8:0::1]:8411", "http://[2001:db8::1]:8411"),
    ],
)
def test_an_address_is_read_as_browsers_write_it(given: str, origin: str) -> None:
    assert str(Origin.read(given)) == origin


@pytest.mark.parametrize(
    "given",
    [
        *("", "page.example.org", "ftp://page.example.org", "https://", "https://a/b", "https://a/?b"),
        *("https://ann@page.example.org", "https://a:99999", "https://127.1", "https://ä.example.org"),
        *("https://a b", "https://[::1"),
    ],
)
def test_what_is_no_address_is_refused(given: str) -> None:
    with pytest.raises(ConfigError, match=re.escape("give what browsers open")):
        Origin.read(given)


@pytest.mark.parametrize(
    ("address", "asked", "refused"),
    [
        (
            "https://page.example.org",
            ["page.example.org", "page.example.org:443"],
            ["page.example.org:80", "127.0.0.1:8411", "localhost", "example.org", "x.page.example.org", ""],
        ),
        ("http://127.0.0.2:8411", ["127.0.0.2:8411"], ["127.0.0.2", "127.0.0.1:8411", "127.0.0.2:84110"]),
        ("http://127.0.0.1:8411", ["127.0.0.1:8411", "localhost:9000"], ["127.0.0.2:8411", "elsewhere"]),
    ],
)
def test_a_page_answers_by_its_own_name_alone(address: str, asked: list[str], refused: list[str]) -> None:
    origin = Origin.read(address)
    assert [host for host in (*asked, *refused) if origin.is_asked(host)] == asked


def test_other_sites_schemes_and_ports_are_another_origin() -> None:
    public = Origin.read("https://page.example.org")
    host = "page.example.org"
    assert public.is_from("https://page.example.org", host)
    assert public.is_from("https://page.example.org", f"{host}:443")
    for other in ("http://page.example.org", "https://page.example.org:8443", "https://example.org", "null"):
        assert not public.is_from(other, host)
    assert not public.is_from("https://page.example.org", "elsewhere.example")
    tunnel = Origin.read("http://127.0.0.1:8411")
    assert tunnel.is_from("http://localhost:9000", "localhost:9000")
    assert not tunnel.is_from("http://localhost:9001", "localhost:9000")


def test_keys_that_would_travel_unencrypted_are_warned_of() -> None:
    encrypted = Origin.read("https://page.example.org")
    assert "put a TLS proxy in front" in str(Listening("192.0.2.7", 8411).warning)
    assert Listening("0.0.0.0", 8411, Origin.read("http://page.example.org")).warning is not None
    assert Listening("0.0.0.0", 8411, encrypted).warning is None
    assert Listening("127.0.0.2", 8411).warning is None
    assert Listening("::1", 8411).warning is None


def test_a_name_and_an_address_of_either_kind_can_be_listened_on() -> None:
    for host, shown in (("localhost", "localhost"), ("::1", "[::1]"), ("127.0.0.2", "127.0.0.2")):
        listening = Listening(host)
        with closing(listening.open()) as listener:
            port = listener.getsockname()[1]
            assert str(listening.origin(port)) == f"http://{shown}:{port}"


@pytest.mark.parametrize(
    ("host", "reason"),
    [("192.0.2.7", "this machine has no such address"), ("page.invalid", "unknown host")],
)
def test_an_address_of_another_machine_cannot_be_listened_on(host: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=f"--host {host}: {reason}"):
        Listening(host).open()


REFUSED = {
    "nothing but a host": ("--host 127.0.0.2", "--host needs named people: write a file"),
    "nothing but an address": ("--address https://a.example.org", "--address needs named people"),
    "nothing but a new key": ("--new-key ann", "--new-key needs named people"),
    "by and people": (
        "--people {people} --by ann",
        "--by is for a page of one person: with --people, write your name",
    ),
    "every address": ("--people {people} --host 0.0.0.0", "name the address that browsers open"),
    "every address of IPv6": ("--people {people} --host ::", "name the address that browsers open"),
    "no address": ("--people {people} --address page.example.org", "give what browsers open"),
    "no host": ("--people {people} --host a/b", "--host a/b: give a name or an address of this machine"),
    "a new key for no port": ("--people {people} --port 0 --new-key ann", "give the page's --port"),
    "a new key for no one": ("--people {people} --new-key anne", "has no 'anne'; did you mean 'ann'?"),
    "no file": ("--people none.yaml", "none.yaml: no such"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_options_that_cannot_be_followed_are_refused(
    command_line: CommandLine, tmp_path: Path, case: str
) -> None:
    arguments, reason = REFUSED[case]
    people = tmp_path / "people.yaml"
    people.write_text("ann: look\n")
    assert reason in command_line("page", *arguments.format(people=people).split()).complaint
