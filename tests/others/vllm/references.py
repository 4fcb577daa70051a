"""What transformers says of responses, in float32: an independent check of another engine's."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch

from trinity_db.explorer.engines.engine import Completion
from trinity_db.models import load_model


class References:
    """The models of policy versions, or the folders that they are loaded from."""

    def __init__(self, models: Mapping[int, Path | torch.nn.Module]) -> None:
        self._models = {
            version: load_model(one, "cpu") if isinstance(one, Path) else one
            for version, one in models.items()
        }

    @torch.no_grad()
    def logprobs(self, version: int, ids: Sequence[int], temperature: float = 1.0) -> torch.Tensor:
        """[L - 1, V] Log-probabilities of what follows each token but the last, by one version alone."""
        logits = self._models[version](torch.tensor([ids])).logits[0, :-1].float()
        logprobs: torch.Tensor = logits.div(temperature).log_softmax(-1)
        return logprobs

    def worst(
        self, prompt: Sequence[int], completion: Completion, *, temperature: float = 1.0, greedy: bool = False
    ) -> float:
        """The largest difference, in nats, of a token's log-probability from that of the version it names.

        If `greedy`, each token also has to be the likeliest one, or as likely to six digits.
        """
        ids = [*prompt, *completion.token_ids]
        first, found = len(prompt) - 1, 0.0
        for version in set(completion.versions):
            places = [place for place, named in enumerate(completion.versions) if named == version]
            rows = self.logprobs(version, ids, temperature)[first:][places]
            tokens = torch.tensor(completion.token_ids)[places]
            said = torch.tensor(completion.logprobs)[places]
            expected = rows.gather(-1, tokens[:, None])[:, 0]
            found = max(found, float((said - expected).abs().max()))
            if greedy:
                assert float((rows.max(-1).values - expected).max()) < 1e-5
        return found


def versions_within(completions: Iterable[Completion]) -> set[tuple[int, ...]]:
    """Which versions responses have, in the order in which they sampled."""
    return {tuple(dict.fromkeys(one.versions)) for one in completions}
