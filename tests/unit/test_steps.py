"""Lists of steps: what a step is given, what its result means, and what is wrong with one."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from tests.support.steps import load, verdicts
from trinity_db.arrays import codec
from trinity_db.errors import ConfigError
from trinity_db.processors.config import ProcessorsConfig
from trinity_db.processors.lists import lists
from trinity_db.processors.lists.judge import Row, judge
from trinity_db.processors.lists.results import of_scoring
from trinity_db.processors.lists.step import Step, step
from trinity_db.schema.states import Outcome
from trinity_db.store.processing import StepVerdict

PASSED, DROPPED, FAILED = Outcome.PASSED, Outcome.DROPPED, Outcome.FAILED


def packed(logprobs: list[float]) -> dict[str, Any]:
    """A row's arrays as they are read: a prompt of one token, then one token for each log-probability."""
    num_tokens = 1 + len(logprobs)
    payload = codec.Payload(
        np.arange(num_tokens, dtype=np.int32),
        np.arange(num_tokens) > 0,
        np.array(logprobs, np.float32),
        np.zeros(len(logprobs), np.int32),
    )
    return {"codec": codec.CODEC, "data": codec.encode(payload), "num_tokens": num_tokens}


@pytest.fixture
def own(tmp_path: Path) -> Any:
    """Writes a file of the user's own; returns the name of a function in it."""

    def write(text: str, name: str = "mine") -> str:
        (tmp_path / "steps.py").write_text(text)
        return f"{tmp_path}/steps.py:{name}"

    return write


@pytest.mark.parametrize(
    ("named", "row", "reason"),
    [
        ("not_empty", {"response": " \n"}, "empty"),
        ("not_empty", {"response": " a"}, None),
        ("not_truncated", {"finish_reason": "length"}, "truncated"),
        ("not_truncated", {"finish_reason": "stop"}, None),
        ({"name": "max_length", "tokens": 3}, {"response_length": 4}, "too_long"),
        ({"name": "max_length", "tokens": 3}, {"response_length": 3}, None),
        ("finite_logprobs", packed([-0.5, float("-inf")]), "non_finite_logprobs"),
        ("finite_logprobs", packed([-0.5, -1.5]), None),
    ],
)
def test_a_clean_step_drops_a_row_with_its_reason(
    named: Any, row: dict[str, Any], reason: str | None
) -> None:
    [verdict] = verdicts("clean", load("clean", named), row)
    name = named if isinstance(named, str) else named["name"]
    expected = (PASSED, None, None) if reason is None else (DROPPED, reason, name)
    assert (verdict.outcome, verdict.reason, verdict.step) == expected


def test_the_built_in_list_can_be_replaced_and_extended() -> None:
    def names(*clean: Any) -> list[str]:
        return [one.name for one in ProcessorsConfig.model_validate({"clean": list(clean)}).clean]

    assert [one.name for one in ProcessorsConfig().clean] == ["finite_logprobs"]
    assert names("defaults", "not_truncated") == ["finite_logprobs", "not_truncated"]
    assert names("not_truncated") == ["not_truncated"]
    assert names() == []


def test_a_row_that_a_step_drops_is_not_shown_to_the_next(own: Any) -> None:
    name = own("def mine(response):\n    assert response\n")
    steps = load("clean", "not_empty", name)
    assert [one.outcome for one in verdicts("clean", steps, {"response": ""}, {"response": "a"})] == [
        DROPPED,
        PASSED,
    ]


def test_the_digest_of_a_step_covers_the_own_modules_that_its_file_imports(tmp_path: Path) -> None:
    files = {
        "mine.py": "import json\nfrom words_of_mine import bad\ndef mine(response): return bad(response)\n",
        "words_of_mine.py": "def bad(text):\n    import parts_of_mine.deep as deep\n    return 1.0\n",
        "parts_of_mine/__init__.py": "",
        "parts_of_mine/deep.py": "from . import near\nword = near.word\n",
        "parts_of_mine/near.py": "word = 'a'\n",
        "json.txt": "",
        "other.py": "",
    }
    (tmp_path / "parts_of_mine").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text)

    def found() -> Step:
        return load("score", f"{tmp_path}/mine.py:mine")[0]

    before = found()
    assert sorted(path.name for path in before.files) == [
        "__init__.py",
        "deep.py",
        "mine.py",
        "near.py",
        "words_of_mine.py",
    ]
    digests = [before.digest]
    for name in ("parts_of_mine/near.py", "words_of_mine.py", "mine.py"):
        (tmp_path / name).write_text(files[name] + "# changed\n")
        digests.append(found().digest)
    assert len(set(digests)) == 4
    (tmp_path / "other.py").write_text("# changed")
    assert found().digest == digests[-1]


