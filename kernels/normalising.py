"""Normalised reads: the state has one column more, into which every value writes a 1, and the output is divided by what
the query reads from it. The backends know nothing of it: they see wider values.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from archsearch.dsl import Kind
from archsearch.kernels.call import Call, Result
from archsearch.lowering import NormalForm

ALIGNED = 16
"""Columns of which the generated kernels take a multiple without a remainder."""


def normalised(form: NormalForm, call: Call, run: Callable[[NormalForm, Call], Result]) -> Result:
    """What a form that knows no normaliser gives, divided where the rule has one."""
    least = form.read.normaliser
    if least is None:
        return run(form, call)
    return divided(run(form, widened(form, call, aligned=False)), call.value_dim, least)


def widened(form: NormalForm, call: Call, *, aligned: bool) -> Call:
    """The call with a 1 at the end of every value; aligned: and zeros up to a multiple of 16 columns."""
    columns = call.value_dim + 1
    spare = -columns % ALIGNED if aligned else 0
    ends = [1.0] + [0.0] * spare
    values = {operand.name for operand in form.operands if operand.kind is Kind.VALUE}
    tensors = {name: _beside(x, ends) if name in values else x for name, x in call.tensors.items()}
    state = call.initial_state
    if state is not None and spare:
        state = torch.nn.functional.pad(state, (0, spare))
    return call._replace(tensors=tensors, initial_state=state, value_dim=columns + spare)


def divided(result: Result, value_dim: int, least: float) -> Result:
    """o / max(abs(n), least) of an output [.., V + 1 or more] whose column V is n; the state has V + 1 columns."""
    output = result.output if result.output.dtype == torch.float64 else result.output.float()
    norm = output[..., value_dim : value_dim + 1].abs().clamp(min=least)
    divided = (output[..., :value_dim] / norm).to(result.output.dtype)
    return Result(divided, result.state[..., : value_dim + 1])


def _beside(x: Tensor, ends: list[float]) -> Tensor:
    return torch.cat([x, x.new_tensor(ends).expand(*x.shape[:-1], -1)], -1)
