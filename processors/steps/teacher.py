"""The teacher: a model that computes log-probabilities of a response's tokens."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from trinity_db.arrays.codec import Payload
from trinity_db.config.shared import ForwardConfig, ModelConfig
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
from trinity_db.processors.lists.step import Context, Drop, step
from trinity_db.store import policies, runs, scores
from trinity_db.weights.recorded_places import RecordedPlaces

Ask = Callable[[Sequence[Payload]], Iterator[tuple[int, NDArray[np.float32]]]]
"""Function that yields the index of each payload and the log-probabilities of its trained tokens, in any
order. Results are bitwise reproducible."""


_FORWARD = ForwardConfig()


@step(batch=256)
class Teacher:
    """Stores another model's log-probability of each token with the row (on-policy distillation).

    It gives no reward, and uses explorer.temperature. Rows longer than its context are dropped.

    Args:
        path: Folder of a causal language model in Hugging Face format with the tokens of the run's model, or
            OWNER/NAME on the Hub. Each processor loads it.
        revision: Branch, tag or commit of a model on the Hub, like model.revision.
        forward: Batching and precision: micro_batch_size, micro_batch_tokens and dtype, like in trainer.
    """

    says: ClassVar[scores.Name] = "teacher"
    """Name under which algorithms read these log-probabilities."""
    model: scores.Model
    context: int
    """Maximum number of tokens in a sequence."""
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
            model: The run's starting model. The tokens of another run's model are checked when it is loaded.

        Raises:
            ConfigError: if the teacher does not exist, or its tokens differ from the run's.
        """
        check_source(ModelConfig(path=path, revision=revision))
        if model.run is None:
            _check_tokens(hub.folder(path, revision, with_weights=False), source_tokenizer(model))

    def __call__(
        self, id: Sequence[int], payload: Sequence[Payload]
    ) -> Iterator[tuple[int, scores.Score | Drop | ValueError]]:
        """Yield the log-probabilities of each row, or the error of its scoring."""
        fits = [index for index, row in enumerate(payload) if row.num_tokens <= self.context]
        for index in set(range(len(payload))).difference(fits):
            yield index, self._too_long(payload[index])
        for number, logprobs in self.ask([payload[index] for index in fits]):
            index = fits[number]
            if np.isfinite(logprobs).all():
                yield index, scores.scored(id[index], self.model, payload[index], logprobs)
            else:
                yield index, ValueError("the teacher gave a log-probability that is not finite")

    def _too_long(self, payload: Payload) -> Drop:
        return Drop("too_long_for_teacher", {"tokens": payload.num_tokens, "context": self.context})


def _check_tokens(path: Path, tokenizer: Any) -> None:
    teacher_tokenizer = load_tokenizer(path)
    token = other_token(tokenizer, teacher_tokenizer)
    if token is not None:
        raise ConfigError(
            f"the teacher {path} has other tokens ({len(teacher_tokenizer)}) than the run's model "
            f"({len(tokenizer)}): '{token}' differs. Use a teacher with the model's tokens."
        )
