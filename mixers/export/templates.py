"""The parts of a generated file that are the same for every rule, from templates/*.py.txt; `$name` is a hole."""

from __future__ import annotations

import builtins
import keyword
import re
from functools import cache
from importlib.resources import files
from string import Template

from archsearch.mixers.export.linking import Source, defined_in
from archsearch.mixers.export.scan_text import scan_names

FOLDER = files("archsearch.mixers.export").joinpath("templates")

LOCALS = (
    "added",
    "address",
    "alpha",
    "before",
    "cache",
    "chunk",
    "columns",
    "cu_seqlens",
    "end",
    "entering",
    "extra",
    "flip",
    "gate",
    "group",
    "head",
    "keep",
    "known",
    "leaving",
    "length",
    "lower",
    "mixed",
    "n",
    "o",
    "operands",
    "own",
    "output",
    "place",
    "positions",
    "present",
    "query",
    "raw",
    "reads",
    "residual",
    "scale",
    "scores",
    "sees",
    "self",
    "sizes",
    "solved",
    "spare",
    "state",
    "step",
    "target",
    "weight",
    "written",
    "x",
    "F",
    "Path",
    "Tensor",
    "json",
    "math",
    "nn",
    "sys",
    "torch",
)
SHARED = ("attending",)
"""Modules of the layer's floor that a generated file may carry; see `shared`."""

TOP_LEVEL = re.compile(r"^(?:def|class) (\w+)", re.MULTILINE)


def template(name: str, /, **holes: str) -> str:
    """templates/<name>.txt with its holes filled, without the last newline; a name without an ending is Python."""
    text = FOLDER.joinpath(f"{name}.txt" if "." in name else f"{name}.py.txt").read_text(encoding="utf-8").rstrip("\n")
    return Template(text).substitute(holes) if holes else text


def shared(name: str) -> str:
    """A module of the layer's floor that needs torch alone, as it stands there, without its imports."""
    text = files("archsearch.mixers.layer").joinpath(f"{name}.py").read_text(encoding="utf-8")
    return Source.of(name, text).text.replace("@dataclass(slots=True)", "@dataclass")


def definitions(text: str) -> set[str]:
    """Functions and classes that stand at the left edge of a text."""
    return set(TOP_LEVEL.findall(text))


@cache
def defined() -> frozenset[str]:
    """Every function and class that a generated file may define itself, its kernels aside."""
    texts = (entry.read_text(encoding="utf-8") for entry in FOLDER.iterdir() if entry.name.endswith(".py.txt"))
    names = {"Operands", "Mixer", "token", "spread", "chunkwise", "longer", "mix", "unnormalised"}
    return frozenset(names.union(*map(definitions, texts), *map(defined_in, map(shared, SHARED)), scan_names()))


def taken() -> frozenset[str]:
    """Every name that stands beside the operands in a generated function, so that no operand may have it."""
    return defined().union(LOCALS, keyword.kwlist, keyword.softkwlist, dir(builtins))
