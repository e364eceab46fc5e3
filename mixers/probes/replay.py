"""The token loop, watched: the state before and after every token, and each change between them with its cause."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from archsearch.kernels.call import checked
from archsearch.kernels.operands import evaluate, spread
from archsearch.lowering.normal_form import Decay, NormalForm, Read
from archsearch.mixers.probes.algebra import recall
from archsearch.mixers.probes.anatomy import Cause, Part, decay_factor, parts_of


@dataclass(frozen=True, slots=True)
class Decayed:
    """S <- factor S. factor: [B, HV, 1 or K]. entry: S before, [B, HV, K, V]."""

    factor: Tensor
    entry: Tensor

    def changes(self) -> dict[Cause, Tensor]:
        """What it adds to the state."""
        return {Cause.DECAY: (self.factor - 1)[..., None] * self.entry}


@dataclass(frozen=True, slots=True)
class Wrote:
    """S <- S + address (target - recalled)^T, strengths in both; None where the row has no such part.

    address, residual: [B, HV, K]. recalled, target: [B, HV, V]. entry: the state that was recalled from.
    """

    part: Part
    address: Tensor
    residual: Tensor | None
    recalled: Tensor | None
    target: Tensor | None
    entry: Tensor

    def changes(self) -> dict[Cause, Tensor]:
        """What its recall and its target add to the state, each [B, HV, K, V]."""
        return {cause: self.address[..., :, None] * side[..., None, :] for cause, side in self.sides().items()}

    def sides(self) -> dict[Cause, Tensor]:
        """The same without the address, [B, HV, V]."""
        found: dict[Cause, Tensor] = {}
        if self.recalled is not None:
            found[Cause.DELTA if self.part.writes else Cause.ERASE] = -self.recalled
        if self.target is not None:
            found[Cause.WRITE] = self.target
        return found


@dataclass(frozen=True, slots=True)
class Moment:
    """One token. tensors: its operands [B, HV, ...]. before, after: S_{t-1} and S_t, [B, HV, K, V]."""

    time: int
    tensors: dict[str, Tensor]
    before: Tensor
    steps: tuple[Decayed | Wrote, ...]
    after: Tensor


def prepared(form: NormalForm, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Operands as a call takes them, checked, spread over the value heads, in the state's dtype: [B, T, HV, ...]."""
    return spread(form, checked(form, {name: tensor.detach() for name, tensor in tensors.items()}, None, None, None))


def replay(form: NormalForm, tensors: Mapping[str, Tensor]) -> Iterator[Moment]:
    """Every token of operands as `prepared` makes them, from an empty state on."""
    parts = {id(part.row): part for part in parts_of(form)}
    state = empty_state(form, tensors)
    for time in range(next(iter(tensors.values())).shape[1]):
        token = {name: tensor[:, time] for name, tensor in tensors.items()}
        before, steps = state, list[Decayed | Wrote]()
        for step in form.program:
            if isinstance(step, Decay):
                decayed = Decayed(decay_factor(step, token, state[..., 0]), state)
                steps.append(decayed)
                state = decayed.factor[..., None] * state
            elif not isinstance(step, Read):
                wrote = [_wrote(parts[id(row)], token, before if row.previous else state) for row in step if row.write]
                state = sum((change for each in wrote for change in each.changes().values()), state)
                steps += wrote
        yield Moment(time, token, before, tuple(steps), state)


def empty_state(form: NormalForm, tensors: Mapping[str, Tensor]) -> Tensor:
    """Zeros [B, HV, K, V]."""
    shapes = {operand.name: operand.shape for operand in form.operands}
    key = next(tensors[name] for name, shape in shapes.items() if shape.endswith("K]"))
    value = next((tensors[name] for name, shape in shapes.items() if shape.endswith("V]") and "HV, V" in shape), key)
    return torch.zeros((*key[:, 0].shape, value.shape[-1]), dtype=key.dtype)


def _wrote(part: Part, token: Mapping[str, Tensor], entry: Tensor) -> Wrote:
    address, residual, target = (
        evaluate(expression, token) for expression in (part.row.write, part.row.residual, part.row.target)
    )
    if address is None:
        raise ValueError("a row without a write address changes nothing")
    return Wrote(part, address, residual, None if residual is None else recall(entry, residual), target, entry)
