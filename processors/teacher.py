"""The teacher: a model that says how likely it finds each token of a response, before the row is scored.

What it is asked with is handed in: this role knows rows, and nothing of models.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from trinity_db.arrays import Payload
from trinity_db.schema.states import Outcome
from trinity_db.store import scores
from trinity_db.store.rows import Verdict

Ask = Callable[[Sequence[Payload]], Iterator[tuple[int, NDArray[np.float32]]]]
"""The log-probabilities of each payload's trained tokens, with its place, in any order and bit by bit."""


@dataclass(frozen=True)
class Teacher:
    """A model to be asked about rows."""

    model: scores.Model
    context: int
    """Tokens of the longest sequence that it takes."""
    ask: Ask

    def judge(
        self, verdicts: Sequence[Verdict], payloads: Mapping[int, Payload], stopping: Callable[[], bool]
    ) -> list[Verdict]:
        """The verdicts, those that pass with what the teacher says of their rows.

        Args:
            payloads: of the rows that pass.
            stopping: asked after each answer; verdicts without an answer are left out then.
        """
        judged, asked = [], []
        for verdict in verdicts:
            if verdict.outcome != Outcome.PASSED:
                judged.append(verdict)
            elif payloads[verdict.id].num_tokens > self.context:
                judged.append(self._too_long(verdict, payloads[verdict.id]))
            else:
                asked.append(verdict)
        for place, logprobs in self.ask([payloads[verdict.id] for verdict in asked]):
            judged.append(self._answered(asked[place], payloads[asked[place].id], logprobs))
            if stopping():
                break
        return judged

    def _too_long(self, verdict: Verdict, payload: Payload) -> Verdict:
        lengths = {"tokens": payload.num_tokens, "context": self.context}
        return Verdict(verdict.id, verdict.attempt, Outcome.DROPPED, "too_long_for_teacher", lengths)

    def _answered(self, verdict: Verdict, payload: Payload, logprobs: NDArray[np.float32]) -> Verdict:
        if not np.isfinite(logprobs).all():
            error = "the teacher gave a log-probability that is not finite"
            return Verdict(verdict.id, verdict.attempt, Outcome.FAILED, detail={"error": error})
        return replace(verdict, said=[scores.scored(verdict.id, self.model, payload, logprobs)])
