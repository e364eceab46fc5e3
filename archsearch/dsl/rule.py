"""A rule: named steps, in the order in which they act on the state of one token."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from archsearch.dsl.expressions import Algebra, operands_of
from archsearch.dsl.operands import Operand
from archsearch.dsl.primitives import Bonus, Decay, DeltaWrite, Erase, QueryFeedback, Read, Simultaneous, Write
from archsearch.dsl.printing import by_name
from archsearch.dsl.text import rule_code
from archsearch.errors import RuleError
from archsearch.holes import Hole, has_holes, holes, is_hole


@dataclass(frozen=True, slots=True, init=False)
class Rule:
    """An update rule as data: frozen, hashable, printable. `Rule("q_delta", decay(g), delta_write(k, v, strength=beta),
    read(q))`.

    Steps act in the order in which they stand; exactly one reads. A tuple of steps stands for its steps, so that one
    option of a hole may be several. A rule with holes is a search space; checks that need
    the holes filled are made when they are.

    Errors: RuleError for no or several reads, nothing that writes, one name for two operands, or a step that is none.
    """

    name: str = field(metadata={"path": False})
    steps: tuple[Any, ...] = field(metadata={"path": False})

    def __init__(self, name: str, *parts: Any, steps: tuple[Any, ...] = ()) -> None:
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "steps", tuple(_flat((*parts, *steps))))
        if not (isinstance(name, str) and name.isidentifier()):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise RuleError(f'a rule\'s name must be an identifier; got {by_name(name)}. Write Rule("name", step, ...)')
        _check_steps(self)
        _check_names(self)

    @property
    def operands(self) -> dict[str, Operand]:
        """Every tensor that a call takes, by name, in the order of first use; of a rule with holes, over all its
        options.
        """
        found: dict[str, Operand] = {}
        for operand in _operands(self.steps):
            found.setdefault(operand.name, operand)
            if operand.sign is not None:
                found.setdefault(operand.sign.name, operand.sign)
        return found

    @property
    def holes(self) -> dict[str, Hole]:
        """The open holes by path; empty when the rule can be compiled."""
        return holes(self)

    @property
    def hash(self) -> str:
        """SHA-256 of the canonical form: two spellings of one rule agree. Errors: HoleError while holes are open."""
        from archsearch.lowering.canonical import rule_hash

        return rule_hash(self)

    def __str__(self) -> str:
        return rule_code(self.name, self.steps)


def _flat(steps: tuple[Any, ...]) -> Iterator[Any]:
    for step in steps:
        if isinstance(step, tuple):
            yield from _flat(step)  # pyright: ignore[reportUnknownArgumentType]
        else:
            yield step


def _check_steps(rule: Rule) -> None:
    for step in rule.steps:
        if not (isinstance(step, Decay | Erase | DeltaWrite | Write | Simultaneous | Read) or is_hole(step)):
            raise RuleError(
                f"rule {rule.name!r} is made of steps (decay, erase, delta_write, write, simultaneous, read); "
                f"got {step}"
            )
    if any(is_hole(step) for step in rule.steps):
        return
    reads = sum(isinstance(step, Read) for step in rule.steps)
    if reads != 1:
        advice = "Add read(q)" if reads == 0 else "Keep one"
        raise RuleError(f"rule {rule.name!r} must read exactly once; got {reads} reads. {advice}")
    if not any(isinstance(step, Erase | DeltaWrite | Write | Simultaneous) for step in rule.steps):
        raise RuleError(f"rule {rule.name!r} never changes the state; add a write, a delta_write or an erase")


def _check_names(rule: Rule) -> None:
    """One name is one operand; the branches of a hole may differ, since only one of them is taken."""
    if has_holes(rule.steps):
        return
    seen: dict[str, Operand] = {}
    for operand in _operands(rule.steps):
        for each in (operand, operand.sign):
            if each is not None and seen.setdefault(each.name, each) != each:
                both = f"{seen[each.name].code} and {each.code}"
                raise RuleError(f"rule {rule.name!r} uses {each.name!r} for two operands: {both}. Rename one")


def _operands(node: Any) -> Iterator[Operand]:
    if isinstance(node, Algebra):
        for operand in operands_of(node):
            yield from (operand,) if isinstance(operand, Operand) else _operands(operand)  # pyright: ignore[reportUnnecessaryIsInstance]
    elif isinstance(node, tuple):
        for child in node:  # pyright: ignore[reportUnknownVariableType]
            yield from _operands(child)
    elif is_hole(node):
        yield from _operands(getattr(node, "options", ()))
    elif isinstance(node, Decay | Erase | DeltaWrite | Write | Simultaneous | Read | QueryFeedback | Bonus):
        for f in dataclasses.fields(node):
            yield from _operands(getattr(node, f.name))
