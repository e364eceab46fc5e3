"""The canonical form of a rule and its hash: two spellings of one rule agree, two different functions of the tokens
never do.

Each step is an identity of the recurrence: rows that do nothing and decays of 0 are dropped, a scalar decay moves left
past erases, plain writes join the rows before them, rows of one stage that write at one address add up, neighbouring
decays and the members of a stage are sets, scalar factors of a write move into its residual and target, operands are
renamed by first use. Queries and keys are one kind, addresses. Numbers count to 6 significant digits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import replace

from archsearch.dsl.expressions import Expression, Term
from archsearch.dsl.operands import Operand
from archsearch.dsl.rule import Rule
from archsearch.lowering.normal_form import Decay, NormalForm, Read, Row, lower, scaled

Step = tuple[Decay, ...] | tuple[Row, ...] | Read
Name = Callable[[Operand], str]


def rule_hash(rule: Rule) -> str:
    """SHA-256 of the canonical text. Errors: HoleError while holes are open."""
    return hashlib.sha256(canonical_text(lower(rule)).encode()).hexdigest()


def canonical_text(form: NormalForm) -> str:
    """The canonical form as text; neither the rule's name nor its operands' names appear in it."""
    program = _merged(_decays_left(_gathered(_program(form))))
    used = {operand.name for step in program for _, _, terms in _uses(step, _kind) for operand in _operands(terms)}
    return _smallest(program, {operand.name: _kind(operand) for operand in form.operands if operand.name in used})


def _smallest(program: list[Step], colors: dict[str, str]) -> str:
    """The text once every operand has a colour of its own. Operands that their uses do not tell apart are told apart in
    every way, and the smallest text counts: which of them was written first must not. Of those that colour the others
    alike one is tried: they stand for each other, as the steps of a product of many equal ones do.
    """
    colors = _stable(program, colors)
    tied = min((color for color in colors.values() if list(colors.values()).count(color) > 1), default=None)
    if tied is None:
        return _colored_text(program, colors)
    branches: dict[tuple[str, ...], dict[str, str]] = {}
    for name in (name for name, color in colors.items() if color == tied):
        branch = _stable(program, {**colors, name: f"{tied} first"})
        branches.setdefault(tuple(sorted(branch.values())), branch)
    return min(_smallest(program, branch) for branch in branches.values())


def _stable(program: list[Step], colors: dict[str, str]) -> dict[str, str]:
    """The colours refined until no more are told apart."""
    before = 0
    while len(set(colors.values())) > before:
        before = len(set(colors.values()))
        colors = _refined(program, colors)
    return colors


def _colored_text(program: list[Step], colors: dict[str, str]) -> str:
    names: dict[str, str] = {}

    def color(operand: Operand) -> str:
        return colors[operand.name]

    def name(operand: Operand) -> str:
        return names.setdefault(operand.name, f"{_kind(operand)}{len(names)}")

    return "\n".join(_step_text(step, color, name) for step in program)


def _program(form: NormalForm) -> list[Step]:
    """The token's steps in order; what changes nothing is left out, and so is `previous` where nothing came before."""
    program: list[Step] = []
    for step in form.program:
        untouched = all(isinstance(earlier, Read) for earlier in program)
        if isinstance(step, Read):
            program.append(step)
        elif isinstance(step, Decay):
            program += [(step,)] if step.log_decay != 0.0 or step.sign is not None else []
        elif rows := tuple(_folded(row) for row in step if row.write and (row.residual or row.target)):
            program.append(tuple(replace(row, previous=row.previous and not untouched) for row in rows))
    return program


def _joined(program: list[Step]) -> list[Step]:
    """Rows that do not look at the current state act together with the rows just before them: they add either way."""
    joined: list[Step] = []
    for step in program:
        rows = _rows(step)
        before = _rows(joined[-1]) if joined else ()
        if rows and before and all(row.previous or not row.residual for row in rows):
            joined[-1] = (*before, *rows)
        else:
            joined.append(step)
    return joined


