"""What an attempt has sampled so far: sequences that calls may still be joined with, steps, and each call."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from trinity_db.explorer.recorded import JoinedCalls, Place, Sampled
from trinity_db.store.groups import Reward, Step, named_rewards
from trinity_db.store.parks import Mark


class History:
    """The sampled tokens of one attempt.

    Args:
        temperature: of the run.
        text: decodes tokens, without special ones.
        whole_text: decodes tokens, with special ones.
    """

    def __init__(
        self,
        temperature: float,
        text: Callable[[Sequence[int]], str],
        whole_text: Callable[[Sequence[int]], str],
    ) -> None:
        self.places: dict[int, Place] = {}
        """Of each call by its number."""
        self._temperature = temperature
        self._text = text
        self._whole_text = whole_text
        self._open: list[JoinedCalls] = []
        """Sequences that calls may still be joined with."""
        self._steps: list[Step] = []
        self.marks: list[Mark] = []
        """The steps, as they can be made again of the same calls."""
        self.version_min: int | None = None
        """Oldest policy version so far."""
        self._since: list[int] = []
        """Numbers of the calls since the last step."""

    def add(self, sampled: Sampled, temperature: float) -> None:
        """Join a call with the sequence that its prompt goes on from, or begin another one."""
        prompt_ids, completion = sampled.prompt_ids, sampled.completion
        begun = [one for one in self._open if one.token_ids == prompt_ids[: len(one.token_ids)]]
        if begun:  # several may begin it, as two answers to one prompt: the longest has most in common
            sequence = max(begun, key=lambda one: len(one.token_ids))
        else:
            sequence = self._begun(sampled)
            self._open.append(sequence)
        oldest = min(completion.versions)
        self.version_min = oldest if self.version_min is None else min(oldest, self.version_min)
        self._since.append(sampled.number)
        self.places[sampled.number] = sequence.add(prompt_ids, completion, temperature)

    def alone(self, sampled: Sampled, temperature: float) -> JoinedCalls:
        """The sequence that has nothing but this call."""
        sequence = self._begun(sampled)
        sequence.add(sampled.prompt_ids, sampled.completion, temperature)
        return sequence

    @property
    def num_tokens(self) -> int:
        """Tokens of the sequences that are in no step yet."""
        return sum(len(sequence.token_ids) for sequence in self._open)

    def step(self, reward: Reward, state: str | None) -> None:
        """Make a step of what was sampled since the last one.

        Raises:
            ValueError: nothing was.
        """
        if not self._open:
            raise ValueError("The attempt has sampled nothing since its last step.")
        *first, last = self._open
        self._steps += [Step(*self._texts(one), one.payload, state=state) for one in first]
        self._steps.append(Step(*self._texts(last), last.payload, reward, state))
        self.marks.append((self._since, None if reward is None else named_rewards(reward), state))
        self._open, self._since = [], []

    def steps(self, reward: Reward) -> list[Step]:
        """All steps, with what the attempt as a whole earned, as `Policy.steps` says."""
        rest = [Step(*self._texts(one), one.payload, reward) for one in self._open]
        if reward is None or rest or not self._steps:
            return [*self._steps, *rest]
        *before, last = self._steps
        return [*before, replace(last, reward=_added(last.reward, reward))]

    def _begun(self, sampled: Sampled) -> JoinedCalls:
        """A sequence before its first call is added."""
        text = self._whole_text(sampled.prompt_ids) if sampled.prompt is None else sampled.prompt
        return JoinedCalls(text, [], [], len(sampled.prompt_ids), self._temperature)

    def _texts(self, sequence: JoinedCalls) -> tuple[str, str]:
        """The first prompt, and all that follows."""
        return sequence.prompt, self._text(sequence.token_ids[sequence.first_response :])


def _added(first: Reward, second: Reward) -> Reward:
    """Rewards of both, added up by name."""
    if first is None:
        return second
    added = named_rewards(first)
    for name, value in named_rewards(second).items():
        added[name] = added.get(name, 0.0) + value
    return added
