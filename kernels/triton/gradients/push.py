"""Gradients of expressions pushed to operands, as Triton text: the product rule over base vectors and their factors."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Literal

from archsearch.dsl import Expression, Operand, Term
from archsearch.kernels.triton.expressions import literal, pointer
from archsearch.kernels.triton.streams import Base, Factor, bases


def gates_of(factor: Factor) -> tuple[Operand, ...]:
    """The gates a head of a factor."""
    return tuple(gate for term in factor for gate in term.gates)


def factor_value(factor: Factor, *, without: int | None = None) -> str:
    """A factor [C] from gates that are loaded as gate_<name>; `without` leaves out one gate of a single term."""
    texts = [_term_value(term, without) for term in factor]
    return f"({' + '.join(texts)})" if len(texts) > 1 else texts[0]


def _term_value(term: Term, without: int | None) -> str:
    parts = [f"gate_{gate.name}" for i, gate in enumerate(term.gates) if i != without]
    if term.coefficient != 1.0 or not parts:
        parts.append(literal(term.coefficient))
    return " * ".join(parts)


@dataclass(slots=True)
class Push:
    """Text under construction over tiles [C, B] of keys or values: what is loaded and what is summed so far."""

    of: Literal["key", "value"]
    loaded: set[str] = field(default_factory=set[str])
    sums: set[str] = field(default_factory=set[str])
    lines: list[str] = field(default_factory=list[str])

    def base(self, base: Base, gradient: str) -> None:
        """The gradient [C, B] of a base vector reaches its operands."""
        if not base.gates:
            self._add(base.vector, gradient)
            return
        self.lines.append(f"grad_base = {gradient}")
        tiles = [self._tile(operand) for operand in base.operands]
        for i, operand in enumerate(base.operands):
            self._add(operand, " * ".join(["grad_base", *(tile for j, tile in enumerate(tiles) if j != i)]))

    def expression(self, expression: Expression, gradient: str) -> None:
        """The gradient [C, B] of an expression reaches its operands; numbers a head sum into total_<name>."""
        for base, factor in bases(expression).items():
            for gate in gates_of(factor):
                self._number(gate)
            value = factor_value(factor)
            self.base(base, gradient if value == "1.0" else f"{gradient} * {_wide(value)}")
            if gates_of(factor):
                self.lines.append(f"dot = tl.sum({gradient} * {self._product(base)}, 1)")
            for term in factor:
                for i, gate in enumerate(term.gates):
                    self.lines.append(f"total_{gate.name} += dot * {factor_value((term,), without=i)}")

    def value(self, expression: Expression) -> str:
        """An expression [C, B] itself."""
        texts: list[str] = []
        for base, factor in bases(expression).items():
            for gate in gates_of(factor):
                self._number(gate)
            texts.append(f"{self._product(base)} * {_wide(factor_value(factor))}")
        return " + ".join(texts)

    def store(self, operands: Sequence[Operand], later: Collection[str]) -> None:
        """Write every sum that is whole: all but those of `later`."""
        row, size, channel = ("K", "K", "column, channel") if self.of == "key" else ("V", "V", "first, target_channel")
        for operand in operands:
            if operand.name in self.sums and operand.name not in later:
                at = f"value_row * {row}, query_place * (HV * {size}), query_here, {channel}"
                self.lines.append(f"rows_to(g_{operand.name}, {at}, sum_{operand.name}, {size})")

    def _add(self, operand: Operand, text: str) -> None:
        self.lines.append(f"sum_{operand.name} {'+=' if operand.name in self.sums else '='} {text}")
        self.sums.add(operand.name)

    def _product(self, base: Base) -> str:
        return " * ".join(self._tile(operand) for operand in base.operands)

    def _tile(self, operand: Operand) -> str:
        """The operand's tile [C, B] as float32, loaded once."""
        if operand.name not in self.loaded:
            size, channel = ("K", "column, channel") if self.of == "key" else ("V", "first, target_channel")
            row, heads = ("key_row", "H") if operand.is_address else ("value_row", "HV")
            at = f"{row} * {size}, query_place * ({heads} * {size}), query_here, {channel}, {size}, B{size}"
            self.lines.append(f"at_{operand.name} = rows_from({pointer(operand)}, {at}).to(tl.float32)")
            self.loaded.add(operand.name)
        return f"at_{operand.name}"

    def _number(self, gate: Operand) -> None:
        if gate.name not in self.loaded:
            self.lines.append(f"gate_{gate.name} = number({pointer(gate)}, query_token, query_here, head, HV)")
            self.loaded.add(gate.name)


def _wide(value: str) -> str:
    """A factor [C] as wide as a tile; a number as it is."""
    try:
        float(value.strip("()"))
    except ValueError:
        return f"({value})[:, None]"
    return value
