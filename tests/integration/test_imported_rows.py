"""What a trainer makes of imported rows at its start: tokens, or drops with a reason; and if none is left."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.recipes import recipe
from tests.support.rows import Scene, import_records, trajectory
from trinity_db.config.shared import PromptConfig
from trinity_db.data.exporter import export_rows
from trinity_db.data.files.readers import open_rows
from trinity_db.data.importer import import_rows
from trinity_db.data.records.columns import Columns
from trinity_db.data.records.records import Demonstration, Preference, Task
from trinity_db.errors import TrinityError
from trinity_db.models.chat.prompts import ChatRenderer
from trinity_db.store import payloads
from trinity_db.trainer.config import TrainerConfig
from trinity_db.trainer.rows.encode import encode_adopted

ENCODED = """
SELECT x.response, e.state::text, e.prompt_length
FROM trinity.experience e JOIN trinity.experience_text x ON x.experience_id = e.source_id
WHERE e.run_id = %s ORDER BY e.id
"""
LENGTHS = "SELECT id, prompt_length, response_length FROM trinity.experience WHERE run_id = %s"
DROPPED = """
SELECT d.stage, d.reason, d.detail->>'error' FROM trinity."drop" d WHERE d.run_id = %s
"""


class NoSystem:
    """A tokenizer of bytes whose chat template knows no system, as those of some models."""

    chat_template: str | None = "..."
    bos_token: str | None = None
    eos_token_id: int | None = 0
    all_special_ids: list[int] = []  # noqa: RUF012
    all_special_tokens: list[str] = []  # noqa: RUF012
    added_tokens_decoder: dict[int, Any] = {}  # noqa: RUF012

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return list(text.encode())

    def apply_chat_template(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> str:
        if messages[0]["role"] == "system":
            raise RuntimeError("System role not supported")
        return "".join(message["content"] for message in messages)


def conversation(role: str) -> Demonstration:
    return Demonstration(Task({"messages": [{"role": role, "content": "hello"}]}), f"to a {role}", {})


def test_a_conversation_that_the_chat_template_refuses_is_dropped_and_the_others_are_not(
    scene: Scene,
) -> None:
    import_records(scene.database, "set", [conversation("system"), conversation("user")])
    run = scene.beside("imitation", data=["set"])
    encode_adopted(run.database, run.run.id, run.trainer, ChatRenderer(NoSystem()), 256, 64, lambda: False)
    assert run.rows(ENCODED, run.run.id) == [("to a system", "dropped", None), ("to a user", "ready", 5)]
    says = "The chat template refuses the conversation: System role not supported"
    assert run.rows(DROPPED, run.run.id) == [("encode", "untokenizable", says)]


def test_plain_rows_are_counted_in_a_warning_where_tasks_would_have_the_template(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    plain = [Demonstration(Task({"prompt": prompt}), "a", {}) for prompt in ("one?", "two?", "")]
    import_records(scene.database, "set", [*plain, conversation("user")])

    def warnings(run: str, renderer: ChatRenderer) -> list[str]:
        caplog.clear()
        adopter = scene.beside(run, data=["set"])
        encode_adopted(adopter.database, adopter.run.id, adopter.trainer, renderer, 256, 64, lambda: False)
        return [record.message for record in caplog.records if record.levelname == "WARNING"]

    (warning,) = warnings("template", ChatRenderer(NoSystem()))
    assert warning.startswith("2 imported rows with a plain prompt are trained as plain text")
    explicit = ChatRenderer(NoSystem(), PromptConfig(prompt_template="Q: {prompt}"))
    assert warnings("explicit", explicit) == [], "the tasks of the run are plain text too"
    base = NoSystem()
    base.chat_template = None
    assert warnings("base", ChatRenderer(base)) == []


def test_tokenising_stops_between_two_rows_and_goes_on_with_the_rest(scene: Scene) -> None:
    tasks = [Task({"prompt": f"{number}"}) for number in range(5)]
    import_records(scene.database, "set", [Demonstration(task, "a", {}) for task in tasks])
    run = scene.beside("imitation", data=["set"])

    def encode(num_rows: int) -> int:
        """How many rows have tokens behind a stop before one row more."""
        asked = iter(range(100))
        encode_adopted(
            *(run.database, run.run.id, run.trainer, ChatRenderer(NoSystem()), 256, 64),
            lambda: next(asked) > num_rows,  # it is asked once before the first row too
        )
        return sum(length is not None for _, _, length in run.rows(ENCODED, run.run.id))

    assert [encode(2), encode(0), encode(99)] == [2, 2, 5]


class Marked(NoSystem):
    """A template that begins each turn by the first letter of its role, and ends it by a line."""

    def apply_chat_template(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> str:
        turns = [f"{message['role'][0]}:{message['content']}\n" for message in messages]
        return "".join(turns) + ("a:" if options["add_generation_prompt"] else "")


def test_a_conversation_teaches_each_turn_of_the_assistant_also_after_an_export(
    scene: Scene, tmp_path: Path
) -> None:
    said = ("one?", "1", "two?", "2")
    messages = [
        {"role": ("user", "assistant")[place % 2], "content": text} for place, text in enumerate(said)
    ]

    def load(file: Path) -> tuple[int, int]:
        columns = Columns("demonstrations")
        done = import_rows(scene.database, open_rows(file), columns, "talk", lambda done, total: None)
        return done.added, done.known

    first, second = tmp_path / "talk.jsonl", tmp_path / "again.jsonl"
    first.write_text(json.dumps({"messages": messages}))
    assert load(first) == (1, 0)
    export_rows(scene.database, "demonstrations", "talk", second, lambda rows: None)
    assert load(second) == (0, 1), "it is the same row"
    run = scene.beside("imitation", data=["talk"])
    encode_adopted(run.database, run.run.id, run.trainer, ChatRenderer(Marked()), 256, 64, lambda: False)
    [(row, *lengths)] = run.rows(LENGTHS, run.run.id)
    payload = payloads.read(run.database, [row])[row]
    assert bytes(payload.token_ids.tolist()) == b"u:one?\na:1\nu:two?\na:2\0"
    assert bytes(payload.token_ids[payload.action_mask].tolist()) == b"12\0"
    assert lengths == [payload.num_tokens - 3, 3]


def test_a_pair_with_an_empty_side_is_dropped_with_the_reason(scene: Scene) -> None:
    class WithoutEnd(NoSystem):
        eos_token_id: int | None = None

    pairs = [Preference(Task({"prompt": f"{number}"}), "good", "bad" * number, None, {}) for number in (0, 1)]
    import_records(scene.database, "set", pairs)
    run = scene.beside("comparison", data=["set"])
    encode_adopted(run.database, run.run.id, run.trainer, ChatRenderer(WithoutEnd()), 256, 64, lambda: False)
    states = run.rows("SELECT state::text FROM trinity.preference WHERE run_id = %s ORDER BY id", run.run.id)
    assert states == [("dropped",), ("ready",)]
    says = "A prompt of 1 tokens and a response of 0 have no token that a model predicts from another one."
    assert ("encode", "empty_response", says) in run.rows(DROPPED, run.run.id)
    assert ("encode", "row_dropped", None) in run.rows(DROPPED, run.run.id)


def test_a_run_without_a_row_to_imitate_says_why_those_it_has_are_none(scene: Scene, tmp_path: Path) -> None:
    from tests.support.bench import setup_of
    from trinity_db.trainer.service import Trainer

    import_records(scene.database, "set", [trajectory(number, "a response", 0.0) for number in range(2)])
    run = scene.beside("imitation", data=["set"])
    setup = setup_of(
        TrainerConfig(),
        recipe("sft"),
        tmp_path,
    )
    trainer = Trainer(run.database, run.run, setup)
    trainer.worker_id = run.trainer
    with pytest.raises(TrinityError, match=r"has no rows to imitate; .* zero or less .* drop_view"):
        trainer.start()
