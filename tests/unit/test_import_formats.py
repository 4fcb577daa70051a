"""Formats of other programs: what their rows are in our columns, and what is told apart."""

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.columns import read as record_of
from trinity_db.data.files.readers import open_rows
from trinity_db.data.formats import FORMATS, FormatReader
from trinity_db.data.records.records import Kind, Unfit
from trinity_db.data.rejects import Rejected
from trinity_db.errors import ConfigError

USER = {"role": "user", "content": "What color is the sky?"}
BLUE = {"role": "assistant", "content": "It is blue."}
GREEN = {"role": "assistant", "content": "It is green."}

# https://huggingface.co/docs/trl/dataset_formats, standard and conversational
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
SKY = {"prompt": "The sky is"}
TRL: list[tuple[Kind, dict[str, Any], dict[str, Any]]] = [
    ("demonstrations", {"text": "The sky is blue."}, {"prompt": ""}),
    ("tasks", SKY, SKY),
    ("tasks", {"prompt": [USER]}, {"messages": [USER]}),
    ("demonstrations", {**SKY, "completion": " blue."}, SKY),
    ("demonstrations", {"prompt": [USER], "completion": [BLUE]}, {"messages": [USER]}),
    ("demonstrations", {"messages": [USER, BLUE]}, {"messages": [USER]}),
    ("demonstrations", {"messages": [USER, BLUE], "tools": [TOOL]}, {"messages": [USER], "tools": [TOOL]}),
    ("preferences", {**SKY, "chosen": " blue.", "rejected": " green."}, SKY),
    ("preferences", {"chosen": "The sky is blue.", "rejected": "The sky is green."}, SKY),
    ("preferences", {"prompt": [USER], "chosen": [BLUE], "rejected": [GREEN]}, {"messages": [USER]}),
    ("preferences", {"chosen": [USER, BLUE], "rejected": [USER, GREEN]}, {"messages": [USER]}),
    ("preferences", {**SKY, "completion": " blue.", "label": True}, SKY),
    ("preferences", {"prompt": [USER], "completion": [BLUE], "label": False}, {"messages": [USER]}),
]  # fmt: skip

VERL = {
    "data_source": "openai/gsm8k",
    "prompt": [{"role": "user", "content": "1+1?"}],
    "ability": "math",
    "reward_model": {"style": "rule", "ground_truth": "2"},
    "extra_info": {"split": "train", "index": 3},
}
WRITTEN_DOWN = {"input": "1+1?", "output": "2", "gts": "2", "score": 1.0, "step": 7, "acc": True}
EXPERIENCE = {
    "eid": {"batch": 1, "task": 2, "run": 0, "step": 0, "suffix": "abcdef"},
    "type": "single_turn",
    "prompt_length": 5,
    "response_length": 2,
    "info": {"model_version": 3},
    "metrics": {"seconds": 0.5},
    "prompt_text": "1+1?",
    "response_text": "2",
    "reward": 0.25,
}


def group(**more: Any) -> dict[str, Any]:
    """Two attempts of Atropos: one that goes on after a tool's answer, and one that is short."""
    return {
        "tokens": [[1, 2, 3, 4, 5, 6], [1, 2, 7]],
        "masks": [[-100, -100, 3, -100, -100, 6], [-100, -100, 7]],
        "scores": [1.0, -0.5],
        "inference_logprobs": [[1.0, 1.0, -0.25, 1.0, 1.0, -2.0], [1.0, 1.0, -0.5]],
        "messages": [[USER, BLUE, {"role": "tool", "content": "sure?"}, GREEN], [USER, BLUE]],
        "advantages": None,
        "overrides": [],
        **more,
    }


def read(kind: Kind, row: dict[str, Any], name: str | None = None) -> list[Any]:
    return FormatReader(name, kind).read(row)


def reason(kind: Kind, row: dict[str, Any], name: str) -> str:
    [rejected] = read(kind, row, name)
    assert isinstance(rejected, Rejected), rejected
    return rejected.reason


