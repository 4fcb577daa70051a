"""Conversations with tools from a file into the store, into tokens, and out again."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.chat_templates import TOOLS, read, tokenizer
from tests.support.rows import Scene
from trinity_db.config.shared import PromptConfig
from trinity_db.data.exporter import export_rows
from trinity_db.data.files.readers import open_rows
from trinity_db.data.importer import import_rows
from trinity_db.data.records.columns import Columns
from trinity_db.data.records.records import Kind
from trinity_db.models.chat.prompts import ChatRenderer
from trinity_db.store import payloads
from trinity_db.trainer.rows.encode import encode_adopted

ASK = {"role": "user", "content": "What is 1 + 2?"}
CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'}},
        {"id": "2", "type": "function", "function": {"name": "add", "arguments": {"a": 2, "b": 1}}},
    ],
}
RESULT = {"role": "tool", "tool_call_id": "1", "name": "add", "content": "three"}
SAME = {"role": "tool", "tool_call_id": "2", "name": "add", "content": "also three"}
THREE = {"role": "assistant", "content": "It is 3."}
FOUR = {"role": "assistant", "content": "It is 4."}

# As they are exported.
ROWS: dict[Kind, list[dict[str, Any]]] = {
    "tasks": [{"prompt": [ASK, CALL, RESULT, SAME], "answer": "3", "tools": TOOLS}],
    "demonstrations": [
        {"prompt": [ASK, CALL | {"weight": 1}, RESULT, SAME], "completion": [THREE], "tools": TOOLS},
        {"prompt": [ASK], "completion": [CALL], "tools": TOOLS},
        {"prompt": [ASK], "completion": [CALL, RESULT, SAME, THREE], "tools": TOOLS, "extra": {"id": 1}},
        {"text": "The sum is 3.", "extra": {"source": "me"}},
    ],
    "preferences": [
        {"prompt": [ASK], "chosen": [CALL, RESULT, SAME, THREE], "rejected": [FOUR], "tools": TOOLS},
        {"prompt": [ASK], "completion": [CALL], "label": True, "tools": TOOLS},
    ],
    "trajectories": [{"prompt": [ASK], "response": [CALL], "reward": 1.0, "tools": TOOLS}],
}


def load(scene: Scene, kind: Kind, path: Path, name: str) -> tuple[int, int, int]:
    done = import_rows(scene.database, open_rows(path), Columns(kind), name, lambda done, total: None)
    return done.added, done.known, done.rejected


def imported(scene: Scene, kind: Kind, rows: list[dict[str, Any]], folder: Path, name: str) -> None:
    path = folder / f"{name}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert load(scene, kind, path, name) == (len(rows), 0, 0)


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_an_export_has_the_form_of_the_import(scene: Scene, tmp_path: Path, suffix: str) -> None:
    for kind, rows in ROWS.items():
        name = f"my {kind}"
        imported(scene, kind, rows, tmp_path, name)
        out, again = tmp_path / f"out{suffix}", tmp_path / "again.jsonl"
        export_rows(scene.database, kind, name, out, lambda rows: None)
        assert load(scene, kind, out, name) == (0, len(rows), 0)
        export_rows(scene.database, kind, name, again, lambda rows: None)
        assert [json.loads(line) for line in again.read_text().splitlines()] == rows


def encoded(scene: Scene, name: str, template: str) -> tuple[Scene, Any]:
    """A run that adopted the data set, with its tokens by a chat template."""
    run = scene.beside(f"run of {name}", data=[name])
    reader = tokenizer(read(template))
    encode_adopted(
        run.database,
        run.run.id,
        run.trainer,
        ChatRenderer(reader, PromptConfig(prompt_template="Q: {prompt}")),
        1000,
        2000,
        lambda: False,
    )
    return run, reader


def trained(run: Scene, reader: Any) -> list[str]:
    """What each row trains, in the order of the import."""
    ids = "SELECT id FROM trinity.experience WHERE run_id = %s AND state = 'ready' ORDER BY id"
    found = [row for (row,) in run.rows(ids, run.run.id)]
    read = payloads.read(run.database, found)
    return [reader.decode(read[row].token_ids[read[row].action_mask]) for row in found]


TWO_CALLS = (
    '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>\n'
    '<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 1}}\n</tool_call><|im_end|>'
)


def test_calls_are_trained_and_results_are_not(scene: Scene, tmp_path: Path) -> None:
    imported(scene, "demonstrations", ROWS["demonstrations"], tmp_path, "talks")
    run, reader = encoded(scene, "talks", "qwen3")
    thinks = "<think>\n\n</think>\n\n"
    assert trained(run, reader) == [
        f"{TWO_CALLS}{thinks}It is 3.<|im_end|>",
        f"{thinks}{TWO_CALLS}",
        f"{TWO_CALLS}{thinks}It is 3.<|im_end|>",
        "The sum is 3.</s>",
    ]


def test_pairs_and_labels_of_several_turns_are_trained_on_both_sides(scene: Scene, tmp_path: Path) -> None:
    imported(scene, "preferences", ROWS["preferences"], tmp_path, "pairs")
    run, reader = encoded(scene, "pairs", "qwen2_5")
    assert sorted(trained(run, reader)) == sorted(
        [f"{TWO_CALLS}It is 3.<|im_end|>", "It is 4.<|im_end|>", TWO_CALLS]
    )
    shown = run.rows("SELECT response FROM trinity.experience_view WHERE run = %s ORDER BY id", "pairs")
    assert shown[0] == ('add({"a": 1, "b": 2})\nadd({"a": 2, "b": 1})\n\nthree\n\nalso three\n\nIt is 3.',)


def test_rows_with_tools_that_the_template_cannot_show_are_dropped(scene: Scene, tmp_path: Path) -> None:
    imported(scene, "demonstrations", ROWS["demonstrations"], tmp_path, "talks")
    run, reader = encoded(scene, "talks", "phi3")
    assert trained(run, reader) == ["The sum is 3.</s>"]
    why = """SELECT DISTINCT reason, detail->>'error' FROM trinity."drop" WHERE run_id = %s"""
    [(reason, error)] = run.rows(why, run.run.id)
    assert (reason, error.partition(":")[0]) == ("untokenizable", "The chat template shows no tools")


def test_documents_are_held_out_one_by_one(scene: Scene, tmp_path: Path) -> None:
    imported(scene, "demonstrations", [{"text": f"number {n}"} for n in range(60)], tmp_path, "texts")
    run = Scene.open(scene.database, "reading", data=["texts"], holdout=0.25)
    [(kept,)] = run.rows(
        "SELECT count(*) FILTER (WHERE held_out) FROM trinity.experience WHERE run_id = %s", run.run.id
    )
    assert 5 < kept < 25
