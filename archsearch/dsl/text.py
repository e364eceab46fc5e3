"""A rule as code, and back: `rule_code` prints, `parse_rule` reads without running anything."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from archsearch import holes
from archsearch.dsl import operands, primitives
from archsearch.dsl.printing import as_code
from archsearch.errors import RuleError

if TYPE_CHECKING:
    from archsearch.dsl.operands import Operand
    from archsearch.dsl.rule import Rule

WIDTH = 100


def rule_code(name: str, steps: tuple[Any, ...]) -> str:
    """`Rule("name", step, ...)` with every operand written where it stands; one step a line when it is long."""
    parts = [f'"{name}"', *(as_code(step) for step in steps)]
    line = f"Rule({', '.join(parts)})"
    return line if len(line) <= WIDTH else "Rule(\n    " + ",\n    ".join(parts) + ",\n)"


def parse_rule(text: str) -> Rule:
    """The rule that `str(rule)` printed. Only calls of the language, numbers, strings and arithmetic are understood.

    Errors: RuleError that names what is not understood.
    """
    rule = parse_part(text, {})
    from archsearch.dsl.rule import Rule

    if not isinstance(rule, Rule):
        raise RuleError(f"a rule's text must be one expression Rule(...); got {text.strip()[:60]!r}")
    return rule


def parse_part(text: str, given: Mapping[str, Operand]) -> Any:
    """An expression of the language, as a step `delta_write(k, v, strength=beta)`, with operands by their names.

    Errors: RuleError that names what is not understood.
    """
    from archsearch.dsl.rule import Rule

    try:
        tree = ast.parse(text.strip(), mode="eval")
    except SyntaxError as error:
        raise RuleError(
            f"a rule's text must be one expression Rule(...); got a syntax error in line {error.lineno}: {error.msg}"
        ) from None
    names: dict[str, Any] = {name: getattr(operands, name) for name in KINDS}
    names |= {name: getattr(primitives, name) for name in PRIMITIVES}
    names |= {name: getattr(holes, name) for name in ("one_of", "optional", "uniform", "log_uniform", "integer")}
    return _value(tree.body, {**names, "Rule": Rule, **given})


KINDS = ("query", "key", "value", "gate", "channel_gate", "log_decay")
PRIMITIVES = ("decay", "erase", "delta_write", "write", "simultaneous", "query_feedback", "bonus", "read")


def _value(node: ast.expr, names: dict[str, Any]) -> Any:
    """What an expression of the language stands for. Errors: RuleError, those of the language itself included."""
    try:
        return _understood(node, names)
    except TypeError as error:
        raise RuleError(f"{ast.unparse(node)[:60]!r} in a rule's text: {error}") from None


def _understood(node: ast.expr, names: dict[str, Any]) -> Any:
    match node:
        case ast.Constant():
            return node.value
        case ast.Name(id=name) if isinstance(names.get(name), operands.Operand):
            return names[name]
        case ast.Tuple(elts=steps):
            return tuple(_value(step, names) for step in steps)
        case ast.UnaryOp(op=ast.USub()):
            return -_value(node.operand, names)
        case ast.BinOp(op=ast.Add()):
            return _value(node.left, names) + _value(node.right, names)
        case ast.BinOp(op=ast.Sub()):
            return _value(node.left, names) - _value(node.right, names)
        case ast.BinOp(op=ast.Mult()):
            return _value(node.left, names) * _value(node.right, names)
        case ast.Call(func=ast.Name(id=name)) if name in names and all(keyword.arg for keyword in node.keywords):
            positional = [_value(argument, names) for argument in node.args]
            keywords = {str(keyword.arg): _value(keyword.value, names) for keyword in node.keywords}
            return names[name](*positional, **keywords)
        case _:
            raise RuleError(
                f"a rule's text holds calls of the language, numbers and arithmetic; got {ast.unparse(node)[:60]!r}"
            )
