"""Pieces of generated code: helper functions, and rows put together from the rows of a token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

Part = TypeVar("Part")


def function(name: str, parameters: str, doc: str, lines: Sequence[str]) -> str:
    """A helper of a generated module."""
    body = "\n".join("    " + line for line in lines)
    return f'@triton.jit\ndef {name}({parameters}):\n    """{doc}"""\n{body}'


def sum_text(terms: Sequence[str]) -> str:
    """A sum, in brackets where it has several terms, so that its line can be broken."""
    return f"({' + '.join(terms)})" if len(terms) > 1 else "".join(terms)


def by_row(parts: Sequence[Part | None], zero: str, text: Callable[[Part, str], str]) -> list[str]:
    """Lines that return `rows`, summed from what each row of a token contributes to its own rows; `zero` for none."""
    given = [(r, part) for r, part in enumerate(parts) if part is not None]
    if not given:
        return [f"return {zero}"]
    if len(parts) == 1:
        return [f"return {text(given[0][1], 'here')}"]
    lines: list[str] = []
    for r, part in given:
        lines.append(f"mine = here & (sub == {r})")
        lines.append(f"rows {'+=' if len(lines) > 1 else '='} {text(part, 'mine')}")
    return [*lines, "return rows"]
