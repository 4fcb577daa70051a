"""The single-turn workflow: one prompt, one response, one experience a rollout."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from trinity_db.explorer.config import ExplorerConfig
from trinity_db.explorer.engine import Engine, Request
from trinity_db.prompts import UntokenizableText, prompt_ids, prompt_text
from trinity_db.store.groups import ClaimedGroup, Rollout


@dataclass(frozen=True)
class _Attempt:
    group: ClaimedGroup
    member: int
    prompt: str
    request: Request


def single_turn(
    engine: Engine,
    groups: Sequence[ClaimedGroup],
    template: str,
    config: ExplorerConfig,
    seed: int,
    should_stop: Callable[[], bool],
) -> Iterator[Rollout]:
    """Attempt every missing member of the groups; each rollout is yielded as soon as it ends.

    A prompt that the model cannot take fails all members of its group. Rollouts unfinished when
    `should_stop` becomes true are not yielded.
    """
    started_at = datetime.now(UTC)
    attempts: list[_Attempt] = []
    for group in groups:
        prompt = prompt_text(group.task, template, engine.tokenizer)
        error = None
        try:
            ids = prompt_ids(prompt, engine.tokenizer)
            if not engine.fits(ids):
                error = f"prompt of {len(ids)} tokens does not fit the context of {engine.context}"
        except UntokenizableText as problem:
            error = str(problem)
        if error is not None:
            for member in group.members:
                yield Rollout(group, member, started_at, datetime.now(UTC), prompt, error=error)
        else:
            request = Request(ids, config.max_new_tokens)
            attempts += [_Attempt(group, member, prompt, request) for member in group.members]
    yield from _generate(engine, attempts, config, seed, should_stop, started_at)


def _generate(
    engine: Engine,
    attempts: Sequence[_Attempt],
    config: ExplorerConfig,
    seed: int,
    should_stop: Callable[[], bool],
    started_at: datetime,
) -> Iterator[Rollout]:
    if not attempts:
        return
    for completion in engine.generate(
        [attempt.request for attempt in attempts],
        temperature=config.temperature,
        seed=seed,
        should_stop=should_stop,
    ):
        attempt = attempts[completion.index]
        yield Rollout(
            attempt.group,
            attempt.member,
            started_at,
            datetime.now(UTC),
            attempt.prompt,
            # The database's text has no NUL; the tokens keep what was said.
            engine.tokenizer.decode(completion.token_ids, skip_special_tokens=True).replace("\x00", ""),
            completion.payload(attempt.request.prompt_ids),
            completion.finish_reason,
        )
