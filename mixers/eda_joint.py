"""Erase and delta write at once: both see the decayed state, so their rank-one terms add (the substeps of arXiv
2606.26560, Eq. 8, in one group).

    S' = Diag(exp(g)) S_(t-1)        S = S' - gamma e (S'^T e)^T + beta k (v - S'^T k)^T

No contraction where e = k and beta + gamma > 2: the layer keeps both below 1.
"""

from archsearch.dsl import Rule, decay, delta_write, erase, gate, key, log_decay, query, read, simultaneous, value
from archsearch.mixers.layer.options import BoundedDecay, Layer, LowRank, Sigmoid

q, k, v, e = query("q"), key("k"), value("v"), key("e")
g, beta, gamma = log_decay("g", per="channel"), gate("beta"), gate("gamma")

RULE = Rule("eda_joint", decay(g), simultaneous(erase(e, strength=gamma), delta_write(k, v, strength=beta)), read(q))

LAYER = Layer(  # as EDA
    output_gate="sigmoid",
    gate_projection=LowRank(None, shared=True, bias=True),
    operands={
        "e": LowRank(16),
        "g": BoundedDecay("eda", projection=LowRank(16)),
        "gamma": Sigmoid(bias=-2.0),
    },
)
