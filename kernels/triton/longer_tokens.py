"""Rules of more than four rows a token run on longer sequences of shorter tokens (`archsearch.kernels.triton.cutting`).

The operands of the virtual tokens are laid side by side in torch, and autograd takes their gradients back.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import torch
from torch import Tensor
from torch.nn.functional import pad

from archsearch.dsl import Expression, Operand
from archsearch.kernels.call import Call, Result
from archsearch.kernels.operands import evaluate
from archsearch.kernels.triton import operation
from archsearch.kernels.triton.cutting import Cut, Number, Part, Point, Vector


def run(cut: Cut, key: str, call: Call, chunk_size: int | None) -> Result:
    """All tokens of all sequences of the rule that was cut; `key` is that of the cut form."""
    chunk = None if chunk_size is None else cut.times * chunk_size
    return shortened(cut, call, operation.run(cut.form, key, lengthened(cut, call), chunk))


def shortened(cut: Cut, call: Call, result: Result) -> Result:
    """The result of the rule's own call, from that of the cut form."""
    output = result.output[:, cut.reads_at :: cut.times].to(call.output_dtype).contiguous()
    return Result(output, result.state[:, :, : call.key_dim] if cut.spare else result.state)


def lengthened(cut: Cut, call: Call) -> Call:
    """The call of the cut form: `cut.times` tokens for each of the rule's."""
    heads = call.heads if cut.headwise else call.value_heads
    tensors = {vector.operand.name: _vector(cut, vector, call, heads) for vector in cut.vectors}
    tensors |= {number.operand.name: _number(number, call) for number in cut.numbers}
    for point in cut.points:
        tensors |= _point(cut, point, call)
    state = call.initial_state
    return Call(
        tensors=tensors,
        initial_state=pad(state, (0, 0, 0, cut.spare)) if state is not None and cut.spare else state,
        scale=call.scale,
        cu_seqlens=None if call.cu_seqlens is None else cut.times * call.cu_seqlens,
        batch=call.batch,
        tokens=cut.times * call.tokens,
        heads=heads,
        value_heads=call.value_heads,
        key_dim=call.key_dim + cut.spare,
        value_dim=call.value_dim,
        device=call.device,
        dtype=call.dtype,
        output_dtype=call.output_dtype,
    )


def _vector(cut: Cut, vector: Vector, call: Call, heads: int) -> Tensor:
    """[B, times T, heads, K + spare], or [B, times T, HV, V] of a target."""
    address = vector.operand.is_address
    shape = (call.batch, call.tokens, heads if address else call.value_heads)
    shape = (*shape, call.key_dim if address else call.value_dim)
    dtype = _widest(cut, call, address=address)
    parts = [_part(part, call, shape, dtype) for part in vector.parts]
    if address and cut.spare:
        padded = zip(parts, vector.parts, strict=True)
        parts = [_with_spare(pad(x, (0, cut.spare)), part, call.key_dim) for x, part in padded]
    return _side_by_side(parts)


def _widest(cut: Cut, call: Call, *, address: bool) -> torch.dtype:
    """The dtype of all addresses, or of all targets."""
    parts = [part for vector in cut.vectors if vector.operand.is_address is address for part in vector.parts if part]
    names = {term.vector.name for part in parts for term in part.split.vector if term.vector}
    return reduce(torch.promote_types, [call.tensors[name].dtype for name in sorted(names)])


def _part(part: Part | None, call: Call, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """The vector of a part without what scales it, rounded once."""
    if part is None or not part.split.vector:
        return torch.zeros(shape, dtype=dtype, device=call.device)
    expression = part.split.vector
    wide = {operand.name: _spread(operand, call, shape[2]) for operand in _operands(expression)}
    if any(term.gates or term.coefficient != 1.0 for term in expression) or len(expression) > 1:
        wide = {name: x.to(call.dtype) for name, x in wide.items()}
    value = evaluate(expression, wide)
    assert value is not None
    return value.to(dtype)


def _spread(operand: Operand, call: Call, heads: int) -> Tensor:
    x = call.tensors[operand.name]
    group = heads // x.shape[2] if operand.is_address else 1
    return x if group == 1 else x.repeat_interleave(group, dim=2)


def _with_spare(x: Tensor, part: Part | None, start: int) -> Tensor:
    if part is None or part.spare is None:
        return x
    entry = torch.arange(x.shape[-1], device=x.device) == start + part.spare.channel
    return torch.where(entry, part.spare.coefficient, x)


def _number(number: Number, call: Call) -> Tensor:
    """[B, times T, HV] in the dtype of the state."""
    shape = (call.batch, call.tokens, call.value_heads)
    parts: list[Tensor] = []
    for part in number.parts:
        scale = torch.full(shape, part.split.coefficient if part else 0.0, dtype=call.dtype, device=call.device)
        for gate in part.split.gates if part else ():
            scale = scale * call.tensors[gate.name].to(call.dtype)
        parts.append(scale)
    return _side_by_side(parts)


def _point(cut: Cut, point: Point, call: Call) -> dict[str, Tensor]:
    """The log decays [B, times T, HV] or [B, times T, HV, K + spare] of a decay point, and their signs."""
    logs = [None if decay is None else decay.log_decay for decay in point.parts]
    tensors = {point.operand.name: _side_by_side([_decay(cut, point.operand, log, call, 0.0) for log in logs])}
    if point.operand.sign is not None:
        signs = [1.0 if decay is None or decay.sign is None else decay.sign for decay in point.parts]
        sides = [_decay(cut, point.operand.sign, sign, call, 1.0) for sign in signs]
        tensors[point.operand.sign.name] = _side_by_side(sides)
    return tensors


def _decay(cut: Cut, like: Operand, given: Operand | float | None, call: Call, neutral: float) -> Tensor:
    """A log decay or a sign as wide as `like`, neutral in the spare channels."""
    channel = like.per == "channel"
    shape = (call.batch, call.tokens, call.value_heads, *((call.key_dim,) if channel else ()))
    if isinstance(given, Operand):
        x = call.tensors[given.name].to(call.dtype)
        x = x[..., None].expand(shape) if channel and given.per == "head" else x
    else:
        x = torch.full(shape, neutral if given is None else given, dtype=call.dtype, device=call.device)
    return pad(x, (0, cut.spare), value=neutral) if channel and cut.spare else x


def _operands(expression: Expression) -> list[Operand]:
    return [o for term in expression for o in (*term.gates, *((term.vector,) if term.vector else ()))]


def _side_by_side(parts: Sequence[Tensor]) -> Tensor:
    """[B, T, ...] of each virtual token -> [B, times T, ...]."""
    return torch.stack(list(parts), 2).flatten(1, 2)
