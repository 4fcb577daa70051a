"""Who may see the page: without the key nothing is served, neither pages nor files nor sockets."""

from http.client import HTTPConnection, HTTPResponse
from urllib.parse import urlsplit

import nicegui
import pytest
from playwright.sync_api import Browser
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Origin

from tests.others.page.browser import Served, Visit, served
from tests.support.postgres import by_login
from tests.support.rows import Scene

PATHS = (
    "/",
    "/experiences",
    "/experience/1",
    "/no-such-page",
    f"/_nicegui/{nicegui.__version__}/static/nicegui.js",
    f"/_nicegui/{nicegui.__version__}/components/none",
    "/_nicegui_ws/socket.io/?EIO=4&transport=polling",
    "/favicon.ico",
)
SOCKET = "/_nicegui_ws/socket.io/?EIO=4&transport=websocket"


def asked(page: Served, path: str, method: str = "GET", **headers: str) -> HTTPResponse:
    """The answer to a request, read to its end."""
    place = urlsplit(page.origin)
    connection = HTTPConnection(place.hostname or "", place.port)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer


@pytest.fixture
def cookie(page: Served) -> str:
    """The cookie that the key gives."""
    answer = asked(page, page.address.removeprefix(page.origin))
    return str(answer.headers["set-cookie"]).partition(";")[0]


@pytest.fixture(scope="module", autouse=True)
def rows(scene: Scene) -> None:
    """A store that has something to hide."""


@pytest.mark.parametrize("path", PATHS)
def test_without_the_key_nothing_is_served(page: Served, path: str) -> None:
    assert asked(page, path).status == 401


@pytest.mark.parametrize("path", ["/", "/experiences"])
def test_a_wrong_key_a_doubled_key_and_a_foreign_cookie_open_nothing(page: Served, path: str) -> None:
    key = page.address.partition("key=")[2]
    name = f"trinity_db_{urlsplit(page.origin).port}"
    assert asked(page, f"{path}?key=wrong").status == 401
    assert asked(page, f"{path}?key={key}&key={key}").status == 401
    assert asked(page, path, Cookie=f"{name}=").status == 401
    assert asked(page, path, Cookie=f"{name}=guess; {name}_x=1").status == 401


@pytest.mark.parametrize("method", ["POST", "PUT", "HEAD"])
def test_the_key_gives_a_session_for_a_get_alone(page: Served, method: str) -> None:
    answer = asked(page, page.address.removeprefix(page.origin), method, Origin=page.origin)
    assert (answer.status, answer.headers["set-cookie"]) == (401, None)


def test_the_key_becomes_a_cookie_that_no_script_and_no_other_site_can_use(page: Served) -> None:
    key = page.address.partition("key=")[2]
    answer = asked(page, f"/experiences?run=a%26b&key={key}&text=x%20y")
    assert (answer.status, answer.headers["location"]) == (303, "/experiences?run=a%26b&text=x+y")
    session, *rest = str(answer.headers["set-cookie"]).split("; ")
    assert rest == ["Path=/", "HttpOnly", "SameSite=Strict"]
    assert key not in session
    assert asked(page, "/experiences", Cookie=session).status == 200


def test_the_key_sends_nobody_to_another_site(page: Served) -> None:
    key = page.address.partition("key=")[2]
    assert asked(page, f"//elsewhere.example/?key={key}").headers["location"] == "/elsewhere.example/"


@pytest.mark.parametrize("path", PATHS[:2])
def test_with_the_cookie_the_page_answers_with_its_policy(page: Served, cookie: str, path: str) -> None:
    answer = asked(page, path, Cookie=cookie)
    assert answer.status == 200
    assert "default-src 'self'" in str(answer.headers["content-security-policy"])
    assert answer.headers["referrer-policy"] == "same-origin"


def test_another_name_of_this_machine_and_another_origin_are_refused(page: Served, cookie: str) -> None:
    for host in ("elsewhere.example", "localhost.elsewhere.example", "[", "localhost:1@elsewhere.example"):
        assert asked(page, "/", Cookie=cookie, Host=host).status == 403
    assert asked(page, "/", Cookie=cookie, Origin="http://elsewhere.example").status == 403
    assert asked(page, "/", Cookie=cookie, Origin=page.origin).status == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_what_may_write_says_that_it_comes_from_the_page_itself(
    page: Served, cookie: str, method: str
) -> None:
    path = "/_nicegui_ws/socket.io/?EIO=4&transport=polling"
    assert asked(page, path, method, Cookie=cookie).status == 403
    assert asked(page, path, method, Cookie=cookie, Origin="null").status == 403
    assert asked(page, path, method, Cookie=cookie, Origin="http://127.0.0.1:1").status == 403
    assert asked(page, path, method, Cookie=cookie, Origin=page.origin).status in (
        400,
        405,
    )  # it came through


@pytest.mark.parametrize("origin", [None, "http://elsewhere.example", "null"])
def test_a_socket_needs_the_cookie_and_the_origin(page: Served, cookie: str, origin: str | None) -> None:
    place = page.origin.replace("http", "ws", 1) + SOCKET
    own = Origin(page.origin)
    with pytest.raises(InvalidStatus) as refused:
        connect(place, origin=own)
    assert refused.value.response.status_code == 403
    with pytest.raises(InvalidStatus) as refused:
        connect(
            place, origin=None if origin is None else Origin(origin), additional_headers={"Cookie": cookie}
        )
    assert refused.value.response.status_code == 403
    with connect(place, origin=own, additional_headers={"Cookie": cookie}) as socket:
        assert str(socket.recv()).startswith("0{")  # engine.io opens


def test_ctrl_c_ends_it_without_a_word_while_a_browser_looks(
    scene: Scene, browser: Browser, tmp_path_factory: pytest.TempPathFactory
) -> None:
    home = {"TRINITY_DB_HOME": str(tmp_path_factory.mktemp("home"))}
    with served(home | {"TRINITY_DB_URL": by_login(scene.database.url)}) as page:
        visit = Visit.begin(browser, page)
        assert page.stop() == (0, "")
        visit.page.context.close()
