"""What tests of explorers share: files of a version, engines that talk, and what explorers stored."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import Any

from tests.support.echo import Digits, Echo
from tests.support.rows import Scene
from trinity_db.arrays import codec
from trinity_db.config.shared import PromptConfig
from trinity_db.explorer.attempt.workflow import Workflow
from trinity_db.explorer.config import ExplorerConfig
from trinity_db.explorer.engines.engine import Completion, Request
from trinity_db.explorer.http.listener import EndpointAddress
from trinity_db.explorer.service import Explorer, ExplorerSetup
from trinity_db.models import folder_digest
from trinity_db.postgres.connection import connect
from trinity_db.schema.states import WorkerRole
from trinity_db.store.groups import Pace
from trinity_db.weights.recorded_places import RecordedPlaces

Explore = Callable[..., Explorer]
ERRORS = "SELECT error FROM trinity.rollout ORDER BY id"


def publish(scene: Scene, version: int, folder: Path) -> None:
    """Let the store say that a version is in a folder as it is now. Explorers hold the folder to its hash."""
    with scene.database.transaction() as tx:
        tx.execute(
            "INSERT INTO trinity.policy_version (run_id, version, step, checkpoint, checkpoint_hash)"
            " VALUES (%(run)s, %(version)s, %(version)s, %(folder)s, %(digest)s)"
            " ON CONFLICT (run_id, version) DO UPDATE"
            " SET checkpoint = excluded.checkpoint, checkpoint_hash = excluded.checkpoint_hash",
            {
                "run": scene.run.id,
                "version": version,
                "folder": str(folder),
                "digest": folder_digest.digest(folder),
            },
        )


ANY_FOLDER = RecordedPlaces(checkpoints=Path("/"), broadcast="127.0.0.1")


class Explorers:
    """Makes explorers of a run, each a worker of its own."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self.places = ANY_FOLDER
        """Where versions may be read from."""
        self._made: list[Explorer] = []

    def __call__(
        self,
        workflow: Workflow,
        engine: Echo | None = None,
        /,
        *,
        groups: int = 2,
        max_staleness: int = 0,
        only: Sequence[int] | None = None,
        place: EndpointAddress | None = None,
        scene: Scene | None = None,
        needs_reward: bool = False,
        **options: Any,
    ) -> Explorer:
        """At work on groups of two, unless `options`, of the configuration, say otherwise.

        Args:
            groups: so many may wait for the trainer.
            scene: another run.
        """
        scene = scene or self._scene
        setup = ExplorerSetup(
            config=ExplorerConfig.model_validate(
                {"workflow": "mine.py:workflow", "group_size": 2, **options}
            ),
            workflow=workflow,
            engine=engine or Echo(),
            pace=Pace(max_staleness, per_version=groups),
            selection=scene.selection,
            prompts=PromptConfig(prompt_template="{prompt}"),
            places=self.places,
            needs_reward=needs_reward,
        )
        role = Explorer(scene.database, scene.run, setup, only=only, address=place)
        role.worker_id = scene.new_worker(WorkerRole.EXPLORE)
        self._made.append(role)
        return role

    def release(self) -> None:
        for role in self._made:
            role.release()


class Talk(Digits):
    """A tokenizer that writes a token as one character, and conversations with tools and a system too."""

    response_template = None

    def apply_chat_template(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> str:
        functions = [tool["function"] for tool in options.get("tools") or ()]
        tools = [
            [one["name"], one.get("description", ""), *one["parameters"].get("properties", ())]
            for one in functions
        ]
        return "".join([*chain(*tools), *(message["content"] for message in messages)])

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return [ord(character) for character in text]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        return "".join(map(chr, token_ids))


class Says(Echo):
    """An engine that says the same each time, or what a function makes of the prompt."""

    tokenizer = Talk()

    def __init__(self, answer: str | Callable[[str], str] = "yes", context: int = 4096) -> None:
        super().__init__(context=context)
        self.answer = answer
        self.gate: asyncio.Event | None = None
        """Where there is one, responses wait for it."""

    async def generate(self, request: Request) -> Completion:
        await super().generate(request)
        if self.gate is not None:
            await self.gate.wait()
        prompt = self.tokenizer.decode(request.prompt_ids)
        said = self.answer if isinstance(self.answer, str) else self.answer(prompt)
        tokens = self.tokenizer.encode(said, add_special_tokens=False)[: request.max_new_tokens]
        reason = "stop" if len(tokens) == len(said) else "length"
        return Completion(tokens, [-0.5] * len(tokens), [self.version] * len(tokens), reason)  # type: ignore[arg-type]


def user(content: Any) -> Any:
    """A user's message."""
    return {"role": "user", "content": content}


def stored(scene: Scene, statement: str) -> list[tuple[Any, ...]]:
    """What is committed, as another connection sees it."""
    with closing(connect(scene.database.url)) as other:
        return [tuple(row.values()) for row in other.execute(statement.encode())]


def sequences(scene: Scene) -> list[tuple[str, str]]:
    """Of each experience the text, and below it an x for each token that was sampled."""
    rows = scene.rows("SELECT codec, data, num_tokens FROM trinity.payload ORDER BY experience_id")
    found = [codec.decode(*row) for row in rows]
    return [
        (Talk().decode(one.token_ids.tolist()), "".join(".x"[int(sampled)] for sampled in one.action_mask))
        for one in found
    ]


def give_back(scene: Scene) -> None:
    """Take the groups from the explorer, as after a silence."""
    with closing(connect(scene.database.url)) as other:
        other.execute("UPDATE trinity.rollout_group SET worker_id = NULL WHERE state = 'open'")
        other.commit()
