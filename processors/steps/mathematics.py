"""Compares answers by mathematical meaning instead of notation."""

import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field

from trinity_db.config.shared import ModelConfig
from trinity_db.errors import ConfigError
from trinity_db.models.chat.thoughts import after_thoughts
from trinity_db.processors.answers.accepted import accepted
from trinity_db.processors.children.pool import Pool, python
from trinity_db.processors.lists.step import Context, step


@step(version=3, batch=256)
class MathMatch:
    """Scores 1 if the final answer is mathematically equal to the task's, using the package math-verify.

    The final answer of a response is its last `\\boxed{}`, or else the line after the last `####`, or else
    the last statement such as "The answer is 4.", or else the last mathematical expression. Thoughts are
    ignored, and inside `<answer>` tags only the text of the last ones counts. Fractions, decimals,
    percentages, roots, expressions, equations, sets, tuples, intervals, matrices and complex numbers are
    compared by value. Units, currencies and percent signs are ignored: 12 cm, 12 m and 12 are equal, and so
    are 50%, 50 and 0.5. Decimals are compared to six places. Answers in words are compared as text, without
    case.

    Several alternatives, such as "4 or 5", equal only the set of them. A chain of equations that is false,
    such as 3 = 7, equals nothing. A set does not equal a tuple. If the task's answer is a letter from A to J,
    such as C, (C) or (C) 12, the letter that the response states is compared; several letters are wrong.

    Each comparison runs in a child process, which is killed on timeout. The row then fails instead of scoring
    0. It also fails if the task's answer is neither mathematics, words, nor a letter.

    Args:
        seconds: Time limit of one comparison.
        processes: Number of concurrent comparisons.
    """

    def __init__(
        self,
        run: Context,
        *,
        seconds: Annotated[float, Field(gt=0, le=3600)] = 10.0,
        processes: Annotated[int, Field(ge=1, le=256)] = 2,
    ) -> None:
        self._pool = Pool(python("trinity_db.processors.children.mathematics"), processes, seconds)

    @staticmethod
    def check(model: ModelConfig, **options: Any) -> None:
        """Check before the run is created that math-verify is installed.

        Raises:
            ConfigError: if it is not.
        """
        if importlib.util.find_spec("math_verify") is None:
            raise ConfigError("math_match needs the package math-verify: pip install 'trinity-db[math]'.")

    def __call__(
        self, response: Sequence[str], task: Sequence[Mapping[str, Any]], prompt: Sequence[str]
    ) -> Iterator[tuple[int, float | Exception]]:
        """Yield whether each response is correct, or the error of its comparison."""
        places, requests = [], []
        for index, (text, columns, task_prompt) in enumerate(zip(response, task, prompt, strict=True)):
            try:
                requests.append({"response": after_thoughts(text, task_prompt), "answers": accepted(columns)})
                places.append(index)
            except ValueError as error:
                yield index, error
        for number, verdict in self._pool.ask(requests):
            yield places[number], _value(verdict)


def _value(verdict: bool | Exception) -> float | Exception:
    return ValueError(f"math_match: {verdict}") if isinstance(verdict, Exception) else float(verdict)
