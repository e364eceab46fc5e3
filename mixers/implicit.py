"""Gated DeltaNet with an implicit step: eta = beta / (1 + beta k.k) minimises |S - S'|^2 + beta |v - S^T k|^2 exactly
(Longhorn, arXiv 2407.14207).

    S' = exp(g) S_(t-1)        S = S' + eta k (v - S'^T k)^T

The recurrence is Gated DeltaNet's; the layer makes eta and leaves k its length.
"""

from archsearch.dsl import Rule, decay, delta_write, gate, key, log_decay, query, read, value
from archsearch.mixers.layer.options import Layer, MambaDecay, Step, Vector

q, k, v, g, eta = query("q"), key("k"), value("v"), log_decay("g"), gate("eta")

RULE = Rule("implicit", decay(g), delta_write(k, v, strength=eta), read(q))

LAYER = Layer(
    expand_v=2.0,
    operands={"k": Vector(norm="none"), "g": MambaDecay(low=0, high=16), "eta": Step("k", "implicit")},
)
