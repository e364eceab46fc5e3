"""Gated linear attention: a plain write under a decay per key channel (arXiv 2312.06635, Eq. 3)."""

from archsearch.dsl import Rule, decay, key, log_decay, query, read, value, write
from archsearch.mixers.layer.options import Layer, LogSigmoid, LowRank, Vector

q, k, v, g = query("q"), key("k"), value("v"), log_decay("g", per="channel")

RULE = Rule("gla", decay(g), write(k, v), read(q))

LAYER = Layer(
    conv=0,
    operands={
        "q": Vector(activation="none", norm="none"),
        "k": Vector(activation="none", norm="none"),
        "v": Vector(activation="none"),
        "g": LogSigmoid(16, LowRank(16, shared=True, bias=True)),
    },
)