def test_a_step_of_the_users_own_has_options_with_types_and_a_version(own: Any) -> None:
    name = own(
        "from trinity_db.processors.lists.step import step\n"
        "@step(version=3)\n"
        "def mine(response, *, words: list[str], limit: int = 2):\n"
        "    return 'wordy' if sum(map(response.count, words)) > limit else None\n"
    )
    [found] = load("clean", {"name": name, "words": ["a", "b"], "limit": "1"})
    assert found.columns == ("response",)
    assert found.record() == {
        "name": name,
        "version": 3,
        "digest": hashlib.sha256(Path(name.partition(":")[0]).read_bytes()).hexdigest(),
        "weight": 1.0,
        "options": {"words": ["a", "b"], "limit": 1},
    }
    assert [one.reason for one in verdicts("clean", [found], {"response": "ab"}, {"response": "b"})] == [
        "wordy",
        None,
    ]


@pytest.mark.parametrize(
    ("text", "given", "said"),
    [
        ("def mine(respnse): pass", {}, "there is no column 'respnse'; did you mean 'response'"),
        ("def mine(response, *, limit): pass", {}, "its option 'limit' has no default; set it next to the"),
        ("def mine(response, *, limit=1): pass", {"limt": 2}, "unknown key 'limt'; did you mean 'limit'"),
        ("def mine(response, *, limit: int = 1): pass", {"limit": "x"}, "limit: Input should be a valid int"),
        ("def mine(response): pass", {"weigth": 2}, "unknown key 'weigth'; did you mean 'weight'"),
        ("def mine(response): pass", {"task": 2}, "'task' is a column, which it is given; it cannot be an"),
        ("def mine(*response): pass", {}, r"takes '\*response' by position; every parameter needs a name"),
        ("def mine(response, /): pass", {}, "by position; every parameter needs a name"),
        (
            "from __future__ import annotations\ndef mine(response, *, limit: Limit): pass",
            {"limit": 1},
            "'Limit', in the type of an option, is not defined at run time",
        ),
        (
            "class mine:\n    def __init__(self, run): pass\n    def __call__(self, respnse): pass",
            {},
            "there is no column 'respnse'; did you mean 'response'",
        ),
    ],
)
def test_a_step_that_does_not_fit_is_refused_before_the_first_row(
    own: Any, text: str, given: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=rf"^score step '.*steps.py:mine': .*{said}") as error:
        load("score", {"name": own(text), **given})
    assert "\n" not in str(error.value)


def test_a_step_of_another_list_is_none_of_this_one() -> None:
    with pytest.raises(ValidationError, match="no clean step 'exact_match'; known: not_empty"):
        ProcessorsConfig.model_validate({"clean": ["exact_match"]})


def test_a_function_may_take_any_options(own: Any) -> None:
    name = own("def mine(response, task, **options):\n    return options['bonus']\n")
    [verdict] = verdicts("score", load("score", {"name": name, "bonus": 4}), {"response": "", "task": {}})
    assert [event.value for event in verdict.events] == [4.0]


@pytest.mark.parametrize("text", ["return 1", "return ['empty']", "return False"])
def test_what_is_no_reason_fails_a_row_of_the_clean_list(own: Any, text: str) -> None:
    [verdict] = verdicts("clean", load("clean", own(f"def mine(response):\n    {text}\n")), {"response": ""})
    assert verdict.outcome == FAILED
    assert "neither a reason nor None" in str(verdict.error)


def test_a_drop_has_numbers_beside_its_reason_in_either_list(own: Any) -> None:
    name = own(
        "from trinity_db.processors.lists.step import Drop\n"
        "def mine(response):\n    return Drop('long', {'characters': len(response)})\n"
    )
    for processor in lists.LISTS:
        [verdict] = verdicts(processor, load(processor, name), {"response": "abc"})
        assert (verdict.outcome, verdict.reason, verdict.detail, verdict.step) == (
            *(DROPPED, "long", {"characters": 3}),
            name,
        )


