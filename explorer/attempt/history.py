"""The samples of an attempt: open sequences that later calls may extend, finished steps, and each call."""

from collections import Counter, defaultdict
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace

from trinity_db.explorer.attempt.recorded import JoinedCalls, Requested, Sampled, TokenSpan
from trinity_db.explorer.config import RequestsConfig
from trinity_db.store.groups import Reward, Step, named_rewards
from trinity_db.store.parks import Mark


class History:
    """The sampled tokens of one attempt.

    Args:
        temperature: the run's temperature.
        text: decodes tokens, without special ones.
        whole_text: decodes tokens, including special ones.
        rules: which calls of programs are trained.
    """

    def __init__(
        self,
        temperature: float,
        text: Callable[[Sequence[int]], str],
        whole_text: Callable[[Sequence[int]], str],
        rules: RequestsConfig,
    ) -> None:
        self.places: dict[int, TokenSpan] = {}
        """Position of each call, by its number."""
        self.requests: dict[int, Requested] = {}
        """Requests of programs, by the number of the call that answers them."""
        self.left_out: dict[int, str] = {}
        """Numbers of the calls of all steps that are left out of training, and why."""
        self._rules = rules
        self._temperature = temperature
        self._text = text
        self._whole_text = whole_text
        self._open: list[JoinedCalls] = []
        """Sequences that later calls may extend."""
        self._steps: list[Step] = []
        self.marks: list[Mark] = []
        """Steps as lists of calls, from which they can be rebuilt."""
        self.version_min: int | None = None
        """Oldest policy version used so far."""
        self._since: list[int] = []
        """Numbers of the calls since the last step."""

    def add(self, sampled: Sampled, temperature: float) -> None:
        """Append a call to the sequence that its prompt continues, or start a new one."""
        prompt_ids = sampled.prompt_ids
        begun = [
            sequence for sequence in self._open if sequence.token_ids == prompt_ids[: len(sequence.token_ids)]
        ]
        if begun:  # several may match, such as two answers to one prompt; use the longest
            sequence = max(begun, key=lambda begun_sequence: len(begun_sequence.token_ids))
        else:
            sequence = self._begun(sampled)
            self._open.append(sequence)
        oldest = min(sampled.completion.versions)
        self.version_min = oldest if self.version_min is None else min(oldest, self.version_min)
        self._since.append(sampled.number)
        self.places[sampled.number] = sequence.add(sampled, temperature)

    def alone(self, sampled: Sampled, temperature: float) -> JoinedCalls:
        """Return a sequence of only this call."""
        sequence = self._begun(sampled)
        sequence.add(sampled, temperature)
        return sequence

    @property
    def num_tokens(self) -> int:
        """Number of tokens in sequences that are not part of a step yet."""
        return sum(len(sequence.token_ids) for sequence in self._open)

    def is_last(self, number: int) -> bool:
        """Whether no later call or step follows the answer of a call."""
        span = self.places[number]
        return number in self._since and not span.is_continued

    def step(self, reward: Reward, state: str | None) -> None:
        """Make a step of everything sampled since the last one.

        Raises:
            ValueError: if nothing was sampled.
        """
        steps = self._trained()
        if not steps:
            raise ValueError("The attempt has sampled nothing since its last step.")
        self._steps += [replace(step, state=state) for step in steps]
        self._steps[-1] = replace(self._steps[-1], reward=reward)
        self.marks.append((self._since, None if reward is None else named_rewards(reward), state))
        self._open, self._since = [], []

    def steps(self, reward: Reward) -> list[Step]:
        """Return all steps, including the reward of the whole attempt, as described in `Policy.steps`."""
        rest = self._trained()
        if not self._steps:
            return [replace(step, reward=reward, shares_reward=True) for step in rest]
        *before, last = [*self._steps, *rest]
        return [*before, last if reward is None else replace(last, reward=_added(last.reward, reward))]

    def _trained(self) -> list[Step]:
        """Return the open sequences without the calls that are left out of training."""
        spans = {number: span for sequence in self._open for number, span in sequence.calls.items()}
        self.left_out |= left_out(spans, self.requests, self._rules)
        return [self._step_of(sequence) for sequence in _kept(self._open, self.left_out)]

    def _step_of(self, sequence: JoinedCalls) -> Step:
        requested = [self.requests[number] for number in sequence.calls if number in self.requests]
        kinds = Counter((request.path, request.model) for request in requested)
        requests = [{"path": path, "model": model, "calls": n} for (path, model), n in kinds.items()]
        return Step(*self._texts(sequence), sequence.payload, requests=requests)

    def _begun(self, sampled: Sampled) -> JoinedCalls:
        """Return a new sequence, without its first call."""
        text = self._whole_text(sampled.prompt_ids) if sampled.prompt is None else sampled.prompt
        return JoinedCalls(text, [], [], len(sampled.prompt_ids), self._temperature)

    def _texts(self, sequence: JoinedCalls) -> tuple[str, str]:
        """Return the first prompt, and the text after it."""
        return sequence.prompt, self._text(sequence.token_ids[sequence.first_response :])


def left_out(
    spans: Mapping[int, TokenSpan], requests: Mapping[int, Requested], rules: RequestsConfig
) -> dict[int, str]:
    """Return the calls of programs that are left out of training, with the reason.

    model: the request names a model that is not trained. repeated: an equal request has another answer, and
    nothing continues this one, so that the program may not have read it. Of equal requests whose answers are
    all not continued, the last is trained.
    """
    reasons: dict[int, str] = {}
    equal: dict[bytes, list[int]] = defaultdict(list)
    for number in sorted(spans.keys() & requests.keys()):
        equal[requests[number].digest].append(number)
        if rules.train != "all" and requests[number].model not in rules.train:
            reasons[number] = "model"
    for numbers in equal.values() if rules.repeats == "same" else ():
        ended = [number for number in numbers if not spans[number].is_continued]
        for number in ended[:-1] if len(ended) == len(numbers) else ended:
            reasons.setdefault(number, "repeated")
    return reasons


def _kept(sequences: Sequence[JoinedCalls], left_out: Container[int]) -> list[JoinedCalls]:
    """Return the sequences without these calls.

    A sequence that lost its last calls is continued by a later one whose prompt begins with the rest: a call
    that was repeated, or answered aside, had taken its place.
    """
    kept: list[JoinedCalls] = []
    shortened: list[int] = []
    """Indexes of kept sequences that lost their last calls."""
    for sequence in sequences:
        rest = sequence.without(left_out)
        if rest is None:
            continue
        joined = [
            (index, whole) for index in shortened if (whole := kept[index].continued_by(rest)) is not None
        ]
        index, whole = max(joined, key=lambda pair: len(kept[pair[0]].token_ids), default=(len(kept), rest))
        kept[index : index + 1] = [whole]
        if joined:
            shortened.remove(index)
        if len(rest.token_ids) < len(sequence.token_ids):
            shortened.append(index)
    return kept


def _added(first: Reward, second: Reward) -> Reward:
    """Sum two rewards by name."""
    if first is None:
        return second
    added = named_rewards(first)
    for name, value in named_rewards(second).items():
        added[name] = added.get(name, 0.0) + value
    return added
