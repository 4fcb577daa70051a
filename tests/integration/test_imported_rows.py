"""What a trainer makes of imported rows at its start: tokens, or drops with a reason; and if none is left."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.recipes import recipe
from tests.rows import Scene, import_records, trajectory
from trinity_db.errors import TrinityError
from trinity_db.imports.records import Demonstration, Task
from trinity_db.trainer.config import TrainerConfig
from trinity_db.trainer.rows.encode import encode_adopted

ENCODED = """
SELECT x.response, e.state::text, e.prompt_length
FROM trinity.experience e JOIN trinity.experience_text x ON x.experience_id = e.source_id
WHERE e.run_id = %s ORDER BY e.id
"""
DROPPED = """
SELECT d.stage, d.reason, d.detail->>'error' FROM trinity."drop" d WHERE d.run_id = %s
"""


class NoSystem:
    """A tokenizer of bytes whose chat template knows no system, as those of some models."""

    chat_template: str | None = "..."
    bos_token: str | None = None
    eos_token_id: int | None = 0

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
    encode_adopted(run.database, run.run.id, run.trainer, NoSystem(), "{prompt}", 64, lambda: False)
    assert run.rows(ENCODED, run.run.id) == [("to a system", "dropped", None), ("to a user", "ready", 5)]
    says = "The chat template refuses the conversation: System role not supported"
    assert run.rows(DROPPED, run.run.id) == [("encode", "untokenizable", says)]


def test_a_run_without_a_row_to_imitate_says_why_those_it_has_are_none(scene: Scene, tmp_path: Path) -> None:
    from tests.bench import setup_of
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
