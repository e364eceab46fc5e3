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


def through(form: NormalForm, call: Call, run: Callable[[Call], Result], *, aligned: bool = False) -> Result:
    """`run`, which knows no normaliser, as the form's read asks for it; `aligned` as `widened` has it."""
    least = form.read.normaliser
    if least is None:
        return run(call)
    return divided(run(widened(form, call, aligned=aligned)), call, least)


def widened(form: NormalForm, call: Call, *, aligned: bool) -> Call:
    """The call with a 1 at the end of every value; aligned: and zeros up to a multiple of 16 columns.

    Its output is not rounded to the dtype of the values: numerator and divisor, and their gradients, stay in float32
    (float64 where an operand is), and the quotient alone is rounded.
    """
    columns = call.value_dim + 1
    spare = -columns % ALIGNED if aligned else 0
    ends = [1.0] + [0.0] * spare
    values = {operand.name for operand in form.operands if operand.kind is Kind.VALUE}
    tensors = {name: _beside(x, ends) if name in values else x for name, x in call.tensors.items()}
    state = call.initial_state
    if state is not None and spare:
        state = torch.nn.functional.pad(state, (0, spare))
    return call._replace(tensors=tensors, initial_state=state, value_dim=columns + spare, output_dtype=call.dtype)


def divided(result: Result, call: Call, least: float) -> Result:
    """o / max(abs(n), least) of an output [.., V + 1 or more] whose column V is n, for `call`, which was not widened;
    the state has V + 1 columns.
    """
    end = call.value_dim
    norm = result.output[..., end : end + 1].abs().clamp(min=least)
    return Result((result.output[..., :end] / norm).to(call.output_dtype), result.state[..., : end + 1])


def _beside(x: Tensor, ends: list[float]) -> Tensor:
    return torch.cat([x, x.new_tensor(ends).expand(*x.shape[:-1], -1)], -1)
