"""Linear attention: a plain write, no decay (arXiv 2006.16236, Eqs. 16-19, without the normaliser)."""

from archsearch.dsl import Rule, key, query, read, value, write
from archsearch.mixers.layer.options import Layer, Vector

q, k, v = query("q"), key("k"), value("v")

RULE = Rule("linear", write(k, v), read(q))

LAYER = Layer(  # the feature map elu(x) + 1, no convolution, no gate
    conv=0,
    output_gate="none",
    operands={
        "q": Vector(activation="elu+1", norm="none"),
        "k": Vector(activation="elu+1", norm="none"),
        "v": Vector(activation="none"),
    },
)
