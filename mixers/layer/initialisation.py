"""Initial values by name: two models of one seed share every parameter of equal name and shape, whatever else differs.

So a comparison of two rules is paired in all that they have in common.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256

import torch
from torch import Tensor, nn

STD = 0.02
"""Standard deviation of projections and embeddings."""


@dataclass(frozen=True, slots=True)
class Stream:
    """Random numbers of one seed, split by path: `stream / "q"` does not depend on what else was drawn."""

    seed: int
    std: float = STD
    path: str = ""

    @classmethod
    def fresh(cls, std: float = STD) -> Stream:
        """Seeded by torch's generator, which moves on: `torch.manual_seed` decides."""
        return cls(int(torch.randint(2**62, (), device="cpu")), std)

    def __truediv__(self, name: str | int) -> Stream:
        return Stream(self.seed, self.std, f"{self.path}/{name}")

    def normal(self, *shape: int, std: float | None = None) -> Tensor:
        """N(0, std^2); std None is the stream's."""
        scale = self.std if std is None else std
        return self._drawn(shape, lambda x, generator: x.normal_(0.0, scale, generator=generator))

    def uniform(self, low: float, high: float, *shape: int) -> Tensor:
        """U(low, high)."""
        return self._drawn(shape, lambda x, generator: x.uniform_(low, high, generator=generator))

    def log_uniform(self, low: float, high: float, *shape: int) -> Tensor:
        """exp U(log low, log high)."""
        return self.uniform(math.log(low), math.log(high), *shape).exp()

    def _drawn(self, shape: tuple[int, ...], draw: Callable[[Tensor, torch.Generator], Tensor]) -> Tensor:
        """Drawn on the CPU, so that every device gets the same numbers; under `torch.device("meta")` nothing is."""
        device = torch.get_default_device()
        if device.type == "meta":
            return torch.empty(shape)
        digest = sha256(f"{self.seed}{self.path}".encode()).digest()
        generator = torch.Generator(device="cpu").manual_seed(int.from_bytes(digest[:8], "big") >> 1)
        return draw(torch.empty(shape, device="cpu"), generator).to(device)


def gate_constant(values: Tensor) -> nn.Parameter:
    """A parameter that stays float32 in use and carries no weight decay: A_log, dt_bias, gate biases, D."""
    parameter = nn.Parameter(values.float())
    parameter._no_weight_decay = True  # pyright: ignore[reportAttributeAccessIssue]
    return parameter


def inverse_softplus(x: Tensor) -> Tensor:
    """The a with softplus(a) = x > 0."""
    return x + torch.log(-torch.expm1(-x))


def log_rates(stream: Stream, low: float, high: float, heads: int) -> Tensor:
    """log A, A ~ U(low, high); A = 0 would switch the decay off for good."""
    return (stream / "A_log").uniform(low, high, heads).clamp_(min=1e-4).log()
