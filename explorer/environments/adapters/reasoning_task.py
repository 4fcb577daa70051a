"""Tasks of reasoning-gym, made from their seeds and scored by the package."""

from collections.abc import Mapping
from typing import Any


class ReasoningTask:
    """One question, as a text environment that ends with the first response.

    A task's question is entry `index` (0, if it has none) of the data set with the task's seed. The columns
    `dataset` and `config` of a task take the place of the options of these names.

    Args:
        dataset: its name in reasoning-gym.
        config: of the data set, as `reasoning_gym.create_dataset` takes it.
        tag: the answer is what stands last between <tag> and </tag>; a response without it earns nothing.
            None: the whole response is the answer.
        instructions: what follows the question. None: a sentence that asks for the tag.
    """

    def __init__(
        self,
        *,
        dataset: str | None = None,
        config: Mapping[str, Any] | None = None,
        tag: str | None = "answer",
        instructions: str | None = None,
    ) -> None:
        # While the attempt starts, since it takes seconds: the package imports all of its data sets.
        from reasoning_gym import create_dataset

        self._create = create_dataset
        self._dataset = dataset
        self._config = dict(config or {})
        self._tag = tag
        asked = f"\nGive the final answer between <{tag}> and </{tag}>." if tag else ""
        self._instructions = asked if instructions is None else instructions
        self._tasks: Any = None
        self._entry: Mapping[str, Any] = {}

    def reset(self, *, seed: int, options: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
        """Make the question."""
        name = options.get("dataset") or self._dataset
        if name is None:
            raise ValueError("the task has no column 'dataset', and the environment no option of that name")
        index = options.get("index") or 0
        config = self._config | (options.get("config") or {})
        self._tasks = self._create(name, **{**config, "seed": seed, "size": index + 1})
        self._entry = self._tasks[index]
        return self._entry["question"] + self._instructions, {}

    def step(self, action: str) -> tuple[str, float, bool, bool, Mapping[str, Any]]:
        """Score the response."""
        answer = self._answer(action)
        score = 0.0 if answer is None else float(self._tasks.score_answer(answer, self._entry))
        return "", score, True, False, {}

    def _answer(self, response: str) -> str | None:
        if self._tag is None:
            return response.strip()
        return last_tagged(response, self._tag)


def last_tagged(text: str, tag: str) -> str | None:
    """The last text between an opening and the next closing tag, such as <answer>7</answer>, or None."""
    opening, closing, found, at = f"<{tag}>", f"</{tag}>", None, 0
    # Not by a pattern: without a closing tag it would look through the rest of the text for each opening one.
    while (begin := text.find(opening, at)) >= 0 and (end := text.find(closing, begin + len(opening))) >= 0:
        found, at = text[begin + len(opening) : end], end + len(closing)
    return None if found is None else found.strip()
