"""The parts of a generated file that are the same for every rule, from templates/*.py.txt; `$name` is a hole."""

from __future__ import annotations

import io
import keyword
import token
import tokenize
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from string import Template

FOLDER = files("archsearch.mixers.export").joinpath("templates")

LOCALS = """
    add added address address_i before beta_ change end entering extra flip keep known leaving length lower operands output
    place present query reads recall residual scale scores sees solved state target weight written
""".split()


def template(name: str, **holes: str) -> str:
    """templates/<name>.py.txt with its holes filled, without the last newline."""
    text = FOLDER.joinpath(f"{name}.py.txt").read_text(encoding="utf-8").rstrip("\n")
    return Template(text).substitute(holes) if holes else text


@cache
def taken() -> frozenset[str]:
    """Every name that a generated file uses itself, so that no operand may have it."""
    names = set(LOCALS) | set(keyword.kwlist) | set(keyword.softkwlist)
    for entry in FOLDER.iterdir():
        if entry.name.endswith(".py.txt"):
            names |= set(_names(entry.read_text(encoding="utf-8").replace("$", "")))
    return frozenset(names)


def _names(text: str) -> Iterator[str]:
    for part in tokenize.generate_tokens(io.StringIO(text).readline):
        if part.type == token.NAME:
            yield part.string
