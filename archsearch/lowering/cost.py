"""What a rule costs: state bytes, FLOPs and memory traffic a token, from the normal form and the sizes alone.

Counts are of one layer, over all its heads. A multiply-add is two FLOPs; exponentials are not counted.

- Token loop: exactly the multiplications and additions of `archsearch.kernels.reference`. A decay K V; a recall 2 K V;
  a rank-one update 2 K V; a read 2 K V + V; forming an expression: one multiplication a gate or number, one addition
  a further term. A normaliser makes V one more and divides V times.
- Chunkwise: the matrix products of the chunk's algebra. With C tokens, N = n C rows and N' rows that recall, a chunk
  takes 2 N' N K (triangle) + 2 C N K (scores) + 2 N' K V + 2 C K V (against the entering state) + 2 C N V + 2 N K V
  (output, leaving state), and N' (N - 1) V to solve.
- Bytes: the kernels that run, each of which reads each of its operands once; what passes from one to the next is
  counted where it is written and where it is read. Decays, cumulative decays and row factors are float32, as is the
  state of a step; everything else has the width of the operands.
  Forward: one kernel that solves the triangles and forms the scores, one serial scan. Of a rule of one row that
  recalls nothing, whose heads decay as one, which writes and reads at one vector each and whose outputs are neither
  divided nor given a bonus, the scans form the scores themselves. In training the scan also keeps the state at each
  chunk's start and the rows' corrected targets D, where D is not a value as it is; with `recompute` a second scan forms
  them again before the backward. Backward: one serial scan in reverse, which leaves the gradients of states and
  targets, and one kernel for all other gradients: where a target is a value as it is, or scaled as its residual, its
  gradient is that of the value. Where channels decay, the kernel that solves writes the decayed rows and the sums of
  decays at the ends of four tokens, and both scans read those rows instead of the addresses; a kernel of its own makes
  the gradients of triangles and scores from targets, their gradients and those of the output. The kernels for chunks
  whose decays are strong are not counted: elsewhere they read one number a chunk. A rule of more than four steps a
  token runs on longer sequences of shorter tokens; laying those side by side is not counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

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
    """`state_bytes` a sequence; everything else a token. `forward_bytes` without a backward, `backward_bytes` what
    training moves besides. `step_bytes` is one decoding step of one sequence.
    """

    state_bytes: int
    recurrent_flops: int
    chunkwise_flops: float
    forward_bytes: float
    backward_bytes: float
    step_bytes: int

    @property
    def training_bytes(self) -> float:
        """Forward and backward together."""
        return self.forward_bytes + self.backward_bytes


def cost(form: NormalForm, sizes: Sizes, chunk_size: int | None = None, *, recompute: bool = False) -> Cost:
    """The cost of a rule at some sizes; `chunk_size` replaces the plan's tokens a chunk, and `recompute` has the
    backward form the states again instead of keeping them.
    """
    plan = chunk_plan(form, chunk_size)
    divisions = 0 if form.read.normaliser is None else sizes.value_heads * sizes.value_dim
    sizes = replace(sizes, value_dim=form.columns(sizes.value_dim))
    state = sizes.value_heads * sizes.key_dim * sizes.value_dim * FLOAT32
    output = _output(sizes)
    passed = _passed(form, plan, sizes)
    return Cost(
        state_bytes=state,
        recurrent_flops=sizes.value_heads * _token_flops(form, sizes) + divisions,
        chunkwise_flops=sizes.value_heads * _chunk_flops(form, plan, sizes) / plan.tokens + divisions,
        forward_bytes=_forward_bytes(form, passed, sizes),
        backward_bytes=_backward_bytes(form, passed, sizes, recompute=recompute),
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


@dataclass(frozen=True, slots=True)
class _Passed:
    """Bytes a token of what one kernel leaves for others, and of what both scans read.

    `triangle` and `scores`; `rows`: decayed rows, or the factors of rows; `vectors`: addresses as a scan reads them,
    none where it reads decayed rows; `reader`: the share of rows and vectors that only the read needs; `targets`: a
    vector of V a row; `states`: one state a chunk.
    """

    accumulated: float
    triangle: float
    scores: float
    rows: float
    vectors: float
    reader: float
    targets: float
    states: float

    @property
    def solved(self) -> float:
        """What the kernel that solves leaves for the scans."""
        return self.triangle + self.scores + self.rows

    @property
    def scanned(self) -> float:
        """What a scan reads, values and their gradient apart."""
        return self.solved + self.vectors


def _passed(form: NormalForm, plan: ChunkPlan, sizes: Sizes) -> _Passed:
    heads, span, solves = sizes.value_heads, 1 << (plan.substeps - 1).bit_length(), _solves(form)
    key, signed = heads * sizes.key_dim * sizes.width, any(decay.sign is not None for decay in form.decays)
    channel = form.decay_kind == "channel"
    sums = (1 + signed) * heads * (sizes.key_dim / 4 if channel else 1) * FLOAT32
    scores = heads * span * plan.tokens * sizes.width
    vectors = 0 if channel else _bytes(_vectors(form), sizes)
    return _Passed(
        accumulated=sums if form.decays else 0,
        triangle=scores * span * plan.triangle,
        scores=scores if solves else 0,
        rows=key * (1 + span + span * plan.triangle) if channel else heads * _factors(form) * FLOAT32,
        vectors=vectors,
        reader=key if channel else vectors - _bytes(_vectors(form, reads=False), sizes),
        targets=span * _output(sizes),
        states=heads * sizes.key_dim * sizes.value_dim * sizes.width / plan.tokens,
    )


def _forward_bytes(form: NormalForm, passed: _Passed, sizes: Sizes) -> float:
    everything, values = _bytes(form.operands, sizes), _bytes(_values(form), sizes)
    numbers = everything - values - (0 if _solves(form) else passed.vectors)
    solve = numbers + passed.accumulated + passed.solved
    scan = passed.scanned + values + _output(sizes)
    return solve + scan


def _backward_bytes(form: NormalForm, passed: _Passed, sizes: Sizes, *, recompute: bool) -> float:
    everything, values = _bytes(form.operands, sizes), _bytes(_values(form), sizes)
    kept = passed.states + (0 if _keeps_value(form) else passed.targets)
    recalled = passed.targets if _recalls(form) else 0
    again = passed.scanned - passed.scores - passed.reader + values if recompute else 0.0
    reverse = passed.scanned + _output(sizes) + passed.states + passed.targets
    rest = everything - values if _reverse_leaves_values(form) else everything
    read = rest - (0 if _gated_targets(form) or rest != everything else values) + passed.accumulated
    gradients = read + 2 * passed.states + passed.targets + recalled + _output(sizes) + rest
    return kept + again + reverse + _pair_bytes(form, passed, sizes) + gradients


def _pair_bytes(form: NormalForm, passed: _Passed, sizes: Sizes) -> float:
    """The gradients of triangles and scores where they pass through memory: written once, read once."""
    if form.decay_kind != "channel":
        return 0.0
    targets = passed.targets * (2 if passed.triangle else 1)
    return targets + _output(sizes) + 2 * (passed.triangle + passed.scores)


def _output(sizes: Sizes) -> int:
    return sizes.value_heads * sizes.value_dim * sizes.width


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


def _vectors(form: NormalForm, *, reads: bool = True) -> list[Operand]:
    """Addresses and the gates of their channels; without the read, those of rows alone."""
    sides = [side for row in form.rows for side in (row.write, row.residual)] + [form.read.address] * reads
    used = {
        operand.name
        for side in sides
        for term in side
        for operand in (*term.gates, *((term.vector,) if term.vector else ()))
    }
    return [
        operand
        for operand in form.operands
        if operand.name in used and (operand.is_address or (operand.kind is Kind.CHANNEL_GATE and operand.of == "key"))
    ]


def _solves(form: NormalForm) -> bool:
    """Whether a kernel solves triangles and forms scores before the scans."""
    if _recalls(form) or len(form.rows) > 1 or form.read.normaliser is not None or form.read.bonus is not None:
        return True
    return len(_bases(form.read.address)) > 1 or any(len(_bases(row.write)) > 1 for row in form.rows)


def _bases(expression: Expression) -> set[tuple[Operand | None, tuple[Operand, ...]]]:
    """The vectors, each gated by channel or as it is, that an expression adds up."""
    return {(term.vector, tuple(gate for gate in term.gates if gate.per == "channel")) for term in expression}


def _recalls(form: NormalForm) -> bool:
    """Whether the gradients take what rows recall; where channels decay they are counted as if they did."""
    return form.decay_kind == "channel" or any(row.write and row.residual for row in form.rows)


def _keeps_value(form: NormalForm) -> bool:
    """Whether the corrected target of a token's only row is its value as it is, which needs no keeping."""
    return not _recalls(form) and len(form.rows) == 1 and _reverse_leaves_values(form) and bool(form.rows[0].target)


