"""What one token does to the state, S_t = M S_{t-1} + ...: eigenvalues and singular values of M over the gates' ranges.

Draws, not proofs: gates and decays over their ranges and at their ends, unit addresses at random, equal, opposite and
at right angles, in few dimensions and in many. `proven` names the one argument that needs no draws.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from archsearch.dsl.expressions import Expression, Term
from archsearch.dsl.operands import Kind, Operand
from archsearch.lowering.normal_form import Decay, NormalForm, Read, Row
from archsearch.lowering.notation import UNICODE
from archsearch.lowering.strength import factored

Array = NDArray[np.float64]

DIMENSIONS = {2: 1500, 3: 1500, 4: 1500, 16: 250}
"""Draws for each size of the address space; extremes live in the small ones."""
NOISE = 1e-6
"""Below it an imaginary part, a negative eigenvalue or a growth is rounding."""


@dataclass(frozen=True, slots=True)
class Step:
    """A row that recalls leaves 1 - a.b of what its residual address a held; `lowest` and `highest` a.b over the draws.

    Inside (0, 2) the error at that address shrinks; `share_outside` [0, 2] is of draws. symmetric: it writes along what
    it reads and no other row acts with it, so that it enlarges no state at all while a.b is in [0, 2].
    """

    row: int
    product: str
    lowest: float
    highest: float
    share_outside: float
    symmetric: bool

    @property
    def condition(self) -> str:
        """When it contracts, and what."""
        if self.symmetric:
            return f"0 ≤ {self.product} ≤ 2: it enlarges no state"
        return f"0 < {self.product} < 2: the row shrinks the error at its residual address, others may grow"


@dataclass(frozen=True, slots=True)
class Spectrum:
    """Extremes over all draws; shares are of draws. `gate_range`, `decay_range`: where gates and decays were drawn."""

    draws: int
    gate_range: tuple[float, float]
    decay_range: tuple[float, float]
    real_lowest: float
    real_highest: float
    modulus_highest: float
    imaginary_highest: float
    share_negative: float
    share_complex: float
    singular_highest: float
    proven: bool
    steps: tuple[Step, ...]

    @property
    def contraction(self) -> bool:
        """Whether no drawn transition enlarges any state."""
        return self.singular_highest <= 1 + NOISE

    @property
    def negative(self) -> bool:
        """Whether a real negative eigenvalue occurred: parity can be tracked."""
        return self.share_negative > 0

    @property
    def rotates(self) -> bool:
        """Whether a complex pair occurred."""
        return self.share_complex > 0

    @property
    def tracking(self) -> str:
        """What it can track in finite precision: parity needs a negative eigenvalue, counting modulo 3 a complex one
        (arXiv 2411.12537).
        """
        if self.rotates:
            both = "complex and negative" if self.negative else "complex"
            return f"{both} eigenvalues are reached: turns can be tracked{', and parity' if self.negative else ''}"
        if self.negative:
            return "negative eigenvalues are reached: parity can be tracked"
        return "no eigenvalue is negative or complex: parity cannot be tracked"

    @property
    def verdict(self) -> str:
        """Stability in one sentence."""
        if self.proven:
            return (
                "contraction: every factor is symmetric with eigenvalues in [-1, 1], so the state never grows by itself"
            )
        if self.contraction:
            return f"contraction in all {self.draws} draws; not proven"
        return f"no contraction: one token can enlarge the state {self.singular_highest:.3g} times"


def spectrum(
    form: NormalForm,
    *,
    gate_range: tuple[float, float] = (0.0, 1.0),
    decay_range: tuple[float, float] = (0.0, 1.0),
    seed: int = 0,
) -> Spectrum:
    """The spectrum of a rule. `gate_range`: where gates and channel gates are drawn; `decay_range`: exp(g)."""
    random = np.random.default_rng(seed)
    eigenvalues: list[NDArray[np.complex128]] = []
    singular: list[float] = []
    products: list[list[Array]] = [[] for _ in form.rows]
    for size, draws in DIMENSIONS.items():
        values = _draw(form, size, draws, gate_range, decay_range, random)
        matrices = transition(form, values)
        eigenvalues.append(np.linalg.eigvals(matrices).astype(np.complex128))
        singular.append(float(np.linalg.norm(matrices, ord=2, axis=(1, 2)).max()))
        for row, found in zip(form.rows, products, strict=True):
            found.append(np.einsum("nk,nk->n", _vector(row.write, values, size), _vector(row.residual, values, size)))
    every = np.concatenate([values.ravel() for values in eigenvalues])
    real = every.real[np.abs(every.imag) <= NOISE]
    return Spectrum(
        draws=sum(DIMENSIONS.values()),
        gate_range=gate_range,
        decay_range=decay_range,
        real_lowest=float(real.min()),
        real_highest=float(real.max()),
        modulus_highest=float(np.abs(every).max()),
        imaginary_highest=float(np.abs(every.imag).max()),
        share_negative=_share([(v.real < -NOISE) & (np.abs(v.imag) <= NOISE) for v in eigenvalues]),
        share_complex=_share([np.abs(v.imag) > NOISE for v in eigenvalues]),
        singular_highest=max(singular),
        proven=_proven(form, gate_range),
        steps=tuple(_step(form, i, products[i]) for i, row in enumerate(form.rows) if row.write and row.residual),
    )


def transition(form: NormalForm, values: Mapping[str, Array]) -> Array:
    """M [N, K, K] of one token for N draws: operands by name, addresses and channel operands [N, K], others [N]."""
    size = next(values[operand.name].shape[1] for operand in form.operands if operand.is_address)
    draws = len(next(iter(values.values())))
    before = np.broadcast_to(np.eye(size), (draws, size, size))
    matrix = before
    for step in form.program:
        if isinstance(step, Decay):
            matrix = _factor(step, values, size)[:, :, None] * matrix
        elif not isinstance(step, Read):
            matrix = matrix - sum((_erased(row, values, matrix, before) for row in step), np.zeros_like(matrix))
    return matrix


def _erased(row: Row, values: Mapping[str, Array], matrix: Array, before: Array) -> Array:
    size = matrix.shape[1]
    write, residual = _vector(row.write, values, size), _vector(row.residual, values, size)
    recalled = np.einsum("nk,nkj->nj", residual, before if row.previous else matrix)
    return write[:, :, None] * recalled[:, None, :]


def _factor(step: Decay, values: Mapping[str, Array], size: int) -> Array:
    """[N or 1, K or 1]."""
    if not isinstance(step.log_decay, Operand):
        return np.full((1, size), np.exp(step.log_decay))
    factor = np.exp(values[step.log_decay.name])
    if step.sign is not None:
        factor = factor * values[step.sign.name]
    return factor if factor.ndim == 2 else factor[:, None]


def _vector(expression: Expression, values: Mapping[str, Array], size: int) -> Array:
    """An expression of addresses [N, K]; zero is zeros."""
    total = np.zeros((len(next(iter(values.values()))), size))
    for term in expression:
        if term.vector is None:
            continue
        vector = term.coefficient * values[term.vector.name]
        for gate in term.gates:
            given = values[gate.name]
            vector = vector * (given if given.ndim == 2 else given[:, None])
        total = total + vector
    return total


def _draw(
    form: NormalForm,
    size: int,
    draws: int,
    gates: tuple[float, float],
    decays: tuple[float, float],
    random: np.random.Generator,
) -> dict[str, Array]:
    values: dict[str, Array] = {}
    first: Array | None = None
    for operand in form.operands:
        shape = (draws, size) if operand.per == "channel" or operand.is_address else (draws,)
        if operand.is_address:
            values[operand.name] = _addresses(first, shape, random)
            first = values[operand.name] if first is None else first
        elif operand.kind is Kind.LOG_DECAY:
            values[operand.name] = np.log(np.maximum(_in_range(decays, shape, random), 1e-6))
        elif operand.kind is Kind.SIGN:
            values[operand.name] = random.choice([-1.0, 1.0], shape)
        elif operand.is_gate and operand.of == "key":
            values[operand.name] = _in_range(gates, shape, random)
    return values


def _in_range(ends: tuple[float, float], shape: tuple[int, ...], random: np.random.Generator) -> Array:
    """A third of the draws uniform, a third near the upper end, the others at an end."""
    low, high = ends
    uniform = random.uniform(low, high, shape)
    near = high - (high - low) * 0.1 * random.uniform(0, 1, shape)
    corner = random.choice([low, high], shape)
    which = random.integers(0, 3, shape[0]).reshape(-1, *(1 for _ in shape[1:]))
    return np.where(which == 0, uniform, np.where(which == 1, near, corner))


def _addresses(first: Array | None, shape: tuple[int, ...], random: np.random.Generator) -> Array:
    """Unit vectors; beside a first address half of them are near it, opposite to it or at a right angle."""
    drawn = _unit(random.standard_normal(shape))
    if first is None:
        return drawn
    right_angle = _unit(drawn - np.einsum("nk,nk->n", drawn, first)[:, None] * first)
    near = _unit(first + 0.3 * drawn)
    which = random.integers(0, 6, shape[0])[:, None]
    return np.select([which == 0, which == 1, which == 2], [right_angle, near, -near], drawn)


def _unit(vectors: Array) -> Array:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def _step(form: NormalForm, index: int, products: list[Array]) -> Step:
    row = form.rows[index]
    alone = sum(other.stage == row.stage and bool(other.residual) for other in form.rows) == 1
    found = np.concatenate(products)
    outside = float(np.mean((found < -NOISE) | (found > 2 + NOISE)))
    return Step(index, _product(row), float(found.min()), float(found.max()), outside, alone and _along_itself(row))


def _product(row: Row) -> str:
    """a.b as text, the strength in front."""
    taken = factored(row)
    size = Term(abs(taken.strength.coefficient), taken.strength.gates, None)
    strength = "" if size == Term(1.0, (), None) else UNICODE.expression((size,))
    sign = UNICODE.minus if taken.strength.coefficient < 0 else ""
    return f"{sign}{UNICODE.product(strength, UNICODE.atom(taken.residual))}·{UNICODE.atom(row.write)}"


def _share(found: list[NDArray[np.bool_]]) -> float:
    """The share of draws with a hit among their eigenvalues; one array [N, K] a size."""
    hits = sum(int(np.count_nonzero(np.any(each, axis=1))) for each in found)
    return hits / sum(len(each) for each in found)


def _proven(form: NormalForm, gate_range: tuple[float, float]) -> bool:
    """Whether every factor of the token is a decay or I - s e e^T with a unit e and 0 <= s <= 2."""
    stages = [row.stage for row in form.rows if row.write and row.residual]
    return len(stages) == len(set(stages)) and all(
        _symmetric(row, gate_range) for row in form.rows if row.write and row.residual
    )


def _along_itself(row: Row) -> bool:
    """Whether the row is I - s e e^T, s a number and gates a head, on the state that it finds."""
    if row.previous or len(row.write) != 1 or len(row.residual) != 1:
        return False
    write, residual = row.write[0], row.residual[0]
    return write.vector == residual.vector and all(gate.per == "head" for gate in (*write.gates, *residual.gates))


def _symmetric(row: Row, gate_range: tuple[float, float]) -> bool:
    if not _along_itself(row) or gate_range[0] < 0:
        return False
    write, residual = row.write[0], row.residual[0]
    gates = (*write.gates, *residual.gates)
    strength = write.coefficient * residual.coefficient
    return strength >= 0 and strength * max(1.0, gate_range[1]) ** len(gates) <= 2
