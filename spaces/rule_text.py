"""A rule as plain data: a name, a text, or its steps with holes among them.

rule: gated_delta_net
rule: {one_of: [gated_delta_net, kda, mine.py]}
rule:
  name: mine
  operands: {q: query, k: key, v: value, g: log_decay, c: 'log_decay("c", per="channel")', beta: gate}
  steps:
    - {one_of: {none: null, scalar: decay(g), channel: decay(c)}, name: decay}
    - delta_write(k, v, strength=beta, residual=one_of(none=None, fixed=query_feedback(q, 0.5), name="residual"))
    - read(q)
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from archsearch.dsl import Operand, Rule, parse_rule
from archsearch.dsl.text import KINDS, parse_part
from archsearch.errors import ConfigError, RuleError
from archsearch.holes import as_word, is_label, one_of, optional
from archsearch.mixers.lookup import find_rule

KEYS = ("name", "operands", "steps")


def read_rule_text(given: object, where: str) -> Any:
    """The rule, or the hole of whole rules, that plain data describes; `where` names their source in errors.

    Errors: ConfigError for data of another form; RuleError for what is no rule; HoleError for a bad hole.
    """
    if isinstance(given, str):
        return parse_rule(given) if given.lstrip().startswith("Rule(") else find_rule(given)
    if not isinstance(given, Mapping):
        raise ConfigError(f"rule must be a name, a text or a mapping of {', '.join(KEYS)}; got {given!r} in {where}")
    mapping = {str(key): value for key, value in cast(Mapping[object, object], given).items()}
    if "one_of" in mapping:
        return _rules(mapping, where)
    unknown = [key for key in mapping if key not in KEYS]
    if unknown or "steps" not in mapping:
        what = f"got {unknown[0]!r}" if unknown else "steps are missing"
        raise ConfigError(f"rule must be a mapping of {', '.join(KEYS)}, or of one_of; {what} in {where}")
    operands = _operands(mapping.get("operands", {}), where)
    steps = _list(mapping["steps"], "rule.steps", where)
    parsed = tuple(_step(step, operands, f"rule.steps[{i}]", where) for i, step in enumerate(steps))
    return Rule(str(mapping.get("name", "rule")), *parsed)


def _rules(mapping: Mapping[str, object], where: str) -> Any:
    """One of several whole rules; a name labels itself, a file its stem."""
    extra = [key for key in mapping if key not in ("one_of", "name")]
    if extra:
        raise ConfigError(f"rule must be one_of with a name if you like; got {extra[0]!r} beside it in {where}")
    options = mapping["one_of"]
    if isinstance(options, Mapping):
        given = list(cast(Mapping[object, object], options).items())
    else:
        given = [(Path(str(option)).stem, option) for option in _list(options, "rule.one_of", where)]
    options = _labelled(given, "rule.one_of", where)
    rules = {label: read_rule_text(option, where) for label, option in options.items()}
    return one_of(**rules, name=cast("str | None", mapping.get("name")))


def _labelled(given: Iterable[tuple[object, object]], key: str, where: str) -> dict[str, object]:
    """Options by label. ConfigError for a label that a path or a rule's text could not hold, or that stands twice."""
    found: dict[str, object] = {}
    for label, option in given:
        text = str(label)
        if text == "name":
            raise ConfigError(f"a label must not be name, which is the hole's own; got {key}.name in {where}")
        if not is_label(text):
            raise ConfigError(
                f"a label must be a word of letters, digits and _; got {text!r} of {key} in {where}; "
                f"write one_of: {{{as_word(text)}: {option}}}"
            )
        if text in found:
            raise ConfigError(
                f"options need different labels; got {text!r} twice of {key} in {where}; "
                "write one_of: {first: ..., second: ...}"
            )
        found[text] = option
    return found


def _operands(given: object, where: str) -> dict[str, Operand]:
    if not isinstance(given, Mapping):
        raise ConfigError(f"rule.operands must be a mapping of names; got {given!r} in {where}")
    found: dict[str, Operand] = {}
    for name, text in cast(Mapping[object, object], given).items():
        code = f"{text}({str(name)!r})" if text in KINDS else str(text)
        try:
            operand = parse_part(code, {})
        except RuleError:
            operand = None
        if not isinstance(operand, Operand) or operand.name != name:
            kinds = ", ".join(KINDS)
            raise ConfigError(f"rule.operands.{name} must be one of {kinds}, or such a call; got {text!r} in {where}")
        found[str(name)] = operand
    return found


def _step(given: object, operands: Mapping[str, Operand], key: str, where: str) -> Any:
    """A step, several of them, none (null), or a hole of such."""
    if given is None:
        return None
    if isinstance(given, str):
        return _parsed(given, operands, key, where)
    if isinstance(given, list | tuple):
        return tuple(_step(part, operands, key, where) for part in cast(Sequence[object], given))
    mapping = cast(Mapping[str, object], given) if isinstance(given, Mapping) else dict[str, object]()
    kind = next((kind for kind in ("one_of", "optional") if kind in mapping), None)
    if kind is None or set(mapping) - {kind, "name"}:
        raise ConfigError(f"{key} must be a step as text, or one_of or optional of such; got {given!r} in {where}")
    name = cast("str | None", mapping.get("name"))
    if kind == "optional":
        return optional(_step(mapping["optional"], operands, f"{key}.optional", where), name=name)
    if not isinstance(mapping["one_of"], Mapping):
        raise ConfigError(f"{key}.one_of must label its steps, one_of: {{first: ..., second: ...}}, in {where}")
    given = cast(Mapping[object, object], mapping["one_of"])
    options = _labelled(given.items(), f"{key}.one_of", where)
    steps = {label: _step(step, operands, f"{key}.one_of.{label}", where) for label, step in options.items()}
    return one_of(**steps, name=name)


def _parsed(text: str, operands: Mapping[str, Operand], key: str, where: str) -> Any:
    try:
        return parse_part(text, operands)
    except RuleError as error:
        raise RuleError(f"{key} in {where}: {error}") from error


def _list(given: object, key: str, where: str) -> list[object]:
    if not isinstance(given, list | tuple) or not given:
        raise ConfigError(f"{key} must be a list of one or more; got {given!r} in {where}")
    return list(cast(Sequence[object], given))
