"""KDA with a diagonal preconditioner: channels that were written often are written less (arXiv 2604.21100).

    S' = Diag(exp(g)) S_(t-1)        S = S' + beta (m * k) (v - S'^T k)^T

m as in `precond_gdn`, its sum A decayed per channel.
"""

from archsearch.dsl import Rule, channel_gate, decay, delta_write, gate, key, log_decay, query, read, value
from archsearch.mixers.layer.options import Layer, LowRank, MambaDecay, Preconditioner

q, k, v = query("q"), key("k"), value("v")
g, beta, m = log_decay("g", per="channel"), gate("beta"), channel_gate("m")

RULE = Rule("precond_kda", decay(g), delta_write(m * k, v, strength=beta, residual=k), read(q))

LAYER = Layer(
    output_gate="sigmoid",
    gate_projection=LowRank(None, shared=True, bias=True),
    operands={
        "g": MambaDecay(low=1, high=16, projection=LowRank(None, shared=True)),
        "m": Preconditioner("k", strength="beta", decay="g"),
    },
)
