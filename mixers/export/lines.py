"""Lines of generated Python, laid out as `ruff format` would at the project's width."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from archsearch.dsl import Expression, Operand

WIDTH = 120


class Names:
    """Operands as variables: their own names, but for those that the generated file uses itself."""

    def __init__(self, operands: Iterable[Operand], taken: Collection[str]) -> None:
        self._of: dict[str, str] = {}
        for operand in operands:
            name = operand.name if not operand.name.startswith("_") else f"x{operand.name}"
            while name in taken or name in self._of.values():
                name += "_"
            self._of[operand.name] = name

    def __getitem__(self, operand: Operand) -> str:
        return self._of[operand.name]

    @property
    def all(self) -> tuple[str, ...]:
        """Every variable, in the order of the operands."""
        return tuple(self._of.values())


def terms(expression: Expression, names: Names) -> list[str]:
    """The signed terms of a sum: `["beta * k", "- 0.5 * q"]`; none for zero."""
    texts: list[str] = []
    for term in expression:
        factors = [names[gate] for gate in term.gates] + ([] if term.vector is None else [names[term.vector]])
        size = abs(term.coefficient)
        product = " * ".join([*([] if size == 1.0 and factors else [repr(size)]), *factors])
        sign = ("-" if term.coefficient < 0 else "") if not texts else ("- " if term.coefficient < 0 else "+ ")
        texts.append(sign + product)
    return texts


def assign(target: str, signed: Sequence[str], indent: int = 4) -> str:
    """`target = term + term`, in parentheses when it is longer than a line."""
    space, whole = " " * indent, " ".join(signed)
    if len(line := f"{space}{target} = {whole}") <= WIDTH:
        return line
    inner = [whole] if len(whole) + indent + 4 <= WIDTH else list(signed)
    return "\n".join([f"{space}{target} = (", *(f"{space}    {part}" for part in inner), f"{space})"])


@dataclass(frozen=True, slots=True)
class Group:
    """A bracket: `before` ends in the opening one, `after` starts with the closing one."""

    before: str
    parts: tuple[Group | str, ...]
    after: str

    def __str__(self) -> str:
        return f"{self.before}{', '.join(map(str, self.parts))}{self.after}"


def laid_out(node: Group | str, indent: int = 4, tail: str = "") -> list[str]:
    """On one line, or what is in the brackets on the next, or each part on lines of its own."""
    space, flat = " " * indent, f"{node}{tail}"
    if isinstance(node, str) or indent + len(flat) <= WIDTH:
        return [space + flat]
    joined = ", ".join(map(str, node.parts))
    if len(node.parts) == 1:
        body = laid_out(node.parts[0], indent + 4)
    elif indent + 4 + len(joined) <= WIDTH and node.before[-1] == "(":
        body = [f"{space}    {joined}"]
    else:
        body = [line for part in node.parts for line in laid_out(part, indent + 4, ",")]
    return [space + node.before, *body, f"{space}{node.after}{tail}"]


def call(before: str, arguments: Sequence[str], after: str = ")", indent: int = 4) -> str:
    """A group of plain arguments as text."""
    return "\n".join(laid_out(Group(before, tuple(arguments), after), indent))


def unpacked(names: Sequence[str], source: str, indent: int = 4) -> str:
    """`a, b = source`; one name is unpacked as `(a,) = source`."""
    if len(names) == 1:
        return f"{' ' * indent}({names[0]},) = {source}"
    space, joined, before = " " * indent, ", ".join(names), source.partition("(")[0]
    if len(line := f"{space}{joined} = {source}") <= WIDTH:
        return line
    if before != source and len(first := f"{space}({joined}) = {before}(") <= WIDTH:
        return "\n".join([first, f"{space}    {source[len(before) + 1 : -1]}", f"{space})"])
    return "\n".join([f"{space}(", *(f"{space}    {name}," for name in names), f"{space}) = {source}"])
