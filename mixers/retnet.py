"""RetNet: a plain write under a fixed decay per head (arXiv 2307.08621, Eq. 6; head h decays by 1 - 2^(-5-h))."""

from archsearch.dsl import Rule, decay, key, log_decay, query, read, value, write
from archsearch.mixers.layer.options import FixedDecay, Layer, Vector

q, k, v, g = query("q"), key("k"), value("v"), log_decay("g")

RULE = Rule("retnet", decay(g), write(k, v), read(q))

LAYER = Layer(
    conv=0,
    expand_v=2.0,
    operands={
        "q": Vector(activation="none", norm="none", rotary=True),
        "k": Vector(activation="none", norm="none", rotary=True),
        "v": Vector(activation="none"),
        "g": FixedDecay(),
    },
)
