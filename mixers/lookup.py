"""From what a user types to a rule: a name of the zoo, `path/to/file.py` (its RULE), or `path/to/file.py:NAME`."""

from pathlib import Path
from shlex import quote

from archsearch.dsl import Rule
from archsearch.errors import RuleError
from archsearch.mixers.models.partner_counts import PARTNERS, Partner
from archsearch.mixers.zoo import UnknownRuleError, rules
from archsearch.userfile import load_value, names_a_file


def names_of(rule: Rule) -> tuple[str, ...]:
    """The names in the zoo of this very rule, however it is written. Errors: HoleError while holes are open."""
    return tuple(name for name in rules if rules[name].hash == rule.hash)


def find_rule(text: str) -> Rule:
    """The rule that `text` names.

    Raises RuleError in one line: an unknown name with the nearest known one, a file that is missing, fails, or holds no
    rule.
    """
    if names_a_file(text):
        return load_value(text, Rule, default="RULE", error=RuleError)
    if text.endswith((".yaml", ".yml")):
        raise RuleError(
            f"a rule is a name of the zoo or path/to/file.py[:NAME]; {text} is YAML: archsearch study run takes a "
            "study's, archsearch train a trial's, archsearch show a space's"
        )
    if (Path(text) / "study.json").is_file():
        raise RuleError(
            f"a rule is a name of the zoo or path/to/file.py[:NAME]; {text} is a study's directory: "
            f"archsearch study best {quote(text)}"
        )
    try:
        return rules[text]
    except UnknownRuleError as error:
        raise RuleError(f"{error}; or give path/to/file.py[:NAME]") from None


def find_layer(text: str) -> Partner | None:
    """The layer of a pattern that `text` names, if it is one and no rule."""
    return next((partner for partner in PARTNERS if partner == text), None)
