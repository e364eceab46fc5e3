"""One replica between the rounds of a group: all that a run of its own would keep, as rows."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from archsearch.errors import CheckpointError
from archsearch.spaces.options import Training
from archsearch.studies.training.randomness import Randomness, derive_seed
from archsearch.studies.training.run import DATA, DROPOUT
from archsearch.studies.training.together.rows import Layout

MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass(slots=True)
class Lane:
    """weights, mean, square: [P] float32 rows of `layout`, on the CPU; nothing changes them in place.

    step: steps made. random: states of a run, of which a group draws nothing. fault: what was no longer finite, in
    words, else empty.
    """

    layout: Layout
    training: Training
    seed: int
    weights: Tensor
    mean: Tensor
    square: Tensor
    random: Mapping[str, Tensor]
    step: int = 0
    fault: str = ""

    @staticmethod
    def fresh(layout: Layout, weights: Tensor, training: Training, seed: int, device: torch.device) -> "Lane":
        """A replica before its first step. weights: [P]. device: that it is trained on."""
        states = Randomness(derive_seed(seed, DROPOUT), device).states
        nothing = torch.zeros_like(weights)
        return Lane(layout, training, seed, weights, nothing, nothing, states)

    @property
    def data_seed(self) -> int:
        """What its batches are drawn from."""
        return derive_seed(self.seed, DATA)

    def tensors(self) -> dict[str, Tensor]:
        """What `Run.tensors` returns of an equal run, on the CPU."""
        weights, mean, square = (self.layout.parts(row) for row in (self.weights, self.mean, self.square))
        named = {f"model/{name}": tensor for name, tensor in weights.items()}
        if self.step:
            for name in weights:
                named[f"optimiser/{name}/step"] = torch.tensor(float(self.step))
                named[f"optimiser/{name}/exp_avg"] = mean[name]
                named[f"optimiser/{name}/exp_avg_sq"] = square[name]
        named |= {f"random/{name}": state for name, state in self.random.items()}
        return {name: tensor.contiguous().clone() for name, tensor in named.items()}

    def restore(self, tensors: Mapping[str, Tensor], step: int) -> None:
        """Take over what `tensors` returned at `step`, here or of a run. CheckpointError if it is of another model."""
        self.weights = self.layout.row(_under(tensors, "model/"))
        if step:
            moments = [_moment(tensors, self.layout, kind) for kind in MOMENTS]
            self.mean, self.square = (self.layout.row(moment) for moment in moments)
        missing = [name for name in self.random if f"random/{name}" not in tensors]
        if missing:
            raise CheckpointError(f"the checkpoint must hold random/{missing[0]}; it does not: it is of another model")
        self.random = {name: tensors[f"random/{name}"] for name in self.random}
        self.step = step


def _under(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _moment(tensors: Mapping[str, Tensor], layout: Layout, kind: str) -> dict[str, Tensor]:
    """The moments of one kind; a parameter that no gradient has reached has none yet."""
    found = {name: tensors.get(f"optimiser/{name}/{kind}") for name in layout.places}
    return {name: torch.zeros(layout.places[name][1]) if tensor is None else tensor for name, tensor in found.items()}
