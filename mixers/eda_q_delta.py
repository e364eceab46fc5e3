"""The hybrid of EDA and Q-Delta: an erase at its own address, then a delta write with query feedback (2606.26560 Eq. 8,
2606.08804 Eq. 19).
"""

from archsearch.dsl import Rule, decay, delta_write, erase, gate, key, log_decay, query, query_feedback, read, value
from archsearch.mixers.layer.options import BoundedDecay, Layer, LowRank, Sigmoid

q, k, v, e = query("q"), key("k"), value("v"), key("e")
g, beta, gamma, lam = log_decay("g"), gate("beta"), gate("gamma"), gate("lam")

RULE = Rule(
    "eda_q_delta",
    decay(g),
    erase(e, strength=gamma),
    delta_write(k, v, strength=beta, residual=query_feedback(q, lam)),
    read(q),
)

LAYER = Layer(  # gamma starts at 0.12, where the paper is silent
    output_gate="sigmoid",
    gate_projection=LowRank(None, shared=True, bias=True),
    operands={
        "e": LowRank(16),
        "g": BoundedDecay("eda"),
        "gamma": Sigmoid(bias=-2.0),
        "lam": Sigmoid(bias=-0.8),
    },
)
