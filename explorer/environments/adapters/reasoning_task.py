"""Tasks of reasoning-gym, generated from seeds and scored by the package."""

from collections.abc import Mapping
from typing import Any


class ReasoningTask:
    """One question, as a text environment that ends with the first response.

    A task's question is entry `index` (default 0) of the data set with the task's seed. The columns `dataset`
    and `config` of a task override the options of these names.

    Args:
        dataset: its name in reasoning-gym.
        config: options of the data set for `reasoning_gym.create_dataset`.
        tag: the answer is the last text between <tag> and </tag>; a response without it gets no reward. None:
            the whole response is the answer.
        instructions: text appended to the question. None: a sentence that asks for the tag.
    """

    def __init__(
        self,
        *,
        dataset: str | None = None,
        config: Mapping[str, Any] | None = None,
        tag: str | None = "answer",
        instructions: str | None = None,
    ) -> None:
        # Imported when the attempt starts, since it takes seconds: the package imports all of its data sets.
        from reasoning_gym import create_dataset

        self._create = create_dataset
        self._dataset = dataset
        self._config = dict(config or {})
        self._tag = tag
        request = f"\nGive the final answer between <{tag}> and </{tag}>." if tag else ""
        self._instructions = request if instructions is None else instructions
        self._tasks: Any = None
        self._entry: Mapping[str, Any] = {}

    def reset(self, *, seed: int, options: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
        """Generate the question."""
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
    """Return the last text between an opening and its closing tag, such as <answer>7</answer>, or None."""
    opening, closing, content, at = f"<{tag}>", f"</{tag}>", None, 0
    # Not a regex: without a closing tag it would scan the rest of the text for each opening tag.
    while (begin := text.find(opening, at)) >= 0 and (end := text.find(closing, begin + len(opening))) >= 0:
        content, at = text[begin + len(opening) : end], end + len(closing)
    return None if content is None else content.strip()
