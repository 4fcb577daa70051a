"""Asynchronous steps: rows side by side, limits of time and rates, retries, equal rows, all errors."""

import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.steps import load
from tests.support.waiting import WAIT_SECONDS, wait_until
from trinity_db.errors import ConfigError
from trinity_db.processors.lists import async_judging, async_step_runner, limits, lists
from trinity_db.processors.lists.async_judging import Flow
from trinity_db.processors.lists.judge import Row
from trinity_db.processors.lists.results import of_cleaning, of_scoring
from trinity_db.schema.states import Outcome
from trinity_db.store.processing import StepVerdict

JUDGES = """
import asyncio
from trinity_db.processors.lists.step import Answer, Drop

running, most, begun = 0, 0, []

async def slow(response):
    global running, most
    running += 1
    most = max(most, running)
    await asyncio.sleep(0.05)
    running -= 1
    return float(response)

async def counted(response):
    begun.append(asyncio.get_running_loop().time())
    return Answer(float(response), {"said": "good\\x00", "of": float("nan")}, tokens=40)

async def shaky(response):
    begun.append(response)
    if begun.count(response) < 3:
        raise ConnectionError("no answer from the judge")
    return 1.0

async def hangs(response):
    if response == "hang":
        await asyncio.sleep(1000)
    return 1.0

async def fails(response):
    if response == "exit":
        raise SystemExit("over")
    if response == "cancel":
        raise asyncio.CancelledError
    if response == "words":
        return "very good"
    if response == "drop":
        return Drop("rude", {"words": 3})
    return 1.0

class Ready:
    def __init__(self, run, *, factor: float):
        self.factor = factor

    async def __call__(self, response):
        await asyncio.sleep(0)
        return self.factor * float(response)

def quick(response):
    return 1.0
"""


@pytest.fixture
def own(tmp_path: Path) -> str:
    (tmp_path / "judges.py").write_text(JUDGES)
    return f"{tmp_path}/judges.py"


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(async_step_runner, "FIRST_PAUSE", 0.01)


class Judges:
    """A flow with one step of the file."""

    def __init__(self, name: str, reading: Any = of_scoring, options: Any = None, **given: Any) -> None:
        [step] = load("score", {"name": name, "limits": given, **(options or {})})
        self.step = step
        self.module = step.function.__globals__ if not isinstance(step.function, type) else {}
        prepared = step.prepared(None)  # type: ignore[arg-type]
        self.flow = Flow([prepared], reading, lambda: None)
        self.taken = 0

    def take(self, *responses: str) -> None:
        rows = [
            Row({"id": id, "rollout_id": id, "last_step": 0, "response": one}, StepVerdict(id, 1))
            for id, one in enumerate(responses, self.taken)
        ]
        self.taken += len(rows)
        self.flow.take(rows)

    def say(self, *responses: str) -> list[StepVerdict]:
        """The verdicts, in the order of the rows."""
        self.take(*responses)
        found: list[Row] = []

        def all_judged() -> bool:
            found.extend(self.flow.done())
            return len(found) == len(responses)

        wait_until(all_judged, "all are judged")
        return sorted((row.verdict for row in found), key=lambda one: one.id)

    def values(self, *responses: str) -> list[Any]:
        return [one.events[0].value if one.events else one.error for one in self.say(*responses)]


@pytest.fixture
def judges(own: str) -> Iterator[Any]:
    made: list[Judges] = []

    def make(name: str, **given: Any) -> Judges:
        made.append(Judges(f"{own}:{name}", **given))
        return made[-1]

    yield make
    for one in made:
        one.flow.close()


def test_rows_are_judged_side_by_side_as_many_as_the_limit_allows(judges: Any) -> None:
    slow = judges("slow", in_flight=4)
    assert slow.values(*map(str, range(12))) == [float(n) for n in range(12)]
    assert slow.module["most"] == 4
    assert (slow.flow.room, slow.flow.ids) == (4, [])


def test_a_row_that_hangs_fails_with_its_place_and_holds_up_no_other(judges: Any, own: str) -> None:
    hangs = judges("hangs", seconds=0.2, retries=5)
    hung, good = hangs.say("hang", "fine")
    assert (hung.outcome, list(hung.events), good.outcome) == (Outcome.FAILED, [], Outcome.PASSED)
    assert "it took more than 0.2 s" in str(hung.error)
    assert str(hung.error).endswith("judges.py, line 27, in hangs)")


def test_an_error_is_tried_again_so_often_and_then_fails_the_row(judges: Any) -> None:
    patient = judges("shaky", retries=2)
    assert patient.values("a") == [1.0]
    assert patient.module["begun"] == ["a"] * 3
    impatient = judges("shaky", retries=1)
    [said] = impatient.values("b")
    assert "raised ConnectionError: no answer from the judge (" in said
    assert "judges.py, line 22, in shaky)" in said


