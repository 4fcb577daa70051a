"""Workflows: how rollout groups become rollouts.

A workflow asks the engine and yields rollouts as they end; it knows neither the database nor the
explorer, which writes what it yields. The configuration can name the user's own workflow: a function in a
file, called as `Workflow` says. This module needs none of the extras.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from trinity_db import functions
from trinity_db.explorer.config import ExplorerConfig
from trinity_db.explorer.engine import Engine, Request
from trinity_db.prompts import UntokenizableText, prompt_ids, prompt_text
from trinity_db.store.groups import ClaimedGroup, Rollout


class Workflow(Protocol):
    """Attempts every missing member of rollout groups, once."""

    def __call__(
        self,
        engine: Engine,
        groups: Sequence[ClaimedGroup],
        *,
        template: str,
        config: ExplorerConfig,
        seed: int,
        should_stop: Callable[[], bool],
    ) -> Iterator[list[Rollout]]:
        """Yield lists of rollouts that ended together, each as soon as it ended.

        When the iterator is advanced again, everything that it yielded before is durable in the store:
        accepted, or, when the group was given to another explorer meanwhile, kept as refused.

        Each member in `group.members` is yielded once, with all of its steps, or with its error where it
        failed for good. The member `group.greedy`, where there is one, is asked for by requests that are
        greedy. When `should_stop` becomes true, asked at least before every token, the iterator ends; what it
        did not yield by then is attempted again by another explorer. `template` is the text around a plain
        prompt, `seed` differs with every call and is the same for the same groups and attempts.
        """


def load(name: str) -> Workflow:
    """The workflow of that name, or the one that `path/to/file.py:name` names.

    Raises:
        ConfigError: there is no such function, or it cannot be called as a workflow.
    """
    workflow = functions.find(name, "workflow", WORKFLOWS)
    how = "(engine, groups, *, template, config, seed, should_stop)"
    options = dict.fromkeys(("template", "config", "seed", "should_stop"))
    functions.check_call(workflow, f"Workflow '{name}'", how, (None, []), options)
    return workflow


@dataclass(frozen=True)
class _Attempt:
    group: ClaimedGroup
    member: int
    prompt: str
    request: Request


def single_turn(
    engine: Engine,
    groups: Sequence[ClaimedGroup],
    *,
    template: str,
    config: ExplorerConfig,
    seed: int,
    should_stop: Callable[[], bool],
) -> Iterator[list[Rollout]]:
    """One prompt, one response, one experience a rollout; all members are sampled together.

    A prompt that the model cannot take fails all members of its group.
    """
    started_at = datetime.now(UTC)
    attempts: list[_Attempt] = []
    for group in groups:
        prompt, error = "", None
        try:
            prompt = prompt_text(group.task, template, engine.tokenizer)
            ids = prompt_ids(prompt, engine.tokenizer)
            if not engine.fits(ids):
                error = f"prompt of {len(ids)} tokens does not fit the context of {engine.context}"
        except UntokenizableText as problem:
            error = str(problem)
        if error is not None:
            now = datetime.now(UTC)
            yield [Rollout(group, member, started_at, now, prompt, error=error) for member in group.members]
        else:
            for member in group.members:
                request = Request(ids, config.max_new_tokens, greedy=member == group.greedy)
                attempts.append(_Attempt(group, member, prompt, request))
    yield from _generate(engine, attempts, config, seed, should_stop, started_at)


def _generate(
    engine: Engine,
    attempts: Sequence[_Attempt],
    config: ExplorerConfig,
    seed: int,
    should_stop: Callable[[], bool],
    started_at: datetime,
) -> Iterator[list[Rollout]]:
    if not attempts:
        return
    for completions in engine.generate(
        [attempt.request for attempt in attempts],
        temperature=config.temperature,
        seed=seed,
        should_stop=should_stop,
    ):
        now = datetime.now(UTC)
        yield [
            Rollout(
                attempt.group,
                attempt.member,
                started_at,
                now,
                attempt.prompt,
                engine.tokenizer.decode(completion.token_ids, skip_special_tokens=True),
                completion.payload(attempt.request.prompt_ids),
                completion.finish_reason,
            )
            for completion in completions
            for attempt in [attempts[completion.index]]
        ]


WORKFLOWS: dict[str, Workflow] = {"single_turn": single_turn}
