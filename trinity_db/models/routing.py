"""Choices of experts in a mixture: recorded while an engine samples, replayed in training.

Engine and trainer round differently, so their routers occasionally choose different experts for a token. Then
the token's log-probabilities differ by much more than rounding. If the engine's choice is replayed (Rollout
Routing Replay, arXiv 2510.11370), the trainer uses the same experts, weighted by its own router, whose
gradient flows as usual.

A router chooses with torch.topk over one number per expert. The replay replaces that call: it returns the
recorded experts with the router's values for them. The rest of the router's formula stays the family's own.
`routers_of` finds the calls with a trial, and checks that they determine the choice.

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

from trinity_db.arrays.codec import Payload
from trinity_db.models.families import EXPERTS
from trinity_db.models.layout import decoder_of

TRIAL_TOKENS = 12
TOLERANCE = 1e-3  # relative to the largest hidden value; rounding gives less, and other experts give more
CUTS_OFF = "group_limited_greedy"
"""The topk_method of DeepSeek-V2 with weight 0 for experts outside the chosen groups."""
_CHOSEN = ("num_experts_per_tok", "num_experts_per_token", "top_k_experts", "moe_topk", "moe_top_k", "moe_k")
"""Configuration keys for the number of experts per token."""
_TOPK = (torch.topk, Tensor.topk)


@dataclass(eq=False)
class _Router:
    """A module that chooses experts."""

    module: torch.nn.Module
    call: int
    """Index of its topk call that makes the choice."""
    layer: int | None
    """Index of its layer in the model, from its name."""
    forced: Tensor | None = None
    """[T, K] Forced choice; -1 where the router chooses."""
    notes: list[Tensor] | None = None
    """[T, K] The router's own choice, for each pass."""

    @property
    def has_work(self) -> bool:
        return self.forced is not None or self.notes is not None


class _Choosing(TorchFunctionMode):
    """Within this context, intercepts the topk call of a router's choice."""

    def __init__(self, router: _Router) -> None:
        super().__init__()
        self._router, self._calls = router, 0

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func not in _TOPK:
            return result
        self._calls += 1
        if self._calls != self._router.call + 1:
            return result
        own = result[1]
        if self._router.notes is not None:
            self._router.notes.append(own.detach().flatten(0, -2))
        if self._router.forced is None:
            return result
        replayed = self._router.forced.view(own.shape)
        chosen = torch.where(replayed < 0, own, replayed)
        scores = args[0] if args else (kwargs or {})["input"]
        return torch.return_types.topk((scores.gather(-1, chosen), chosen))


class Routers:
    """The routers of a model, in layer order. They change nothing until they are used.

    Args:
        layers: number of the model's layers, including those without experts.
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
        """Return the indices of the routers' layers in a recorded choice; None if it is from another model.

        Some engines record all layers of a model, others only those with experts.
        """
        if layers == len(self):
            return list(range(layers))
        numbers = [router.layer for router in self._routers if router.layer is not None]
        fits = layers == self._layers and len(set(numbers)) == len(self)
        return numbers if fits else None

    def recorded(
        self, payloads: Sequence[Payload], indices: Sequence[NDArray[np.int64]], total: int
    ) -> Tensor | None:
        """[T, R, K] Return the engines' choices in payloads for T positions; -1 where none was recorded.

        None if no payload has one.

        Args:
            indices: positions of the tokens of each payload.
        """
        choices: NDArray[np.int64] | None = None
        for index, payload in zip(indices, payloads, strict=True):
            if payload.routing is None:
                continue
            if choices is None:
                choices = np.full((total, len(self), self.chosen), -1, np.int64)
            layers = self.places_in(payload.routing.shape[1])
            choices[index[: len(payload.routing)]] = payload.routing[:, layers]
        return None if choices is None else torch.from_numpy(choices)

    @contextmanager
    def noting(self) -> Iterator[list[Tensor]]:
        """Within this context, one call of the model appends each router's choice [T, K] to the list."""
        choices: list[Tensor] = []
        for router in self._routers:
            router.forced, router.notes = None, []
        try:
            yield choices
            choices += [router.notes[0] for router in self._routers if router.notes]
        finally:
            for router in self._routers:
                router.notes = None

    def replay(
        self, choice: Tensor | None, copies: Tensor | None = None, *, forces: bool = True
    ) -> "Replay | None":
        """Set the choices for the model's next calls, until this is called again.

        Layers that are recomputed in the backward pass need them until then.

        Args:
            choice: [T, R, K] -1 where a router chooses itself. None: all do.
            copies: [T] number of sequences that have each token. None: one.
            forces: whether the choice is applied, not only compared with the routers' own.
        """
        notes: list[list[Tensor]] = []
        for number, router in enumerate(self._routers):
            router.forced, router.notes = None, None
            if choice is not None:
                router.forced = choice[:, number] if forces else None
                router.notes = []
                notes.append(router.notes)
        return None if choice is None else Replay(choice, copies, notes)


