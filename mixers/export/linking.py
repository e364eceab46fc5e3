"""Modules as text in one namespace: imports fall away, and what two of them define under one name is told apart."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from importlib.resources import files


@dataclass(frozen=True, slots=True)
class Source:
    """A module without its imports.

    parts: modules of its package whose names it takes; modules: those that it uses by their name. foreign: (module,
    name) of everything else that it imports, the name None where it imports a whole module.
    """

    name: str
    text: str
    parts: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    foreign: tuple[tuple[str, str | None], ...] = ()

    @classmethod
    def of(cls, name: str, text: str, package: str = "-") -> Source:
        """From the text of a file."""
        imports = [node for node in ast.parse(text).body if isinstance(node, ast.Import | ast.ImportFrom)]
        start = max((node.end_lineno or 0 for node in imports), default=0)
        parts: list[str] = []
        modules: list[str] = []
        foreign: list[tuple[str, str | None]] = []
        for node in imports:
            if isinstance(node, ast.Import):
                foreign += [(alias.name, None) for alias in node.names]
            elif node.module == package:
                modules += [alias.name for alias in node.names]
            elif str(node.module).startswith(f"{package}."):
                parts.append(str(node.module).removeprefix(f"{package}."))
            else:
                foreign += [(str(node.module), alias.name) for alias in node.names]
        body = "\n".join(text.splitlines()[start:]).strip("\n")
        return cls(name, body, tuple(parts), tuple(modules), tuple(foreign))


def sources(package: str, entry: str, answered: Collection[str]) -> list[Source]:
    """The module `entry` of a package and all of the package that it needs, each after what it needs itself.

    answered: modules that are left out.
    """
    found: dict[str, Source] = {}

    def visit(name: str) -> None:
        if name in found or name in answered:
            return
        text = files(package).joinpath(f"{name}.py").read_text(encoding="utf-8")
        source = Source.of(name, text, package)
        for needed in (*source.parts, *source.modules):
            visit(needed)
        found[name] = source

    visit(entry)
    return list(found.values())


def defined_in(text: str) -> list[str]:
    """Functions, classes and variables that stand at the left edge of a text."""
    names: list[str] = []
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.append(node.name)
        elif isinstance(node, ast.Assign):
            names += [target.id for target in node.targets if isinstance(target, ast.Name)]
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.append(node.target.id)
    return [name for name in dict.fromkeys(names) if name != "_"]


def linked(texts: Sequence[Source], taken: Collection[str]) -> list[str]:
    """The modules' texts, one after another; a name that is there already gets its module's name in front.

    After a module that others use by its name stands that name as a namespace.
    """
    known = set(taken)
    result: list[str] = []
    asked = "\n".join(source.text for source in texts)
    by_name = {module for source in texts for module in source.modules}
    for source in texts:
        text = source.text
        names: dict[str, str] = {}
        for name in defined_in(source.text):
            apart = f"{'_' if name.startswith('_') else ''}{source.name}_{name.lstrip('_')}"
            names[name] = name if name not in known else apart
            if names[name] != name:
                text = re.sub(rf'(?<![\w.:"]){name}\b(?!\s*=[^=])', names[name], text)
        known |= set(names.values())
        if source.name in by_name:
            wanted = {name for name in names if re.search(rf"\b{source.name}\.{name}\b", asked)}
            entries = ", ".join(f"{name}={names[name]}" for name in names if name in wanted)
            text += f"\n\n\n{source.name} = SimpleNamespace({entries})"
        result.append(text)
    return result
