"""Separates the thoughts of a reasoning model from its answer.

A thought stands between two marks. Those of gpt-oss are not known: there a thought is a message of its own.
"""

from collections.abc import Sequence

Marks = tuple[str, str]
"""The texts before and after a thought."""

MARKS: Sequence[Marks] = (
    ("<think>", "</think>"),  # DeepSeek, GLM, Kimi K2, Nemotron, Qwen and others
    ("[THINK]", "[/THINK]"),  # Mistral
    ("<seed:think>", "</seed:think>"),  # Seed-OSS
    ("<mm:think>", "</mm:think>"),  # MiniMax M3
    ("<|START_THINKING|>", "<|END_THINKING|>"),  # Command
    ("<|channel>thought", "<channel|>"),  # Gemma 4
)
"""All marks that are known."""


def marks_in(template: str) -> list[Marks]:
    """Return the marks that a chat template writes."""
    return [marks for marks in MARKS if marks[1] in template]


def after_thoughts(text: str, prompt: str = "") -> str:
    """Return the text after the last thought; nothing if that thought does not end.

    Args:
        text: A response.
        prompt: Its prompt. Some chat templates open the thought at the end of the prompt.
    """
    opened = next((marks for marks in MARKS if prompt.rstrip().endswith(marks[0])), None)
    for marks in MARKS:
        _, closed, rest = text.rpartition(marks[1])
        if marks[0] in rest or (not closed and marks == opened):
            return ""
        text = rest
    return text


def cut(text: str) -> tuple[str, str]:
    """Cut a text behind its last thought, and return both parts."""
    rest = min((text.rpartition(closing)[2] for _, closing in MARKS), key=len)
    return text[: len(text) - len(rest)], rest


def split(text: str, prompt: str = "", known: Sequence[Marks] = MARKS) -> tuple[str, str]:
    """Return the thought with which a response begins, and the text after it, without white space between
    them. If the thought does not end, no text follows it.

    Args:
        text: A response.
        prompt: Its prompt. Some chat templates open the thought at the end of the prompt.
        known: marks that a thought may have.
    """
    before, begin = prompt.rstrip(), text.lstrip()
    for opening, closing in known:
        if begin.startswith(opening) or before.endswith(opening):
            thought, _, rest = text.partition(closing)
            return thought.strip().removeprefix(opening).strip(), rest.lstrip()
    return "", text