def _gathered(program: list[Step]) -> list[Step]:
    """Rows joined, and those of one write added up, until nothing changes."""
    gathered = [summed for step in _joined(program) if (summed := _summed(step))]
    return program if gathered == program else _gathered(gathered)


def _summed(step: Step) -> Step:
    """Rows that act together and write at one address as one row, two where one of them reads the state before."""
    rows = _rows(step)
    if not rows:
        return step
    groups: dict[frozenset[Term], list[Row]] = {}
    for row in rows:
        groups.setdefault(frozenset(row.write), []).append(row)
    return tuple(row for group in groups.values() for row in _sum(group) if row.residual or row.target)


def _sum(group: list[Row]) -> list[Row]:
    """The rows of a group with their targets in the first of them."""
    target = _added([row.target for row in group])
    current = _added([row.residual for row in group if not row.previous])
    before = _added([row.residual for row in group if row.previous])
    one = replace(group[0], previous=not current and bool(before), residual=current or before, target=target)
    return [one, replace(one, previous=True, residual=before, target=())] if current and before else [one]


def _added(expressions: list[Expression]) -> Expression:
    """The sum, like terms merged and zeros dropped."""
    total: dict[tuple[tuple[Operand, ...], Operand | None], float] = {}
    for term in (term for expression in expressions for term in expression):
        total[term.gates, term.vector] = total.get((term.gates, term.vector), 0.0) + term.coefficient
    return tuple(Term(number, gates, vector) for (gates, vector), number in total.items() if number != 0.0)


def _folded(row: Row) -> Row:
    """The row with the scalar that all terms of its write share moved into residual and target."""
    shared = [gate for gate in row.write[0].gates if gate.per == "head"]
    for term in row.write[1:]:
        rest = list(term.gates)
        shared = [gate for gate in shared if gate in rest and rest.remove(gate) is None]
    coefficient = max((term.coefficient for term in row.write), key=lambda c: (abs(c), c))
    factor = (Term(coefficient, tuple(shared), None),)
    write = tuple(Term(term.coefficient / coefficient, _without(term.gates, shared), term.vector) for term in row.write)
    return replace(row, write=write, residual=scaled(row.residual, factor), target=scaled(row.target, factor))


def _without(gates: tuple[Operand, ...], shared: list[Operand]) -> tuple[Operand, ...]:
    rest = list(gates)
    for gate in shared:
        rest.remove(gate)
    return tuple(rest)


def _decays_left(program: list[Step]) -> list[Step]:
    """Scalar decays moved left past decays and past groups that only erase at the current state: they commute."""
    steps = list(program)
    for start in range(len(steps)):
        place = start
        while place > 0 and _commute(steps[place - 1], steps[place]):
            steps[place - 1], steps[place] = steps[place], steps[place - 1]
            place -= 1
    return steps


def _commute(left: Step, right: Step) -> bool:
    """Whether `right` is a scalar decay that gives the same before `left`: a decay, or rows that only erase."""
    decays = _decays(right)
    if not decays or decays[0].per_channel or isinstance(left, Read):
        return False
    return all(not row.target and not row.previous for row in _rows(left))


def _merged(program: list[Step]) -> list[Step]:
    """Neighbouring decays as one step; their numbers add."""
    merged: list[Step] = []
    for step in program:
        if merged and _decays(step) and _decays(merged[-1]):
            both = (*_decays(merged[-1]), *_decays(step))
            fixed = sum(decay.log_decay for decay in both if isinstance(decay.log_decay, float))
            merged[-1] = (
                *(d for d in both if isinstance(d.log_decay, Operand)),
                *((Decay(fixed, None),) if fixed else ()),
            )
        else:
            merged.append(step)
    return merged


