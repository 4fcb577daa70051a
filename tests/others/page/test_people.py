"""The page for people by name: each has a key, a right and verdicts of their own."""

import json
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, suppress
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import pytest
from playwright.sync_api import Browser, expect
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection
from websockets.sync.client import connect as connect_socket
from websockets.typing import Origin

from tests.others.page.browser import Served, Visit, home_of, served
from tests.others.page.test_access import SOCKET, asked
from tests.others.page.test_verdicts import HELD, PAIRS, ROWS, SAID, Person, ask_pairs, ask_rows, wait_for
from tests.support.postgres import by_login, execute, new_database
from tests.support.rows import Scene
from trinity_db.page.keyring import KEYS
from trinity_db.postgres.connection import Database, connect
from trinity_db.postgres.logins import make_login, open_to_roles

LABELLER = f"page_people_{os.getpid()}"
PEOPLE = "ann: manage\nbob: label\neve: look\n"
HOST = ("--host", "127.0.0.2")


@pytest.fixture
def scene(server: str, template: str) -> Iterator[Scene]:
    """A run that learns from pairs, in a store with a login for verdicts."""
    with new_database(server, template) as url, closing(Database(url)) as database:
        with closing(connect(url)) as owner:
            open_to_roles(owner)
            make_login(owner, LABELLER, "trinity_labeller")
        scene = Scene.open(database, num_tasks=50, algorithm="dpo")
        scene.make_ready(4, rewards=(0.5, 0.25))
        yield scene
        execute(url, "DROP ROLE {}", LABELLER)


class House:
    """A home with a file of people, in which the page is served again and again."""

    def __init__(self, folder: Path, scene: Scene, stack: ExitStack) -> None:
        url = scene.database.url
        self.people = folder / "people.yaml"
        self.people.write_text(PEOPLE)
        self.keys = folder / KEYS
        self.environment = {
            **home_of(folder),
            "TRINITY_DB_URL": by_login(url, LABELLER),
            "TRINITY_DB_READ_URL": by_login(url),
        }
        self._stack = stack

    def serve(self, *arguments: str, **environment: str) -> Served:
        given = ("--people", str(self.people), *arguments)
        return self._stack.enter_context(served(self.environment | environment, *given))

    def new_key(self, name: str, page: Served) -> Served:
        """Make another key for a person; the page by the address that is printed."""
        arguments = ["page", "--people", str(self.people), "--address", page.origin, "--new-key", name]
        command = [sys.executable, "-m", "trinity_db", *arguments]
        environment = {**os.environ, **self.environment}
        done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
        return Served(done.stdout.removeprefix(f"For {name}: ").strip(), page.process)


@pytest.fixture
def house(scene: Scene, tmp_path: Path) -> Iterator[House]:
    with ExitStack() as stack:
        yield House(tmp_path, scene, stack)


@pytest.fixture
def enter(browser: Browser, house: House) -> Iterator[Callable[[Served, str], Person]]:
    """Opens a browser for a person, by the address that was printed."""
    with ExitStack() as stack:

        def open_page(page: Served, name: str) -> Person:
            person = Person(Visit.begin(browser, page.of(name)))
            stack.callback(person.visit.page.context.close)
            return person

        yield open_page


def entered(page: Served, name: str) -> str:
    """The cookie that the address of a person gives."""
    answer = asked(page, page.people[name].removeprefix(page.origin))
    assert answer.status == 303
    return str(answer.headers["set-cookie"]).partition(";")[0]


def test_each_address_opens_the_page_as_its_person_and_nothing_else_does(house: House) -> None:
    page = house.serve(*HOST)
    assert page.origin.startswith("http://127.0.0.2:")
    assert asked(page, "/").status == 401
    assert asked(page, "/?key=wrong").status == 401
    cookies = {name: entered(page, name) for name in page.people}
    assert sorted(cookies) == ["ann", "bob", "eve"]
    assert {asked(page, "/", Cookie=cookie).status for cookie in cookies.values()} == {200}
    port = urlsplit(page.origin).port
    for host in (f"127.0.0.1:{port}", f"localhost:{port}", "127.0.0.2", "page.example.org"):
        assert asked(page, "/", Cookie=cookies["ann"], Host=host).status == 403
    for origin in (f"http://127.0.0.1:{port}", f"https://127.0.0.2:{port}", "http://127.0.0.2", "null"):
        assert asked(page, "/", Cookie=cookies["ann"], Origin=origin).status == 403


