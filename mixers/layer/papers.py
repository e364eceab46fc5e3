"""The layer that a rule's paper gives it."""

from __future__ import annotations

from importlib import import_module

from archsearch.dsl import Rule
from archsearch.mixers.layer.options import Layer
from archsearch.mixers.zoo import NAMES, family, rules


def paper_layer(rule: Rule) -> Layer | None:
    """LAYER of the zoo's rule of this name, if it is that rule: equal hash, equal operands; else None."""
    member = family(rule.name)
    if rule.name not in NAMES and member is None:
        return None
    known = rules[rule.name]
    if known.hash != rule.hash or set(known.operands.values()) != set(rule.operands.values()):
        return None
    if member is not None:
        n, gated = member
        return import_module("archsearch.mixers.gated_delta_product").delta_product_layer(n, gated=gated)
    return import_module(f"archsearch.mixers.{rule.name}").LAYER
