"""New weights by name: strict about names and shapes, and tied tensors always go together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


class WeightNames:
    """The names and shapes that a model's weights must have.

    Args:
        model: a causal language model; it may be on the meta device.
    """

    def __init__(self, model: nn.Module) -> None:
        groups: dict[int, list[str]] = defaultdict(list)
        state = model.state_dict(keep_vars=True)
        for name, tensor in state.items():
            groups[id(tensor)].append(name)
        self._twins = {name: names for names in groups.values() for name in names}
        self._shapes = {name: tuple(tensor.shape) for name, tensor in state.items()}

    @classmethod
    def of_config(cls, config: PreTrainedConfig) -> WeightNames:
        """The names for a config, without making the weights."""
        from transformers import AutoModelForCausalLM

        with torch.device("meta"):
            return cls(AutoModelForCausalLM.from_config(config))

    def checked(self, weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """Yield every weight once; of tied weights one name is enough, and all names are yielded with it.

        Raises:
            ValueError: a name is unknown or missing, or a shape is wrong; the weights before it were yielded, so
                load a whole set of weights before sampling again.
        """
        seen: set[str] = set()
        for name, tensor in weights:
            self._check(name, tensor)
            if name not in seen:
                for twin in self._twins[name]:
                    yield twin, tensor
                seen.update(self._twins[name])
        missing = [name for name in self._shapes if name not in seen]
        if missing:
            raise ValueError(f"{len(missing)} weights are missing, the first is {missing[0]!r}")

    def _check(self, name: str, tensor: Tensor) -> None:
        if name not in self._shapes:
            raise ValueError(f"unknown weight {name!r}; the policy has names like {next(iter(self._shapes))!r}")
        if tuple(tensor.shape) != self._shapes[name]:
            raise ValueError(f"weight {name!r} has shape {tuple(tensor.shape)}, the policy needs {self._shapes[name]}")


@torch.no_grad()
def copy_weights(model: nn.Module, names: WeightNames, weights: Iterable[tuple[str, Tensor]]) -> None:
    """Copy ``weights`` into ``model`` in place, one at a time."""
    state = model.state_dict(keep_vars=True)
    for name, tensor in names.checked(weights):
        state[name].copy_(tensor)
