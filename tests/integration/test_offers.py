"""Attempts for agents that other people start: how they are given out, how they end, what they earn."""

import asyncio
import json
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.echo import Echo
from tests.support.explorers import ERRORS, Explorers, Says, give_back, sequences, stored, user
from tests.support.rows import Scene, wait_until_blocked
from tests.support.waiting import WAIT_SECONDS, wait_until
from trinity_db.explorer.http import agents, offers
from trinity_db.explorer.http.agents import Agent
from trinity_db.explorer.http.listener import EndpointAddress
from trinity_db.explorer.http.offers import Offers
from trinity_db.explorer.service import Explorer
from trinity_db.postgres.connection import Transaction, connect
from trinity_db.store import calls


@dataclass
class Served:
    """An explorer that gives attempts to whatever program asks, in a thread of its own."""

    role: Explorer
    url: str

    def post(self, path: str, body: Any = None, key: str = "", **headers: str) -> tuple[int, Any]:
        data = b"" if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json", **headers}
        request = urllib.request.Request(f"{self.url}{path}", data, headers, method="POST")
        try:
            with urllib.request.urlopen(request) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def say(self, key: str, *texts: str, **headers: str) -> tuple[int, Any]:
        return self.post("/v1/chat/completions", {"messages": [user(text) for text in texts]}, key, **headers)


@pytest.fixture
def serve(explorer: Explorers) -> Callable[..., AbstractContextManager[Served]]:
    """Serves attempts until the end of the block."""

    @contextmanager
    def serve(
        seconds: float | None = None,
        key: str | None = None,
        engine: Echo | None = None,
        size: int = 2,
        needs_reward: bool = False,
        **options: Any,
    ) -> Iterator[Served]:
        given_out = Offers(seconds, needs_reward)
        with closing(socket.create_server(("127.0.0.1", 0))) as probe:
            port = probe.getsockname()[1]
        role = explorer(
            given_out,
            engine or Says(),
            group_size=size,
            groups=1,
            place=EndpointAddress("127.0.0.1", port, given_out, key),
            needs_reward=needs_reward,
            **options,
        )
        thread = threading.Thread(target=role.work)
        thread.start()
        try:
            wait_until(lambda: is_listening(port), "the endpoint listens")
            yield Served(role, f"http://127.0.0.1:{port}")
        finally:
            role.stop()
            role.wake()
            thread.join()
            role.release()

    return serve


