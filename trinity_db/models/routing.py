"""The experts that routers of a mixture choose: noted while an engine samples, replayed while a row trains.

Engine and trainer round differently, so that their routers now and then choose other experts for a token.
Then the token's log-probabilities differ by much more than rounding. With the engine's choice replayed
(Rollout Routing Replay, arXiv 2510.11370) the trainer goes through the same experts. It weighs them by its
own router, whose gradient flows as ever.

A router makes its choice by torch.topk, over as many numbers as there are experts. The replay takes the place
of that one call: it returns the recorded experts with the values that the router has for them. All other
parts of the router's formula stay the family's own. `routers_of` finds the calls by a trial, and checks that
they are what decides.

Shapes: T tokens of a call of the model, in the order of their memory; R routers; K experts of a token.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.overrides import TorchFunctionMode

from trinity_db.arrays import Payload
from trinity_db.models.families import EXPERTS
from trinity_db.models.layout import decoder_of

TRIAL_TOKENS = 12
TOLERANCE = 1e-3  # relative to the largest hidden value; rounding gives less, and other experts give more
CUTS_OFF = "group_limited_greedy"
"""The topk_method of DeepSeek-V2 by which experts outside of the chosen groups have the weight 0."""
_CHOSEN = ("num_experts_per_tok", "num_experts_per_token", "top_k_experts", "moe_topk", "moe_top_k", "moe_k")
"""The names by which configurations say how many experts a token goes through."""
_TOPK = (torch.topk, Tensor.topk)


@dataclass(eq=False)
class _Router:
    """A module in which a choice is made."""

    module: torch.nn.Module
    call: int
    """Which of its calls of topk, from 0, makes the choice."""
    layer: int | None
    """Number of its layer in the model, by its name."""
    given: Tensor | None = None
    """[T, K] What is chosen; -1 where that is left to the router."""
    notes: list[Tensor] | None = None
    """[T, K] What it would choose by itself, of each pass."""

    @property
    def has_work(self) -> bool:
        return self.given is not None or self.notes is not None


class _Choosing(TorchFunctionMode):
    """Within this `with`, one call of topk is the router's choice."""

    def __init__(self, router: _Router) -> None:
        super().__init__()
        self._router, self._calls = router, 0

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        if func not in _TOPK:
            return found
        self._calls += 1
        if self._calls != self._router.call + 1:
            return found
        own = found[1]
        if self._router.notes is not None:
            self._router.notes.append(own.detach().flatten(0, -2))
        if self._router.given is None:
            return found
        given = self._router.given.view(own.shape)
        chosen = torch.where(given < 0, own, given)
        scores = args[0] if args else (kwargs or {})["input"]
        return torch.return_types.topk((scores.gather(-1, chosen), chosen))


class Routers:
    """The routers of a model, in the order of its layers. Until they are asked, they change nothing.

    Args:
        layers: of the model, those without experts included.
        experts: E, among which a router chooses.
        chosen: K.
    """

    def __init__(self, routers: Sequence[_Router], layers: int, experts: int, chosen: int) -> None:
        self.experts = experts
        self.chosen = chosen
        self._routers = routers
        self._layers = layers
        for router in routers:
            router.module.forward = _choosing(router, router.module.forward)

    def __len__(self) -> int:
        return len(self._routers)

    def places_in(self, layers: int) -> list[int] | None:
        """Which layers of a recorded choice are those of the routers. None: it is of another model.

        Some engines record all layers of a model, others those with experts.
        """
        if layers == len(self):
            return list(range(layers))
        numbers = [router.layer for router in self._routers if router.layer is not None]
        fits = layers == self._layers and len(set(numbers)) == len(self)
        return numbers if fits else None

    def recorded(self, payloads: Sequence[Payload], starts: Sequence[int], total: int) -> Tensor | None:
        """[T, R, K] The choice that payloads have of engines, for T places; -1 where there is none.

        None if no payload has one.

        Args:
            starts: the place of the first token of each payload.
        """
        found: NDArray[np.int64] | None = None
        for start, payload in zip(starts, payloads, strict=True):
            if payload.routing is None:
                continue
            if found is None:
                found = np.full((total, len(self), self.chosen), -1, np.int64)
            layers = self.places_in(payload.routing.shape[1])
            found[start : start + len(payload.routing)] = payload.routing[:, layers]
        return None if found is None else torch.from_numpy(found)

    @contextmanager
    def noting(self) -> Iterator[list[Tensor]]:
        """Within this `with`, one call of the model puts [T, K] of each router into the list at its end."""
        found: list[Tensor] = []
        for router in self._routers:
            router.given, router.notes = None, []
        try:
            yield found
            found += [router.notes[0] for router in self._routers if router.notes]
        finally:
            for router in self._routers:
                router.notes = None

    def replay(self, choice: Tensor | None, *, forces: bool = True) -> "Replay | None":
        """Say what the next call of the model chooses. It holds until this is called again.

        Layers that are computed again in the backward pass need it until then.

        Args:
            choice: [T, R, K] -1 where a router chooses by itself. None: all do.
            forces: whether the choice is made. If not, it is only compared with the routers' own.
        """
        notes: list[list[Tensor]] = []
        for number, router in enumerate(self._routers):
            router.given, router.notes = None, None
            if choice is not None:
                router.given = choice[:, number] if forces else None
                router.notes = []
                notes.append(router.notes)
        return None if choice is None else Replay(choice, notes)


