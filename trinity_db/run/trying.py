"""Makes one attempt at a task of a configuration, in a separate run, and describes it.

The caller deletes the run: nothing of the attempt is trained on.
"""

import json
import secrets
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from trinity_db.errors import ConfigError
from trinity_db.explorer.attempt.workflow import Workflow
from trinity_db.insight import show
from trinity_db.postgres.connection import Database
from trinity_db.processors.config import GroupConfig
from trinity_db.run import joining
from trinity_db.run.configuration import RunConfig
from trinity_db.store import runs

PREFIX = "try-"  # begins the name of a run that is deleted
SHOWN = 80  # characters of a conversation around a place where it was changed


@dataclass
class Trial:
    """One attempt of a configuration, in a separate run."""

    config: RunConfig
    workflow: Workflow
    requests: list[dict[str, Any]] = field(default_factory=list)
    """Requests of the attempt's program, in their order."""

    @classmethod
    def of(cls, config: RunConfig) -> "Trial":
        """Prepare an attempt.

        Raises:
            ConfigError: if the run does not explore, or its workflow does not exist.
        """
        from trinity_db.explorer.attempt.workflow import of
        from trinity_db.explorer.http.offers import Offers

        if not config.is_online:
            raise ConfigError(
                f"Run '{config.name}' is offline (algorithm {config.algorithm.name}): it makes no attempts."
            )
        config = joining.pinned(_alone(config))
        served = Offers(config.explorer.attempt_seconds, config.attempts_need_reward)
        return cls(config, served if config.explorer.is_served else of(config.explorer))

    def make(self, database: Database, run: runs.Run, port: int) -> dict[str, Any] | None:
        """Make the attempt, judge it, and describe it; None if a signal came.

        Args:
            port: of the endpoint, if agents that other people start make the attempt.
        """
        from trinity_db.explorer import engines
        from trinity_db.explorer.http.listener import EndpointAddress
        from trinity_db.explorer.http.offers import Offers
        from trinity_db.explorer.loop import tasks
        from trinity_db.explorer.service import Explorer, ExplorerSetup
        from trinity_db.store import groups
        from trinity_db.trainer.checkpoints import publish_initial

        config = self.config
        engine = engines.create(config.explorer.engine, config.model)
        publish_initial.begin(database, run, config.model, config.seed, config.checkpoints)
        with database.transaction() as tx:
            sets = {runs.find_taskset(tx, name): weight for name, weight in config.tasksets.items()}
        setup = ExplorerSetup(
            config=config.explorer,
            workflow=self.workflow,
            engine=engine,
            pace=groups.Pace(0, 1, most=1),
            selection=tasks.selection(config.explorer.tasks, sets, config.seed),
            prompts=config.model,
            places=joining.recorded_places(config),
            needs_reward=config.attempts_need_reward,
        )
        offers = self.workflow if isinstance(self.workflow, Offers) else None
        address = EndpointAddress(port=port if offers else 0, offers=offers, trace=_tracing(self.requests))
        explorer = Explorer(database, run, setup, address=address)
        with closing(engine):
            explorer.serve()
            if explorer.stopping or not self._judge(database, run):
                return None
            return self._description(database, run, engine.tokenizer)

    def _judge(self, database: Database, run: runs.Run) -> bool:
        from trinity_db.processors.lists import lists
        from trinity_db.processors.lists.step import Context
        from trinity_db.processors.service import Processors

        context = Context(database, self.config.model, self.config.explorer.temperature)
        steps = lists.prepare(lists.load(self.config.processors), context)
        processors = Processors(database, run, self.config.processors, steps, drain=True)
        processors.serve()
        return not processors.stopping

    def _description(self, database: Database, run: runs.Run, tokenizer: Any) -> dict[str, Any]:
        from trinity_db.explorer.http.command import Command

        attempts, replaced = show.attempts(database, run.id)
        rollout = attempts[0]
        for request in self.requests:
            request["replaced"] = replaced.get(request.pop("digest"), {})
        rows = [show.experience(database, id) for id in rollout["experiences"]]
        tokens = [show.tokens(database, row["id"]) or {"token_ids": [], "action_mask": []} for row in rows]
        ended = self.workflow.ended if isinstance(self.workflow, Command) else {}
        return {
            "task": rollout["task"],
            "seconds": (rollout["finished_at"] - rollout["started_at"]).total_seconds(),
            "error": rollout["error"],
            "requests": self.requests,
            "sequences": _sequences(rows, tokens, tokenizer),
            "reward": rows[0]["reward"] if rows else None,
            "rewards": self._rewards(rows[0]["rewards"]) if rows else [],
            "programs": [
                {
                    "name": name,
                    "status": program_end.status,
                    "output": [*program_end.output],
                    "errors": [*program_end.errors],
                }
                for name, program_end in ended.items()
            ],
        }

    def _rewards(self, events: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return the latest reward of each name, and where it came from."""
        return [
            {
                **{key: event[key] for key in ("name", "value", "weight")},
                "from": self._origin(event["name"]) if event["source"] == "explore" else "processors.score",
            }
            for event in events
            if event["latest"]
        ]

    def _origin(self, name: str) -> str:
        """Return where a reward of the attempt itself came from."""
        from trinity_db.explorer.http.command import Command, reward_of
        from trinity_db.store.groups import named_rewards

        if not isinstance(self.workflow, Command):
            return "posted with the key" if self.config.explorer.is_served else "the workflow"
        program, ended = [*self.workflow.ended.items()][-1]
        if name in named_rewards(reward_of(ended, program)):
            return f"the {program}'s line '{ended.marked}'"
        if program == "check" and name == "workflow":
            return f"the check's exit status {ended.status}"
        return "posted with the key"


def _alone(config: RunConfig) -> RunConfig:
    """Return the configuration of a run with one attempt, of which nothing else is made."""
    single = {"group_size": 1, "spare": 0, "concurrency": 1, "retries": 0}
    no_more: dict[str, Any] = {"priority": [], "synthesis": [], "pair": None, "archive": None}
    group = {"group": GroupConfig(min_size=1)}
    return config.model_copy(
        update={
            "name": f"{PREFIX}{config.name[:80]}-{secrets.token_hex(3)}",
            "data": [],
            "holdout": 0.0,
            "evaluation": None,
            "explorers": 1,
            "explorer": config.explorer.model_copy(update=single),
            "processors": config.processors.model_copy(update=no_more | group),
            "trainer": config.trainer.model_copy(update={"weights": None}),
        }
    )


def _tracing(requests: list[dict[str, Any]]) -> Any:
    """Return a middleware that describes each request in a list."""
    from aiohttp import web

    from trinity_db.explorer.http.requests import digest_of

    @web.middleware
    async def trace(request: web.Request, handler: Any) -> web.StreamResponse:
        path = request.path.replace(request.match_info.get("key") or "\n", "KEY")
        described: dict[str, Any] = {"method": request.method, "path": path, "model": None, "status": None}
        described |= {"refused": None, "digest": None}
        requests.append(described)
        try:
            response: web.StreamResponse = await handler(request)
        except web.HTTPException as error:
            described |= {"status": error.status, "refused": error.reason}
            raise
        described["status"] = response.status
        if request.method == "POST" and response.status != 413:  # a body that is too long is not read
            body = _json(await request.read())
            described |= {"digest": digest_of(request, body), "model": body.get("model")}
        if response.status >= 400 and isinstance(response, web.Response):
            described["refused"] = _json(response.text or "").get("error", {}).get("message")
        return response

    return trace


def _json(text: str | bytes) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _sequences(
    rows: Sequence[Mapping[str, Any]], tokens: Sequence[Mapping[str, Any]], tokenizer: Any
) -> list[dict[str, Any]]:
    """Describe each sequence, and for all but the first why it does not continue an earlier one."""
    texts: list[tuple[str, int]] = []
    described = []
    for row, arrays in zip(rows, tokens, strict=True):
        ids, mask = arrays["token_ids"], arrays["action_mask"]
        begin = mask.index(1) if 1 in mask else len(mask)
        text = tokenizer.decode(ids)
        drops = [f"{drop['stage']}: {drop['reason']}" for drop in row["drops"]]
        described.append(
            {
                "tokens": len(ids),
                "sampled": sum(mask),
                "reward": row["reward"],
                "dropped": drops[0] if drops else None,
                "text": text,
                "changed": _change(texts, text),
            }
        )
        texts.append((text, len(tokenizer.decode(ids[:begin]))))
    return described


def _change(earlier: Sequence[tuple[str, int]], text: str) -> dict[str, Any] | None:
    """Return where a sequence differs from the most similar earlier one; None if it is the first.

    Args:
        earlier: texts, and the number of characters of their first prompts.
    """
    if not earlier:
        return None
    common = [_length_of_common_prefix(before_text, text) for before_text, _ in earlier]
    number = max(range(len(common)), key=common.__getitem__)
    (before, prompt), at = earlier[number], common[number]
    return {
        "sequence": number + 1,
        "characters": at,
        "in_prompt": at < prompt,
        "said": before[at : at + SHOWN],
        "came_back": text[at : at + SHOWN],
    }


def _length_of_common_prefix(first: str, second: str) -> int:
    pairs = enumerate(zip(first, second, strict=False))
    return next(
        (position for position, (left, right) in pairs if left != right), min(len(first), len(second))
    )
