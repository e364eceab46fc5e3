"""The zoo: every rule by name. The table registers; a rule's module is imported when it is first asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from importlib import import_module

from archsearch.dsl import Rule
from archsearch.errors import RuleError
from archsearch.mixers.refused import REFUSED

NAMES = (
    "linear",
    "linear_attention",
    "retnet",
    "simple_gla",
    "mamba2",
    "mlstm",
    "gla",
    "delta_net",
    "gated_delta_net",
    "kda",
    "gdn2",
    "q_delta",
    "eda",
    "eda_scalar",
    "eda_q_delta",
    "gated_delta_product",
)
ALIASES = {"gdn": "gated_delta_net"}


class UnknownRuleError(RuleError, KeyError):
    """A name that is not in the zoo; a KeyError too, as of any mapping."""

    __str__ = RuleError.__str__  # a KeyError would quote its message


class RefusedRuleError(RuleError, KeyError):
    """A name that is known and refused, with the reason; see `archsearch.mixers.refused`."""

    __str__ = RuleError.__str__


class Zoo(Mapping[str, Rule]):
    """Rules by name, read-only. Aliases are found and not listed."""

    def __getitem__(self, name: str) -> Rule:
        name = ALIASES.get(name, name)
        if name in REFUSED:
            raise RefusedRuleError(f"{name!r} cannot be a rule here: {REFUSED[name]}")
        if name not in NAMES:
            nearest = "".join(f"; did you mean {match}?" for match in get_close_matches(name, [*NAMES, *ALIASES], n=1))
            raise UnknownRuleError(f"unknown rule {name!r}{nearest or '.'} The zoo: {', '.join(NAMES)}")
        return import_module(f"archsearch.mixers.{name}").RULE

    def __iter__(self) -> Iterator[str]:
        return iter(NAMES)

    def __len__(self) -> int:
        return len(NAMES)


rules: Mapping[str, Rule] = Zoo()
