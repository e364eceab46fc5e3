"""The token loop: what a rule means. Every other form is checked against it. Differentiable by autograd; float64 when
the inputs are.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from archsearch.kernels.call import Call, Result
from archsearch.kernels.operands import evaluate, log_decay, sign, spread
from archsearch.lowering import Decay, NormalForm, Read, Row


def run(form: NormalForm, call: Call) -> Result:
    """All tokens of all sequences, one after another."""
    tensors = spread(form, call)
    if call.cu_seqlens is None:
        return _sequence(form, call, tensors, initial(call))
    outputs: list[Tensor] = []
    states: list[Tensor] = []
    for n, (start, end) in enumerate(call.spans):
        piece = {name: tensor[:, start:end] for name, tensor in tensors.items()}
        result = _sequence(form, call, piece, initial(call)[n : n + 1])
        outputs.append(result.output)
        states.append(result.state)
    return Result(torch.cat(outputs, dim=1), torch.cat(states))


def initial(call: Call) -> Tensor:
    """The initial state [sequences, HV, K, V] in the dtype of the state; zeros where none was given."""
    if call.initial_state is not None:
        return call.initial_state.to(call.dtype)
    shape = (call.sequences, call.value_heads, call.key_dim, call.value_dim)
    return torch.zeros(shape, dtype=call.dtype, device=call.device)


def token(form: NormalForm, tensors: Mapping[str, Tensor], state: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """One token: operands [B, HV, ...] and state [B, HV, K, V] -> output [B, HV, V] and the next state."""
    before = state
    output = torch.zeros_like(state[..., 0, :])
    for step in form.program:
        if isinstance(step, Decay):
            log = log_decay(step.log_decay, tensors, state[..., 0])
            factor = log.exp() if step.sign is None else log.exp() * sign(step.sign, tensors)
            state = state * factor[..., None]
        elif isinstance(step, Read):
            output = _read(step, tensors, state) * scale
        else:
            state = _written(step, tensors, state, before)
    return output, state


def _written(rows: tuple[Row, ...], tensors: Mapping[str, Tensor], state: Tensor, before: Tensor) -> Tensor:
    """The state after rows that act together: each reads the state at their entry, or the one before the token."""
    after = state
    for row in rows:
        address = evaluate(row.write, tensors)
        residual = evaluate(row.residual, tensors)
        target = evaluate(row.target, tensors)
        if address is None:
            continue
        difference = torch.zeros_like(state[..., 0, :]) if target is None else target
        if residual is not None:
            difference = difference - _recall(before if row.previous else state, residual)
        after = after + address[..., :, None] * difference[..., None, :]
    return after


def _read(step: Read, tensors: Mapping[str, Tensor], state: Tensor) -> Tensor:
    q = evaluate(step.address, tensors)
    if q is None:
        return torch.zeros_like(state[..., 0, :])
    output = _recall(state, q)
    extra = bonus(step, tensors, q)
    return output if extra is None else output + extra


def bonus(step: Read, tensors: Mapping[str, Tensor], q: Tensor) -> Tensor | None:
    """(sum_c q[c] weight[c] address[c]) target, [..., V]; None where it is zero."""
    if step.bonus is None:
        return None
    weight, address, target = (
        evaluate(part, tensors) for part in (step.bonus.weight, step.bonus.address, step.bonus.target)
    )
    if weight is None or address is None or target is None:
        return None
    return (q * weight * address).sum(-1, keepdim=True) * target


def _recall(state: Tensor, address: Tensor) -> Tensor:
    """S^T x: [..., K, V] and [..., K] -> [..., V]."""
    return (state * address[..., :, None]).sum(-2)


def _sequence(form: NormalForm, call: Call, tensors: Mapping[str, Tensor], state: Tensor) -> Result:
    outputs: list[Tensor] = []
    for t in range(next(iter(tensors.values())).shape[1]):
        output, state = token(form, {name: tensor[:, t] for name, tensor in tensors.items()}, state, call.scale)
        outputs.append(output)
    if not outputs:
        return Result(state.new_zeros((call.batch, 0, call.value_heads, call.value_dim)).to(call.output_dtype), state)
    return Result(torch.stack(outputs, dim=1).to(call.output_dtype), state)
