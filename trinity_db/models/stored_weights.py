"""Reading of single weights from the files of a model's folder.

Names and shapes in files may differ from the model's: for example, transformers fuses the experts of mixtures
when it loads them. It converts all weights of a model at once; this module converts single weights by the
same rules.
"""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from trinity_db.errors import ConfigError


@dataclass
class Stored:
    """Conversion of some stored tensors to one weight, or to several that are stored as one.

    Args:
        rule: transformers' rule, which collects and converts tensors. name: name of the weight, or of the
            first of several.
    """

    rule: Any
    name: str
    _tensors: list[tuple[str, str, Path]] = field(default_factory=list)
    """Name, the rule's pattern for it, and file of each tensor."""

    def add(self, tensor: str, pattern: str, file: Path) -> None:
        """Add a tensor of a file, in the order of the files' names."""
        self._tensors.append((tensor, pattern, file))

    @property
    def names(self) -> list[str]:
        """Return the names of all resulting weights."""
        first, *others = self.rule.target_patterns
        return [self.name, *(self.name.replace(first, other) for other in others)]

    def read(self, model: Any) -> dict[str, Tensor]:
        """Read and convert the tensors; return weights by name, in the dtype of the files.

        Raises:
            ConfigError: if they do not fit this model.
        """
        for tensor, pattern, file in self._tensors:
            self.rule.add_tensor(self.name, tensor, pattern, partial(_tensor, file, tensor))
        try:
            weights = self.rule.convert(self.name, model=model, config=model.config)
        except (RuntimeError, ValueError, IndexError, KeyError) as error:
            files = ", ".join(sorted({str(file) for _, _, file in self._tensors}))
            raise ConfigError(f"{files}: do not hold {self.name} of this model: {error}") from error
        return {name: weight[0] if isinstance(weight, list) else weight for name, weight in weights.items()}


def stored_weights(model: Any, files: Mapping[str, Path]) -> list[Stored]:
    """Return the conversions of all stored tensors of a model, with transformers' rules.

    The rules are attached to the model, so that it is saved with the names in its folder.

    Args:
        files: the file of each tensor, by the tensor's name.

    Raises:
        LookupError: if a tensor belongs to no weight of the model.
        ImportError, AttributeError, TypeError: if the installed transformers has other rules.
    """
    from transformers import conversion_mapping
    from transformers import core_model_loading as loading

    rules = conversion_mapping.get_model_conversion_mapping(model)
    renamings = [rule for rule in rules if isinstance(rule, loading.WeightRenaming)]
    converters = [rule for rule in rules if isinstance(rule, loading.WeightConverter)]
    by_pattern = {pattern: rule for rule in converters for pattern in rule.source_patterns}
    names = model.state_dict()
    conversions: dict[str, Stored] = {}
    for tensor in sorted(files, key=loading.dot_natural_key):
        name, pattern = loading.rename_source_key(
            tensor, renamings, converters, model.base_model_prefix, names
        )
        if name not in names and tensor in names:
            name, pattern = tensor, None
        if name not in names:
            raise LookupError(tensor)
        if name not in conversions:
            rule = loading.WeightRenaming(tensor, name) if pattern is None else deepcopy(by_pattern[pattern])
            conversions[name] = Stored(rule, name)
        conversions[name].add(tensor, tensor if pattern is None else pattern, files[tensor])
    model._weight_conversions = [rule for rule in rules if rule.was_used()]
    return [*conversions.values()]


def _tensor(file: Path, name: str) -> Tensor:
    from safetensors import safe_open

    with safe_open(file, "pt") as opened:
        tensor: Tensor = opened.get_tensor(name)
    return tensor
