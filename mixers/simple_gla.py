"""Simple gated linear attention: a write under a learned scalar decay (scalar case of arXiv 2312.06635, Eq. 3)."""

from archsearch.dsl import Rule, decay, key, log_decay, query, read, value, write
from archsearch.mixers.layer.options import Layer, LogSigmoid, Vector

q, k, v, g = query("q"), key("k"), value("v"), log_decay("g")

RULE = Rule("simple_gla", decay(g), write(k, v), read(q))

LAYER = Layer(operands={"q": Vector(norm="none"), "k": Vector(norm="none"), "g": LogSigmoid(16)})
