"""An engine without a model: its responses follow from the prompts, so that a test can say what they are."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from trinity_db.explorer.engine import Completion, Request


class Digits:
    """A tokenizer of digits, and of conversations without a system."""

    bos_token = None
    chat_template = "..."

    def apply_chat_template(self, messages: Sequence[Mapping[str, str]], **options: bool) -> str:
        if messages[0]["role"] == "system":
            raise RuntimeError("no system, please")
        return "".join(message["content"] for message in messages)

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return [int(character) for character in text]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        return "".join("\x00" if token == 0 else str(token) for token in token_ids)


class Echo:
    """An engine that says each prompt backwards, the shortest first."""

    context = 5
    tokenizer = Digits()

    def __init__(self, version: int = 0) -> None:
        self.version = version

    def load(self, path: Path, version: int) -> None:
        self.version = version

    def fits(self, prompt_ids: Sequence[int]) -> bool:
        return len(prompt_ids) < self.context

    def generate(
        self, requests: Sequence[Request], *, temperature: float, seed: int, should_stop: Callable[[], bool]
    ) -> Iterator[list[Completion]]:
        for length in sorted({len(request.prompt_ids) for request in requests}):
            if should_stop():
                return
            yield [
                Completion(
                    index, [*request.prompt_ids][::-1], [-0.5] * length, [self.version] * length, "stop"
                )
                for index, request in enumerate(requests)
                if len(request.prompt_ids) == length
            ]