@pytest.mark.parametrize(("kind", "row", "payload"), TRL)
@pytest.mark.parametrize("name", [None, "trl"])
def test_each_type_of_trl_is_read_as_it_is(
    kind: Kind, row: dict[str, Any], payload: dict[str, Any], name: str | None
) -> None:
    assert read(kind, row, name) == [row]
    record = record_of(kind, row)
    assert (record if kind == "tasks" else record.task).payload == payload


def test_a_task_of_verl_has_the_ground_truth_as_its_answer() -> None:
    [row] = read("tasks", VERL)
    assert record_of("tasks", row).payload == {
        "messages": VERL["prompt"],
        "answer": "2",
        "data_source": "openai/gsm8k",
        "ability": "math",
        "reward_model": {"style": "rule"},
        "extra_info": {"split": "train", "index": 3},
    }


def test_a_parquet_file_of_verl_is_recognised_and_read(tmp_path: Path) -> None:
    pq.write_table(pa.Table.from_pylist([VERL, VERL | {"extra_info": None}]), tmp_path / "train.parquet")
    reader = FormatReader(None, "tasks")
    rows = [one for _, row in open_rows(tmp_path / "train.parquet") for one in reader.read(row)]  # type: ignore[arg-type]
    first, second = (record_of("tasks", row).payload for row in rows)  # type: ignore[arg-type]
    assert reader.name == "verl"
    assert (first["answer"], first["extra_info"], first["messages"]) == (
        "2",
        VERL["extra_info"],
        VERL["prompt"],
    )
    assert second["extra_info"] is None


def test_attempts_that_verl_wrote_down_have_its_score() -> None:
    [row] = read("trajectories", WRITTEN_DOWN)
    record = record_of("trajectories", row)
    assert (record.task.payload, record.response, record.reward) == (
        {"prompt": "1+1?", "answer": "2"},
        "2",
        1.0,
    )
    assert record.extra == {"step": 7, "acc": True}
    rows = read("trajectories", VERL | {"responses": ["2", "3"]})
    assert [record_of("trajectories", one).response for one in rows] == ["2", "3"]


def test_a_group_of_atropos_is_an_attempt_for_each_member() -> None:
    first, second = (record_of("traces", row) for row in read("traces", group()))
    assert first.task.payload == second.task.payload == {"messages": [USER]}
    assert [one.sequences[0].reward for one in (first, second)] == [1.0, -0.5]
    assert first.sequences[0].response == "It is blue.\n\nsure?\n\nIt is green."
    [turn] = read("traces", group())[0]["turns"]
    assert (turn["prompt_token_ids"], turn["completion_token_ids"]) == ([1, 2], [3, 4, 5, 6])
    assert turn["loss_mask"] == [0, 0, 1, 0, 0, 1]
    assert turn["per_token_logps"] == [-0.25, 0.0, 0.0, -2.0]
    attempts = [record_of("trajectories", row) for row in read("trajectories", group())]
    assert {one.task.key for one in attempts} == {first.task.key}, "one task, however many turns they took"
    several = [BLUE, {"role": "tool", "content": "sure?"}, GREEN]
    assert [(one.response, one.reward) for one in attempts] == [(several, 1.0), ("It is blue.", -0.5)]


def test_equal_attempts_of_a_group_are_two_and_stay_the_same_two() -> None:
    same = group()
    for name in ("tokens", "masks", "scores", "inference_logprobs", "messages"):
        same[name] = same[name][1:] * 2
    for kind in ("traces", "trajectories"):
        keys = [record_of(kind, row).key for row in read(kind, same)]
        assert len(set(keys)) == 2
        assert keys == [record_of(kind, row).key for row in read(kind, same)]


