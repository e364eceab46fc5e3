"""What a layer remembers between two pieces of a sequence: plain tensors, changed in place."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from archsearch.mixers.layer.packing import Packing


@dataclass(slots=True)
class MixerCache:
    """A mixer's memory. It carries no gradient.

    state: [B, HV, K, V], float32 (float64 in a float64 layer). convolutions: one [B, W - 1, C] a convolution.
    position: [B] tokens seen, where positions count, else None. memories: what operands need of the tokens before,
    [B, heads, dim] by name, and the token before [B, width] under `TOKEN_SHIFT`; sums in the dtype of the state.
    """

    state: Tensor
    convolutions: tuple[Tensor, ...]
    position: Tensor | None = None
    memories: dict[str, Tensor] = field(default_factory=dict[str, Tensor])

    @property
    def nbytes(self) -> int:
        """Bytes of state, convolution inputs and memories, all sequences."""
        return sum(tensor.nbytes for tensor in (self.state, *self.convolutions, *self.memories.values()))


def positions_of(x: Tensor, packing: Packing | None, past: Tensor | None) -> Tensor:
    """The place [B or 1, T] of each token of `x` [B, T, width] in its sequence, after `past` [B or N] earlier ones."""
    if packing is None:
        here = torch.arange(x.shape[1], device=x.device)[None]
        return here if past is None else here + past[:, None]
    here = packing.place if past is None else packing.place + past[packing.sequence]
    return here[None]


def advance(position: Tensor, x: Tensor, packing: Packing | None) -> None:
    """Count the tokens of `x` into `position`, in place."""
    position += x.shape[1] if packing is None else packing.offsets.diff()
