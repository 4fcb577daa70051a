"""Each part of a conversation reaches the stored tokens with the right mask, or its row is dropped."""

import json
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, processors

from tests.support.chat_templates import TOOLS, read, tokenizer
from tests.support.echo import Echo
from tests.support.explorers import Explore
from tests.support.rows import Scene
from trinity_db.data.files.readers import open_rows
from trinity_db.data.importer import import_rows
from trinity_db.data.records.columns import Columns
from trinity_db.data.records.records import Kind
from trinity_db.explorer.attempt.policy import Policy
from trinity_db.explorer.engines.engine import Completion, Request
from trinity_db.models.chat.prompts import ChatRenderer, UntokenizableText
from trinity_db.store import payloads
from trinity_db.trainer.rows.encode import encode_adopted

Message = dict[str, Any]
IMPORTED = "SELECT id FROM trinity.experience WHERE run_id = %s AND state = 'ready' ORDER BY id"
DROPPED = """
    SELECT detail->>'error' FROM trinity."drop" WHERE run_id = %s AND reason = 'untokenizable' ORDER BY id
"""
NOT_LEARNED = "so that it cannot be learned; give it a weight of 0."


def user(content: str) -> Message:
    return {"role": "user", "content": content}


def answer(content: str, **more: Any) -> Message:
    return {"role": "assistant", "content": content, **more}


def calls(*ids: str) -> Message:
    function = {"name": "add", "arguments": '{"a": 1}'}
    return answer("", tool_calls=[{"id": id, "type": "function", "function": function} for id in ids])


def result(id: str, content: str) -> Message:
    return {"role": "tool", "tool_call_id": id, "name": "add", "content": content}


def stored(
    scene: Scene, folder: Path, reader: Any, *rows: dict[str, Any], kind: Kind = "demonstrations"
) -> tuple[list[str], list[str]]:
    """The texts of the stored rows, with trained tokens in ⟦⟧, and the reasons of the dropped ones."""
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = import_rows(scene.database, open_rows(path), Columns(kind), "rows", lambda done, total: None)
    assert done.added == len(rows)
    run = scene.beside("reading", data=["rows"])
    encode_adopted(run.database, run.run.id, run.trainer, ChatRenderer(reader), 10_000, 2000, lambda: False)
    ready = [row for (row,) in run.rows(IMPORTED, run.run.id)]
    read = payloads.read(run.database, ready)
    return [shown(reader, read[row]) for row in ready], [
        reason for (reason,) in run.rows(DROPPED, run.run.id)
    ]


def shown(reader: Any, payload: Any) -> str:
    pairs = zip(payload.action_mask.tolist(), payload.token_ids.tolist(), strict=True)
    texts = [
        (key, reader.decode([token for _, token in group]))
        for key, group in groupby(pairs, lambda pair: pair[0])
    ]
    return "".join(f"⟦{text}⟧" if is_trained else text for is_trained, text in texts)


def test_a_message_whose_role_the_template_drops_is_not_trained_without_it(
    scene: Scene, tmp_path: Path
) -> None:
    rows = [
        {"messages": [{"role": "developer", "content": "Say BANANA."}, user("Peru?"), answer("BANANA")]},
        {
            "messages": [
                user("Weather?"),
                answer("I look."),
                {"role": "narrator", "content": "RAIN"},
                answer("Rain."),
            ]
        },
        {"messages": [{"role": "narrator", "content": "Peru?"}, answer("Lima")]},
    ]
    assert stored(scene, tmp_path, tokenizer(read("qwen3")), *rows) == (
        [],
        [
            "The chat template leaves out or changes message 1, whose role is 'developer'.",
            "The chat template leaves out or changes message 3, whose role is 'narrator'.",
            "The chat template leaves out or changes message 1, whose role is 'narrator'.",
        ],
    )


def test_a_template_that_shows_any_role_trains_them(scene: Scene, tmp_path: Path) -> None:
    row = {"messages": [{"role": "developer", "content": "Say BANANA."}, user("Peru?"), answer("BANANA")]}
    [text], _ = stored(scene, tmp_path, tokenizer(read("llama3")), row)
    assert "developer<|end_header_id|>\n\nSay BANANA.<|eot_id|>" in text
    assert text.endswith("⟦BANANA<|eot_id|>⟧")


