"""OpenEnv's protocol, against a server of the package itself."""

import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from tests.others.environments.conftest import PYTHON, attempted, played
from tests.support.waiting import wait_until


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    server = subprocess.Popen([PYTHON, str(Path(__file__).parent / "servers" / "echo.py"), str(port)])
    try:
        wait_until(lambda: answers(f"http://127.0.0.1:{port}/health"), "the server answers")
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()


def answers(url: str) -> bool:
    try:
        with urlopen(url) as response:
            return bool(response.status == 200)
    except URLError:
        return False


def test_a_session_is_played_to_its_end(url: str) -> None:
    echo = {
        "name": "openenv",
        "url": url,
        "action": "message",
        "observation": "text",
        "fields": {"loud": True},
    }
    made = played(echo, "ab", "c", "d", task={"word": "hello", "prompt": "not sent"})
    [step] = made.steps
    assert (step.prompt, step.response, step.reward) == ("Say hello.", "abABcCd", 4.0)


def test_an_action_may_be_written_as_json_and_what_is_wrong_with_it_is_told(url: str) -> None:
    says = ['{"message": "ab"}', "ab", "[]", '{"massage": "ab"}']
    made = played({"name": "openenv", "url": url, "penalty": 0.5, "steps": True, "turns": 4}, *says)
    prompts = [step.prompt for step in made.steps]
    assert prompts[:2] == ['{"text": "Say something."}', '{"text": "ab"}']
    assert "is not valid JSON:" in prompts[2]
    assert "is not a JSON object" in prompts[3]
    assert [step.reward for step in made.steps] == [2.0, -0.5, -0.5, -0.5]


@pytest.mark.parametrize(
    ("options", "says", "error"),
    [
        ({"action": "message"}, "crash", "EXECUTION_ERROR: the echo is lost"),
        ({"action": "massage"}, "ab", "VALIDATION_ERROR: message: Field required"),
        ({"action": "message", "observation": "txt"}, "ab", "has no field 'txt'; it has: text"),
        ({"url": "http://127.0.0.1:1"}, "ab", "NotStarted: http://127.0.0.1:1: Cannot connect"),
    ],
)
def test_what_is_not_the_policys_fault_fails_the_attempt(
    url: str, options: dict[str, str], says: str, error: str
) -> None:
    assert error in str(attempted({"name": "openenv", "url": url, **options}, says).error)
