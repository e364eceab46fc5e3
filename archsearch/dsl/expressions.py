"""Expressions: sums and products of operands and numbers, and their expanded form."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from archsearch.dsl.printing import Show, by_name
from archsearch.errors import RuleError
from archsearch.holes import is_hole

if TYPE_CHECKING:
    from archsearch.dsl.operands import Operand


class Algebra:
    """What operands and expressions share: + and - between them, * with numbers and gates."""

    __slots__ = ()

    def __add__(self, other: Any) -> Sum:
        return Sum((self, _part(other)))

    def __radd__(self, other: Any) -> Sum:
        return Sum((_part(other), self))

    def __sub__(self, other: Any) -> Sum:
        return Sum((self, Product((-1.0, _part(other)))))

    def __rsub__(self, other: Any) -> Sum:
        return Sum((_part(other), Product((-1.0, self))))

    def __mul__(self, other: Any) -> Product:
        return Product((self, _part(other)))

    def __rmul__(self, other: Any) -> Product:
        return Product((_part(other), self))

    def __neg__(self) -> Product:
        return Product((-1.0, self))


class Stateful:
    """What depends on S: operators, comparisons and functions of torch, NumPy and math refuse it by name."""

    __slots__ = ()

    def __add__(self, other: Any) -> Sum:
        return _part(self)

    __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __pow__ = __rpow__ = __add__
    __matmul__ = __rmatmul__ = __lt__ = __le__ = __gt__ = __ge__ = __add__

    def __neg__(self) -> Product:
        return _part(self)

    __abs__ = __neg__

    def __float__(self) -> float:
        return _part(self)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, given: Any, named: Any = None) -> Any:
        """torch asks here for what its function `function` gives of arguments that are no tensors."""
        raise _not_affine(_among([*given, *(named or {}).values()]), function.__name__)

    def __array_ufunc__(self, ufunc: Any, method: str, *given: Any, **named: Any) -> Any:
        """So does NumPy."""
        raise _not_affine(self, ufunc.__name__)


@dataclass(frozen=True, slots=True)
class Sum(Algebra):
    """The sum of its terms."""

    terms: tuple[Any, ...]

    def render(self, show: Show) -> str:
        """Itself as code."""
        text = show(self.terms[0])
        for term in self.terms[1:]:
            negative = isinstance(term, Product) and term.factors[0] == -1.0
            text += f" - {_subtracted(term.factors[1:], show)}" if negative else f" + {_inner(term, Sum, show)}"
        return text

    def __str__(self) -> str:
        return by_name(self)


@dataclass(frozen=True, slots=True)
class Product(Algebra):
    """The product of its factors."""

    factors: tuple[Any, ...]

    def render(self, show: Show) -> str:
        """Itself as code."""
        first, *others = self.factors
        rest = [_inner(factor, Sum | Product, show) for factor in others]
        return f"-{' * '.join(rest)}" if first == -1.0 and rest else " * ".join([_inner(first, Sum, show), *rest])

    def __str__(self) -> str:
        return by_name(self)


@dataclass(frozen=True, slots=True)
class Term:
    """coefficient x the product of `gates` x `vector`; without a vector it is a scalar. Gates are sorted by name; one
    may stand twice.
    """

    coefficient: float
    gates: tuple[Operand, ...]
    vector: Operand | None


Expression = tuple[Term, ...]
"""The sum of its terms; `()` is zero."""


def expand(value: Any) -> Expression:
    """`value` (an operand, number, Sum or Product without holes) as a sum of terms; like terms are merged and zeros
    dropped.

    Errors: RuleError when two vectors are multiplied, when something that is no expression stands in it, or when its
    numbers overflow.
    """
    merged: dict[tuple[tuple[Operand, ...], Operand | None], float] = {}
    for term in _terms(value):
        merged[term.gates, term.vector] = merged.get((term.gates, term.vector), 0.0) + term.coefficient
    if not all(math.isfinite(coefficient) for coefficient in merged.values()):
        raise RuleError(f"the numbers of an expression must stay finite when multiplied out; got {by_name(value)}")
    return tuple(
        Term(coefficient, gates, vector) for (gates, vector), coefficient in merged.items() if coefficient != 0.0
    )


def operands_of(value: Any) -> tuple[Operand, ...]:
    """The operands of an expression, in the order in which they are written."""
    if isinstance(value, Sum):
        return tuple(operand for term in value.terms for operand in operands_of(term))
    if isinstance(value, Product):
        return tuple(operand for factor in value.factors for operand in operands_of(factor))
    return (value,) if isinstance(value, Algebra) else ()  # type: ignore[return-value]


def _terms(value: Any) -> Expression:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return (Term(float(value), (), None),)
    if isinstance(value, Sum):
        return tuple(term for part in value.terms for term in _terms(part))
    if isinstance(value, Product):
        result: Expression = (Term(1.0, (), None),)
        for factor in value.factors:
            result = tuple(_times(left, right, value) for left in result for right in _terms(factor))
        return result
    from archsearch.dsl.operands import Operand

    if isinstance(value, Operand):
        return (Term(1.0, (value,), None) if value.is_gate else Term(1.0, (), value),)
    raise RuleError(f"an expression is made of operands and numbers; got {by_name(value)}")


def _times(left: Term, right: Term, whole: Product) -> Term:
    if left.vector is not None and right.vector is not None:
        raise RuleError(
            f"a product holds at most one address, value or log decay; got {whole} with {left.vector} and "
            f"{right.vector}. Multiply by gates"
        )
    gates = tuple(sorted((*left.gates, *right.gates), key=lambda operand: operand.name))
    return Term(left.coefficient * right.coefficient, gates, left.vector or right.vector)


def _part(value: Any) -> Any:
    if isinstance(value, Algebra) or is_hole(value):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    if isinstance(value, Stateful):
        raise _not_affine(value)
    raise RuleError(f"{by_name(value)} cannot stand in an expression: only operands, finite numbers and holes can")


def _not_affine(value: Any, through: str = "") -> RuleError:
    """The refusal of what depends on S, or of a function `through` of it, with the place where it was written."""
    what, where = by_name(value), getattr(value, "where", None)
    of, at = f"{through} of " if through else "", f" at {where}" if where else ""
    return RuleError(
        f"{of}{what}{at} cannot stand in an expression: it depends on S through {through or what}, so the rule is not "
        "affine in the state. Use operands alone"
    )


def _among(given: Iterable[Any]) -> Stateful:
    """What depends on S among the arguments of a call and the members of those that are lists."""
    lists = (cast("list[Any]", one) if isinstance(one, list | tuple) else [one] for one in given)
    members = (each for held in lists for each in held)
    return next(each for each in members if isinstance(each, Stateful))


def _subtracted(factors: tuple[Any, ...], show: Show) -> str:
    """What stands after a minus sign: a single product needs no brackets there."""
    return _inner(factors[0], Sum, show) if len(factors) == 1 else show(Product(factors))


def _inner(part: Any, bracketed: Any, show: Show) -> str:
    """A part of a sum or product, in brackets where reading it back would group it otherwise."""
    return f"({show(part)})" if isinstance(part, bracketed) else show(part)