@dataclass(frozen=True)
class Replay:
    """A choice, and what the routers would have chosen in its place."""

    choice: Tensor
    """[T, R, K] -1 where none was recorded."""
    notes: list[list[Tensor]] = field(repr=False)

    def differing(self) -> Tensor:
        """[] At how many tokens and layers a router's own choice is of other experts. Their order is the same
        to the model, and does not count."""
        own = torch.stack([note[0] for note in self.notes], dim=1)
        is_known = self.choice[..., 0] >= 0
        others = (own.sort(-1).values != self.choice.sort(-1).values).any(-1)
        return (others & is_known).sum()


def _choosing(router: _Router, forward: Callable[..., Any]) -> Callable[..., Any]:
    def choosing(*args: Any, **kwargs: Any) -> Any:
        if not router.has_work:
            return forward(*args, **kwargs)
        with _Choosing(router):
            return forward(*args, **kwargs)

    return choosing


@torch.no_grad()
def routers_of(model: Any) -> Routers | None:
    """The routers of a mixture, by a trial on a few tokens.

    None if the model has none, or if another choice could not be given to them.
    """
    config = model.config.get_text_config()
    experts, chosen = _number(config, EXPERTS), _number(config, _CHOSEN)
    if experts is None or chosen is None or chosen >= experts:
        return None
    if getattr(config, "topk_method", None) == CUTS_OFF:
        return None
    device = next(model.parameters()).device
    tokens = torch.arange(TRIAL_TOKENS, device=device)[None] * 7 % model.get_input_embeddings().num_embeddings

    decoder = decoder_of(model)  # beyond it, the loss of routers has calls of topk too

    def hidden() -> Tensor:
        found: Tensor = decoder(input_ids=tokens, use_cache=False)[0]
        return found

    found = _found(model, hidden, experts, chosen)
    if not found:
        return None
    forwards = [router.module.forward for router in found]
    routers = Routers(found, config.num_hidden_layers, experts, chosen)
    if _decides(routers, hidden):
        return routers
    for router, forward in zip(found, forwards, strict=True):
        router.module.forward = forward
    return None


def _number(config: Any, names: Sequence[str]) -> int | None:
    return next((one for name in names if isinstance(one := getattr(config, name, None), int) and one), None)


class _Looking(TorchFunctionMode):
    """Notes calls of topk that choose so many of so many for each token, by the innermost module."""

    def __init__(self, experts: int, chosen: int) -> None:
        super().__init__()
        self.called: list[torch.nn.Module] = []
        """The modules that are being called, the innermost last."""
        self.calls: dict[torch.nn.Module, list[bool]] = {}
        """Of each module, whether its calls of topk look like a choice of experts."""
        self._experts, self._chosen = experts, chosen

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        if func in _TOPK and self.called:
            scores = args[0] if args else (kwargs or {})["input"]
            shape = (scores.numel() // TRIAL_TOKENS, scores.shape[-1], *found[1].shape[-1:])
            fits = shape == (self._experts, self._experts, self._chosen)
            self.calls.setdefault(self.called[-1], []).append(fits)
        return found


def _found(model: Any, call: Callable[[], Tensor], experts: int, chosen: int) -> list[_Router]:
    """The modules in which something is chosen that looks like experts. The last such call decides: those
    before it choose groups of experts."""
    looking = _Looking(experts, chosen)

    def enter(module: torch.nn.Module, args: Any) -> None:
        looking.called.append(module)

    def leave(module: torch.nn.Module, args: Any, output: Any) -> None:
        looking.called.pop()

    hooks = []
    for module in model.modules():
        hooks.append(module.register_forward_pre_hook(enter, prepend=True))
        hooks.append(module.register_forward_hook(leave, always_call=True))
    try:
        with looking:
            call()
    finally:
        for hook in hooks:
            hook.remove()
    names = {module: name for name, module in model.named_modules()}
    found = []
    for module, calls in looking.calls.items():
        if any(calls):
            last = len(calls) - 1 - calls[::-1].index(True)
            found.append(_Router(module, last, _layer(names[module])))
    return found


def _layer(name: str) -> int | None:
    number = re.search(r"\.(\d+)\.", name)
    return int(number[1]) if number else None


def _decides(routers: Routers, call: Callable[[], Tensor]) -> bool:
    """Whether the routers' own choice gives what the model computes, and any other one something else."""
    with routers.noting() as own:
        plain = call()
    if len(own) != len(routers):
        return False
    choice = torch.stack(own, dim=1)
    found = []
    for given in (choice, (choice + 1) % routers.experts):
        routers.replay(given)
        found.append((call() - plain).abs().max())
    routers.replay(None)
    limit = TOLERANCE * plain.abs().max()
    return bool(found[0] <= limit) and bool(found[1] > limit) and bool(found[1].isfinite())
