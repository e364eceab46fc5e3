"""Expressions as Triton text: a number a row times a vector a row, so that products see operands as they are."""

from __future__ import annotations

from dataclasses import dataclass

from archsearch.dsl import Expression, Kind, Operand, Term
from archsearch.lowering import NormalForm


@dataclass(frozen=True, slots=True)
class Split:
    """`coefficient * product(gates) * vector`: the gates a head that all terms share, and the terms without them."""

    coefficient: float
    gates: tuple[Operand, ...]
    vector: Expression


def split(expression: Expression) -> Split:
    """`expression` with what scales whole rows taken out."""
    if not expression:
        return Split(0.0, (), ())
    shared = [gate for gate in expression[0].gates if gate.per == "head"]
    for term in expression[1:]:
        shared = _common(shared, term.gates)
    coefficient = expression[0].coefficient if len(expression) == 1 else 1.0
    rest = tuple(Term(term.coefficient / coefficient, _without(term.gates, shared), term.vector) for term in expression)
    return Split(coefficient, tuple(shared), rest)


def pointer(operand: Operand) -> str:
    """The kernel's parameter that holds an operand."""
    return f"x_{operand.name}"


def pointers_of(form: NormalForm) -> str:
    """All operands as parameters."""
    return ", ".join(pointer(operand) for operand in form.operands)


def vector_text(expression: Expression, here: str) -> str:
    """The tile [N, B] of an expression, in the operands' own dtype where nothing is computed."""
    text = " + ".join(_term_text(term, here) for term in expression)
    return f"({text})" if len(expression) > 1 else text


def scale_text(parts: Split, here: str) -> str:
    """The numbers [N] that scale the rows of an expression."""
    factors = [f"number({pointer(gate)}, token, {here}, head, HV)" for gate in parts.gates]
    if parts.coefficient != 1.0 or not factors:
        factors.append(literal(parts.coefficient))
    return " * ".join(factors)


def load_text(operand: Operand, token: str, here: str, channel: str) -> str:
    """The load of a tile [N, B] or, for a number a head, of [N]."""
    if operand.is_address:
        return f"address({pointer(operand)}, {token}, {here}, head, {channel}, H, HV, K)"
    if operand.per == "channel" or operand.kind is Kind.VALUE:
        size = "V" if operand.of == "value" else "K"
        return f"channels({pointer(operand)}, {token}, {here}, head, {channel}, HV, {size})"
    return f"number({pointer(operand)}, {token}, {here}, head, HV)"


def product_text(term: Term, names: dict[str, str], *, without: int | None = None, vector: bool = True) -> str:
    """The product of a term's factors under `names`; `without` leaves one gate out, `vector` False the vector."""
    factors = [names[gate.name] for i, gate in enumerate(term.gates) if i != without]
    if vector and term.vector is not None:
        factors.append(names[term.vector.name])
    if term.coefficient != 1.0:
        factors.append(literal(term.coefficient))
    return " * ".join(factors)


def _term_text(term: Term, here: str) -> str:
    assert term.vector is not None
    text = load_text(term.vector, "token", here, "channel")
    if term.gates or term.coefficient != 1.0:
        text += ".to(tl.float32)"
    for gate in term.gates:
        load = load_text(gate, "token", here, "channel")
        text += f" * {load}" + ("[:, None]" if gate.per == "head" else "")
    return text if term.coefficient == 1.0 else f"{text} * {literal(term.coefficient)}"


def _common(shared: list[Operand], gates: tuple[Operand, ...]) -> list[Operand]:
    rest = list(gates)
    return [gate for gate in shared if gate in rest and rest.remove(gate) is None]


def _without(gates: tuple[Operand, ...], shared: list[Operand]) -> tuple[Operand, ...]:
    rest = list(gates)
    for gate in shared:
        rest.remove(gate)
    return tuple(rest)


def literal(number: float) -> str:
    """A number as it stands in a product."""
    return f"({number!r})" if number < 0 else repr(number)
