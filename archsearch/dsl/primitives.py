"""The primitives: what a step does to the state S (K x V), as frozen data that checks the kinds of what it is given."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import PurePath
from typing import Any

from archsearch.dsl.expressions import Algebra, Expression, Stateful, expand
from archsearch.dsl.operands import Kind, Operand
from archsearch.dsl.printing import Show, by_name
from archsearch.errors import RuleError
from archsearch.holes import has_holes, is_hole


@dataclass(frozen=True, slots=True)
class Decay(Stateful):
    """S <- exp(g) S: `log_decay` is a log-decay operand or a number <= 0."""

    log_decay: Any
    where: str | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if is_hole(self.log_decay):
            return
        if isinstance(self.log_decay, Operand):
            if self.log_decay.kind is not Kind.LOG_DECAY:
                raise _refusal(self, "log_decay", "decay needs a log decay", 'use log_decay("g")')
        elif isinstance(self.log_decay, Stateful):
            raise _not_affine(self, "log_decay", "decay")
        elif not _is_number(self.log_decay) or self.log_decay > 0:
            raise _refusal(
                self,
                "log_decay",
                "decay needs a log-decay operand or a number <= 0",
                "give the natural log of the decay",
            )

    def render(self, show: Show) -> str:
        """Itself as code."""
        return f"decay({show(self.log_decay)})"

    def __str__(self) -> str:
        return by_name(self)


@dataclass(frozen=True, slots=True)
class Erase(Stateful):
    """S <- S - strength e (S^T e)^T at the address e."""

    address: Any
    strength: Any = 1.0
    reads: str | None = None
    where: str | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        _check_address(self, "address", "use a key, or write(k, v) to add a value")
        _check_strength(self)
        _check_reads(self)

    def render(self, show: Show) -> str:
        """Itself as code."""
        return _call(show, "erase", self, self.address)

    def __str__(self) -> str:
        return by_name(self)


@dataclass(frozen=True, slots=True)
class QueryFeedback:
    """As `residual=`: the address of the write plus lam q."""

    address: Any
    lam: Any

    def __post_init__(self) -> None:
        _check_address(self, "address", "use a query")
        _check_gate(self, "lam", "query_feedback")

    def render(self, show: Show) -> str:
        """Itself as code."""
        return f"query_feedback({show(self.address)}, {show(self.lam)})"

    def __str__(self) -> str:
        return by_name(self)


@dataclass(frozen=True, slots=True)
class DeltaWrite(Stateful):
    """S <- S + strength k (v - S^T x)^T; x is the address unless `residual` says otherwise."""

    address: Any
    target: Any
    strength: Any = 1.0
    residual: Any = None
    reads: str | None = None
    where: str | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        _check_address(self, "address", "use a key")
        _check_target(self)
        _check_strength(self)
        if not isinstance(self.residual, QueryFeedback | None):
            _check_address(self, "residual", "use query_feedback(q, lam) or an address such as b * k")
        _check_reads(self)

    def render(self, show: Show) -> str:
        """Itself as code."""
        return _call(show, "delta_write", self, self.address, self.target)

    def __str__(self) -> str:
        return by_name(self)


@dataclass(frozen=True, slots=True)
class Write(Stateful):
    """S <- S + strength k v^T: no residual."""

    address: Any
    target: Any
    strength: Any = 1.0
    where: str | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        _check_address(self, "address", "use a key")
        _check_target(self)
        _check_strength(self)

    def render(self, show: Show) -> str:
        """Itself as code."""
        return _call(show, "write", self, self.address, self.target)

    def __str__(self) -> str:
        return by_name(self)


@dataclass(frozen=True, slots=True)
class Simultaneous(Stateful):
    """Writes, delta writes and erases that all read the state at its entry."""

    steps: tuple[Any, ...] = field(metadata={"path": False})
    where: str | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if has_holes(self.steps):
            return
        allowed = all(isinstance(step, Erase | DeltaWrite | Write) for step in self.steps)
        if not allowed or not self.steps:
            raise _refusal(
                self,
                None,
                "simultaneous holds writes, delta writes or erases and nothing else",
                "put decays and reads outside",
            )

    def render(self, show: Show) -> str:
        """Itself as code."""
        return f"simultaneous({', '.join(show(step) for step in self.steps)})"

    def __str__(self) -> str:
        return by_name(self)


@dataclass(frozen=True, slots=True)
class Bonus:
    """As `bonus=` of a read: adds (sum_c q[c] u[c] k[c]) v to the output, before the scale (RWKV-6)."""

    weight: Any
    address: Any
    target: Any

    def __post_init__(self) -> None:
        _check_address(self, "weight", "use a key")
        _check_address(self, "address", "use a key")
        _check_target(self)

    def render(self, show: Show) -> str:
        """Itself as code."""
        return f"bonus({show(self.weight)}, {show(self.address)}, {show(self.target)})"

    def __str__(self) -> str:
        return by_name(self)


@dataclass(frozen=True, slots=True)
class Read(Stateful):
    """o = S^T q times the scale (K ** -0.5 unless the rule or the call says otherwise), of the state at this place in
    the order; with a normaliser o / max(abs(n^T q), normaliser), n of values that are 1, scaled alike.
    """

    address: Any
    scale: Any = None
    bonus: Any = None
    normaliser: Any = None
    where: str | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        _check_address(self, "address", "use a query")
        if not (self.scale is None or is_hole(self.scale) or _is_number(self.scale)):
            raise _refusal(
                self, "scale", "the scale of a read is a number", "write scale=1.0, or leave it out for K ** -0.5"
            )
        if not (self.bonus is None or is_hole(self.bonus) or isinstance(self.bonus, Bonus)):
            raise _refusal(self, "bonus", "the bonus of a read is a bonus", "write bonus=bonus(u, k, v)")
        bound = self.normaliser
        if not (bound is None or is_hole(bound) or (_is_number(bound) and bound > 0)):
            needs, advice = "the normaliser of a read is a number > 0", "write normaliser=1.0, or leave it out"
            raise _refusal(self, "normaliser", needs, advice)

    def render(self, show: Show) -> str:
        """Itself as code."""
        return _call(show, "read", self, self.address)

    def __str__(self) -> str:
        return by_name(self)


POSITIONAL = ("address", "target", "log_decay")
"""The arguments that are written without their names."""

Step = Decay | Erase | DeltaWrite | Write | Simultaneous | Read


def decay(log_decay: Any, *others: Any) -> Decay:
    """S <- exp(g) S. `log_decay`: a log-decay operand, or a number <= 0. RuleError for several."""
    if others:
        given = ", ".join(_described(each) for each in (log_decay, *others))
        raise RuleError(f"decay takes one log decay; got {given}. Give each a decay of its own: their logs add")
    return Decay(log_decay, _caller())


def erase(address: Any, *, strength: Any = 1.0, reads: str | None = None) -> Erase:
    """S <- S - strength e (R^T e)^T. `reads="previous"`: R is the state before this token; else the state at this
    place.
    """
    return Erase(address, strength, reads, _caller())


def delta_write(
    address: Any, target: Any, *, strength: Any = 1.0, residual: Any = None, reads: str | None = None
) -> DeltaWrite:
    """S <- S + strength k (v - R^T x)^T. x is `address`, that plus lam q (`residual=query_feedback(q, lam)`), or
    another address expression.
    """
    return DeltaWrite(address, target, strength, residual, reads, _caller())


def write(address: Any, target: Any, *, strength: Any = 1.0) -> Write:
    """S <- S + strength k v^T."""
    return Write(address, target, strength, _caller())


def simultaneous(*steps: Any) -> Simultaneous:
    """Two or more writes, delta writes or erases that all read the state at its entry; their rank-one terms add."""
    if len(steps) < 2:
        raise RuleError(f"simultaneous needs two steps or more; got {len(steps)}. A single step needs no group")
    return Simultaneous(steps, _caller())


def query_feedback(address: Any, lam: Any) -> QueryFeedback:
    """The residual address of a delta write: its address plus lam q (Q-Delta, arXiv 2606.08804, Eq. 19)."""
    return QueryFeedback(address, lam)


def bonus(weight: Any, address: Any, target: Any) -> Bonus:
    """(sum_c q[c] u[c] k[c]) v, added to the output of a read (RWKV-6, arXiv 2404.05892)."""
    return Bonus(weight, address, target)


def read(address: Any, *, scale: Any = None, bonus: Any = None, normaliser: Any = None) -> Read:
    """o = scale S^T q of the state at this place in the order. The scale of a call overrides this one; the default is K
    ** -0.5. normaliser, a number > 0: o / max(abs(scale n^T q), normaliser), where n is one more column of the state,
    into which every value writes 1 (linear attention 2006.16236, Eq. 16; mLSTM 2405.04517, Eqs. 20-21).
    """
    return Read(address, scale, bonus, normaliser, _caller())


def _check_address(step: Any, name: str, advice: str) -> None:
    _check(step, name, "an address of shape [B, T, H, K]", advice, lambda vector: vector.is_address, "key")


def _check_target(step: Any) -> None:
    _check(
        step,
        "target",
        "a value of shape [B, T, HV, V]",
        "use a value",
        lambda vector: vector.kind is Kind.VALUE,
        "value",
    )


def _check(step: Any, name: str, needs: str, advice: str, fits: Callable[[Operand], bool], of: str) -> None:
    given = getattr(step, name)
    if has_holes(given):
        return
    for term in _expanded(step, name, needs, advice):
        gates_fit = all(gate.kind is Kind.GATE or gate.of == of for gate in term.gates)
        if term.vector is None or not fits(term.vector) or not gates_fit:
            raise _refusal(step, name, f"{_verb(step)} needs {needs}", advice)


def _check_strength(step: Any) -> None:
    _check_gate(step, "strength", _verb(step))


def _check_gate(step: Any, name: str, what: str) -> None:
    given = getattr(step, name)
    if has_holes(given):
        return
    needs = f"a {name} that is a number, a gate or their product"
    terms = _expanded(step, name, needs, 'use gate("beta")')
    if (
        any(term.vector is not None or any(gate.kind is not Kind.GATE for gate in term.gates) for term in terms)
        or len(terms) > 1
    ):
        raise _refusal(step, name, f"{what} needs {needs}", 'use gate("beta")')


def _check_reads(step: Any) -> None:
    if step.reads not in (None, "previous") and not is_hole(step.reads):
        raise _refusal(
            step,
            "reads",
            "reads is 'previous' (the state before this token) or left out",
            "write reads='previous' or nothing",
        )


def _expanded(step: Any, name: str, needs: str, advice: str) -> Expression:
    given = getattr(step, name)
    if isinstance(given, Stateful):
        raise _not_affine(step, name, _verb(step))
    if not (isinstance(given, Algebra) or _is_number(given)):
        raise _refusal(step, name, f"{_verb(step)} needs {needs}", advice)
    return expand(given)


def _not_affine(step: Any, name: str, verb: str) -> RuleError:
    reason = f"{verb} is not affine in the state: its {name} depends on S through {getattr(step, name)}"
    return _refusal(step, name, reason, "use operands alone; such a rule has no chunkwise form")


def _refusal(step: Any, name: str | None, must: str, advice: str) -> RuleError:
    """The error with the step as code and a caret under the argument that is wrong."""
    code = by_name(step)
    given = None if name is None else getattr(step, name)
    came = "" if name is None else f"; got {_described(given)}"
    column = 0 if name is None else _column(step, name, code)
    where = getattr(step, "where", None)
    place = f"{where}  " if where else ""
    return RuleError(f"{must}{came}\n  {place}{code}\n  {' ' * (len(place) + column)}^\n  {advice}")


def _column(step: Any, name: str, code: str) -> int:
    """Where the argument `name` stands in the code of the step; its start where the argument is not written."""
    named = f", {name}="
    if isinstance(step, QueryFeedback | Bonus) or name in POSITIONAL:
        before = itertools.takewhile(lambda f: f.name != name, fields(step))
        return code.find("(") + 1 + sum(len(by_name(getattr(step, f.name))) + len(", ") for f in before)
    return code.find(named) + len(named) if named in code else 0


def _described(given: Any) -> str:
    if isinstance(given, Operand):
        return f"{given.code} with shape {given.shape}"
    return by_name(given)


def _verb(step: Any) -> str:
    return {
        Erase: "erase",
        DeltaWrite: "delta_write",
        Write: "write",
        Read: "read",
        QueryFeedback: "query_feedback",
        Bonus: "bonus",
    }[type(step)]


def _is_number(given: Any) -> bool:
    return isinstance(given, int | float) and not isinstance(given, bool) and math.isfinite(given)


def _call(show: Show, name: str, step: Any, *arguments: Any) -> str:
    """A step as code, defaults left out."""
    parts = [show(argument) for argument in arguments]
    for f in fields(step):
        given = getattr(step, f.name)
        if f.name not in (*POSITIONAL, "where") and given is not None and not (f.name == "strength" and given == 1.0):
            parts.append(f"{f.name}={show(given)}")
    return f"{name}({', '.join(parts)})"


def _caller() -> str | None:
    """folder/file:line of the code that wrote the step; None when it was read from a rule's text."""
    code = sys._getframe(2)  # pyright: ignore[reportPrivateUsage]
    if code.f_globals.get("__name__") == "archsearch.dsl.text":
        return None
    path = PurePath(code.f_code.co_filename)
    return f"{'/'.join(path.parts[-2:])}:{code.f_lineno}"
