"""The teacher: a model that says how likely it finds each token of a response, before the row is scored."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trinity_db.arrays import Payload
from trinity_db.config import ModelConfig
from trinity_db.database import Database
from trinity_db.errors import ConfigError
from trinity_db.models import check_source, context_length, load_tokenizer, other_token, source_tokenizer
from trinity_db.models.folder_digest import digest
from trinity_db.processors.config import TeacherConfig
from trinity_db.schema.states import Outcome
from trinity_db.store import policies, runs, scores
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


def check(config: TeacherConfig, model: ModelConfig) -> None:
    """Find mistakes before the run is created, without loading a model.

    Args:
        model: the run's starting model. The tokens of another run's model are checked by `load`.

    Raises:
        ConfigError: there is no such teacher, or its tokens differ from the run's.
    """
    check_source(ModelConfig(path=config.path))
    if model.run is None:
        _check_tokens(config, source_tokenizer(model))


def load(database: Database, config: TeacherConfig, model: ModelConfig, temperature: float) -> Teacher:
    """Load the teacher.

    Args:
        model: the run's starting model.
        temperature: at which the explorer samples, so that probabilities of both models compare.

    Raises:
        ConfigError: its tokens differ from those of the run's model.
    """
    from trinity_db.models.frozen_model import FrozenModel  # imports torch

    if model.run is not None:
        with database.transaction() as tx:
            policy = policies.newest(tx, runs.find(tx, model.run).id)
        if policy is not None:
            _check_tokens(config, load_tokenizer(policy.checkpoint))
    folder = config.path.expanduser().absolute()
    frozen = FrozenModel(folder, config, temperature=temperature)
    return Teacher(scores.Model("teacher", digest(folder)), context_length(folder), frozen.scores)


def _check_tokens(config: TeacherConfig, tokenizer: Any) -> None:
    other = load_tokenizer(config.path.expanduser())
    token = other_token(tokenizer, other)
    if token is not None:
        raise ConfigError(
            f"processors.teacher.path: {config.path} has other tokens ({len(other)}) than the run's model "
            f"({len(tokenizer)}): '{token}' is not the same in both. Name a teacher with the model's tokens."
        )
