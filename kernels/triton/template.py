"""Templates: text with `$holes`, and lines `#if flag`, `#else`, `#end` that keep or drop what stands between them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

TEMPLATES = Path(__file__).parent / "templates"
BREAK = re.compile(r"(?<!\[:, )(?<!\[None, )(?<=, )|(?<= )(?=\+ )")
HOLE = re.compile(r"\$(\w+)")


def filled(name: str, holes: Mapping[str, str], flags: Mapping[str, bool]) -> str:
    """templates/<name>.py.txt with its holes filled; one that is a line of its own takes several, indented as it is."""
    text = (TEMPLATES / f"{name}.py.txt").read_text(encoding="utf-8")
    return "\n".join(_filled_line(line, holes) for line in _kept(text.splitlines(), flags))


def _kept(lines: list[str], flags: Mapping[str, bool]) -> list[str]:
    """The lines whose enclosing conditions all hold."""
    kept: list[str] = []
    conditions: list[bool] = []
    for line in lines:
        if line.startswith("#if "):
            conditions.append(flags[line.removeprefix("#if ")])
        elif line == "#else":
            conditions[-1] = not conditions[-1]
        elif line == "#end":
            conditions.pop()
        elif all(conditions):
            kept.append(line)
    return kept


def _filled_line(line: str, holes: Mapping[str, str]) -> str:
    alone = re.fullmatch(r"( *)\$(\w+)", line)
    if alone:
        indent, text = alone[1], holes[alone[2]]
        return "\n".join(indent + part if part else part for part in text.splitlines())
    return HOLE.sub(lambda match: holes[match[1]], line)


def folded(line: str, width: int = 120) -> str:
    """A line of code in lines of at most `width`, broken inside brackets after commas and before +; no comments."""
    if len(line) <= width or line.lstrip().startswith(("#", '"')):
        return line
    inside = line.endswith(",")  # of brackets that an earlier line opened
    indent = " " * (len(line) - len(line.lstrip()) + (0 if inside else 8))
    lines = [""]
    for piece in _pieces(line, int(inside)):
        if lines[-1] and len(lines[-1]) + len(piece.rstrip()) > width:
            lines[-1] = lines[-1].rstrip()
            lines.append(indent)
        lines[-1] += piece
    return "\n".join(lines)


def _pieces(line: str, depth: int) -> list[str]:
    """A line cut where it may be broken; `depth` counts the brackets that are open at its start."""
    pieces = [""]
    for piece in re.split(BREAK, line):
        if depth > 0:
            pieces.append("")
        pieces[-1] += piece
        depth += sum(piece.count(c) for c in "([") - sum(piece.count(c) for c in ")]")
    return pieces
