"""Data in forms of other programs: from `trinity-db import` to the values in the store."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.command_line import CommandLine
from tests.support.rows import Scene

TEXTS = """
SELECT coalesce(t.messages, to_jsonb(t.prompt)), coalesce(t.reply, to_jsonb(t.response)), t.tools, t.extra
FROM trinity.experience_text t JOIN trinity.experience e ON e.id = t.experience_id
JOIN trinity.run r ON r.id = e.run_id WHERE r.name = %s ORDER BY e.id
"""
PAYLOADS = """
SELECT t.payload FROM trinity.task t JOIN trinity.taskset s ON s.id = t.taskset_id
WHERE s.name = %s ORDER BY t.id
"""
SCHEMA = {"name": "price", "parameters": {"type": "object", "properties": {"thing": {"type": "string"}}}}
TOOL = {"type": "function", "function": SCHEMA}


def user(content: str) -> dict[str, Any]:
    return {"role": "user", "content": content}


def said(content: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


def called(*things: str, **more: Any) -> dict[str, Any]:
    calls = [
        {"id": f"c{number}", "type": "function", "function": function(thing)}
        for number, thing in enumerate(things, 1)
    ]
    return said("", tool_calls=calls, **more)


def function(thing: str) -> dict[str, Any]:
    return {"name": "price", "arguments": json.dumps({"thing": thing})}


def result(content: str, **more: Any) -> dict[str, Any]:
    return {"role": "tool", "content": content, **more}


@pytest.fixture(autouse=True)
def url(scene: Scene, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRINITY_DB_URL", scene.database.url)
    monkeypatch.setenv("TRINITY_DB_HOME", str(tmp_path / "home"))


class Importer:
    """Writes rows to a file, imports it, and reads what the store has."""

    def __init__(self, scene: Scene, folder: Path, command_line: CommandLine) -> None:
        self.scene = scene
        self.folder = folder
        self.command_line = command_line

    def told(self, kind: str, rows: list[Any], *options: str) -> Any:
        file = self.folder / "set.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return json.loads(self.command_line("import", str(file), "--as", kind, "--json", *options).stdout)

    def stored(self, kind: str, rows: list[Any], *options: str) -> list[Any]:
        told = self.told(kind, rows, *options)
        assert (told["added"], told["rejected"]) == (len(rows), 0), told["reasons"]
        if kind == "tasks":
            return self.scene.values(PAYLOADS, "set")
        return self.scene.rows(TEXTS, "set")

    def reason(self, kind: str, row: Any, *options: str) -> str:
        [why] = self.told(kind, [row], *options)["reasons"]
        return str(why)


@pytest.fixture
def importer(scene: Scene, tmp_path: Path, command_line: CommandLine) -> Importer:
    return Importer(scene, tmp_path, command_line)


# Report 02: the older form of tool data


def test_older_function_calls_become_tool_calls(importer: Importer) -> None:
    def row(content: str | None) -> dict[str, Any]:
        asked = {"role": "assistant", "content": content, "function_call": function("tea")}
        costs = {"role": "function", "name": "price", "content": "COSTS-4"}
        return {"messages": [user("Price of tea?"), asked, costs, said("Tea costs 4.")]}

    rows = [row("") | {"functions": [SCHEMA]}, row("I look it up."), row(None) | {"id": 3}]
    stored = importer.stored("demonstrations", rows)
    calls = [{"type": "function", "function": function("tea")}]
    for (messages, reply, tools, extra), content, offered, more in zip(
        stored, ("", "I look it up.", ""), ([TOOL], None, None), (None, None, {"id": 3}), strict=True
    ):
        turn = said(content, tool_calls=calls, weight=1)
        assert messages == [user("Price of tea?"), turn, result("COSTS-4", name="price")]
        assert (reply, tools, extra) == ("Tea costs 4.", offered, more)


def test_a_call_in_the_older_form_can_be_the_last_turn(importer: Importer) -> None:
    last = {"role": "assistant", "content": "", "function_call": function("tea")}
    [(messages, reply, _, _)] = importer.stored("demonstrations", [{"messages": [user("Tea?"), last]}])
    assert (messages, reply) == (
        [user("Tea?")],
        [said("", tool_calls=[{"type": "function", "function": function("tea")}])],
    )


# Report 01, the part of the import: roles of other programs


def test_roles_of_other_programs_become_ours(importer: Importer) -> None:
    rows = [
        {"messages": [{"role": "human", "content": "Capital?"}, {"role": "model", "content": "Lima"}]},
        {"messages": [{"role": "User", "content": "Rain?"}, said("I look."),
                      {"role": "observation", "content": "RAIN"}, said("It rains.")]},
    ]  # fmt: skip
    first, second = importer.stored("demonstrations", rows)
    assert first[:2] == ([user("Capital?")], "Lima")
    assert second[:2] == ([user("Rain?"), said("I look.", weight=1), result("RAIN")], "It rains.")


# Report 03: results in another order than the calls


def test_results_are_put_in_the_order_of_their_calls(importer: Importer) -> None:
    def row(*results: dict[str, Any], n: int) -> dict[str, Any]:
        return {"messages": [user("Tea and gold?"), called("tea", "gold"), *results, said(f"Both {n}.")]}

    tea, gold = result("4", tool_call_id="c1"), result("9000", tool_call_id="c2")
    stored = importer.stored("demonstrations", [row(gold, tea, n=1), row(tea, gold, n=2)])
    assert [messages[2:] for messages, *_ in stored] == [[tea, gold], [tea, gold]]
    other = called("tea", "gold")
    other["tool_calls"][1]["function"]["name"] = "weight"
    named = [result("1 kg", name="weight"), result("4", name="price")]
    told = importer.told("demonstrations", [{"messages": [user("?"), other, *named, said("Both.")]}])
    assert told["converted"] == {"order of results": 1}
    assert importer.scene.rows(TEXTS, "set")[-1][0][2:] == named[::-1]


@pytest.mark.parametrize(
    ("results", "why"),
    [
        ([result("9000", tool_call_id="c2")], "'messages' holds parallel calls with too few results"),
        ([result("9000")], "'messages' holds parallel calls with too few results"),
        (
            [result("4", tool_call_id="c1"), result("7", tool_call_id="other")],
            "'messages' holds a result without its call",
        ),
        (
            [result("4", tool_call_id="c1"), result("7", tool_call_id="c2"), result("8", tool_call_id="c3")],
            "'messages' holds a result without its call",
        ),
        (
            [result("4", tool_call_id="c1"), result("7")],
            "'messages' holds results whose ids or names do not match the calls",
        ),
    ],
)
def test_results_that_belong_to_no_call_are_refused(importer: Importer, results: list[Any], why: str) -> None:
    row = {"messages": [user("Tea and gold?"), called("tea", "gold"), *results, said("Both.")]}
    assert importer.reason("demonstrations", row) == why
    alone = {"messages": [user("Tea?"), result("4", tool_call_id="c1"), said("4")]}
    assert importer.reason("demonstrations", alone) == "'messages' holds a result without its call"


# Report 06: conversations as JSON text


def test_messages_in_json_text_are_messages_in_each_column_and_kind(importer: Importer) -> None:
    asked, four, five = json.dumps([user("2+2?")]), json.dumps([said("4")]), json.dumps([said("5")])
    pair = importer.stored(
        "preferences", [{"prompt": asked, "chosen": four, "rejected": five}], "--name", "set"
    )
    assert [row[:2] for row in pair] == [([user("2+2?")], "4"), ([user("2+2?")], "5")]


@pytest.mark.parametrize(
    ("kind", "row"),
    [
        ("demonstrations", {"prompt": [user("2+2?")], "completion": json.dumps([said("4")])}),
        ("demonstrations", {"messages": json.dumps([user("2+2?"), said("4")])}),
        ("demonstrations", {"prompt": json.dumps(user("2+2?")), "completion": said("4")}),
        ("trajectories", {"prompt": json.dumps([user("2+2?")]), "response": json.dumps([said("4")])}),
        ("preferences", {"prompt": json.dumps([user("2+2?")]), "completion": "4", "label": True}),
    ],
)
def test_json_text_reads_as_the_same_messages(importer: Importer, kind: str, row: dict[str, Any]) -> None:
    assert importer.stored(kind, [row])[0][:2] == ([user("2+2?")], "4")


def test_a_task_reads_json_text_and_other_json_stays_text(importer: Importer) -> None:
    rows = [
        {"prompt": json.dumps([user("2+2?")]), "answer": "4"},
        {"prompt": "[1, 2]", "answer": "[3]"},
        {"prompt": '[{"role": "admin", "name": "Ann"}]'},
    ]
    assert importer.stored("tasks", rows) == [{"messages": [user("2+2?")], "answer": "4"}, *rows[1:]]
    for broken in ("[{'role': 'user', 'content': '2+2?'}]", '[{"role": "user", "content": "2+'):
        assert importer.reason("tasks", {"prompt": broken}) == (
            "'prompt' looks like messages, and is not JSON"
        )


# Report 10: parts of the prompt in columns of their own


def test_alpaca_columns_are_a_conversation(importer: Importer) -> None:
    filled = {"instruction": "Translate to French.", "input": "CAT-WORD", "output": "chat"}
    rows = [
        filled,
        {"instruction": "Greet.", "input": "", "output": "Hi"},
        filled | {"system": "BE-BRIEF", "history": [["OLD-Q", "old a"]]},
    ]
    asked = user("Translate to French.\nCAT-WORD")
    system = {"role": "system", "content": "BE-BRIEF"}
    assert [row[:2] for row in importer.stored("demonstrations", rows)] == [
        ([asked], "chat"),
        ([user("Greet.")], "Hi"),
        ([system, user("OLD-Q"), said("old a"), asked], "chat"),
    ]


@pytest.mark.parametrize(
    ("kind", "more", "replies"),
    [
        ("preferences", {"chosen": "chat", "rejected": "chien"}, ["chat", "chien"]),
        ("preferences", {"output": "chat", "kto_tag": True}, ["chat"]),
        ("trajectories", {"output": "chat", "reward": 1}, ["chat"]),
    ],
)
def test_alpaca_columns_are_read_in_each_kind(
    importer: Importer, kind: str, more: dict[str, Any], replies: list[str]
) -> None:
    stored = importer.stored(kind, [{"instruction": "Translate.", "input": "CAT-WORD"} | more])
    assert [row[:2] for row in stored] == [([user("Translate.\nCAT-WORD")], reply) for reply in replies]


def test_an_alpaca_task_has_the_output_as_its_answer(importer: Importer) -> None:
    row = {"instruction": "Translate.", "input": "CAT-WORD", "output": "chat", "level": 3}
    payload = {"messages": [user("Translate.\nCAT-WORD")], "answer": "chat", "level": 3}
    assert importer.stored("tasks", [row]) == [payload]


def test_system_and_history_precede_the_prompt(importer: Importer) -> None:
    rows = [
        {"system": "BE-BRIEF", "prompt": "Capital of Peru?", "completion": "Lima"},
        {"history": [["OLD-Q", "old a"]], "prompt": "And of Chile?", "response": "Santiago"},
        {"system_prompt": "", "history": "[]", "question": "Plain?", "answer": "Yes"},
    ]
    system = {"role": "system", "content": "BE-BRIEF"}
    assert [row[:2] for row in importer.stored("demonstrations", rows)] == [
        ([system, user("Capital of Peru?")], "Lima"),
        ([user("OLD-Q"), said("old a"), user("And of Chile?")], "Santiago"),
        ("Plain?", "Yes"),
    ]


def test_a_mapping_wins_and_the_import_names_the_columns_that_it_did_not_read(
    importer: Importer, command_line: CommandLine
) -> None:
    row = {"instruction": "Translate to French.", "input": "CAT-WORD", "output": "chat"}
    options = ["--map", "prompt=instruction", "--map", "response=output"]
    told = importer.told("demonstrations", [row], *options)
    assert (told["kept"], told["columns"]) == (
        {"input": 1},
        {"prompt": {"instruction": 1}, "response": {"output": 1}},
    )
    assert importer.scene.rows(TEXTS, "set") == [
        ("Translate to French.", "chat", None, {"input": "CAT-WORD"})
    ]
    told = importer.told("demonstrations", [row], *options, "--map", "input=input")
    assert importer.scene.rows(TEXTS, "set")[1][:2] == ("Translate to French.\nCAT-WORD", "chat")


@pytest.mark.parametrize(
    ("kind", "row", "why"),
    [
        (
            "demonstrations",
            {"messages": [user("a"), said("b")], "conversations": [user("a"), said("c")]},
            "'messages' and 'conversations' have the same meaning; choose with --map",
        ),
        (
            "demonstrations",
            {"instruction": "a", "prompt": "Below is a. b", "output": "b"},
            "'prompt' and 'instruction' have the same meaning; choose with --map",
        ),
        ("demonstrations", {"instruction": "a", "input": 7, "output": "b"}, "'input' must be text"),
        ("demonstrations", {"system": 7, "prompt": "a", "completion": "b"}, "'system' must be text"),
        (
            "demonstrations",
            {"history": [["a"]], "prompt": "a", "completion": "b"},
            "'history' must hold pairs of a question and its answer, or messages",
        ),
        (
            "demonstrations",
            {"prompt": "other", "messages": [user("a"), said("b")]},
            "'prompt' is not part of 'messages'; choose with --map",
        ),
        (
            "tasks",
            {"prompt": "other", "messages": [user("a")]},
            "'prompt' is not part of 'messages'; choose with --map",
        ),
        (
            "demonstrations",
            {"history": [["q", "a"]], "messages": [user("a"), said("b")]},
            "'history' is not part of 'messages'; choose with --map",
        ),
        (
            "preferences",
            {"prompt": [user("a")], "chosen": [user("b"), said("c")], "rejected": [user("b"), said("d")]},
            "'prompt' is not part of 'chosen'; choose with --map",
        ),
        ("tasks", {"prompt": "a", "tools": [TOOL], "functions": [SCHEMA]},
         "'tools' and 'functions' have the same meaning; choose with --map"),
    ],
)  # fmt: skip
def test_ambiguous_rows_are_refused(importer: Importer, kind: str, row: Any, why: str) -> None:
    assert importer.reason(kind, row) == why


def test_masks_of_turns_are_weights(importer: Importer) -> None:
    def row(key: str, n: int) -> dict[str, Any]:
        return {"messages": [user(f"{n}?"), said("5", **{key: False}), user("No."), said("4", **{key: True})]}

    rows = [row("train", 1), row("loss", 2), row("weight", 3)]
    assert [row[:2] for row in importer.stored("demonstrations", rows)] == [
        ([user(f"{n}?"), said("5", weight=0), user("No.")], "4") for n in (1, 2, 3)
    ]
    pair = {
        "prompt": [user("a")],
        "chosen": [said("b", train=False), user("c"), said("d")],
        "rejected": [said("e")],
    }
    importer.told("preferences", [pair], "--name", "pairs")
    assert importer.scene.rows(TEXTS, "pairs")[0][1] == [said("b", weight=0), user("c"), said("d")]


BAD_MASK = "'messages' holds a turn whose 'train' is neither 0 nor 1, or contradicts another mask"


@pytest.mark.parametrize(
    ("turn", "why"),
    [
        ({"train": 0.5}, BAD_MASK),
        ({"train": False, "weight": 1}, BAD_MASK),
        ({"train_detail": [{"begin_offset": 0}]}, "'messages' marks a part of a turn as trained"),
    ],
)  # fmt: skip
def test_masks_that_are_not_clear_are_refused(importer: Importer, turn: dict[str, Any], why: str) -> None:
    row = {"messages": [user("a"), said("b", **turn), user("c"), said("d")]}
    assert importer.reason("demonstrations", row) == why
    asks = {"messages": [user("a") | {"train": True}, said("b")]}
    assert importer.reason("demonstrations", asks) == (
        "'messages' marks a turn as trained that is not the assistant's"
    )


# ShareGPT


def test_sharegpt_is_read_with_calls_masks_and_system(importer: Importer) -> None:
    talk = [
        {"from": "system", "value": "Be brief."},
        {"from": "human", "value": "Tea and gold?"},
        {"from": "function_call", "value": json.dumps(function("tea"))},
        {"from": "function_call", "value": json.dumps(function("gold"))},
        {"from": "observation", "value": "4"},
        {"from": "observation", "value": "9000"},
        {"from": "gpt", "value": "Tea 4, gold 9000.", "weight": None},
    ]
    rows = [
        {"conversations": talk, "tools": json.dumps([SCHEMA]), "id": "x"},
        {"conversations": talk[1:2] + talk[-1:], "system": "Be kind."},
    ]
    first, second = importer.stored("demonstrations", rows)
    calls = said("", tool_calls=[function("tea"), function("gold")], weight=1)
    system = {"role": "system", "content": "Be brief."}
    assert first == (
        [system, user("Tea and gold?"), calls, result("4"), result("9000")],
        "Tea 4, gold 9000.",
        [SCHEMA],
        {"id": "x"},
    )
    assert second[:2] == (
        [{"role": "system", "content": "Be kind."}, user("Tea and gold?")],
        "Tea 4, gold 9000.",
    )


@pytest.mark.parametrize(
    ("kind", "more", "replies"),
    [
        ("preferences", {"chosen": {"from": "gpt", "value": "4"}, "rejected": {"from": "gpt", "value": "5"}},
         ["4", "5"]),
        ("preferences", {"chosen": "4", "rejected": "5"}, ["4", "5"]),
    ],
)  # fmt: skip
def test_sharegpt_pairs_have_the_conversation_as_their_prompt(
    importer: Importer, kind: str, more: dict[str, Any], replies: list[str]
) -> None:
    talk = {"conversations": [{"from": "human", "value": "2+2?"}]}
    assert [row[:2] for row in importer.stored(kind, [talk | more])] == [
        ([user("2+2?")], reply) for reply in replies
    ]


def test_sharegpt_is_read_as_tasks_trajectories_and_labels(importer: Importer) -> None:
    talk = {"conversations": [{"from": "human", "value": "2+2?"}, {"from": "gpt", "value": "4"}]}
    assert importer.stored("tasks", [talk], "--name", "set") == [{"messages": [user("2+2?")], "answer": "4"}]
    for name, kind, more in (("t", "trajectories", {"reward": 1}), ("k", "preferences", {"kto_tag": False})):
        importer.told(kind, [talk | more], "--name", name)
        assert importer.scene.rows(TEXTS, name)[0][:2] == ([user("2+2?")], "4")
    assert importer.reason(
        "demonstrations", {"messages": [{"speaker": "a", "text": "b"}]}, "--name", "d"
    ) == ("'messages' must hold messages with 'role' and 'content'")


# Report 11: parts and nulls


def test_parts_nulls_and_missing_arguments_are_read(importer: Importer) -> None:
    part = {"type": "text", "text": "2+"}
    call = {"id": "c1", "type": "function", "function": {"name": "now", "arguments": ""}}
    rows = [
        {"messages": [{"role": "user", "content": [part, part | {"text": "2?"}]},
                      {"role": "assistant", "content": [{"type": "text", "text": "4"}]}]},
        {"messages": [user("Now?"), {"role": "assistant", "content": None, "refusal": None,
                                     "tool_calls": [call]}, result("4", tool_call_id="c1"), said("4")]},
        {"tools": "", "messages": [user("2+2?"), said("5"), user("?"), said("4")]},
        {"messages": [user("Hm?"), {"role": "assistant", "content": None, "reasoning_content": "Hm."}]},
    ]  # fmt: skip
    first, second, third, fourth = importer.stored("demonstrations", rows)
    assert first[:2] == ([user("2+2?")], "4")
    assert second[0][1] == said(
        "", tool_calls=[call | {"function": {"name": "now", "arguments": "{}"}}], weight=1
    )
    assert third[2] is None
    assert fourth[1] == [said("", reasoning_content="Hm.")]
    assert importer.reason(
        "demonstrations",
        {
            "messages": [
                user("?"),
                {"role": "assistant", "content": None, "tool_calls": []},
                user("?"),
                said("4"),
            ]
        },
    ) == ("'messages' holds a message whose 'content' is not text")
    image = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}
    assert importer.reason("demonstrations", {"messages": [image, said("4")]}) == (
        "'messages' holds a message whose 'content' is not text"
    )


def test_nulls_that_arrow_fills_in_messages_are_missing_keys(
    importer: Importer, command_line: CommandLine, tmp_path: Path
) -> None:
    call = {"type": "function", "function": {"name": "price", "arguments": {"thing": "tea", "n": None}}}
    other = {"type": "function", "function": {"name": "price", "arguments": {"thing": None, "n": 1.0}}}
    messages = [user("?"), said("", tool_calls=[call, other]), result("4"), result("5"), said("9")]
    pq.write_table(
        pa.Table.from_pylist([{"messages": messages, "meta": {"a": None, "b": 1.0}}]),
        tmp_path / "set.parquet",
    )
    done = command_line("import", str(tmp_path / "set.parquet"), "--as", "demonstrations")
    assert done.code == 0
    [(stored, _, _, extra)] = importer.scene.rows(TEXTS, "set")
    assert [one["function"]["arguments"] for one in stored[1]["tool_calls"]] == [{"thing": "tea"}, {"n": 1.0}]
    assert (list(stored[0]), extra) == (["role", "content"], {"meta": {"a": None, "b": 1.0}})


# Report 18, last line: nulls and floats


def test_nulls_and_floats_survive_an_import(
    importer: Importer, command_line: CommandLine, tmp_path: Path
) -> None:
    task = {
        "prompt": "p",
        "answer": 6.0,
        "result": None,
        "tests": [{"in": [1.0, None], "out": None}, {"a": {}}],
        "small": 1e-300,
    }
    [stored] = importer.stored("tasks", [task])
    assert json.dumps(stored, sort_keys=True) == json.dumps(task, sort_keys=True)
    arguments = {"x": 1.0, "y": None, "z": [None, 2.0]}
    call = said("", tool_calls=[{"type": "function", "function": {"name": "f", "arguments": arguments}}])
    schema = {"name": "f", "parameters": {"properties": {"x": {"default": None, "minimum": 0.0}}}}
    importer.told(
        "demonstrations", [{"messages": [user("a"), call], "tools": [schema], "n": None}], "--name", "d"
    )
    [(_, reply, tools, extra)] = importer.scene.rows(TEXTS, "d")
    assert json.dumps(reply[0]["tool_calls"][0]["function"]["arguments"], sort_keys=True) == (
        json.dumps(arguments, sort_keys=True)
    )
    assert repr((tools[0]["parameters"]["properties"]["x"], extra)) == repr(
        ({"default": None, "minimum": 0.0}, {"n": None})
    )
    for name, kind in (("set", "tasks"), ("d", "demonstrations")):
        for suffix in (".jsonl", ".parquet", ".csv"):
            out = tmp_path / f"out{suffix}"
            command_line("export", name, "--as", kind, "--to", str(out))
            copy = f"{name}{suffix}"
            assert command_line("import", str(out), "--as", kind, "--name", copy).code == 0
            query = PAYLOADS if kind == "tasks" else TEXTS
            again, before = importer.scene.rows(query, copy), importer.scene.rows(query, name)
            assert json.dumps(again, sort_keys=True) == json.dumps(before, sort_keys=True)


# Repeated prompts


def test_a_prompt_that_both_texts_repeat_is_there_once(importer: Importer) -> None:
    row = {"prompt": "Q: 2+2? A:", "chosen": "Q: 2+2? A: 4", "rejected": "Q: 2+2? A: 5"}
    assert [row[:2] for row in importer.stored("preferences", [row])] == [
        ("Q: 2+2? A:", " 4"),
        ("Q: 2+2? A:", " 5"),
    ]
    system = {"role": "system", "content": "s"}
    pair = {
        "prompt": [system, user("a")],
        "chosen": [user("a"), said("b")],
        "rejected": [user("a"), said("c")],
    }
    importer.told("preferences", [pair], "--name", "messages")
    assert importer.scene.rows(TEXTS, "messages")[0][:2] == ([system, user("a")], "b")


# The words of an import


def test_an_import_prints_columns_forms_and_a_row_with_its_trained_part(
    importer: Importer, command_line: CommandLine, tmp_path: Path
) -> None:
    talk = [
        {"from": "human", "value": "2+2?"},
        {"from": "gpt", "value": "5", "train": False},
        {"from": "human", "value": "No.\x1b[31m"},
        {"from": "gpt", "value": "4"},
    ]
    file = tmp_path / "talk.jsonl"
    file.write_text(json.dumps({"conversations": talk, "id": 7, "x" * 3: None}) + "\n")
    shown = command_line("import", str(file), "--as", "demonstrations", "--preview", "2").output
    assert "    user: 2+2?\n    assistant: 5\n    user: No.\\x1b[31m\n    assistant: ⟦4⟧\n" in shown
    assert importer.scene.values("SELECT count(*) FROM trinity.run WHERE name = 'talk'") == [0]
    done = command_line("import", str(file), "--as", "demonstrations").output
    assert done.startswith("talk: 1 demonstrations added, 0 already known, 0 rejected\n")
    assert "  read: conversations as messages\n  kept, not read: id, xxx\n" in done
    assert "  converted in 1: ShareGPT: " in done
    assert "  converted in 1: masks: " in done
    assert "    assistant: ⟦4⟧\n" in done
    told = json.loads(
        command_line("import", str(file), "--as", "demonstrations", "--preview", "1", "--json").output
    )
    assert told["columns"] == {"messages": {"conversations": 1}}
    assert told["rows"][0]["text"].endswith("assistant: ⟦4⟧")


def test_a_preview_shows_reasons_and_stops_in_time(
    importer: Importer, command_line: CommandLine, tmp_path: Path
) -> None:
    file = tmp_path / "pairs.jsonl"
    rows = [{"prompt": f"{n}?", "chosen": " yes", "rejected": " no"} for n in range(3)]
    file.write_text("".join(json.dumps(row) + "\n" for row in [{"prompt": "p"}, *rows]))
    shown = command_line("import", str(file), "--as", "preferences", "--preview", "2").output
    assert "line 1:\n    rejected: 'chosen' is missing\n" in shown
    assert "line 2:\n    0?\n    chosen ⟦ yes⟧\n    rejected ⟦ no⟧\n" in shown
    assert "line 3" not in shown
    assert not (tmp_path / "home" / "rejects").exists()