def test_rewards_that_came_before_a_failure_or_a_drop_do_not_count(own: Any) -> None:
    rows = ({"prompt": "", "response": "1", "task": {"answer": 1}},)
    for body in ("raise ValueError('no')", "return None"):
        name = own(f"def mine(response, task):\n    {body}\n")
        [verdict] = verdicts("score", load("score", "exact_match", name), *rows)
        assert (verdict.outcome, list(verdict.events), verdict.step) == (FAILED, [], name)


def test_several_numbers_are_an_event_each_with_the_weight_of_their_step(own: Any) -> None:
    name = own("def mine(response):\n    return {'right': 1, 'short': 0.5}\n")
    [verdict] = verdicts("score", load("score", {"name": name, "weight": 0.2}), {"response": ""})
    assert [(event.name, event.value, event.weight) for event in verdict.events] == [
        (f"{name}/right", 1.0, 0.2),
        (f"{name}/short", 0.5, 0.2),
    ]
    name = own("def mine(response):\n    return {'right': 1, 'short': None}\n")
    [verdict] = verdicts("score", load("score", name), {"response": ""})
    assert str(verdict.error).endswith("mine/short returned None, not one number")


BATCHED = """
from trinity_db.processors.lists.step import step

asked = []

@step(batch=3)
def mine(response):
    asked.append(list(response))
    for place in reversed(range(len(response))):
        yield place, float(response[place])
"""


def batched(own: Any, text: str, *responses: str) -> tuple[list[StepVerdict], list[list[str]]]:
    """The verdicts in the order of their rows, and what the step was asked about each time."""
    [found] = load("score", own(text))
    given = verdicts("score", [found], *({"response": one} for one in responses))
    return sorted(given, key=lambda one: one.id), found.function.__globals__["asked"]


def test_a_step_that_takes_many_rows_is_asked_about_so_many_at_once(own: Any) -> None:
    found, asked = batched(own, BATCHED, "1", "2", "3", "4")
    assert [[event.value for event in one.events] for one in found] == [[1.0], [2.0], [3.0], [4.0]]
    assert asked == [["1", "2", "3"], ["4"]]


def test_one_row_that_such_a_step_cannot_take_fails_alone(own: Any, caplog: pytest.LogCaptureFixture) -> None:
    found, asked = batched(own, BATCHED, "1", "two", "3")
    assert [one.outcome for one in found] == [PASSED, FAILED, PASSED]
    assert "could not convert string to float: 'two'" in str(found[1].error)
    assert asked == [["1", "two", "3"], ["1"], ["two"]], "it had answered for the last one"
    assert "retrying 2 rows one by one" in caplog.text


def test_a_row_for_which_such_a_step_has_no_result_fails(own: Any) -> None:
    found, _ = batched(own, BATCHED.replace("reversed(range(len(response)))", "range(0)"), "1", "2")
    assert [str(one.error).split(":")[-1] for one in found] == ["mine gave no result"] * 2


def test_an_exception_as_a_result_fails_its_row_alone(own: Any) -> None:
    text = BATCHED.replace("float(response[place])", "ValueError('unsure') if place else 1.0")
    found, asked = batched(own, text, "a", "b")
    assert [(one.outcome, one.error) for one in found] == [(PASSED, None), (FAILED, "unsure")]
    assert asked == [["a", "b"]]


def test_a_signal_ends_a_list_after_the_row_that_is_under_way() -> None:
    seen: list[int] = []

    def watch(id: int) -> float:
        seen.append(id)
        return 1.0

    @step(batch=2)
    def many(id: list[int]) -> Iterator[tuple[int, float]]:
        yield from ((place, 0.0) for place in range(len(id)))

    rows = [Row({"id": n, "rollout_id": n, "last_step": 0}, StepVerdict(n, 1)) for n in range(4)]
    steps = [Step(name, call, ("id",), {}, call=call) for name, call in (("watch", watch), ("many", many))]
    [only] = judge(rows, steps[:1], of_scoring, lambda: bool(seen))
    assert (only.verdict.id, seen) == (0, [0])
    seen.clear()
    [only] = judge(rows, steps, of_scoring, lambda: len(seen) == 2)
    assert (only.verdict.id, seen) == (0, [0, 1]), "the second was not asked of the second step"
    assert [event.name for event in only.verdict.events] == ["watch", "many"]