def test_whatever_it_raises_or_returns_its_row_has_a_verdict_that_is_no_zero(judges: Any) -> None:
    fails = judges("fails", retries=0)
    exit, cancel, words, drop, good = fails.say("exit", "cancel", "words", "drop", "fine")
    assert [one.outcome for one in (exit, cancel, words, drop, good)] == [
        *[Outcome.FAILED] * 3,
        Outcome.DROPPED,
        Outcome.PASSED,
    ]
    assert "it raised SystemExit" in str(exit.error)
    assert "CancelledError" in str(cancel.error)
    assert "returned 'very good', not one number" in str(words.error)
    assert (drop.reason, drop.detail) == ("rude", {"words": 3})


def test_equal_rows_are_asked_about_once_and_an_error_is_not_kept(judges: Any) -> None:
    counted = judges("counted")
    assert counted.values("1", "1", "2", "1") == [1.0, 1.0, 2.0, 1.0]
    assert counted.values("1") == [1.0]
    assert len(counted.module["begun"]) == 2
    anew = judges("counted", cache=0)
    assert anew.values("1", "1") == [1.0, 1.0]
    assert len(anew.module["begun"]) == 2
    little = judges("counted", cache=1)
    for response in ("1", "2", "1"):
        little.values(response)
    assert len(little.module["begun"]) == 3
    shaky = judges("shaky", retries=0)
    assert [isinstance(shaky.values("a")[0], float) for _ in range(3)] == [False, False, True]


def test_no_minute_has_more_requests_or_tokens_than_the_limits_say(
    judges: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MINUTE", 0.3)
    for given in ({"requests_per_minute": 2}, {"tokens_per_minute": 80, "in_flight": 1}):
        counted = judges("counted", **given)
        counted.say(*map(str, range(6)))
        begun = counted.module["begun"]
        gaps = [later - earlier for earlier, later in zip(begun, begun[2:], strict=False)]
        assert len(begun) == 6
        assert min(gaps) >= 0.29, "the third begins a minute after the first"


def test_what_a_judge_said_is_kept_with_the_event_in_a_form_that_the_store_takes(judges: Any) -> None:
    [said] = judges("counted").say("1")
    assert said.events[0].detail == {"said": "good", "of": "nan"}


def test_a_class_gets_ready_and_is_awaited(judges: Any) -> None:
    assert judges("Ready", options={"factor": 2.0}).values("3") == [6.0]


def test_a_close_forgets_what_is_under_way(judges: Any) -> None:
    hangs = judges("hangs")
    hangs.take("hang", "fine")
    wait_until(lambda: len(hangs.flow.done()) == 1, "the other one is judged")
    assert hangs.flow.ids == [0]
    hangs.flow.close()
    assert (hangs.flow.ids, hangs.flow.done()) == ([], [])


def test_a_call_that_blocks_the_loop_is_said(
    judges: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(async_judging, "STUCK_SECONDS", 0.05)
    hangs, goes_on = judges("hangs"), threading.Event()
    hangs.take("hang")
    hangs.flow._loop.call_soon_threadsafe(goes_on.wait, WAIT_SECONDS)
    try:
        with caplog.at_level(logging.WARNING):
            wait_until(lambda: hangs.flow.done() or caplog.text, "it is said")
    finally:
        goes_on.set()
    assert "judges.py:hangs: no row progressed for" in caplog.text


@pytest.mark.parametrize(
    ("score", "said"),
    [
        (
            ["{own}:slow", "{own}:quick"],
            "':quick' is after .*:slow', which is asynchronous: put asynchr",
        ),
        (
            [{"name": "{own}:quick", "limits": {"seconds": 3}}],
            "limits, which only apply to a step that is async def",
        ),
        ([{"name": "{own}:both"}], "it is async def and has batch"),
    ],
)
def test_a_list_in_which_an_asynchronous_step_cannot_work_is_refused(own: str, score: Any, said: str) -> None:
    with open(own, "a") as file:
        file.write("\nfrom trinity_db.processors.lists.step import step\n")
        file.write("@step(batch=4)\nasync def both(response):\n    return []\n")
    named = [
        one.format(own=own) if isinstance(one, str) else {**one, "name": one["name"].format(own=own)}
        for one in score
    ]
    with pytest.raises(ConfigError, match=said.replace("':quick'", "'.*:quick'")) as error:
        load("score", *named)
    assert "\n" not in str(error.value)


def test_steps_of_clean_may_be_asynchronous_too(own: str) -> None:
    [step] = load("clean", f"{own}:hangs")
    assert (step.is_async, lists.LISTS["clean"].reading) == (True, of_cleaning)
