"""What every backend must hold of every rule, as plain functions: `assert_conforms(rule)` in one line of a test.

Enters: a rule, a backend, a device, a dtype. Leaves: a `Verdict` a property, each a measured error beside its bound.
"""

from archsearch.kernels.conformance.inputs import Difficulty, Inputs, Shape, draw
from archsearch.kernels.conformance.setting import Setting
from archsearch.kernels.conformance.suite import PROPERTIES, assert_conforms, run_conformance
from archsearch.kernels.conformance.tolerances import Quantity, bound
from archsearch.kernels.conformance.verdict import Verdict

__all__ = [
    "PROPERTIES",
    "Difficulty",
    "Inputs",
    "Quantity",
    "Setting",
    "Shape",
    "Verdict",
    "assert_conforms",
    "bound",
    "draw",
    "run_conformance",
]
