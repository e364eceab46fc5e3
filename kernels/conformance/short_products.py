"""What two roundings that no kernel of 16 bits can leave out do to a rule, everything else exact: of vectors gated by
channel, before they are multiplied, and of L, of which the triangular inverse is made.

Neither is a rounding of the operands. A product of two short numbers near 1 is rounded to one side more often than to
the other, which a state that grows sums up; and an entry of L, a sum over all channels, loses more by a rounding of
its own than by those of the channels, which differ in sign.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor

from archsearch.dsl import Expression, Term
from archsearch.kernels import chunkwise, normalising
from archsearch.kernels.call import Call, Result
from archsearch.lowering import NormalForm

DIGITS = {torch.bfloat16: 8, torch.float16: 11}
"""Binary ones of a number's significand, the leading one among them."""


def run(form: NormalForm, call: Call, rows: int, dtype: torch.dtype) -> Result:
    """The chunkwise form, differentiable as if nothing was rounded. `rows`: of a chunk, those of all its tokens."""
    alone = _alone(form, call)
    made, tensors = _multiplied(form, alone.tensors, dtype)
    chunk = max(1, rows // max(1, len(form.rows)))
    once = partial(rounded, dtype=dtype)
    run = partial(chunkwise.run, made, chunk_size=chunk, pairs=once)
    return normalising.through(made, alone._replace(tensors=tensors), run)


def rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """To the digits of a 16-bit dtype, in the range of its own; its gradient is that of x."""
    exact, digits = x.detach(), 2.0 ** DIGITS[dtype]
    significand, _ = torch.frexp(exact)
    # Exact on every device, which 2 to the power of the exponent need not be.
    power = torch.where(significand == 0, 1.0, exact / significand)
    return x + ((significand * digits).round() / digits * power - exact)


def _alone(form: NormalForm, call: Call) -> Call:
    """The call with as many key heads as value heads."""
    group = call.value_heads // call.heads
    addresses = {operand.name for operand in form.operands if operand.is_address}
    tensors = {name: x.repeat_interleave(group, dim=2) if name in addresses else x for name, x in call.tensors.items()}
    return call._replace(tensors=tensors, heads=call.value_heads)


def _multiplied(
    form: NormalForm, tensors: Mapping[str, Tensor], dtype: torch.dtype
) -> tuple[NormalForm, Mapping[str, Tensor]]:
    """The form in which every product of a vector and channel gates is an operand of its own, rounded."""
    found, operands = dict(tensors), {operand.name: operand for operand in form.operands}

    def product(term: Term) -> Term:
        gates = tuple(gate for gate in term.gates if gate.per == "channel")
        if term.vector is None or not gates:
            return term
        name = "_times_".join(operand.name for operand in (term.vector, *gates))
        value = tensors[term.vector.name]
        for gate in gates:
            value = value * tensors[gate.name]
        found[name] = rounded(value, dtype)
        operands[name] = dataclasses.replace(term.vector, name=name)
        rest = tuple(gate for gate in term.gates if gate not in gates)
        return dataclasses.replace(term, gates=rest, vector=operands[name])

    def made(expression: Expression) -> Expression:
        return tuple(product(term) for term in expression)

    rows = tuple(
        dataclasses.replace(row, write=made(row.write), residual=made(row.residual), target=made(row.target))
        for row in form.rows
    )
    read = dataclasses.replace(form.read, address=made(form.read.address))
    return dataclasses.replace(form, operands=tuple(operands.values()), rows=rows, read=read), found
