"""A run in this process: an explorer that plays a script, processors, and a trainer of a tiny model."""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import LlamaConfig, LlamaForCausalLM

from tests.others.agents.scripted_engine import Playing, words
from tests.support.bench import setup_of
from tests.support.explorers import ERRORS, Explore
from tests.support.recipes import recipe
from tests.support.rows import Scene
from tests.support.steps import process
from trinity_db.config.shared import ModelConfig
from trinity_db.explorer.attempt.policy import Policy
from trinity_db.explorer.http.command import Command
from trinity_db.store.groups import Reward
from trinity_db.trainer.config import TrainerConfig
from trinity_db.trainer.service import Trainer

CONTEXT = 400_000
Network = Callable[[str], AbstractAsyncContextManager[str]]
"""Yields the URL of a proxy in front of a URL."""
REPLACED = (
    "SELECT DISTINCT o.key FROM trinity.call c, jsonb_each(c.replaced) o WHERE o.value <> 'null' ORDER BY 1"
)
SEQUENCES = "SELECT count(*) FROM trinity.sequence_view WHERE run = %s"
TRAINED = """
SELECT e.state::text, e.use_count, count(b.id)
FROM trinity.experience e
LEFT JOIN trinity.batch_item i ON i.experience_id = e.id
LEFT JOIN trinity.batch b ON b.id = i.batch_id AND b.state = 'committed'
WHERE e.run_id = %s GROUP BY e.id ORDER BY e.id
"""


@dataclass(frozen=True)
class Outcome:
    """What became of one attempt."""

    replaced: Sequence[str]
    """Options that its requests have and that are not followed."""
    sequences: int
    trained: int
    """Rows that the trainer learned from, each in one batch."""


class AgentRun:
    """One run, whose trainer has published version 0."""

    def __init__(self, scene: Scene, explore: Explore, folder: Path) -> None:
        self.scene = scene.beside("agents")
        self._explore = explore
        sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
        config = LlamaConfig(vocab_size=len(words()), max_position_embeddings=CONTEXT, **sizes)
        LlamaForCausalLM(config).save_pretrained(folder / "model")
        words().save_pretrained(folder / "model")
        setup = setup_of(
            TrainerConfig(steps=1, batch_size=1, learning_rate=0.01),
            recipe("reinforce"),
            folder / "checkpoints",
            model=ModelConfig(path=folder / "model"),
        )
        self._trainer = Trainer(scene.database, self.scene.run, setup)
        self._trainer.worker_id = self.scene.trainer
        self._trainer.start()

    def attempt(
        self,
        command: str,
        engine: Playing,
        check: str | None = None,
        network: Network | None = None,
        **options: object,
    ) -> None:
        """Let a program make the only attempt of a group.

        Args:
            network: between program and endpoint.
        """
        with closing(Command(command, "fresh", check)) as runs:

            async def workflow(task: Mapping[str, Any], policy: Policy) -> Reward:
                if network is None:
                    return await runs(task, policy)
                address = await policy.address()
                async with network(address.url) as url:
                    address.url = url
                    return await runs(task, policy)

            self._explore(workflow, engine, size=1, max_new_tokens=2000, scene=self.scene, **options)
        assert self.scene.values(ERRORS) == [None]
        assert self.scene.values("SELECT DISTINCT reward FROM trinity.experience") == [1.0]

    def train(self) -> Outcome:
        """Process the attempt, and train on its rows in one step."""
        process(self.scene, {"score": [], "group": {"min_size": 1}})
        assert self._trainer.work()
        trained = self.scene.rows(TRAINED, self.scene.run.id)
        assert set(trained) == {("trained", 1, 1)}
        replaced = [re.sub(r"\[\d+\]", "[*]", path) for path in self.scene.values(REPLACED)]
        sequences = self.scene.value(SEQUENCES, self.scene.run.name)
        return Outcome(sorted(set(replaced)), sequences, len(trained))