def test_people_who_all_look_need_no_login_that_writes(house: House) -> None:
    house.people.write_text("eve: look\n")
    reader = house.environment.pop("TRINITY_DB_READ_URL")
    page = house.serve(*HOST, TRINITY_DB_URL=reader)
    eve = entered(page, "eve")
    assert "You may look here." in answer_to(page, "/verdicts", eve)
    house.people.write_text("eve: label\n")
    assert "Nobody had the right to label when the page was started" in answer_to(page, "/verdicts", eve)


def answer_to(page: Served, path: str, cookie: str) -> str:
    """What a browser that holds a session is sent."""
    request = Request(page.origin + path, headers={"Cookie": cookie})
    with urlopen(request) as answer:
        return str(answer.read().decode())


def test_keys_outlive_the_page_and_are_printed_once(house: House) -> None:
    first = house.serve(*HOST)
    assert asked(first, "/").status == 401
    assert first.stop() == (0, "")
    assert stat.S_IMODE(house.keys.stat().st_mode) == 0o600
    house.people.write_text("ann: manage\nbob: label\nzoe: look\n")
    second = house.serve(*HOST)
    assert list(second.people) == ["zoe"]
    assert "is open to ann (manage), bob (label), zoe (look)." in second.said
    keys = {name: address.partition("key=")[2] for name, address in first.people.items()}
    assert asked(second, f"/?key={keys['ann']}").status == 303
    assert asked(second, f"/?key={keys['eve']}").status == 401


def test_a_new_key_ends_the_old_one_and_what_it_opened_while_the_page_is_served(house: House) -> None:
    page = house.serve(*HOST)
    ann, bob = entered(page, "ann"), entered(page, "bob")
    place = page.origin.replace("http", "ws", 1) + SOCKET
    with connect_socket(place, origin=Origin(page.origin), additional_headers={"Cookie": ann}) as open_socket:
        assert str(open_socket.recv()).startswith("0{")
        again = house.new_key("ann", page)
        with suppress(ConnectionClosed):  # on a busy machine the page has missed an answer by now
            open_socket.send("40")
        for _ in open_socket:
            pass  # until it is closed
    assert asked(page, "/", Cookie=ann).status == 401
    assert asked(page, page.people["ann"].removeprefix(page.origin)).status == 401
    assert asked(page, "/", Cookie=bob).status == 200
    assert asked(page, again.address.removeprefix(page.origin)).status == 303


def test_two_people_judge_at_once_and_each_takes_back_what_is_theirs(
    scene: Scene, house: House, enter: Callable[[Served, str], Person]
) -> None:
    ask_pairs(scene, verdicts=2)
    page = house.serve(*HOST)
    ann, bob = enter(page, "ann"), enter(page, "bob")
    assert ann.visit.page.locator(".visitor").inner_text() == "ann · manage"
    for person in (ann, bob):
        person.open(PAIRS)
    assert ann.ids() == bob.ids(), "each pair wants two people"
    ann.press("r")
    ann.press("a")
    bob.press("b")
    bob.press("t")
    assert ann.press("u") == "The last verdict was undone."
    assert ann.press("u") == "There is no verdict to undo."
    assert [row[1] == 0 for row in scene.rows(SAID, "bob")] == [False, True]
    assert all(row[2] for row in scene.rows(SAID, "bob")), "what ann saw was not shown to bob"
    assert scene.rows(SAID, "ann") == []
    assert bob.press("u") == "The last verdict was undone."
    assert bob.visit.facts()["you"] == "bob"
    wait_for(lambda: scene.value(HELD, "bob") == 3, bob)  # the one taken back, the one before that, the next
    ann.visit.page.context.close()
    wait_for(lambda: scene.value(HELD, "ann") == 0, bob)
    assert scene.value(HELD, "bob") == 3
    assert bob.visit.complaints == []


def test_a_person_who_may_look_is_offered_no_verdicts(
    scene: Scene, house: House, enter: Callable[[Served, str], Person]
) -> None:
    ask_rows(scene)
    eve = enter(house.serve(*HOST), "eve")
    assert eve.visit.page.locator(".visitor").inner_text() == "eve · look"
    for path in ("/verdicts", ROWS):
        eve.visit.open(path)
        expect(
            eve.visit.page.get_by_text("You may look here. To give verdicts, you need the")
        ).to_be_visible()
    expect(eve.visit.page.locator(".facts")).to_contain_text("rows")
    eve.visit.page.keyboard.press("g")
    assert eve.visit.page.locator(".keys, .claim").count() == 0
    assert scene.value(HELD, "eve") == 0
    assert eve.visit.complaints == []


