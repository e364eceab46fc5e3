"""The normal form: one token's program as decay points, rank-one rows and a read.

Row i acts as S <- S + write_i (target_i - R_i^T residual_i)^T. Strengths are folded into residual and target. G_i, the
log decay accumulated up to the place of row i, counts every earlier token whole and the first `decays` points of its
own token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from archsearch.dsl import primitives as dsl
from archsearch.dsl.expressions import Expression, Term, expand
from archsearch.dsl.operands import Kind, Operand
from archsearch.dsl.rule import Rule
from archsearch.errors import HoleError, RuleError


@dataclass(frozen=True, slots=True)
class Decay:
    """S <- sign exp(log_decay) S; a number where the rule fixes it."""

    log_decay: Operand | float
    sign: Operand | None

    @property
    def per_channel(self) -> bool:
        """Whether each key channel decays on its own."""
        return isinstance(self.log_decay, Operand) and self.log_decay.per == "channel"


@dataclass(frozen=True, slots=True)
class Row:
    """S <- S + write (target - R^T residual)^T.

    Rows of one `stage` act together: R is the state at the stage's entry, or S_{t-1} for `previous`. `decays` of the
    token's decay points act before this row. An empty residual is a plain write, an empty target an erase.
    """

    stage: int
    decays: int
    previous: bool
    write: Expression
    residual: Expression
    target: Expression


@dataclass(frozen=True, slots=True)
class Bonus:
    """(sum_c q[c] weight[c] address[c]) target, added before the scale; q is the read's address."""

    weight: Expression
    address: Expression
    target: Expression


@dataclass(frozen=True, slots=True)
class Read:
    """o = scale S^T address, after the rows of stages < `stage` and the first `decays` decay points.

    normaliser: the state has one column more, for values of 1; o is divided by max(abs of it, normaliser).
    """

    stage: int
    decays: int
    address: Expression
    bonus: Bonus | None
    scale: float | None
    normaliser: float | None = None


@dataclass(frozen=True, slots=True)
class NormalForm:
    """A rule taken apart; `operands` are the tensors of a call in order of first use."""

    name: str
    operands: tuple[Operand, ...]
    decays: tuple[Decay, ...]
    rows: tuple[Row, ...]
    read: Read

    @property
    def decay_kind(self) -> str:
        """`none`, `scalar` or `channel`."""
        if not self.decays:
            return "none"
        return "channel" if any(decay.per_channel for decay in self.decays) else "scalar"

    def columns(self, value_dim: int) -> int:
        """Columns of the state: V, and one more for a normaliser."""
        return value_dim + (self.read.normaliser is not None)

    @property
    def program(self) -> tuple[Decay | tuple[Row, ...] | Read, ...]:
        """One token's steps in order: decays, groups of rows that act together, the read."""
        steps: list[Decay | tuple[Row, ...] | Read] = []
        stages = 1 + max([row.stage for row in self.rows] or [-1])
        for place in range(len(self.decays) + 1):
            for stage in range(stages + 1):
                if (self.read.decays, self.read.stage) == (place, stage):
                    steps.append(self.read)
                if group := tuple(row for row in self.rows if (row.decays, row.stage) == (place, stage)):
                    steps.append(group)
            steps += self.decays[place : place + 1]
        return tuple(steps)

    def __str__(self) -> str:
        lines = [f"{self.name}({', '.join(operand.name for operand in self.operands)})"]
        lines += [f"  decay {i}: {_decay_text(decay)}" for i, decay in enumerate(self.decays)]
        for i, row in enumerate(self.rows):
            place = f"stage {row.stage}, after {row.decays} decays{', reads S_(t-1)' if row.previous else ''}"
            lines.append(
                f"  row {i} ({place}): b = {text(row.write)} | a = {text(row.residual)} | u = {text(row.target)}"
            )
        return "\n".join([*lines, f"  {_read_text(self.read)}"])


def lower(rule: Rule) -> NormalForm:
    """The normal form of a rule without holes.

    Errors: HoleError that lists the open holes.
    """
    if rule.holes:
        paths = ", ".join(rule.holes)
        raise HoleError(f"rule {rule.name!r} has open holes: {paths}. Fill them with archsearch.resolve(rule, choices)")
    decays: list[Decay] = []
    rows: list[Row] = []
    read: Read | None = None
    stage = 0
    for step in rule.steps:
        if isinstance(step, dsl.Decay):
            decays.append(_decay(step))
        elif isinstance(step, dsl.Read):
            read = Read(stage, len(decays), expand(step.address), _bonus(step.bonus), step.scale, step.normaliser)
        else:
            members = step.steps if isinstance(step, dsl.Simultaneous) else (step,)
            rows += [_row(member, stage, len(decays)) for member in members]
            stage += 1
    if read is None:
        raise RuleError(f"rule {rule.name!r} must read exactly once; got 0 reads. Add read(q)")
    return verify(NormalForm(rule.name, tuple(rule.operands.values()), tuple(decays), tuple(rows), read))


