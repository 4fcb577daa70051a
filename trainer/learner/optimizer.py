"""The optimizer of a run: created by name, over groups of parameters, with a learning rate for each step.

Its state in a checkpoint is indexed by the position of each parameter in `Policy.parameters`. So it does not
depend on groups, on the number of ranks, or on how many of torch's optimizers share the parameters.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from trinity_db.config import user_functions
from trinity_db.errors import ConfigError, MissingExtra
from trinity_db.trainer.config import TrainerConfig
from trinity_db.trainer.recipes.optimizers import (
    Adafactor,
    AdamW,
    AdamW8bit,
    Muon,
    OptimizerConfig,
    OwnOptimizer,
    Sgd,
)

Group = dict[str, Any]
"""Parameters with their own settings, in the format of torch's optimizers."""


class Optimizer:
    """One of torch's optimizers, or two that share the parameters.

    Args:
        weights: Trained weights of the model, by name.
        head: Weights of the value head, by name.
        embeddings: Matrices of the model that are not linear maps between layers.

    Raises:
        ConfigError: if a user's own optimizer cannot be created with these.
        MissingExtra: if it needs a package that is not installed.
    """

    def __init__(
        self,
        config: TrainerConfig,
        weights: Mapping[str, torch.nn.Parameter],
        head: Mapping[str, torch.nn.Parameter],
        embeddings: Iterable[Tensor] = (),
    ) -> None:
        self._config = config
        self._parameters = [*weights.values(), *head.values()]
        self._places: dict[Tensor, int] = {
            parameter: index for index, parameter in enumerate(self._parameters)
        }
        self._shapes = [[*parameter.shape] for parameter in self._parameters]
        groups = _groups(config, weights, "learning_rate") + _groups(config, head, "value_learning_rate")
        self.parts = _made(config, groups, {*embeddings, *head.values()})
        """The optimizers of torch, each with its parameters."""

    def zero_grad(self) -> None:
        for part in self.parts:
            part.zero_grad()

    def step(self) -> None:
        """Update the weights."""
        for part in self.parts:
            part.step()

    def set_rate(self, step: int, total_steps: int) -> float:
        """Set the learning rates of a step, counted from 0. Return the rate of the model's weights."""
        factor = schedule(self._config, step, total_steps)
        for part in self.parts:
            for group in part.param_groups:
                group["lr"] = group["peak"] * factor
        return self._config.learning_rate * factor

    def state_dict(self) -> dict[str, Any]:
        """Return the state of each parameter by its position, and the settings of the groups."""
        state = {
            self._places[parameter]: dict(values)
            for part in self.parts
            for parameter, values in part.state.items()
        }
        groups = [
            {name: value for name, value in group.items() if name != "params"}
            for part in self.parts
            for group in part.param_groups
        ]
        return {"state": state, "param_groups": groups, "shapes": self._shapes}

    def fits(self, saved: Mapping[str, Any]) -> bool:
        """Whether a `state_dict` belongs to the parameters being trained."""
        return bool(saved["shapes"] == self._shapes)

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`, with the current settings.

        A user's own optimizer may keep state among its settings. Settings that the run does not set are
        restored.
        """
        groups = iter(saved["param_groups"])
        for part in self.parts:
            now = part.state_dict()
            numbers = [number for group in now["param_groups"] for number in group["params"]]
            indices = [
                self._places[parameter] for group in part.param_groups for parameter in group["params"]
            ]
            now["state"] = {
                number: saved["state"][index]
                for number, index in zip(numbers, indices, strict=True)
                if index in saved["state"]
            }
            if isinstance(self._config.optimizer, OwnOptimizer):
                kept = {"params", "peak", "weight_decay", *self._config.optimizer.options}
                for group, before in zip(now["param_groups"], groups, strict=False):
                    group |= {name: value for name, value in before.items() if name not in kept}
            part.load_state_dict(now)


def check(config: OptimizerConfig) -> None:
    """Check early that an optimizer can be created.

    Raises:
        ConfigError: if the class does not exist in the user's file, or torch is too old.
        MissingExtra: if it needs a package that is not installed.
    """
    if isinstance(config, OwnOptimizer):
        user_functions.find(config.function, "optimizer", {})
    elif isinstance(config, AdamW8bit):
        _bitsandbytes()
    elif isinstance(config, Muon) and not hasattr(torch.optim, "Muon"):
        raise ConfigError(
            f"trainer.optimizer: muon needs torch 2.9 or later, but {torch.__version__} is installed."
        )


def schedule(config: TrainerConfig, step: int, total_steps: int) -> float:
    """Return the share of the peak learning rate at a step, counted from 0: a linear warm-up, then the
    schedule."""
    if step < config.warmup_steps:
        return (step + 1) / config.warmup_steps
    progress = min(1.0, (step - config.warmup_steps) / max(1, total_steps - config.warmup_steps))
    return {
        "constant": 1.0,
        "linear": 1.0 - progress,
        "cosine": 0.5 * (1.0 + math.cos(math.pi * progress)),
    }[config.schedule]


def _groups(config: TrainerConfig, weights: Mapping[str, torch.nn.Parameter], rate: str) -> list[Group]:
    """Divide parameters into those with weight decay and those without."""
    peak = getattr(config, rate) or config.learning_rate
    groups = []
    for decays in (True, False):
        chosen = [parameter for name, parameter in weights.items() if _decays(name, parameter) == decays]
        decay = config.weight_decay if decays else 0.0
        if chosen:
            groups.append({"params": chosen, "lr": peak, "peak": peak, "weight_decay": decay})
    return groups


def _decays(name: str, parameter: Tensor) -> bool:
    """Whether weight decay applies: not to biases, norms, and one-dimensional parameters, like in
    transformers.

    The biases of fused experts have two dimensions.
    """
    module = name.lower().split(".")[-2:-1]
    return parameter.ndim > 1 and not name.endswith("bias") and not any("norm" in part for part in module)


def _made(
    config: TrainerConfig, groups: Sequence[Group], no_linear_maps: set[Tensor]
) -> list[torch.optim.Optimizer]:
    match config.optimizer:
        case AdamW() as chosen:
            return [_adamw(groups, chosen)]
        case AdamW8bit() as chosen:
            kinds = _bitsandbytes().optim
            kind = kinds.PagedAdamW8bit if chosen.paged else kinds.AdamW8bit
            return [kind(groups, betas=(chosen.beta1, chosen.beta2), eps=chosen.epsilon)]
        case Adafactor():
            return [torch.optim.Adafactor(groups)]
        case Sgd() as chosen:
            return [torch.optim.SGD(groups, momentum=chosen.momentum)]
        case Muon() as chosen:
            maps, others = _split(
                groups, lambda parameter: parameter.ndim == 2 and parameter not in no_linear_maps
            )
            muon = partial(torch.optim.Muon, momentum=chosen.momentum, adjust_lr_fn="match_rms_adamw")
            return [*([muon(maps)] if maps else []), *([_adamw(others, AdamW())] if others else [])]
        case OwnOptimizer() as chosen:
            return [_own(config, chosen, groups)]


def _split(groups: Sequence[Group], chosen: Callable[[Tensor], bool]) -> tuple[list[Group], list[Group]]:
    """Return the groups with the chosen parameters, and with the others. Empty groups are omitted."""
    divided: tuple[list[Group], list[Group]] = ([], [])
    for group in groups:
        for half, is_wanted in zip(divided, (True, False), strict=True):
            if parameters := [parameter for parameter in group["params"] if chosen(parameter) == is_wanted]:
                half.append({**group, "params": parameters})
    return divided


def _adamw(groups: Sequence[Group], chosen: AdamW) -> torch.optim.Optimizer:
    return torch.optim.AdamW(groups, betas=(chosen.beta1, chosen.beta2), eps=chosen.epsilon, fused=True)


def _own(config: TrainerConfig, chosen: OwnOptimizer, groups: Sequence[Group]) -> torch.optim.Optimizer:
    kind: Callable[..., Any] = user_functions.find(chosen.function, "optimizer", {})
    try:
        made = kind(groups, lr=config.learning_rate, **chosen.options)
    except Exception as error:
        raise ConfigError(
            f"Optimizer '{chosen.function}' raised {user_functions.describe_error(error)}"
        ) from error
    if not isinstance(made, torch.optim.Optimizer):
        raise ConfigError(f"Optimizer '{chosen.function}': it must be a class of torch.optim.Optimizer.")
    return made


def _bitsandbytes() -> Any:
    try:
        import bitsandbytes
    except ImportError as error:
        raise MissingExtra("bitsandbytes", "bitsandbytes") from error
    return bitsandbytes
