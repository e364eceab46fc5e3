"""RWKV-6: the read comes before the decay and the write, and its own token enters through a bonus (arXiv 2404.05892).

    o = S_(t-1)^T q + (sum_c q_c u_c k_c) v        S = Diag(exp(g)) S_(t-1) + k v^T        (scale 1)

The paper mixes a token with the one before by an amount that depends on both; here the amount is learned and fixed.
"""

from archsearch.dsl import Rule, bonus, decay, key, log_decay, query, read, value, write
from archsearch.mixers.layer.options import Layer, LowRank, RampDecay, Static, Vector

q, k, v, u, g = query("q"), key("k"), value("v"), key("u"), log_decay("g", per="channel")

RULE = Rule("rwkv6", read(q, scale=1.0, bonus=bonus(u, k, v)), decay(g), write(k, v))

LAYER = Layer(
    conv=0,
    token_shift=True,
    output_norm="group",
    operands={
        "q": Vector(activation="none", norm="none"),
        "k": Vector(activation="none", norm="none"),
        "v": Vector(activation="none"),
        "u": Static(norm="none"),
        "g": RampDecay("exp", low=-6.0, high=-1.0, projection=LowRank(64, shared=True, bend="tanh")),
    },
)
