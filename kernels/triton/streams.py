"""Expressions as base vectors with a number a token each, so that products see tensors as they are.

A base vector is one operand, or its elementwise product with gates a channel. `k + lam * q` is two of them: the bases k
and q with the factors 1 and lam. A stream collects, over the rows of a token, one base vector and one factor a row.
"""

from __future__ import annotations

from dataclasses import dataclass

from archsearch.dsl import Expression, Operand, Term
from archsearch.kernels.triton.expressions import literal, load_text, pointer

Factor = tuple[Term, ...]
"""Coefficients and gates a head, summed; every term's vector is None."""
ONE: Factor = (Term(1.0, (), None),)


@dataclass(frozen=True, slots=True)
class Base:
    """`gates * vector`, elementwise."""

    gates: tuple[Operand, ...]
    vector: Operand

    @property
    def name(self) -> str:
        """In generated code."""
        return "__".join(operand.name for operand in (*self.gates, self.vector))

    @property
    def operands(self) -> tuple[Operand, ...]:
        """What is loaded."""
        return (*self.gates, self.vector)


@dataclass(frozen=True, slots=True)
class Stream:
    """One base vector and one factor a row of the token; None where a row has none."""

    bases: tuple[Base | None, ...]
    factors: tuple[Factor | None, ...]

    @property
    def plain(self) -> bool:
        """Whether every factor is 1."""
        return all(factor in (None, ONE) for factor in self.factors)


def bases(expression: Expression) -> dict[Base, Factor]:
    """The base vectors of an expression and what scales each."""
    found: dict[Base, Factor] = {}
    for term in expression:
        assert term.vector is not None
        base = Base(tuple(gate for gate in term.gates if gate.per == "channel"), term.vector)
        numbers = tuple(gate for gate in term.gates if gate.per == "head")
        found[base] = (*found.get(base, ()), Term(term.coefficient, numbers, None))
    return found


def streams(expressions: tuple[Expression, ...], like: tuple[Expression, ...] = ()) -> tuple[Stream, ...]:
    """As many streams as the longest expression has bases; those that stand in `like`, row by row, come first."""
    rows = [bases(expression) for expression in expressions]
    first = [bases(expression) for expression in like or ((),) * len(rows)]
    order = [
        sorted(row, key=lambda base, shown=shown: base not in shown) for row, shown in zip(rows, first, strict=True)
    ]
    count = max((len(row) for row in rows), default=0)
    return tuple(
        Stream(
            tuple(names[i] if i < len(names) else None for names in order),
            tuple(row[names[i]] if i < len(names) else None for row, names in zip(rows, order, strict=True)),
        )
        for i in range(count)
    )


def factor_text(factor: Factor, here: str) -> str:
    """The numbers [N] of a factor."""
    terms: list[str] = []
    for term in factor:
        parts = [f"number({pointer(gate)}, token, {here}, head, HV)" for gate in term.gates]
        if term.coefficient != 1.0 or not parts:
            parts.append(f"tl.where({here}, {literal(term.coefficient)}, 0.0)")
        terms.append(" * ".join(parts))
    return f"({' + '.join(terms)})" if len(terms) > 1 else terms[0]


def base_text(base: Base, here: str) -> str:
    """The tile [N, B] of a base vector, in the operand's own dtype where nothing is computed."""
    text = load_text(base.vector, "token", here, "channel")
    if not base.gates:
        return text
    gates = [load_text(gate, "token", here, "channel") for gate in base.gates]
    return " * ".join([f"{text}.to(tl.float32)", *gates])
