"""Rule -> normal form -> canonical form, cost, spectrum, equation. Knows no tensors and no device.

Enters: a closed `Rule`. Leaves: frozen dataclasses that the kernels, the reports and the search read.
"""

from archsearch.lowering.canonical import canonical_text, rule_hash
from archsearch.lowering.normal_form import Bonus, Decay, NormalForm, Read, Row, lower

__all__ = ["Bonus", "Decay", "NormalForm", "Read", "Row", "canonical_text", "lower", "rule_hash"]