def verify(form: NormalForm) -> NormalForm:
    """`form` itself, once what every later pass relies on holds of it."""
    places = [(row.stage, row.decays) for row in form.rows]
    for i, row in enumerate(form.rows):
        if not (0 <= row.decays <= len(form.decays)):
            raise RuleError(
                f"row {i} of {form.name!r} stands after {row.decays} decay points; there are {len(form.decays)}"
            )
        for expression, vectors in ((row.write, "address"), (row.residual, "address"), (row.target, "value")):
            _verify_vectors(form.name, expression, vectors)
    _verify_vectors(form.name, form.read.address, "address")
    _verify_normaliser(form)
    if places != sorted(places):
        raise RuleError(f"the rows of {form.name!r} must stand in the order in which they act")
    return form


def text(expression: Expression) -> str:
    """An expression as text; zero is `0`."""
    whole = ""
    for term in expression:
        part = _term_text(term)
        sign = "-" if part.startswith("-") else "+"
        whole += f" {sign} {part.removeprefix('-')}" if whole else part
    return whole or "0"


def scaled(expression: Expression, factor: Expression) -> Expression:
    """The product of an expression and a scalar, which has one term or none."""
    return tuple(
        Term(
            term.coefficient * by.coefficient,
            tuple(sorted((*term.gates, *by.gates), key=lambda gate: gate.name)),
            term.vector,
        )
        for term in expression
        for by in factor
    )


def _decay(step: dsl.Decay) -> Decay:
    given = step.log_decay
    return Decay(given, given.sign) if isinstance(given, Operand) else Decay(float(given), None)


def _row(step: Any, stage: int, decays: int) -> Row:
    address = expand(step.address)
    strength = expand(step.strength)
    previous = getattr(step, "reads", None) == "previous"
    if isinstance(step, dsl.Erase):
        return Row(stage, decays, previous, address, scaled(address, strength), ())
    target = scaled(expand(step.target), strength)
    if isinstance(step, dsl.Write):
        return Row(stage, decays, False, address, (), target)
    return Row(stage, decays, previous, address, scaled(residual(step), strength), target)


def residual(step: dsl.DeltaWrite) -> Expression:
    """The address at which a delta write recalls: its own, that plus the query feedback, or the one given."""
    if step.residual is None:
        return expand(step.address)
    if isinstance(step.residual, dsl.QueryFeedback):
        return expand(step.address + step.residual.lam * step.residual.address)
    return expand(step.residual)


def _bonus(given: dsl.Bonus | None) -> Bonus | None:
    return None if given is None else Bonus(expand(given.weight), expand(given.address), expand(given.target))


def _verify_vectors(name: str, expression: Expression, kind: str) -> None:
    for term in expression:
        fits = term.vector is not None and (
            term.vector.is_address if kind == "address" else term.vector.kind is Kind.VALUE
        )
        if not fits:
            raise RuleError(f"the normal form of {name!r} needs {kind} terms; got {_term_text(term)}")


def _verify_normaliser(form: NormalForm) -> None:
    """A column of ones needs values to stand beside, and no gate a channel."""
    if form.read.normaliser is None:
        return
    if not any(operand.kind is Kind.VALUE for operand in form.operands):
        raise RuleError(
            f"the normaliser of rule {form.name!r} needs a value that is written; there is none. Add a write"
        )
    gate = next((o for o in form.operands if o.kind is Kind.CHANNEL_GATE and o.of == "value"), None)
    if gate is not None:
        raise RuleError(
            f"the normaliser of rule {form.name!r} counts what is written, and {gate.name!r} gates each value channel "
            "on its own: there is no one count. Use a gate per head, or leave the normaliser out"
        )


def _term_text(term: Term) -> str:
    names = [gate.name for gate in term.gates] + ([term.vector.name] if term.vector else [])
    if names and abs(term.coefficient) == 1.0:
        return ("-" if term.coefficient < 0 else "") + " ".join(names)
    return " ".join([f"{term.coefficient:g}", *names])


def _read_text(read: Read) -> str:
    scale = "K^-0.5" if read.scale is None else f"{read.scale:g}"
    line = f"read (before stage {read.stage}, after {read.decays} decays): q = {text(read.address)}, scale {scale}"
    if read.normaliser is not None:
        line += f", normaliser max(|n|, {read.normaliser:g})"
    if read.bonus is None:
        return line
    return f"{line}, bonus ({text(read.bonus.weight)}, {text(read.bonus.address)}, {text(read.bonus.target)})"


def _decay_text(decay: Decay) -> str:
    sign = "" if decay.sign is None else f"{decay.sign.name} "
    return f"{sign}exp({decay.log_decay})"
