"""The teacher: a model that says how likely it finds each token of a response."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from trinity_db.arrays import Payload
from trinity_db.config import ForwardConfig, ModelConfig
from trinity_db.errors import ConfigError
from trinity_db.models import (
    check_source,
    context_length,
    hub,
    load_tokenizer,
    other_token,
    source_tokenizer,
)
from trinity_db.models.folder_digest import digest
from trinity_db.processors.step import Context, Drop, step
from trinity_db.store import policies, runs, scores
from trinity_db.weights.recorded_places import RecordedPlaces

Ask = Callable[[Sequence[Payload]], Iterator[tuple[int, NDArray[np.float32]]]]
"""The log-probabilities of each payload's trained tokens, with its place, in any order and bit by bit."""


_FORWARD = ForwardConfig()


@step(batch=256)
class Teacher:
    """Stores with each row how likely another model finds each of its tokens (on-policy distillation).

    It gives no reward, and is asked at explorer.temperature. Rows that are longer than its context are
    dropped.

    Args:
        path: Folder of a causal language model in Hugging Face format that has the tokens of the run's
            model, or OWNER/NAME of one of the Hub. Each processor loads it.
        revision: Branch, tag or commit of a model of the Hub, as in model.revision.
        forward: How rows go through it: micro_batch_size, micro_batch_tokens and dtype, as in trainer.
    """

    says: ClassVar[scores.Name] = "teacher"
    """Whose log-probabilities algorithms read of the rows."""
    model: scores.Model
    context: int
    """Tokens of the longest sequence that it takes."""
    ask: Ask

    def __init__(
        self, run: Context, *, path: Path, revision: str | None = None, forward: ForwardConfig = _FORWARD
    ) -> None:
        from trinity_db.models.frozen_model import FrozenModel  # imports torch

        folder = hub.folder(path, revision).absolute()
        if run.model.run is not None:
            with run.database.transaction() as tx:
                policy = policies.newest(tx, runs.find(tx, run.model.run).id)
            if policy is not None:
                RecordedPlaces().check_folder(policy)
                _check_tokens(folder, load_tokenizer(policy.checkpoint))
        self.model = scores.Model(self.says, digest(folder))
        self.context = context_length(folder)
        self.ask = FrozenModel(folder, forward, temperature=run.temperature).scores

    @staticmethod
    def check(model: ModelConfig, *, path: Path, revision: str | None, forward: ForwardConfig) -> None:
        """Find mistakes before the run is created, without loading a model.

        Args:
            model: the run's starting model. The tokens of another run's model are checked when it is loaded.

        Raises:
            ConfigError: there is no such teacher, or its tokens differ from the run's.
        """
        check_source(ModelConfig(path=path, revision=revision))
        if model.run is None:
            _check_tokens(hub.folder(path, revision, with_weights=False), source_tokenizer(model))

    def __call__(
        self, id: Sequence[int], payload: Sequence[Payload]
    ) -> Iterator[tuple[int, scores.Score | Drop | ValueError]]:
        """What it says of each row, or why it cannot."""
        fits = [place for place, one in enumerate(payload) if one.num_tokens <= self.context]
        for place in set(range(len(payload))).difference(fits):
            yield place, self._too_long(payload[place])
        for asked, logprobs in self.ask([payload[place] for place in fits]):
            place = fits[asked]
            if np.isfinite(logprobs).all():
                yield place, scores.scored(id[place], self.model, payload[place], logprobs)
            else:
                yield place, ValueError("the teacher gave a log-probability that is not finite")

    def _too_long(self, payload: Payload) -> Drop:
        return Drop("too_long_for_teacher", {"tokens": payload.num_tokens, "context": self.context})


def _check_tokens(path: Path, tokenizer: Any) -> None:
    other = load_tokenizer(path)
    token = other_token(tokenizer, other)
    if token is not None:
        raise ConfigError(
            f"the teacher {path} has other tokens ({len(other)}) than the run's model "
            f"({len(tokenizer)}): '{token}' is not the same in both. Name a teacher with the model's tokens."
        )
