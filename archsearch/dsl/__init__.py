"""The language: operands, expressions, five primitives, and the rule they make. Knows no tensors.

Enters: what a researcher writes. Leaves: a frozen `Rule`, which `archsearch.lowering` takes apart.
"""

from archsearch.dsl.expressions import Expression, Term, expand
from archsearch.dsl.operands import Kind, Operand, channel_gate, gate, key, log_decay, query, value
from archsearch.dsl.primitives import (
    Bonus,
    Decay,
    DeltaWrite,
    Erase,
    QueryFeedback,
    Read,
    Simultaneous,
    Step,
    Write,
    bonus,
    decay,
    delta_write,
    erase,
    query_feedback,
    read,
    simultaneous,
    write,
)
from archsearch.dsl.rule import Rule
from archsearch.dsl.text import parse_rule

__all__ = [
    "Bonus",
    "Decay",
    "DeltaWrite",
    "Erase",
    "Expression",
    "Kind",
    "Operand",
    "QueryFeedback",
    "Read",
    "Rule",
    "Simultaneous",
    "Step",
    "Term",
    "Write",
    "bonus",
    "channel_gate",
    "decay",
    "delta_write",
    "erase",
    "expand",
    "gate",
    "key",
    "log_decay",
    "parse_rule",
    "query",
    "query_feedback",
    "read",
    "simultaneous",
    "value",
    "write",
]