def _factors(form: NormalForm) -> int:
    """Numbers that scale the vectors of rows and read: one a term; where the scans form scores, a log decay too."""
    rows = sum(len(row.write) + len(row.residual) + len(row.target) for row in form.rows)
    return rows + len(form.read.address) + (bool(form.decays) and not _solves(form))


def _reverse_leaves_values(form: NormalForm) -> bool:
    """Whether the gradient of every value is that of a row's target, once what scales residual and target alike has
    moved to the write.
    """
    if form.read.bonus is not None:
        return False
    vectors = [term.vector for row in form.rows for term in row.target]
    return len(set(vectors)) == len(vectors) and all(_is_plain(row) for row in form.rows)


def _is_plain(row: Row) -> bool:
    """Whether all terms of residual and target share the factors of the target's only term."""
    if not row.target:
        return True
    own = row.target[0]
    alike = all(term.coefficient == own.coefficient for term in row.residual)
    inside = all(not Counter(own.gates) - Counter(term.gates) for term in row.residual)
    return len(row.target) == 1 and alike and inside and all(gate.per == "head" for gate in own.gates)


def _gated_targets(form: NormalForm) -> bool:
    """Whether a value meets a gate, whose gradient needs the value."""
    return any(term.gates for row in form.rows for term in row.target)
