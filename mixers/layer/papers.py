"""The layer that a rule's paper gives it."""

from __future__ import annotations

from importlib import import_module

from archsearch.dsl import Rule
from archsearch.mixers.layer.options import Layer
from archsearch.mixers.zoo import NAMES, rules


def paper_layer(rule: Rule) -> Layer | None:
    """LAYER of the zoo's rule of this name, if it is that rule: equal hash, equal operands; else None."""
    if rule.name not in NAMES:
        return None
    known = rules[rule.name]
    if known.hash != rule.hash or set(known.operands.values()) != set(rule.operands.values()):
        return None
    return import_module(f"archsearch.mixers.{rule.name}").LAYER
