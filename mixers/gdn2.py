"""Gated DeltaNet-2: the erased address and the written value have channel gates of their own (arXiv 2605.22791; quoted
in 2606.26560, Eq. 6).
"""

from archsearch.dsl import Rule, channel_gate, decay, delta_write, key, log_decay, query, read, value
from archsearch.mixers.layer.options import Layer, LowRank, MambaDecay

q, k, v = query("q"), key("k"), value("v")
g, b, w = log_decay("g", per="channel"), channel_gate("b"), channel_gate("w", of="value")

RULE = Rule("gdn2", decay(g), delta_write(k, w * v, residual=b * k), read(q))

LAYER = Layer(
    output_gate="sigmoid",
    gate_projection=LowRank(None, shared=True, bias=True),
    operands={"g": MambaDecay(low=1, high=16, projection=LowRank(None, shared=True))},
)
