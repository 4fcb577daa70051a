"""Which column means what: every convention and every mapping."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.columns import read, reason
from trinity_db.data.files.readers import open_rows
from trinity_db.data.records.columns import Columns
from trinity_db.data.records.mapping import parse_options
from trinity_db.data.records.records import (
    Demonstration,
    Kind,
    Preference,
    Record,
    Task,
    Trajectory,
    Unpaired,
)
from trinity_db.data.rejects import Rejected
from trinity_db.errors import ConfigError

GSM8K = Path(__file__).parents[2] / ".." / "shared" / "data" / "gsm8k"

USER = {"role": "user", "content": "What color is the sky?"}
BLUE = {"role": "assistant", "content": "It is blue."}
GREEN = {"role": "assistant", "content": "It is green."}
SYSTEM = {"role": "system", "content": "Be brief."}


def task(prompt: str) -> Task:
    return Task({"prompt": prompt})


def talk(*messages: dict[str, Any]) -> Task:
    return Task({"messages": list(messages)})


@pytest.mark.parametrize(
    ("row", "payload"),
    [
        ({"prompt": "The sky is"}, {"prompt": "The sky is"}),
        ({"prompt": [SYSTEM, USER]}, {"messages": [SYSTEM, USER]}),
        ({"messages": [USER]}, {"messages": [USER]}),
        ({"messages": [USER, BLUE]}, {"messages": [USER], "answer": "It is blue."}),
        ({"messages": [USER, BLUE], "answer": 7}, {"messages": [USER], "answer": 7}),
        ({"question": "1+1?", "answer": "#### 2"}, {"prompt": "1+1?", "answer": "#### 2"}),
        (
            {"prompt": "p", "level": 3.0, "unit_tests": ["a"], "note": None, "meta": {"a": None, "b": 1}},
            {"prompt": "p", "level": 3.0, "unit_tests": ["a"], "note": None, "meta": {"a": None, "b": 1}},
        ),
    ],
)
def test_a_task_keeps_its_prompt_its_answer_and_every_other_column(
    row: dict[str, Any], payload: dict[str, Any]
) -> None:
    assert read("tasks", row) == Task(payload)


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": [SYSTEM, USER], "completion": [BLUE]},
        {"messages": [SYSTEM, USER, BLUE]},
        {"prompt": "What color is the sky?", "messages": [SYSTEM, USER, BLUE]},
    ],
)
def test_a_demonstration_is_a_conversation(row: dict[str, Any]) -> None:
    record = read("demonstrations", row)
    assert isinstance(record, Demonstration)
    assert record.task == talk(SYSTEM, USER)
    assert record.response == "It is blue."
    assert record.task.prompt == "Be brief.\n\nWhat color is the sky?"
    assert record.task.messages == [SYSTEM, USER]


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "The sky is", "completion": " blue."},
        {"prompt": "The sky is", "response": " blue."},
        {"question": "The sky is", "answer": " blue."},
    ],
)
def test_a_demonstration_is_two_columns(row: dict[str, Any]) -> None:
    assert read("demonstrations", row) == Demonstration(task("The sky is"), " blue.", {})


def test_columns_that_mean_nothing_are_kept_as_extra() -> None:
    record = read("demonstrations", {"prompt": "p", "completion": "c", "id": 7, "tags": ["a"], "none": None})
    assert record.extra == {"id": 7, "tags": ["a"], "none": None}


@pytest.mark.parametrize(
    ("row", "prompt", "chosen", "rejected"),
    [
        (
            {"prompt": "The sky is", "chosen": " blue.", "rejected": " green."},
            task("The sky is"),
            " blue.",
            " green.",
        ),
        (
            {"chosen": "The sky is blue.", "rejected": "The sky is black."},
            task("The sky is"),
            " blue.",
            " black.",
        ),
        ({"chosen": "Q: a\nA: yes", "rejected": "Q: a\nA: yes, but"}, task("Q: a\nA:"), " yes", " yes, but"),
        (
            {"prompt": [USER], "chosen": [BLUE], "rejected": [GREEN]},
            talk(USER),
            "It is blue.",
            "It is green.",
        ),
        (
            {"chosen": [SYSTEM, USER, BLUE], "rejected": [SYSTEM, USER, GREEN]},
            talk(SYSTEM, USER),
            "It is blue.",
            "It is green.",
        ),
        (
            {"prompt": [USER], "chosen": [USER, BLUE], "rejected": [USER, GREEN]},
            talk(USER),
            "It is blue.",
            "It is green.",
        ),
        (
            {"prompt": [SYSTEM], "chosen": [USER, BLUE], "rejected": [USER, GREEN]},
            talk(SYSTEM, USER),
            "It is blue.",
            "It is green.",
        ),
        # UltraFeedback: the prompt as text, and again as the first message of both.
        (
            {"prompt": USER["content"], "chosen": [USER, BLUE], "rejected": [USER, GREEN]},
            talk(USER),
            "It is blue.",
            "It is green.",
        ),
        (
            {"prompt": USER["content"], "chosen": [BLUE], "rejected": [GREEN]},
            talk(USER),
            "It is blue.",
            "It is green.",
        ),
    ],
)
def test_a_preference_is_found(row: dict[str, Any], prompt: Task, chosen: str, rejected: str) -> None:
    assert read("preferences", row) == Preference(prompt, chosen, rejected, None, {})
    assert read("preferences", row | {"margin": 2}).margin == 2.0


@pytest.mark.parametrize(("label", "value"), [(True, True), (False, False), (1, True), (0.0, False)])
def test_a_labelled_completion_is_an_unpaired_preference(label: Any, value: bool) -> None:
    row = {"prompt": "The sky is", "completion": " blue.", "label": label}
    assert read("preferences", row) == Unpaired(task("The sky is"), " blue.", value, {})


def test_nulls_of_a_table_that_holds_both_kinds_of_preference_are_no_columns() -> None:
    empty = dict.fromkeys(["prompt", "chosen", "rejected", "completion", "label"])
    paired = empty | {"prompt": "p", "chosen": "a", "rejected": "b"}
    unpaired = empty | {"prompt": "p", "completion": "a", "label": True}
    assert read("preferences", paired) == Preference(task("p"), "a", "b", None, {})
    assert read("preferences", unpaired) == Unpaired(task("p"), "a", True, {})


@pytest.mark.parametrize(
    ("columns", "reward"),
    [
        ({"reward": 0.5}, 0.5),
        ({"reward": True}, 1.0),
        ({"label": False}, 0.0),
        ({"reward": None}, None),
        ({}, None),
    ],
)
def test_a_trajectory_has_a_reward_or_none(columns: dict[str, Any], reward: float | None) -> None:
    record = read("trajectories", {"prompt": "p", "response": "r", "answer": 3, "model": "m"} | columns)
    assert record == Trajectory(Task({"prompt": "p", "answer": 3}), "r", reward, "m", {})


def test_a_mapping_renames_columns_and_leads_into_objects() -> None:
    row = {"q": "p", "a": {"solution": "s", "score": 2}, "b.c": "m", "b": {"c": "other"}}
    record = read("trajectories", row, prompt="q", response="a.solution", reward="a.score", model="b.c")
    assert record == Trajectory(task("p"), "s", 2.0, "m", {"b": {"c": "other"}})
    assert row["a"] == {"solution": "s", "score": 2}


def test_a_mapping_decides_between_conversation_and_columns() -> None:
    row = {"prompt": "p", "response": "r", "messages": [USER, BLUE], "talk": [USER, GREEN]}
    assert reason("demonstrations", row) == "'prompt' is not part of 'messages'; choose with --map"
    assert read("demonstrations", row, prompt="prompt").response == "r"
    assert read("demonstrations", row, messages="messages").response == "It is blue."
    assert read("demonstrations", row, messages="talk").response == "It is green."
    assert (
        read("demonstrations", {"x": "p", "messages": [USER, BLUE], "answer": "a"}, prompt="x").response
        == "a"
    )


def test_a_star_makes_a_trajectory_of_each_column_that_has_the_field() -> None:
    row = {
        "q": "p",
        "truth": "t",
        "small": {"solution": "a", "ok": False, "seconds": 2},
        "large": {"solution": "b", "ok": True},
        "other": {"text": "x"},
    }
    columns = Columns("trajectories", {"prompt": "q", "response": "*.solution", "reward": "*.ok"})
    extra = {"truth": "t", "other": {"text": "x"}}
    assert columns.read(row) == [
        Trajectory(task("p"), "a", 0.0, "small", extra | {"small": {"seconds": 2}}),
        Trajectory(task("p"), "b", 1.0, "large", extra),
    ]


def test_a_bad_match_of_a_star_leaves_the_others() -> None:
    row = {"prompt": "p", "a": {"s": "x", "ok": 1}, "b": {"s": "y"}, "c": {"s": " ", "ok": 1}}
    good, *bad = Columns("trajectories", {"response": "*.s", "reward": "*.ok"}).read(row)
    assert good == Trajectory(task("p"), "x", 1.0, "a", {})
    assert [rejected.reason for rejected in bad if isinstance(rejected, Rejected)] == [
        "'*.ok' is missing",
        "'*.s' is empty",
    ]
    assert reason("trajectories", {"prompt": "p"}, response="*.s") == "no column matches '*.s'"


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("tasks", ["promt=question"], "'promt' is not a field of tasks; did you mean 'prompt'"),
        ("tasks", ["reward=x"], "known names: prompt, messages, answer"),
        ("tasks", ["prompt"], "write it as our_name=their_column"),
        ("tasks", ["=x"], "write it as our_name=their_column"),
        ("tasks", ["prompt="], "write it as our_name=their_column"),
        ("tasks", ["prompt=a", "prompt=b"], "'prompt' is mapped twice"),
        ("tasks", ["prompt=a", "answer=a"], "one meaning only"),
        ("demonstrations", ["messages=a", "prompt=b"], "map either it or them"),
        ("tasks", ["prompt=*.a"], r"a '\*' needs --as trajectories"),
        ("trajectories", ["response=*"], "has a field after it"),
        ("trajectories", ["response=a.*.b"], "comes first"),
        ("trajectories", ["response=*.*.b"], "comes first"),
    ],
)
def test_a_mapping_that_means_nothing_is_refused(kind: Kind, options: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Columns(kind, parse_options(options))


def records(name: str, kind: Kind, **mapping: str) -> list[Record | Rejected]:
    if not (GSM8K / name).exists():
        pytest.skip(f"{GSM8K / name} is not there")
    columns = Columns(kind, mapping)
    return [record for _, row in open_rows(GSM8K / name) for record in columns.read(row)]  # type: ignore[arg-type]


def test_the_solutions_of_four_models_are_5276_trajectories() -> None:
    mapping = {
        "prompt": "question",
        "response": "*.solution",
        "reward": "*.is_correct",
        "answer": "ground_truth",
    }
    found = [
        record
        for record in records("example_model_solutions.jsonl", "trajectories", **mapping)
        if isinstance(record, Trajectory)
    ]
    assert len(found) == len({record.key for record in found}) == 5_276
    assert len({record.task.key for record in found}) == 1_319
    assert {record.model for record in found} == {
        "6b_finetuning",
        "6b_verification",
        "175b_finetuning",
        "175b_verification",
    }
    assert {record.reward for record in found} == {0.0, 1.0}


def test_gsm8k_is_read_as_tasks_and_as_demonstrations() -> None:
    tasks = records("train.jsonl", "tasks")
    assert len(tasks) == 7_473
    assert all(isinstance(record, Task) and "####" in record.payload["answer"] for record in tasks)
    assert all(isinstance(record, Demonstration) for record in records("train.jsonl", "demonstrations"))
