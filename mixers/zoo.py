"""The zoo: every rule by name. The table registers; a rule's module is imported when it is first asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module

from archsearch.dsl import Rule

MODULES = {
    "linear": "linear",
    "retnet": "retnet",
    "simple_gla": "simple_gla",
    "mamba2": "mamba2",
    "gla": "gla",
    "delta_net": "delta_net",
    "gated_delta_net": "gated_delta_net",
    "kda": "kda",
    "gdn2": "gdn2",
    "q_delta": "q_delta",
    "eda": "eda",
    "eda_scalar": "eda_scalar",
    "eda_q_delta": "eda_q_delta",
    "gated_delta_product": "delta_product",
}
ALIASES = {"gdn": "gated_delta_net"}


class Zoo(Mapping[str, Rule]):
    """Rules by name, read-only. Aliases are found and not listed."""

    def __getitem__(self, name: str) -> Rule:
        module = MODULES[ALIASES.get(name, name)]
        return import_module(f"archsearch.mixers.{module}").RULE

    def __iter__(self) -> Iterator[str]:
        return iter(MODULES)

    def __len__(self) -> int:
        return len(MODULES)


rules: Mapping[str, Rule] = Zoo()
