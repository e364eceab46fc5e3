"""The zoo: every rule by name. The table registers; a rule's module is imported when it is first asked for."""

from __future__ import annotations

import re
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
    "mamba3",
    "gla",
    "hgrn2",
    "rwkv6",
    "delta_net",
    "gated_delta_net",
    "kaczmarz",
    "implicit",
    "exact_ode",
    "kda",
    "ckda",
    "gdn2",
    "qed",
    "q_delta",
    "eda",
    "eda_scalar",
    "eda_joint",
    "eda_q_delta",
    "delta_product",
    "gated_delta_product",
    "comba",
    "rwkv7",
    "dplr",
    "iplr",
    "precond_gdn",
    "precond_kda",
    "shifted",
)
ALIASES = {"gdn": "gated_delta_net"}
FAMILY = re.compile(r"(gated_)?delta_product([1-9]\d?)")
"""`delta_product3`, `gated_delta_product5`: rules of as many writes a token, up to 99."""


class UnknownRuleError(RuleError, KeyError):
    """A name that is not in the zoo; a KeyError too, as of any mapping."""

    __str__ = RuleError.__str__  # a KeyError would quote its message


class RefusedRuleError(RuleError, KeyError):
    """The name of a published rule that is none here; a KeyError too, as of any mapping."""

    __str__ = RuleError.__str__


class Zoo(Mapping[str, Rule]):
    """Rules by name, read-only. Aliases and families are found and not listed."""

    def __getitem__(self, name: object) -> Rule:
        if not isinstance(name, str):
            raise UnknownRuleError(f"a rule's name must be text; got {name!r}. The zoo: {', '.join(NAMES)}")
        name = ALIASES.get(name, name)
        if name in REFUSED:
            raise RefusedRuleError(REFUSED[name].why(name))
        if member := family(name):
            n, gated = member
            return import_module("archsearch.mixers.gated_delta_product").delta_product(n, gated=gated)
        if name not in NAMES:
            near = _nearest(name)
            if near in REFUSED and _letters(near) == _letters(name):
                raise RefusedRuleError(REFUSED[near].why(near))
            nearest = f"; did you mean {near}?" if near else ""
            raise UnknownRuleError(f"unknown rule {name!r}{nearest or '.'} The zoo: {', '.join(NAMES)}")
        return import_module(f"archsearch.mixers.{name}").RULE

    def __iter__(self) -> Iterator[str]:
        return iter(NAMES)

    def __len__(self) -> int:
        return len(NAMES)


def _nearest(name: str) -> str:
    """The name that is meant, of rules and of what is refused: the same letters and digits, or nearly; "" for none."""
    known = {_letters(each): each for each in (*REFUSED, *ALIASES, *NAMES)}
    return "".join(known[match] for match in get_close_matches(_letters(name), known, n=1))


def _letters(name: str) -> str:
    return "".join(filter(str.isalnum, name.lower()))


def family(name: str) -> tuple[int, bool] | None:
    """(writes a token, gated) of the member of a family that is meant; None for any other name."""
    found = FAMILY.fullmatch(name)
    return None if found is None else (int(found[2]), found[1] is not None)


rules: Mapping[str, Rule] = Zoo()