def test_a_group_without_log_probabilities_and_messages_still_has_tokens() -> None:
    bare = group(inference_logprobs=None, messages=None)
    first, _ = (record_of("traces", row) for row in read("traces", bare))
    assert (first.task.payload, first.sequences[0].num_trained) == ({"prompt": "1 2"}, 2)
    assert (
        reason("trajectories", bare, "atropos")
        == "has no 'messages'; import it --as traces to have its tokens"
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scores": [1.0]}, "'tokens' must have one entry for each of 'scores'"),
        ({"scores": None}, "'scores' is not a list, as in a group of Atropos"),
        ({"scores": []}, "'scores' is empty"),
        ({"masks": [[0, 0, 1, 0, 0, 1], [0, 0, 1]]}, "'masks' must repeat trained tokens, and "
         "have -100 elsewhere"),
        ({"masks": [[-100] * 6, [-100] * 3]}, "'masks' trains no token"),
        ({"masks": [[1], [1]]}, "'masks' must have one number for each token"),
        ({"inference_logprobs": [[0.0], [0.0]]}, "'inference_logprobs' must have one number for each token"),
    ],
)  # fmt: skip
def test_a_group_that_does_not_fit_itself_is_rejected(change: dict[str, Any], message: str) -> None:
    assert reason("traces", group(**change), "atropos") == message


def episode(**change: Any) -> dict[str, Any]:
    """An episode of verifiers in which a compaction was given up, with changes of its trace."""
    nodes: list[dict[str, Any]] = [
        {"parent": None, "message": USER, "token_ids": [1, 2], "mask": [False, False]},
        {"parent": 0, "message": BLUE, "token_ids": [3, 4], "mask": [False, True], "logprobs": [-0.5]},
        {"parent": 0, "message": GREEN, "token_ids": [5], "mask": [True], "logprobs": [-1.5]},
    ]
    nodes[2]["semantic_parents"] = [{"node": 1, "type": "compaction_attempt"}]
    trace = {"nodes": nodes, "ok": True, "rewards": {"right": {"score": 1, "weight": 2}, "late": None}}
    return {"task": {"data": {"prompt": "?", "answer": "blue"}}, "ok": True, "traces": [trace | change]}


def test_an_episode_of_verifiers_trains_no_compaction_that_was_given_up() -> None:
    [row] = read("traces", episode())
    record = record_of("traces", row)
    assert record.task.payload == {"messages": [USER], "answer": "blue"}
    [sequence] = record.sequences
    assert (sequence.num_tokens, sequence.num_trained, sequence.reward) == (4, 1, 2.0)
    accepted = episode()
    accepted["traces"][0]["nodes"][0]["semantic_parents"] = [{"node": 2, "type": "compaction"}]
    [row] = read("traces", accepted)
    assert len(record_of("traces", row).sequences) == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ok": False, "errors": [{"message": "No answer."}]}, "the episode failed: No answer."),
        ({"agent": {"trainable": False}}, "has no trace of an agent that is trained"),
        ({"agent": 1}, "'agent' must be an object"),
        ({"nodes": []}, "has no sampled tokens; import it --as trajectories to have its messages"),
        ({"nodes": [1]}, "'nodes' must be a list of objects"),
        ({"nodes": [{"parent": 0}]}, "'parent' of a node must be the number of an earlier node"),
        ({"nodes": [{"token_ids": 1}]}, "'token_ids', 'mask' and 'logprobs' of a node must be lists"),
        ({"nodes": [{"token_ids": [1]}]},
         "'mask' of a node must have true or false for each of its 'token_ids'"),
        ({"nodes": [{"token_ids": [1], "mask": [True], "logprobs": [0, 0]}]},
         "'logprobs' of a node must have one number for each true entry of its 'mask'"),
        ({"rewards": {"right": {}, "late": {"score": "1"}}},
         "'rewards' must have a 'score' and a 'weight' for each name"),
        ({"calls": [1]}, "'calls' must be a list of objects"),
    ],
)  # fmt: skip
def test_an_episode_that_does_not_fit_itself_is_rejected(change: dict[str, Any], message: str) -> None:
    assert reason("traces", episode(**change), "verifiers") == message


