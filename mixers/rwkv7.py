"""RWKV-7: a removal along kap that recalls the state before the decay, and a write, at once (arXiv 2503.14456).

    S = Diag(exp(g)) S_(t-1) - (a * kap) (S_(t-1)^T kap)^T + k~ v^T        k~ = k * (1 + (a - 1) * m)
    o = S^T q + (sum_c q_c u_c k~_c) v                                     (scale 1)

kap is a unit vector along k scaled by channel, a lies in (0, 1)^K. The paper adds the bonus after the output's norm and
mixes v with that of the first layer; here the bonus is part of the read and v is the layer's own.
"""

from archsearch.dsl import (
    Rule,
    bonus,
    channel_gate,
    decay,
    delta_write,
    key,
    log_decay,
    query,
    read,
    simultaneous,
    value,
    write,
)
from archsearch.mixers.layer.options import Constant, Layer, LowRank, RampDecay, Scaled, Sigmoid, Static, Vector

q, k, v, kap, u = query("q"), key("k"), value("v"), key("kap"), key("u")
g, a, m = log_decay("g", per="channel"), channel_gate("a"), channel_gate("m")

WRITTEN = k * (1 + (a - 1) * m)
RULE = Rule(
    "rwkv7",
    decay(g),
    simultaneous(delta_write(a * kap, 0.0 * v, residual=kap, reads="previous"), write(WRITTEN, v)),
    read(q, scale=1.0, bonus=bonus(u, WRITTEN, v)),
)

LAYER = Layer(
    conv=0,
    token_shift=True,
    output_norm="group",
    norm_eps=64e-5,
    output_gate="linear",
    gate_projection=LowRank(128, shared=True, bend="sigmoid"),
    operands={
        "q": Vector(activation="none", norm="none"),
        "k": Vector(activation="none", norm="none"),
        "v": Vector(activation="none"),
        "kap": Scaled("k", start=0.71, norm="l2"),
        "a": Sigmoid(bias=0.0, projection=LowRank(64, shared=True)),
        "m": Constant(1.02),
        "u": Static(norm="none", start=-0.04),
        "g": RampDecay("sigmoid", low=-6.5, high=-1.5, projection=LowRank(64, shared=True, bend="tanh")),
    },
)
