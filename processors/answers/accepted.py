"""The answers that a task accepts."""

from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

KEYS = ("target", "targets", "answer", "answers", "value", "aliases", "text", "ground_truth")
"""Keys under which a mapping has accepted answers, for example in Search-R1, TriviaQA and SQuAD."""


def accepted(task: Mapping[str, Any]) -> list[str]:
    """Return each text that is a right answer to an imported task.

    A list holds several right answers, and so does a mapping, under `KEYS`. A boolean is accepted as JSON and
    as Python write it.

    Raises:
        ValueError: if the task has no answer, or one that no response can equal.
    """
    if "answer" not in task:
        raise ValueError(
            "the task has no 'answer'; import tasks with --map answer=COLUMN, under another --name"
        )
    texts = list(dict.fromkeys(_texts(task["answer"])))
    if not texts:
        raise ValueError("the task's 'answer' is an empty list")
    return texts


def _texts(answer: Any) -> Iterator[str]:
    if isinstance(answer, str) and answer.strip():
        yield answer
    elif isinstance(answer, bool):
        yield from (str(answer).lower(), str(answer))
    elif isinstance(answer, int | float):
        yield f"{Decimal(repr(answer)):f}"  # 0.00001, which Python writes as 1e-05
        yield str(answer)
    elif isinstance(answer, list):
        for inner in answer:
            yield from _texts(inner)
    elif isinstance(answer, Mapping):
        if not (known := [key for key in KEYS if key in answer]):
            raise ValueError(f"the task's 'answer' is a mapping without any of the keys {', '.join(KEYS)}")
        for key in known:
            yield from _texts(answer[key])
    else:
        raise ValueError(f"the task's 'answer' is {'null' if answer is None else 'empty'}")
