"""The zoo: every rule by name. The table registers; a rule's module is imported when it is first asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module

from archsearch.dsl import Rule

NAMES = (
    "linear",
    "retnet",
    "simple_gla",
    "mamba2",
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


class Zoo(Mapping[str, Rule]):
    """Rules by name, read-only. Aliases are found and not listed."""

    def __getitem__(self, name: str) -> Rule:
        name = ALIASES.get(name, name)
        if name not in NAMES:
            raise KeyError(name)
        return import_module(f"archsearch.mixers.{name}").RULE

    def __iter__(self) -> Iterator[str]:
        return iter(NAMES)

    def __len__(self) -> int:
        return len(NAMES)


rules: Mapping[str, Rule] = Zoo()
