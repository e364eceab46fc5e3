"""QED: the erased address of Gated DeltaNet-2 leans towards what the query asks beside the key (arXiv 2608.13668,
Eq. 6).

    S' = Diag(exp(g)) S_(t-1)        S = S' + k (w * v - S'^T (b * k + lam d))^T        d = (I - k k^T) (b * q)

d is made in the layer, lam is learned a head and stays below 0.25. lam = 0 is Gated DeltaNet-2.
"""

from archsearch.dsl import Rule, channel_gate, decay, delta_write, gate, key, log_decay, query, read, value
from archsearch.mixers.layer.options import Constant, Layer, LowRank, MambaDecay, Orthogonal

q, k, v, d = query("q"), key("k"), value("v"), key("d")
g, b, w, lam = log_decay("g", per="channel"), channel_gate("b"), channel_gate("w", of="value"), gate("lam")

RULE = Rule("qed", decay(g), delta_write(k, w * v, residual=b * k + lam * d), read(q))

LAYER = Layer(
    output_gate="sigmoid",
    gate_projection=LowRank(None, shared=True, bias=True),
    operands={
        "g": MambaDecay(low=1, high=16, projection=LowRank(None, shared=True)),
        "d": Orthogonal("q", to="k", gate="b"),
        "lam": Constant(0.05, bound=0.25),
    },
)
