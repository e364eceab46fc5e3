"""From what a user types to a rule: a name of the zoo, `path/to/file.py` (its RULE), or `path/to/file.py:NAME`."""

from difflib import get_close_matches

from archsearch.dsl import Rule
from archsearch.errors import RuleError
from archsearch.mixers.zoo import rules
from archsearch.userfile import load_value, names_a_file


def find_rule(text: str) -> Rule:
    """The rule that `text` names.

    Raises RuleError in one line: an unknown name with the nearest known one, a file that is missing, fails, or holds no
    rule.
    """
    if names_a_file(text):
        return load_value(text, Rule, default="RULE", error=RuleError)
    if text not in rules:
        nearest = "".join(f"; did you mean {name}?" for name in get_close_matches(text, rules, n=1))
        known = ", ".join(rules)
        raise RuleError(f"unknown rule {text!r}{nearest or '.'} The zoo: {known}; or give path/to/file.py[:NAME]")
    return rules[text]