def is_listening(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


ROLLOUTS = "SELECT FROM trinity.rollout"
Serve = Callable[..., AbstractContextManager[Served]]


def test_agents_of_other_people_take_attempts_and_end_them(serve: Serve, scene: Scene) -> None:
    with serve(key="secret") as served:
        for wrong in ("wrong", "fälsch"):
            assert served.post("/v1/attempts", key=wrong)[0] == 401
            assert served.say(wrong, "a?")[0] == 401
        keys = []
        for _ in range(2):
            status, given = served.post("/v1/attempts", key="secret")
            assert (status, given["base_url"]) == (201, f"{served.url}/v1")
            assert "prompt" in given["task"]
            keys.append(given["key"])
        assert served.post("/v1/attempts", key="secret")[0] == 429  # the pace allows one group of two
        assert served.say(keys[0], "a?")[0] == 200
        assert served.post(f"/v1/attempts/{keys[0]}/reward", {"style": 0.5}) == (
            200,
            {"rewards": {"style": 0.5}},
        )
        status, ended = served.post(f"/v1/attempts/{keys[0]}/finish", 1)
        assert (status, ended["state"]) == (200, "finished")
        assert stored(scene, "SELECT state FROM trinity.rollout") == [("finished",)]
        assert stored(scene, "SELECT name, value FROM trinity.reward_event ORDER BY 1") == [
            ("style", 0.5),
            ("workflow", 1.0),
        ]
        assert served.say(keys[0], "b?") == (403, error("The attempt has ended."))
        assert served.post(f"/v1/attempts/{keys[1]}/fail", {"error": "no tools"}) == (
            200,
            {"state": "failed"},
        )
        assert served.say(keys[1], "b?")[0] == 403
        # A page in a browser reaches this address too, and cannot keep from saying where it comes from.
        assert served.post("/v1/attempts", key="secret", Origin="http://page.example")[0] == 403
    assert scene.values(ERRORS) == [None, "AttemptFailed: no tools"]


def error(message: str) -> Any:
    return {"error": {"message": message, "type": "permission_error", "param": None, "code": None}}


def test_a_repeated_request_gets_the_attempt_whose_key_was_lost_until_it_ends(
    serve: Serve, scene: Scene
) -> None:
    with serve(size=2) as served, ThreadPoolExecutor() as pool:
        same, other = {"Idempotency-Key": "a"}, {"Idempotency-Key": "b"}
        lost, given = pool.map(lambda _: served.post("/v1/attempts", **same), range(2))
        assert lost == given == served.post("/v1/attempts", **same)
        second = served.post("/v1/attempts", **other)[1]["key"]
        assert second != given[1]["key"]
        for key in (given[1]["key"], second):
            served.say(key, "a?")
            assert served.post(f"/v1/attempts/{key}/finish", 1)[1]["state"] == "finished"
        assert served.post("/v1/attempts", **same)[0] == 429, "it would be another attempt"
    assert scene.values(ERRORS) == [None, None]
    assert scene.values("SELECT count(*) FROM trinity.agent") == [2]


def test_a_reward_after_the_end_is_a_reward_event_like_any_other(serve: Serve, scene: Scene) -> None:
    with serve(size=1, needs_reward=True) as served:
        key = served.post("/v1/attempts")[1]["key"]
        served.say(key, "a?")
        status, refused = served.post(f"/v1/attempts/{key}/finish")
        assert (status, refused["error"]["code"]) == (400, "no_reward")  # and the attempt goes on
        assert served.post(f"/v1/attempts/{key}/finish", {"judge": 1})[1]["state"] == "finished"
        assert served.post(f"/v1/attempts/{key}/reward", {"judge": -1})[0] == 200
        assert served.post(f"/v1/attempts/{key}/reward", "much")[0] == 400
        assert served.post("/v1/attempts/unknown/reward", 1)[0] == 401
        assert served.post(f"/v1/attempts/{key}/fail")[1] == {"state": "finished"}
    assert scene.values("SELECT reward FROM trinity.experience") == [-1.0]
    assert scene.values("SELECT reward_mean FROM trinity.rollout_group") == [-1.0]


def test_the_rewards_of_an_attempt_have_at_most_100_names(serve: Serve, scene: Scene) -> None:
    with serve(size=1) as served:
        key = served.post("/v1/attempts")[1]["key"]
        served.say(key, "a?")
        for first, last, status in ((0, 101, 400), (0, 60, 200), (60, 101, 400), (60, 100, 200)):
            given = {f"name {number}": 0.01 for number in range(first, last)}
            assert served.post(f"/v1/attempts/{key}/reward", given)[0] == status, (first, last)
        assert served.post(f"/v1/attempts/{key}/finish")[1]["state"] == "finished"
    assert scene.value("SELECT count(*) FROM trinity.reward_event") == 100


def test_a_reward_that_is_being_stored_when_the_attempt_ends_counts(
    serve: Serve, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    concluding = threading.Event()
    conclude = Agent.conclude

    async def concluded(agent: Agent) -> Mapping[str, float]:
        concluding.set()
        return await conclude(agent)

    monkeypatch.setattr(Agent, "conclude", concluded)
    with serve(size=1) as served, ThreadPoolExecutor(2) as threads:
        key = served.post("/v1/attempts")[1]["key"]
        served.say(key, "a?")
        with closing(connect(scene.database.url)) as other:
            other.execute("SELECT FROM trinity.agent FOR UPDATE")
            late = threads.submit(served.post, f"/v1/attempts/{key}/reward", {"late": 1})
            wait_until_blocked(scene.database, late)
            ended = threads.submit(served.post, f"/v1/attempts/{key}/finish")
            assert concluding.wait(WAIT_SECONDS), "the workflow returns"
        assert late.result() == (200, {"rewards": {"late": 1}})
        assert ended.result()[1]["state"] == "finished"
        assert stored(scene, "SELECT name, value FROM trinity.reward_event") == [("late", 1.0)]


def test_an_agent_that_never_ends_is_a_failed_rollout(serve: Serve, scene: Scene) -> None:
    with serve(seconds=0.3, size=1) as served:
        key = served.post("/v1/attempts")[1]["key"]
        served.say(key, "a?")
        wait_until(lambda: stored(scene, ROLLOUTS), "it is written")
    assert scene.values(ERRORS) == ["TookTooLong: took longer than 0.3 s"]
    assert scene.values("SELECT prompt FROM trinity.call") == ["a?"]


def test_an_agent_that_vanishes_is_a_failed_rollout_also_without_a_time_limit(
    serve: Serve, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, looks = [0.0], list[float]()
    silence = Agent.silent_seconds

    def looked_at(agent: Agent) -> float:
        looks.append(silence.__get__(agent))
        return looks[-1]

    monkeypatch.setattr(agents, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(Agent, "silent_seconds", property(looked_at))
    monkeypatch.setattr(offers, "SILENT_SECONDS", 0.05)
    engine = Says()
    engine.gate = asyncio.Event()
    with serve(engine=engine, size=1) as served, ThreadPoolExecutor(1) as threads:
        key = served.post("/v1/attempts")[1]["key"]
        asked = threads.submit(served.say, key, "a?")
        wait_until(lambda: engine.asked, "it waits for an answer")
        clock[0] = 100.0
        before = len(looks)
        wait_until(lambda: len(looks) >= before + 3, "the explorer looks for silence")
        assert looks[before:] == [0.0] * len(looks[before:]), "to wait for an answer is no silence"
        assert stored(scene, ROLLOUTS) == []
        served.role._runner.get_loop().call_soon_threadsafe(engine.gate.set)
        assert asked.result()[0] == 200
        clock[0] = 200.0
        wait_until(lambda: stored(scene, ROLLOUTS), "it is written")
    assert scene.values(ERRORS) == ["TookTooLong: the agent sent no request for 0.05 s"]


def test_a_key_that_names_no_attempt_costs_neither_a_body_nor_many_queries(
    serve: Serve, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bytes] = []
    fate = calls.fate

    def counted(tx: Transaction, key_hash: bytes) -> calls.Fate | None:
        asked.append(key_hash)
        return fate(tx, key_hash)

    monkeypatch.setattr(calls, "fate", counted)
    unknown = "trinity-" + "x" * 32
    with serve(size=1) as served:
        host, port = served.url.removeprefix("http://").split(":")
        for verb in ("reward", "finish", "fail"):
            with closing(socket.create_connection((host, int(port)), 10)) as raw:
                path = f"/v1/attempts/{unknown}/{verb}"
                raw.sendall(f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: 60000000\r\n\r\n".encode())
                assert raw.recv(100).startswith(b"HTTP/1.1 401")  # it was sent no byte of the body
        assert len(asked) == 1
        assert served.say("of-another-form", "a?")[0] == 401
        assert len(asked) == 1


def test_an_attempt_that_took_too_long_is_offered_again_to_another_agent(serve: Serve, scene: Scene) -> None:
    with serve(seconds=0.5, size=1, retries=1) as served:
        late = served.post("/v1/attempts")[1]["key"]
        served.say(late, "a?")
        status, given = served.post("/v1/attempts")  # it waits for the next offer
        assert status == 201
        assert served.say(late, "b?")[0] == 403
        served.say(given["key"], "c?")
        assert served.post(f"/v1/attempts/{given['key']}/finish")[1]["state"] == "finished"
    assert sequences(scene) == [("c?yes", "..xxx")]


def test_an_agent_goes_on_with_its_key_when_the_endpoint_is_another_one(serve: Serve, scene: Scene) -> None:
    """What was said before is one sequence with what follows, and no answered call is sampled again."""
    engine = Says()
    repeated = {"x-stainless-retry-count": "1"}
    with serve(engine=engine, size=1) as served:
        key = served.post("/v1/attempts")[1]["key"]
        first = served.say(key, "a?")
        served.post(f"/v1/attempts/{key}/reward", {"style": 0.5})
    give_back(scene)
    with serve(engine=engine, size=1) as served:
        wait_until(lambda: is_known(served, key), "the endpoint has the group again")
        assert served.say(key, "a?", **repeated) == first
        assert len(engine.asked) == 1
        said = {"role": "assistant", "content": "yes"}
        served.post("/v1/chat/completions", {"messages": [user("a?"), said, user("b?")]}, key)
        assert served.post(f"/v1/attempts/{key}/finish")[1]["state"] == "finished"
    assert sequences(scene) == [("a?yesb?yes", "..xxx..xxx")]
    assert scene.values("SELECT reward FROM trinity.experience") == [0.5]
    assert scene.values("SELECT count(*) FROM trinity.agent") == [1]


def is_known(served: Served, key: str) -> bool:
    return served.post("/v1/messages/count_tokens", {"messages": [user("?")]}, key)[0] != 503
