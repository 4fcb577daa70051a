"""An engine without a model: its responses follow from the prompts, so that a test can say what they are."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trinity_db.explorer.engines.engine import Completion, Request
from trinity_db.models.chat.prompts import PromptTooLong


class Digits:
    """A tokenizer of digits and of the number 12, and of conversations without a system.

    It writes "12" as two tokens, and reads it as one, which a policy may sample.
    """

    bos_token: str | None = None
    eos_token_id: int | None = None
    all_special_ids: list[int] = []  # noqa: RUF012
    all_special_tokens: list[str] = []  # noqa: RUF012
    added_tokens_decoder: dict[int, Any] = {}  # noqa: RUF012
    chat_template: str | None = "..."

    def apply_chat_template(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> str:
        if messages[0]["role"] == "system":
            raise RuntimeError("no system, please")
        return "".join(message["content"] for message in messages)

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return [int(character) for character in text]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        return "".join("\x00" if token == 0 else str(token) for token in token_ids)


class Echo:
    """An engine that says each prompt backwards, with the chance of a half for each token."""

    tokenizer = Digits()

    def __init__(self, version: int = 0, context: int = 5) -> None:
        self.version = version
        self.context = context
        self.asked: list[Request] = []
        """Every request so far."""

    async def load(self, path: Path, version: int) -> None:
        self.version = version

    async def generate(self, request: Request) -> Completion:
        length = len(request.prompt_ids)
        if not 0 < length < self.context:
            raise PromptTooLong(f"prompt of {length} tokens does not fit the context of {self.context}")
        self.asked.append(request)
        return Completion([*request.prompt_ids][::-1], [-0.7] * length, [self.version] * length, "stop")

    def close(self) -> None:
        """There is nothing to free."""


class Letters:
    """A tokenizer of bytes, whose chat template writes tools and messages one after the other."""

    bos_token: str | None = None
    eos_token_id: int | None = None
    all_special_tokens: list[str] = []  # noqa: RUF012
    added_tokens_decoder: dict[int, Any] = {}  # noqa: RUF012

    def __init__(self, is_chat: bool) -> None:
        self.chat_template = "..." if is_chat else None

    def apply_chat_template(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> str:
        tools = [f"<tools>{json.dumps(tool)}" for tool in options.get("tools") or ()]
        return "".join([*tools, *(f"<{one['role']}>{one['content']}" for one in messages), "<assistant>"])

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return [*text.encode()]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        return bytes(token_ids).decode()


class Scripted(Echo):
    """An engine that says texts one after the other."""

    def __init__(self, *says: str, is_chat: bool = True) -> None:
        super().__init__(context=20_000)
        self.tokenizer: Any = Letters(is_chat)
        self._says = iter(says)

    async def generate(self, request: Request) -> Completion:
        await super().generate(request)
        said = [*next(self._says).encode()]
        return Completion(said, [-0.5] * len(said), [0] * len(said), "stop")