@dataclass(frozen=True)
class Replay:
    """A recorded choice, and the routers' own."""

    choice: Tensor
    """[T, R, K] Recorded choice; -1 where none was recorded."""
    copies: Tensor | None
    """[T] Number of sequences that have each token. None: one."""
    notes: list[list[Tensor]] = field(repr=False)

    def differing(self) -> Tensor:
        """[] Number of tokens and layers where a router's own choice has other experts, in any order."""
        own = torch.stack([note[0] for note in self.notes], dim=1)
        is_known = self.choice[..., 0] >= 0
        others = (own.sort(-1).values != self.choice.sort(-1).values).any(-1)
        layers = (others & is_known).sum(-1)
        return (layers if self.copies is None else layers * self.copies).sum()


def _choosing(router: _Router, forward: Callable[..., Any]) -> Callable[..., Any]:
    def choosing(*args: Any, **kwargs: Any) -> Any:
        if not router.has_work:
            return forward(*args, **kwargs)
        with _Choosing(router):
            return forward(*args, **kwargs)

    return choosing


@torch.no_grad()
def routers_of(model: Any) -> Routers | None:
    """Find the routers of a mixture with a trial on a few tokens.

    None if the model has none, or if their choice cannot be replaced.
    """
    config = model.config.get_text_config()
    experts, chosen = _number(config, EXPERTS), _number(config, _CHOSEN)
    if experts is None or chosen is None or chosen >= experts:
        return None
    if getattr(config, "topk_method", None) == CUTS_OFF:
        return None
    device = next(model.parameters()).device
    tokens = torch.arange(TRIAL_TOKENS, device=device)[None] * 7 % model.get_input_embeddings().num_embeddings

    decoder = decoder_of(model)  # outside it, the routers' loss calls topk too

    def hidden() -> Tensor:
        states: Tensor = decoder(input_ids=tokens, use_cache=False)[0]
        return states

    candidates = _find_routers(model, hidden, experts, chosen)
    if not candidates:
        return None
    forwards = [router.module.forward for router in candidates]
    routers = Routers(candidates, config.num_hidden_layers, experts, chosen)
    if _decides(routers, hidden):
        return routers
    for router, forward in zip(candidates, forwards, strict=True):
        router.module.forward = forward
    return None


def _number(config: Any, names: Sequence[str]) -> int | None:
    return next(
        (number for name in names if isinstance(number := getattr(config, name, None), int) and number), None
    )


class _Looking(TorchFunctionMode):
    """Records topk calls with matching numbers of experts, by innermost module."""

    def __init__(self, experts: int, chosen: int) -> None:
        super().__init__()
        self.called: list[torch.nn.Module] = []
        """Stack of modules being called, innermost last."""
        self.calls: dict[torch.nn.Module, list[bool]] = {}
        """Per module, whether each of its topk calls looks like a choice of experts."""
        self._experts, self._chosen = experts, chosen

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in _TOPK and self.called:
            scores = args[0] if args else (kwargs or {})["input"]
            shape = (scores.numel() // TRIAL_TOKENS, scores.shape[-1], *result[1].shape[-1:])
            fits = shape == (self._experts, self._experts, self._chosen)
            self.calls.setdefault(self.called[-1], []).append(fits)
        return result


def _find_routers(model: Any, call: Callable[[], Tensor], experts: int, chosen: int) -> list[_Router]:
    """Find the modules with a topk call that looks like a choice of experts. The last such call counts:
    earlier ones choose groups of experts."""
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
    routers = []
    for module, calls in looking.calls.items():
        if any(calls):
            last = len(calls) - 1 - calls[::-1].index(True)
            routers.append(_Router(module, last, _layer(names[module])))
    return routers


def _layer(name: str) -> int | None:
    number = re.search(r"\.(\d+)\.", name)
    return int(number[1]) if number else None


def _decides(routers: Routers, call: Callable[[], Tensor]) -> bool:
    """Whether replaying the routers' own choice reproduces the model's result, and another choice changes
    it."""
    with routers.noting() as own:
        plain = call()
    if len(own) != len(routers):
        return False
    choice = torch.stack(own, dim=1)
    differences = []
    for replayed in (choice, (choice + 1) % routers.experts):
        routers.replay(replayed)
        differences.append((call() - plain).abs().max())
    routers.replay(None)
    limit = TOLERANCE * plain.abs().max()
    return bool(differences[0] <= limit) and bool(differences[1] > limit) and bool(differences[1].isfinite())