def test_a_right_that_is_taken_away_ends_on_the_page_that_is_open(
    scene: Scene, house: House, enter: Callable[[Served, str], Person]
) -> None:
    ask_rows(scene)
    page = house.serve(*HOST)
    bob = enter(page, "bob")
    bob.open(ROWS)
    wait_for(lambda: scene.value(HELD, "bob") == 2, bob)
    before = scene.rows(SAID, "bob")
    house.people.write_text("ann: manage\nbob: look\n")
    bob.visit.page.keyboard.press("g")
    expect(bob.visit.page.get_by_text("You may no longer give verdicts here.")).to_be_visible()
    wait_for(lambda: scene.value(HELD, "bob") == 0, bob)
    assert scene.rows(SAID, "bob") == before
    cookie = entered(page, "bob")
    house.people.write_text("ann: manage\n")
    assert asked(page, "/", Cookie=cookie).status == 401
    assert asked(page, page.people["bob"].removeprefix(page.origin)).status == 401
    assert page.stop() == (0, "")


def test_what_is_sent_by_hand_for_the_page_of_another_person_is_refused(
    scene: Scene, house: House, enter: Callable[[Served, str], Person]
) -> None:
    """Eve knows all that the browser of ann sent, but for the cookie."""
    ask_rows(scene)
    page = house.serve(*HOST)
    ann = enter(page, "ann")
    sent: list[str] = []
    ann.visit.page.on("websocket", lambda it: it.on("framesent", lambda frame: sent.append(str(frame))))
    ann.open(ROWS)
    ann.press("s")
    ann.ready()
    [skipped] = [json.loads(frame.removeprefix("42"))[1] for frame in sent if '"\\"s\\""' in frame]
    turn = str(ann.keys.get_attribute("data-turn"))
    again = {**skipped, "args": [json.dumps("g"), turn]}
    linked = f"&client_id={skipped['client_id']}&implicit_handshake=true&tab_id=x&document_id=x"
    with talking(page, "eve", "") as of_eve, talking(page, "ann", "") as of_ann:
        assert said(of_eve, "40").startswith("40{")
        assert said(of_eve, f"427{json.dumps(['event', again])}") == "437[false]"
        assert said(of_eve, f"428{json.dumps(['handshake', again | {'tab_id': 'x'}])}") == "438[false]"
        assert [row[0] for row in scene.rows(SAID, "ann")] == ["skipped"]
        assert said(of_ann, "40").startswith("40{")
        assert said(of_ann, f"427{json.dumps(['event', again])}") == "437[]"
    with talking(page, "eve", linked) as of_eve:
        assert said(of_eve, "40").startswith("44")
    wait_for(lambda: len(scene.rows(SAID, "ann")) == 2, ann)  # what her own socket said
    assert [row[0] for row in scene.rows(SAID, "ann")] == ["skipped", "submitted"]
    assert scene.rows(SAID, "eve") == []


def talking(page: Served, name: str, link: str) -> AbstractContextManager[ClientConnection]:
    """A socket of a person that no browser opened."""
    place = page.origin.replace("http", "ws", 1) + SOCKET + link
    headers = {"Cookie": entered(page, name)}
    return connect_socket(place, origin=Origin(page.origin), additional_headers=headers)


def said(to: ClientConnection, message: str) -> str:
    """What the page answers to a message of socket.io."""
    to.send(message)
    return next(str(answer) for answer in to if str(answer)[:1] == "4")


def test_behind_a_proxy_the_page_answers_by_the_address_that_browsers_open(house: House) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as probe:
        port = probe.getsockname()[1]
    page = house.serve("--address", "https://page.example.org", "--port", str(port))
    assert all(one.startswith("https://page.example.org/?key=") for one in page.people.values())
    assert "travel unencrypted" not in page.said
    behind = Served(f"http://127.0.0.1:{port}", page.process)
    key = page.people["ann"].partition("key=")[2]
    host = "page.example.org"
    answer = asked(behind, f"/?key={key}", Host=host)
    cookie = str(answer.headers["set-cookie"])
    assert (answer.status, cookie.endswith("; Secure")) == (303, True)
    session = cookie.partition(";")[0]
    assert session.startswith("__Host-trinity_db_443=")
    assert asked(behind, "/", Host=host, Cookie=session).status == 200
    assert asked(behind, "/", Host=host, Cookie=session, Origin="https://page.example.org").status == 200
    assert asked(behind, "/", Host=host, Cookie=session, Origin="http://page.example.org").status == 403
    assert asked(behind, "/", Cookie=session).status == 403
