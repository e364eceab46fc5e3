"""A rule as its equation: in Unicode for terminals and pages, in LaTeX for papers, and in one line for tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from archsearch.dsl import primitives as dsl
from archsearch.dsl.expressions import Expression, expand
from archsearch.dsl.operands import Operand
from archsearch.dsl.rule import Rule
from archsearch.errors import HoleError
from archsearch.lowering.normal_form import residual
from archsearch.lowering.notation import LATEX, UNICODE, Notation


def equation(rule: Rule) -> str:
    """One line a step in the order in which they act; Sₜ₋₁ enters the token, Sₜ leaves it.

    Errors: HoleError while holes are open.
    """
    lines = _lines(rule, UNICODE)
    width = max(len(left) for left, _ in lines)
    return "\n".join(f"{left:<{width}} = {right}" for left, right in lines)


def latex(rule: Rule) -> str:
    r"""The same as an `aligned` block, to stand between \[ and \]. Errors: HoleError while holes are open."""
    body = " \\\\\n".join(f"  {left} &= {right}" for left, right in _lines(rule, LATEX))
    return f"\\begin{{aligned}}\n{body}\n\\end{{aligned}}"


def one_line(rule: Rule) -> str:
    """The state's update as one product of factors; the read follows where it is not the usual one, Sₜᵀ q / √K.

    Errors: HoleError while holes are open.
    """
    _refuse_holes(rule)
    update, read = Nested(UNICODE.before, additive=False), ""
    for index, step in enumerate(rule.steps):
        if isinstance(step, dsl.Read):
            last = not any(not isinstance(later, dsl.Read) for later in rule.steps[index:])
            plain = step.scale is None and step.bonus is None and step.normaliser is None
            usual = last and plain and isinstance(step.address, Operand)
            state = UNICODE.after if last else update.factor
            read = "" if usual else f"; o = {_read(step, state, UNICODE)}"
        else:
            update = _nested(step, update, UNICODE)
    return f"{UNICODE.after} = {update.text}{read}"


@dataclass(frozen=True, slots=True)
class Nested:
    """A state as an expression of the one before the token; `additive` where a sum would need parentheses."""

    text: str
    additive: bool

    @property
    def factor(self) -> str:
        """Itself where it is multiplied from the left."""
        return f"({self.text})" if self.additive or " " in self.text else self.text

    @property
    def last_factor(self) -> str:
        """Itself as the last of several factors."""
        return f"({self.text})" if self.additive else self.text


def _lines(rule: Rule, notation: Notation) -> list[tuple[str, str]]:
    """(what is defined, its value) of every step."""
    _refuse_holes(rule)
    changes = sum(not isinstance(step, dsl.Read) for step in rule.steps)
    lines: list[tuple[str, str]] = []
    index = 0
    for step in rule.steps:
        state = notation.state(index, changes)
        if isinstance(step, dsl.Read):
            lines.append(("o", _read(step, state, notation)))
            continue
        index += 1
        lines.append((notation.state(index, changes), _changed(step, state, notation)))
    return lines


def _changed(step: Any, state: str, notation: Notation) -> str:
    if isinstance(step, dsl.Decay):
        return notation.product(_decay(step, notation), state)
    parts = [_rank_one(member, state, notation) for member in _members(step)]
    return notation.sum([(False, state), *parts])


def _rank_one(step: Any, state: str, notation: Notation) -> tuple[bool, str]:
    """(is subtracted, the term) that a write, a delta write or an erase adds to the state."""
    address, strength = expand(step.address), expand(step.strength)
    read = notation.before if getattr(step, "reads", None) == "previous" else state
    negative, scalar = _scalar(strength, notation)
    if isinstance(step, dsl.Erase):
        recalled = _recalled(read, address, notation)
        inner = notation.transposed(f"({recalled})")
        return not negative, notation.product(scalar, notation.factor(address), inner)
    target = expand(step.target)
    if isinstance(step, dsl.Write):
        return negative, notation.product(scalar, notation.factor(address), notation.transposed(notation.atom(target)))
    recalled = _recalled(read, residual(step), notation)
    if not target:
        inner = notation.transposed(f"({recalled})")
        return not negative, notation.product(scalar, notation.factor(address), inner)
    difference = f"({notation.expression(target)} {notation.minus} {recalled})"
    return negative, notation.product(scalar, notation.factor(address), notation.transposed(difference))


def _nested(step: Any, state: Nested, notation: Notation) -> Nested:
    if isinstance(step, dsl.Decay):
        return Nested(notation.product(_decay(step, notation), state.last_factor), additive=False)
    erased: list[tuple[bool, str]] = []
    added: list[tuple[bool, str]] = []
    for member in _members(step):
        address, (negative, scalar) = expand(member.address), _scalar(expand(member.strength), notation)
        left = notation.product(scalar, notation.factor(address))
        if not isinstance(member, dsl.Write):
            right = notation.transposed(notation.atom(address if isinstance(member, dsl.Erase) else residual(member)))
            if member.reads == "previous":
                added.append((not negative, notation.product(left, right, notation.before)))
            else:
                erased.append((not negative, notation.product(left, right)))
        if not isinstance(member, dsl.Erase) and (expand(member.target) or isinstance(member, dsl.Write)):
            added.append((negative, notation.product(left, notation.transposed(notation.atom(expand(member.target))))))
    transition = f"({notation.sum([(False, notation.identity), *erased])})" if erased else ""
    whole = notation.product(transition, state.last_factor) if transition else state.text
    return Nested(notation.sum([(False, whole), *added]), additive=bool(added) or (state.additive and not transition))


def _read(step: dsl.Read, state: str, notation: Notation) -> str:
    whole = _plain_read(step, state, notation)
    if step.normaliser is None:
        return whole
    return notation.quotient(whole, notation.number(step.normaliser))


def _plain_read(step: dsl.Read, state: str, notation: Notation) -> str:
    address = expand(step.address)
    text = _recalled(state, address, notation)
    if step.bonus is not None:
        parts = (
            notation.atom(address),
            notation.atom(expand(step.bonus.weight)),
            notation.atom(expand(step.bonus.address)),
        )
        text = f"{text} + {notation.product(notation.inner(parts), notation.factor(expand(step.bonus.target)))}"
    if step.scale == 1:
        return text
    whole = f"({text})" if step.bonus is not None else text
    return notation.over_root_k(whole) if step.scale is None else notation.product(notation.number(step.scale), whole)


def _recalled(state: str, address: Expression, notation: Notation) -> str:
    """What the state holds at an address."""
    return f"{notation.transposed(state)} {notation.factor(address)}"


def _decay(step: dsl.Decay, notation: Notation) -> str:
    given = step.log_decay
    if not isinstance(given, Operand):
        return notation.exp(notation.number(given))
    factor = notation.exp(notation.symbol(given.name))
    if given.sign is not None:
        joint = f" {notation.hadamard} " if given.per == "channel" else " "
        factor = f"{notation.symbol(given.sign.name)}{joint}{factor}"
    return notation.diag(factor) if given.per == "channel" else factor


def _scalar(strength: Expression, notation: Notation) -> tuple[bool, str]:
    """(is negative, the text without its sign) of a strength; 1 is left out."""
    if not strength:
        return False, "0"
    negative = strength[0].coefficient < 0
    text = notation.expression(strength).removeprefix(notation.minus)
    return negative, "" if text == "1" else text


def _members(step: Any) -> tuple[Any, ...]:
    return step.steps if isinstance(step, dsl.Simultaneous) else (step,)


def _refuse_holes(rule: Rule) -> None:
    if rule.holes:
        raise HoleError(
            f"rule {rule.name!r} has open holes: {', '.join(rule.holes)}. "
            "Fill them with archsearch.resolve(rule, choices) before asking for its equation"
        )
