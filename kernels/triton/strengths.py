"""Strengths moved to the writes: b (s u - S^T s a)^T = (s b) (u - S^T a)^T.

Then the gradient that reaches a row's target is that of the value itself, the gradient of s is the product of the write
address with its own gradient, and T keeps a unit diagonal whatever the strengths are.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import lru_cache, reduce

from archsearch.dsl import Operand, Term
from archsearch.lowering import NormalForm, Row
from archsearch.lowering.normal_form import scaled


@lru_cache(maxsize=1024)
def at_writes(form: NormalForm) -> NormalForm:
    """The form with what scales residual and target of a row alike in its write; the recurrence is the same."""
    return replace(form, rows=tuple(_moved(row) for row in form.rows))


def _moved(row: Row) -> Row:
    terms = (*row.residual, *row.target)
    if not terms:
        return row
    gates = [Counter(gate for gate in term.gates if gate.per == "head") for term in terms]
    shared = reduce(Counter[Operand].__and__, gates)
    coefficients = {term.coefficient for term in terms}
    coefficient = coefficients.pop() if len(coefficients) == 1 else 1.0
    factor = (Term(coefficient, _sorted(shared), None),)
    return replace(
        row,
        write=scaled(row.write, factor),
        residual=tuple(_divided(term, coefficient, shared) for term in row.residual),
        target=tuple(_divided(term, coefficient, shared) for term in row.target),
    )


def _divided(term: Term, coefficient: float, shared: Counter[Operand]) -> Term:
    return Term(term.coefficient / coefficient, _sorted(Counter(term.gates) - shared), term.vector)


def _sorted(gates: Counter[Operand]) -> tuple[Operand, ...]:
    return tuple(sorted(gates.elements(), key=lambda gate: gate.name))


def plain_targets(form: NormalForm) -> dict[str, int]:
    """The values whose gradient is the gradient of one row's target, as it is, and that row; empty unless all are."""
    found: dict[str, int] = {}
    values = [term.vector for row in form.rows for term in row.target]
    if form.read.bonus is not None:
        values += [term.vector for term in form.read.bonus.target]
    for r, row in enumerate(form.rows):
        for term in row.target:
            assert term.vector is not None
            if len(row.target) > 1 or term != Term(1.0, (), term.vector) or values.count(term.vector) > 1:
                return {}
            found[term.vector.name] = r
    return found if len(found) == len(values) else {}