def _refined(program: list[Step], colors: dict[str, str]) -> dict[str, str]:
    """Each operand's colour with its uses added: what tells operands apart without their names."""

    def color(operand: Operand) -> str:
        return colors[operand.name]

    uses: dict[str, list[str]] = {name: [] for name in colors}
    for index, step in enumerate(program):
        for member, role, expression in _uses(step, color):
            for term in expression:
                for operand in _operands((term,)):
                    uses[operand.name].append(f"{index} {member} {role} {_term_text(term, color, color)}")
    return {
        name: hashlib.sha256("|".join([colors[name], *sorted(uses[name])]).encode()).hexdigest()[:16] for name in colors
    }


def _operands(expression: Expression) -> tuple[Operand, ...]:
    return tuple(
        operand
        for term in expression
        for operand in (*term.gates, *((term.vector,) if term.vector is not None else ()))
    )


def _uses(step: Step, color: Name) -> Iterator[tuple[str, str, Expression]]:
    """(the member of the step as text, role, expression) of every expression in a step."""
    if isinstance(step, Read):
        whole = _step_text(step, color, color)
        yield whole, "q", step.address
        if step.bonus is not None:
            yield from (
                (whole, "bonus", step.bonus.weight),
                (whole, "bonus", step.bonus.address),
                (whole, "bonus u", step.bonus.target),
            )
    for decay in _decays(step):
        operands = [("g", decay.log_decay), ("sign", decay.sign)]
        yield from (
            ("decay", role, (Term(1.0, (), operand),)) for role, operand in operands if isinstance(operand, Operand)
        )
    for row in _rows(step):
        whole = _row_text(row, color, color)
        yield from ((whole, "b", row.write), (whole, "a", row.residual), (whole, "u", row.target))


def _step_text(step: Step, color: Name, name: Name) -> str:
    if isinstance(step, Read):
        scale = "default" if step.scale is None else _number(step.scale)
        extra = ""
        if step.bonus is not None:
            pair = sorted(
                (step.bonus.weight, step.bonus.address), key=lambda expression: _text(expression, color, color)
            )
            first, second = (_text(part, color, name) for part in pair)
            extra = f" bonus {first} * {second} | {_text(step.bonus.target, color, name)}"
        return f"read {_text(step.address, color, name)} scale {scale}{_normaliser(step)}{extra}"
    if decays := _decays(step):
        return " ".join(
            _decay_text(decay, name) for decay in sorted(decays, key=lambda decay: _decay_text(decay, color))
        )
    return " & ".join(
        _row_text(row, color, name) for row in sorted(_rows(step), key=lambda row: _row_text(row, color, color))
    )


def _normaliser(read: Read) -> str:
    return "" if read.normaliser is None else f" normaliser {_number(read.normaliser)}"


def _row_text(row: Row, color: Name, name: Name) -> str:
    mark = "previous " if row.previous and row.residual else ""
    return f"{mark}({' | '.join(_text(part, color, name) for part in (row.write, row.residual, row.target))})"


def _decay_text(decay: Decay, name: Name) -> str:
    number = name(decay.log_decay) if isinstance(decay.log_decay, Operand) else _number(decay.log_decay)
    return f"decay {number}" + ("" if decay.sign is None else f" sign {name(decay.sign)}")


def _text(expression: Expression, color: Name, name: Name) -> str:
    return " + ".join(
        _term_text(term, color, name) for term in sorted(expression, key=lambda term: _term_text(term, color, color))
    )


def _term_text(term: Term, color: Name, name: Name) -> str:
    operands = sorted(_operands((term,)), key=color)
    return "*".join([_number(term.coefficient), *(name(operand) for operand in operands)])


def _decays(step: Step) -> tuple[Decay, ...]:
    return tuple(member for member in step if isinstance(member, Decay)) if isinstance(step, tuple) else ()


def _rows(step: Step) -> tuple[Row, ...]:
    return tuple(member for member in step if isinstance(member, Row)) if isinstance(step, tuple) else ()


def _kind(operand: Operand) -> str:
    return f"{'address' if operand.is_address else operand.kind.value}.{operand.per}.{operand.of}"


def _number(number: float) -> str:
    return f"{number:.6g}"
