"""A model's parameters as one row of numbers: replicas are rows of one matrix, and an optimiser step is elementwise."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor, nn

from archsearch.errors import CheckpointError
from archsearch.studies.training.optimiser import decays

ALIGNED = 4
"""Numbers to which the start of a parameter is aligned: 16 bytes of float32."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where each parameter stands in a row of `size` float32 numbers: name -> (start, shape). decaying: the names that
    weight decay acts on."""

    places: Mapping[str, tuple[int, tuple[int, ...]]]
    size: int
    decaying: frozenset[str]

    @staticmethod
    def of(model: nn.Module) -> "Layout":
        """The layout of a model's trained parameters, each once."""
        places: dict[str, tuple[int, tuple[int, ...]]] = {}
        size = 0
        for name, parameter in model.named_parameters():
            places[name] = (size, tuple(parameter.shape))
            size += -(-parameter.numel() // ALIGNED) * ALIGNED
        decaying = frozenset(name for name, parameter in model.named_parameters() if decays(name, parameter))
        return Layout(places, size, decaying)

    def parts(self, rows: Tensor) -> dict[str, Tensor]:
        """Views of [..., size] as [..., *shape], by name."""
        return {
            name: rows[..., start : start + prod(shape)].view(*rows.shape[:-1], *shape)
            for name, (start, shape) in self.places.items()
        }

    def row(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """[size] of all parameters by name, on the CPU. CheckpointError for one that is missing or of another shape."""
        row = torch.zeros(self.size)
        for name, part in self.parts(row).items():
            if name not in tensors or tensors[name].shape != part.shape:
                found = list(tensors[name].shape) if name in tensors else "none"
                raise CheckpointError(f"the checkpoint must hold {name} of shape {list(part.shape)}; it has {found}")
            part.copy_(tensors[name].detach())
        return row

    def decay_mask(self) -> Tensor:
        """[size], 1 where weight decay acts."""
        mask = torch.zeros(self.size)
        for name, part in self.parts(mask).items():
            part.fill_(float(name in self.decaying))
        return mask