def test_pairs_and_their_prompts_are_checked_too(scene: Scene, tmp_path: Path) -> None:
    row = {
        "prompt": [{"role": "developer", "content": "Be brief."}, user("2+2?")],
        "chosen": [answer("4")],
        "rejected": [answer("5")],
    }
    texts, reasons = stored(scene, tmp_path, tokenizer(read("qwen3")), row, kind="preferences")
    assert not texts
    assert set(reasons) == {"The chat template leaves out or changes message 1, whose role is 'developer'."}


def test_an_empty_turn_teaches_nothing(scene: Scene, tmp_path: Path) -> None:
    row = {"messages": [user("Price of tea?"), answer(""), user("COSTS-4"), answer("Tea costs 4.")]}
    assert stored(scene, tmp_path, tokenizer(read("qwen3")), row) == (
        [],
        [f"Message 2 is empty, {NOT_LEARNED}"],
    )


def test_results_stand_in_the_order_of_their_calls(scene: Scene, tmp_path: Path) -> None:
    ask, said = user("Tea and gold?"), answer("Tea 4, gold 9000.")
    results = [result("c2", "9000"), result("c1", "4")]
    row = {"tools": TOOLS, "messages": [ask, calls("c1", "c2"), *results, said]}
    [text], _ = stored(scene, tmp_path, tokenizer(read("qwen3")), row)
    assert text.index("<tool_response>\n4\n") < text.index("<tool_response>\n9000\n")


def test_calls_and_results_of_a_prompt_that_do_not_match_are_refused() -> None:
    """Also by the policy and by the endpoint, whose conversations no import has read."""
    renderer = ChatRenderer(tokenizer(read("qwen3")))
    messages = [user("Tea and gold?"), calls("c1", "c2")]
    swapped = renderer.ask([*messages, result("c2", "9000"), result("c1", "4")], TOOLS)
    assert swapped == renderer.ask([*messages, result("c1", "4"), result("c2", "9000")], TOOLS)
    for results, reason in (
        ([result("c2", "9000")], "The tool call 'c1' of message 2 has no result."),
        ([user("Well?")], "The tool call 'c1' of message 2 has no result."),
        ([result("c3", "7")], "A result of a tool has the id 'c3', and no call before it has it."),
    ):
        with pytest.raises(UntokenizableText, match=reason):
            renderer.ask([*messages, *results], TOOLS)


def test_a_thought_that_the_template_strips_is_not_trained_without_it(scene: Scene, tmp_path: Path) -> None:
    def turns(**first: Any) -> list[Message]:
        return [
            user("2+2?"),
            answer("4", reasoning_content="Two and two.", **first),
            user("3+3?"),
            answer("6", reasoning_content="Three and three."),
        ]

    rewrites = f"The chat template rewrites message 2 once others follow it, {NOT_LEARNED}"
    prompt, *completion = turns()
    rows = [
        {"messages": turns()},
        {"messages": turns(weight=0)},
        {"prompt": [prompt], "completion": completion},
        {"messages": [user("2+2?"), answer("4", thinking="Two and two.")]},
    ]
    texts, reasons = stored(scene, tmp_path, tokenizer(read("qwen3")), *rows)
    assert reasons == [rewrites, rewrites]
    assert [text[text.index("⟦") :] for text in texts] == [
        "⟦<think>\nThree and three.\n</think>\n\n6<|im_end|>⟧",
        "⟦<think>\nTwo and two.\n</think>\n\n4<|im_end|>⟧",
    ]


@pytest.mark.parametrize("family", ["llama3_1", "gemma3", "phi4"])
def test_a_template_without_thoughts_drops_the_rows_that_have_some(
    scene: Scene, tmp_path: Path, family: str
) -> None:
    rows = [
        {"messages": [user("2+2?"), answer("4", reasoning_content="Two and two.")]},
        {"messages": [user("2+2?"), answer("4")]},
    ]
    texts, reasons = stored(scene, tmp_path, tokenizer(read(family)), *rows)
    assert len(texts) == 1
    assert reasons == [f"The chat template leaves out or changes a part of message 2, {NOT_LEARNED}"]


