"""Gated DeltaNet with the step of Kaczmarz: eta = beta / (k.k + eps) corrects the recalled value by the share beta,
whatever the length of k (arXiv 2605.08587).

    S' = exp(g) S_(t-1)        S = S' + eta k (v - S'^T k)^T

The recurrence is Gated DeltaNet's; the layer makes eta and leaves k its length.
"""

from archsearch.dsl import Rule, decay, delta_write, gate, key, log_decay, query, read, value
from archsearch.mixers.layer.options import Layer, MambaDecay, Step, Vector

q, k, v, g, eta = query("q"), key("k"), value("v"), log_decay("g"), gate("eta")

RULE = Rule("kaczmarz", decay(g), delta_write(k, v, strength=eta), read(q))

LAYER = Layer(
    expand_v=2.0,
    operands={
        "k": Vector(norm="none"),
        "g": MambaDecay(low=0, high=16),
        "eta": Step("k", "kaczmarz", eps=1e-2),
    },
)