def test_an_experience_of_trinity_rft_has_text_reward_and_what_was_known_of_it() -> None:
    [row] = read("trajectories", EXPERIENCE)
    record = record_of("trajectories", row)
    assert (record.task.payload, record.response, record.reward) == ({"prompt": "1+1?"}, "2", 0.25)
    assert record.extra["trinity_rft"]["info"] == {"model_version": 3}
    assert reason("traces", EXPERIENCE, "trinity-rft") == (
        "has no tokens; import it --as trajectories to have its text"
    )
    pair = {name: EXPERIENCE[name] for name in ("eid", "type", "prompt_length", "response_length")}
    [row] = read("preferences", pair | {"chosen_messages": [USER, BLUE], "rejected_messages": [USER, GREEN]})
    assert record_of("preferences", row).chosen == "It is blue."
    [row] = read("demonstrations", pair | {"messages": [USER, BLUE], "tools": [TOOL]})
    record = record_of("demonstrations", row)
    assert (record.response, record.task.payload["tools"]) == ("It is blue.", [TOOL])
    several = [USER, BLUE, USER, GREEN]
    [row] = read("trajectories", pair | {"messages": several})
    assert record_of("trajectories", row).response == several[1:]


def test_rows_that_are_of_no_format_are_read_as_they_are_and_so_are_mapped_ones() -> None:
    plain = {"prompt": "p", "answer": "a", "reward_model": "none"}
    reader = FormatReader(None, "tasks")
    assert reader.read(plain) == [plain]
    assert (reader.name, reader.read(VERL)) == ("trl", [VERL]), "the first row has decided"
    mapped = FormatReader(None, "tasks", {"answer": "reward_model.ground_truth"})
    assert (mapped.name, mapped.read(VERL)) == ("trl", [VERL])


def test_a_function_of_the_users_is_a_format(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "def rows(row):\n"
        "    for answer in row['answers']:\n"
        "        yield {'prompt': row['q'], 'response': answer} if answer else 'none'\n"
    )
    name = f"{tmp_path / 'mine.py'}:rows"
    assert read("trajectories", {"q": "1+1?", "answers": ["2", "3"]}, name) == [
        {"prompt": "1+1?", "response": "2"},
        {"prompt": "1+1?", "response": "3"},
    ]
    assert reason("trajectories", {"q": "1+1?", "answers": [""]}, name) == (
        "the format returned something other than objects"
    )
    assert "the format raised KeyError: 'answers'" in reason("trajectories", {"q": "1+1?"}, name)
    assert "line 2, in rows)" in reason("trajectories", {"q": "1+1?"}, name)


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("atropo", "traces", "--format atropo: there is no such format; did you mean 'atropos'?"),
        (
            "csv",
            "traces",
            "known are trl, verl, trinity-rft, atropos, verifiers. Your own: path/to/file.py:name",
        ),
        ("atropos", "preferences", "--format atropos: its rows are imported --as traces or trajectories"),
        ("nowhere.py:f", "tasks", "there is no file nowhere.py"),
    ],
)
def test_a_format_that_there_is_not_is_named(name: str, kind: Kind, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        FormatReader(name, kind)


VALUES: list[Any] = [
    *(None, True, 0, 7, -1.5, "", "x", [], [1], [[1]], [[1, 2], [3]], {}, {"a": [1]}, [{}], [None, "x"]),
    *([{"role": "assistant"}], [[{"role": 1, "content": []}]], {"batch": 1, "task": [], "step": "x"}, VERL),
]
KEYS = [
    *("tokens", "masks", "scores", "messages", "inference_logprobs", "overrides", "responses", "prompt"),
    *("reward_model", "data_source", "steps", "raw_task", "eid", "action_mask", "prompt_length", "logprobs"),
    *("input", "output", "score", "step", "chosen_messages", "prompt_text", "response_text", "info"),
]


def test_no_row_of_whatever_content_does_more_than_be_rejected() -> None:
    chance = random.Random(0)
    read, rejected = 0, 0
    for _ in range(2_000):
        row = {name: chance.choice(VALUES) for name in chance.sample(KEYS, chance.randint(1, len(KEYS)))}
        for format in FORMATS.values():
            for kind in format.kinds:
                format.recognises(row)
                try:
                    rows = list(format.read(row, kind))
                except Unfit:
                    rejected += 1
                    continue
                for one in rows:
                    record_of(kind, one)
                    read += 1
    assert read > 20
    assert rejected > 100
