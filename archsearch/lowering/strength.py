"""A row's strength apart from its addresses: S <- S + write s (z - R^T x)^T."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from archsearch.dsl.expressions import Expression, Term
from archsearch.dsl.operands import Operand
from archsearch.lowering.normal_form import Row


@dataclass(frozen=True, slots=True)
class Factored:
    """strength: a number times gates a head, without a vector. residual, target: x and z, what is left of the row's."""

    strength: Term
    residual: Expression
    target: Expression


def factored(row: Row) -> Factored:
    """The number of the first term, and the gates a head that residual and target have in common, taken out of both."""
    strength = _strength(row)
    return Factored(strength, _divided(row.residual, strength), _divided(row.target, strength))


def _strength(row: Row) -> Term:
    terms = (*row.residual, *row.target)
    if not terms:
        return Term(1.0, (), None)
    common = Counter(gate for gate in terms[0].gates if gate.per == "head")
    for term in terms[1:]:
        common &= Counter(term.gates)
    return Term(terms[0].coefficient, tuple(common.elements()), None)


def _divided(expression: Expression, by: Term) -> Expression:
    return tuple(Term(term.coefficient / by.coefficient, _without(term, by), term.vector) for term in expression)


def _without(term: Term, by: Term) -> tuple[Operand, ...]:
    return tuple((Counter(term.gates) - Counter(by.gates)).elements())
