"""mLSTM: a matrix memory under exponential input gates, read over its normaliser (arXiv 2405.04517, Eqs. 19-27).

The layer is that of xLSTM 7B (2503.13427): both gates soft-capped at 15. So exp of the input gate stays below 3.3e6, no
running maximum is needed, and what the paper divides both sides by cancels.
"""

from archsearch.dsl import Rule, decay, gate, key, log_decay, query, read, value, write
from archsearch.mixers.layer.options import CappedForget, Exponential, Layer, Vector

q, k, v, g, i = query("q"), key("k"), value("v"), log_decay("g"), gate("i")

RULE = Rule("mlstm", decay(g), write(k, v, strength=i), read(q, normaliser=1.0))

LAYER = Layer(
    conv=0,
    output_gate="sigmoid",
    operands={
        "q": Vector(activation="none", norm="none"),
        "k": Vector(activation="none", norm="none"),
        "v": Vector(activation="none"),
        "g": CappedForget(),
        "i": Exponential(),
    },
)
