"""What a rule costs: state bytes, FLOPs and memory traffic a token, from the normal form and the sizes alone.

Counts are of one layer, over all its heads. A multiply-add is two FLOPs; exponentials are not counted.

- Token loop: exactly the multiplications and additions of `archsearch.kernels.reference`. A decay K V; a recall 2 K V;
  a rank-one update 2 K V; a read 2 K V + V; forming an expression: one multiplication a gate or number, one addition
  a further term.
- Chunkwise: the matrix products of the chunk's algebra. With C tokens, N = n C rows and N' rows that recall, a chunk
  takes 2 N' N K (triangle) + 2 C N K (scores) + 2 N' K V + 2 C K V (against the entering state) + 2 C N V + 2 N K V
  (output, leaving state), and N' (N - 1) V to solve.
- Bytes: the fused plan, in which a kernel reads each of its operands once. Forward: one that solves the triangles, one
  serial scan. Backward: one that recomputes the states, one serial scan in reverse, one for all gradients; that of the
  values leaves the reverse scan and is not written again. Where channels decay, the first kernel also forms the scores
  and writes the decayed rows, and the scan reads those. Decays are float32, as is the state.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from archsearch.dsl.expressions import Expression
from archsearch.dsl.operands import Kind, Operand
from archsearch.lowering.normal_form import NormalForm, Row
from archsearch.lowering.plan import ChunkPlan, chunk_plan

FLOAT32 = 4


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of one layer: K, V, key heads H, value heads HV; `width` is the bytes of an element of q, k, v and the gates."""

    key_dim: int = 128
    value_dim: int = 128
    heads: int = 16
    value_heads: int = 16
    width: int = 2


@dataclass(frozen=True, slots=True)
class Cost:
    """`state_bytes` a sequence; everything else a token. `step_bytes` is one decoding step of one sequence."""

    state_bytes: int
    recurrent_flops: int
    chunkwise_flops: float
    forward_bytes: float
    backward_bytes: float
    step_bytes: int


def cost(form: NormalForm, sizes: Sizes, chunk_size: int | None = None) -> Cost:
    """The cost of a rule at some sizes; `chunk_size` replaces the plan's tokens a chunk."""
    plan = chunk_plan(form, chunk_size)
    state = sizes.value_heads * sizes.key_dim * sizes.value_dim * FLOAT32
    output = sizes.value_heads * sizes.value_dim * sizes.width
    return Cost(
        state_bytes=state,
        recurrent_flops=sizes.value_heads * _token_flops(form, sizes),
        chunkwise_flops=sizes.value_heads * _chunk_flops(form, plan, sizes) / plan.tokens,
        forward_bytes=_forward_bytes(form, plan, sizes),
        backward_bytes=_backward_bytes(form, plan, sizes),
        step_bytes=2 * state + _bytes(form.operands, sizes) + output,
    )


def _token_flops(form: NormalForm, sizes: Sizes) -> int:
    """Of one head."""
    k, v = sizes.key_dim, sizes.value_dim
    signs = sum(1 if decay.sign.per == "head" else k for decay in form.decays if decay.sign is not None)
    rows = sum(_row_flops(row, k, v) for row in form.rows if row.write)
    read = _forming(form.read.address, k) + (2 * k * v if form.read.address else 0) + v
    bonus = form.read.bonus
    extra = 0
    if bonus is not None and form.read.address:
        extra = _forming(bonus.weight, k) + _forming(bonus.address, k) + _forming(bonus.target, v)
        extra += 3 * k + 2 * v if bonus.weight and bonus.address and bonus.target else 0
    return len(form.decays) * k * v + signs + rows + read + extra


def _row_flops(row: Row, k: int, v: int) -> int:
    formed = _forming(row.write, k) + _forming(row.residual, k) + _forming(row.target, v)
    return formed + 2 * k * v + (2 * k * v + v if row.residual else 0)


def _forming(expression: Expression, size: int) -> int:
    """Multiplications and additions that form a sum of gated vectors."""
    factors = sum(len(term.gates) + (term.coefficient != 1.0) for term in expression)
    return size * (factors + max(0, len(expression) - 1))


def _chunk_flops(form: NormalForm, plan: ChunkPlan, sizes: Sizes) -> int:
    """Of one chunk and head."""
    k, v, c, rows = sizes.key_dim, sizes.value_dim, plan.tokens, plan.rows
    recalling = c * sum(bool(row.write and row.residual) for row in form.rows)
    triangle = 2 * recalling * rows * k + recalling * (rows - 1) * v
    return triangle + 2 * c * rows * (k + v) + 2 * (recalling + c + rows) * k * v


def _forward_bytes(form: NormalForm, plan: ChunkPlan, sizes: Sizes) -> float:
    output = sizes.value_heads * sizes.value_dim * sizes.width
    everything = _bytes(form.operands, sizes)
    triangle = _triangle_bytes(plan, sizes)
    if form.decay_kind == "channel":
        gated = (1 + sum(bool(row.write) + bool(row.residual) for row in form.rows)) * sizes.value_heads * sizes.key_dim
        rows = gated * sizes.width + triangle + sizes.value_heads * plan.rows * sizes.width
        return everything + 2 * rows + output
    solved = _bytes(_row_operands(form), sizes) + triangle if plan.triangle else 0
    return solved + everything + triangle + output


def _backward_bytes(form: NormalForm, plan: ChunkPlan, sizes: Sizes) -> float:
    states = sizes.value_heads * sizes.key_dim * sizes.value_dim * sizes.width / plan.tokens
    output = sizes.value_heads * sizes.value_dim * sizes.width
    targets = plan.substeps * output
    values, everything = _bytes(_values(form), sizes), _bytes(form.operands, sizes)
    triangle = _triangle_bytes(plan, sizes)
    written = targets if plan.triangle else 0
    recomputed = _bytes(_row_operands(form), sizes) + values + triangle + states + written
    reverse = everything - values + output + triangle + states + targets
    gradients = (
        everything - values + 2 * states + (2 * targets if plan.triangle else values) + output + everything - values
    )
    return recomputed + reverse + gradients


def _triangle_bytes(plan: ChunkPlan, sizes: Sizes) -> float:
    """The inverse of the triangular system of a chunk, spread over its tokens."""
    return sizes.value_heads * plan.rows * plan.substeps * sizes.width if plan.triangle else 0.0


def _bytes(operands: Iterable[Operand], sizes: Sizes) -> int:
    return sum(_operand_bytes(operand, sizes) for operand in operands)


def _operand_bytes(operand: Operand, sizes: Sizes) -> int:
    channels = {"key": sizes.key_dim, "value": sizes.value_dim}[operand.of]
    if operand.is_address:
        return sizes.heads * channels * sizes.width
    width = FLOAT32 if operand.kind in (Kind.LOG_DECAY, Kind.SIGN) else sizes.width
    whole = operand.kind is Kind.VALUE or operand.per == "channel"
    return sizes.value_heads * (channels if whole else 1) * width


def _values(form: NormalForm) -> list[Operand]:
    return [operand for operand in form.operands if operand.kind is Kind.VALUE]


def _row_operands(form: NormalForm) -> list[Operand]:
    """What the triangular system is made of: the operands of writes and residuals, and the decays."""
    found: dict[str, Operand] = {}
    for row in form.rows:
        for term in (*row.write, *row.residual):
            found |= {operand.name: operand for operand in (*term.gates, *((term.vector,) if term.vector else ()))}
    decays = {operand.name: operand for operand in form.operands if operand.kind in (Kind.LOG_DECAY, Kind.SIGN)}
    return list((found | decays).values())
