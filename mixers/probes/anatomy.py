"""The rows of a normal form in the words of a rule: which of them write, which erase, and how strongly."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor

from archsearch.dsl.expressions import Expression, Term
from archsearch.dsl.operands import Operand
from archsearch.kernels import operands
from archsearch.lowering.normal_form import Decay, NormalForm, Row, text
from archsearch.lowering.strength import factored


class Cause(Enum):
    """What changes a state: a decay, a row without a target, the recall of a row with one, that row's target."""

    DECAY = "decay"
    ERASE = "erase"
    DELTA = "delta"
    WRITE = "write"


@dataclass(frozen=True, slots=True)
class Part:
    """A row as S <- S + write s (z - R^T x)^T: s is the scalar that residual and target share, x and z are the rest.

    label: the write address as text, made unique.
    """

    row: Row
    label: str
    strength: Term
    residual: Expression
    target: Expression

    @property
    def recalls(self) -> bool:
        """Whether it looks at the state."""
        return bool(self.row.write and self.residual)

    @property
    def writes(self) -> bool:
        """Whether it has a target."""
        return bool(self.row.write and self.target)

    @property
    def erases(self) -> bool:
        """Whether it recalls without writing."""
        return self.recalls and not self.writes

    @property
    def delta(self) -> bool:
        """Whether it recalls and writes."""
        return self.recalls and self.writes


def parts_of(form: NormalForm) -> tuple[Part, ...]:
    """Every row, in the order in which they act."""
    names = [text(row.write) for row in form.rows]
    counts = Counter(names)
    return tuple(
        _part(row, name if counts[name] == 1 else f"{name} (row {i})")
        for i, (row, name) in enumerate(zip(form.rows, names, strict=True))
    )


def evaluate(expression: Expression, tensors: dict[str, Tensor], like: Tensor) -> Tensor:
    """The sum of the terms; zeros as wide as `like` for the empty one."""
    found = operands.evaluate(expression, tensors)
    return torch.zeros_like(like) if found is None else found


def level(part: Part, tensors: dict[str, Tensor]) -> Tensor:
    """How far the row's gates are open, [..., HV]: the product of those of its first terms, channel gates averaged."""
    terms = (part.strength, *part.row.write[:1], *part.residual[:1])
    size = next(tensor for name, tensor in tensors.items() if name in _vectors(part)).shape[:-1]
    scalar = torch.ones(size, dtype=next(iter(tensors.values())).dtype)
    channels: Tensor | None = None
    for gate in (gate for term in terms for gate in term.gates):
        if gate.per == "head":
            scalar = scalar * tensors[gate.name]
        else:
            channels = tensors[gate.name] if channels is None else channels * tensors[gate.name]
    for term in terms:
        scalar = scalar * term.coefficient
    return scalar if channels is None else scalar * channels.mean(-1)


def decay_factor(decay: Decay, tensors: dict[str, Tensor], like: Tensor) -> Tensor:
    """What a decay point multiplies the state's rows by, [..., 1 or K]; `like` as in `log_decay`."""
    factor = operands.log_decay(decay.log_decay, tensors, like).exp()
    return factor if decay.sign is None else factor * operands.sign(decay.sign, tensors)


def kept(form: NormalForm, count: int, tensors: dict[str, Tensor], like: Tensor) -> Tensor:
    """What the first `count` decay points of a token leave, [..., 1 or K]; 1 for none."""
    factor = torch.ones_like(like[..., :1])
    for decay in form.decays[:count]:
        factor = factor * decay_factor(decay, tensors, like)
    return factor


def addresses_of(form: NormalForm) -> tuple[Operand, ...]:
    """The operands that lie in the key space, in order of first use."""
    return tuple(operand for operand in form.operands if operand.is_address)


def _vectors(part: Part) -> set[str]:
    return {term.vector.name for term in part.row.write if term.vector is not None}


def _part(row: Row, label: str) -> Part:
    found = factored(row)
    return Part(row, label, found.strength, found.residual, found.target)