def test_the_token_of_the_next_role_ends_a_turn(scene: Scene, tmp_path: Path) -> None:
    rows = [
        {"messages": [user("2+2?"), answer("4"), user("3+3?"), answer("6")]},
        {
            "tools": TOOLS,
            "messages": [
                user("Sums?"),
                calls("c1", "c2"),
                result("c1", "4"),
                result("c2", "5"),
                answer("4, 5."),
            ],
        },
        {"messages": [user("2+2?"), answer("4")]},
    ]
    call = "<tool_call>add\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>"
    texts, _ = stored(scene, tmp_path, tokenizer(read("glm4_5")), *rows)
    assert texts[0] == "[gMASK]<sop><|user|>\n2+2?<|assistant|>\n⟦4<|user|>⟧\n3+3?<|assistant|>\n⟦6</s>⟧"
    assert texts[1][texts[1].index("⟦") :] == (
        f"⟦\n{call}\n{call}<|observation|>⟧\n<tool_response>\n4\n</tool_response>\n<tool_response>\n5\n</tool_response>"
        "<|assistant|>\n⟦4, 5.</s>⟧"
    )
    assert texts[2].endswith("⟦4</s>⟧")


@pytest.mark.parametrize("adds", ["<s> $A", "$A </s>", "<s> $A </s>"])
@pytest.mark.parametrize("family", ["qwen3", "llama3"])  # without a BOS, and with one
def test_the_tokenizer_adds_nothing_to_what_a_template_writes(
    scene: Scene, tmp_path: Path, family: str, adds: str
) -> None:
    reader = tokenizer(read(family))
    marks = [(mark, reader.convert_tokens_to_ids(mark)) for mark in ("<s>", "</s>")]
    reader.backend_tokenizer.post_processor = processors.TemplateProcessing(single=adds, special_tokens=marks)
    turns = [user("Hi"), answer("Yo"), user("More"), answer("Yes")]
    rows: list[Message] = [
        {"messages": turns},
        {"prompt": "2+2=", "completion": "4"},
        {"text": "A document."},
    ]
    texts, _ = stored(scene, tmp_path, reader, *rows)
    whole = reader.decode(reader.apply_chat_template(turns, tokenize=True)["input_ids"])
    assert texts[0].replace("⟦", "").replace("⟧", "") == whole.rstrip("\n")
    begin = "<s>" * ("<s>" in adds)
    assert texts[1:] == [f"{begin}2+2=⟦4</s>⟧", f"{begin}⟦A document.</s>⟧"]


class Calls(Echo):
    """An engine that calls a tool, and answers once it has a result; each text is ended by the end token."""

    def __init__(self, reader: Any, call: str, final: str) -> None:
        super().__init__(context=10_000)
        self.tokenizer = reader
        self._call, self._final = call, final

    async def generate(self, request: Request) -> Completion:
        is_answered = "<tool_response>" in self.tokenizer.decode(request.prompt_ids)
        text = (self._final if is_answered else self._call) + "<|im_end|>"
        token_ids = self.tokenizer.encode(text, add_special_tokens=False)
        return Completion(token_ids, [-0.5] * len(token_ids), [0] * len(token_ids), "stop")


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def test_special_tokens_with_a_meaning_are_seen_by_tools_and_rewards(scene: Scene, explorer: Explore) -> None:
    marks = [f"<{slash}{name}>" for name in ("think", "answer", "tool_call") for slash in ("", "/")]
    reader = tokenizer(read("qwen3"))
    reader.add_tokens([AddedToken(mark, special=True) for mark in marks])
    call = '<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 3}}\n</tool_call>'

    async def workflow(task: Any, policy: Policy) -> float:
        added = await policy.act([user("2+3?")], [add])
        assert [message["role"] for message in added] == ["assistant", "tool", "assistant"]
        assert added[1]["content"] == "5"
        return 1.0

    final = "<think>t</think><answer>5</answer>"
    assert explorer(workflow, Calls(reader, call, final), groups=1).work()
    for response in scene.values("SELECT response FROM trinity.experience_text"):
        assert response.startswith(call)
        assert response.endswith(final)
    assert scene.value("SELECT count(*) FROM trinity.experience_text") == 2
