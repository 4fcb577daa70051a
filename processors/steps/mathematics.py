"""Whether an answer means the same as the right one, although it is written in another way."""

import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field

from trinity_db.config import ModelConfig
from trinity_db.errors import ConfigError
from trinity_db.processors.children.pool import Pool, python
from trinity_db.processors.step import Context, step
from trinity_db.processors.steps.rewards import answer_of


@step(batch=256)
class MathMatch:
    """1 if the final answer is mathematically equal to the task's, by the package math-verify.

    What counts of a response is its last `\\boxed{}`, or else the text behind the last `####`, or else the
    last mathematics in it. Fractions, decimals, percent, roots, expressions, equations, sets, tuples,
    intervals, matrices and complex numbers are compared by what they mean. Units, and the sign of percent, do
    not count: 12 cm, 12 m and 12 are equal, and so are 50%, 50 and 0.5. Decimals are equal to six places.

    Each comparison runs in a child process, which is killed if it takes too long. The row fails then, and
    gets no 0.

    Args:
        seconds: Longest time of one comparison.
        processes: How many comparisons run at the same time.
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
        """Find out before the run is created that the package is missing.

        Raises:
            ConfigError: it is.
        """
        if importlib.util.find_spec("math_verify") is None:
            raise ConfigError("math_match needs the package math-verify: pip install 'trinity-db[math]'.")

    def __call__(
        self, response: Sequence[str], task: Sequence[Mapping[str, Any]]
    ) -> Iterator[tuple[int, float | Exception]]:
        """Whether each response is right, or why that cannot be told."""
        places, requests = [], []
        for place, (text, columns) in enumerate(zip(response, task, strict=True)):
            try:
                requests.append({"response": text, "answer": answer_of(columns)})
                places.append(place)
            except ValueError as error:
                yield place, error
        for asked, said in self._pool.ask(requests):
            yield places[asked], _value(said)


def _value(said: bool | Exception) -> float | Exception:
    return ValueError(f"math_match: {said}") if isinstance(said, Exception) else float(said)
