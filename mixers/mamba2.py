"""Mamba-2: the step size dt scales the write, exp(-A dt) decays the state (arXiv 2405.21060, Eqs. 1-2, scalar A)."""

from archsearch.dsl import Rule, decay, gate, key, log_decay, query, read, value, write
from archsearch.mixers.layer.options import Layer, StepDecay, StepSize, Vector

q, k, v, g, dt = query("q"), key("k"), value("v"), log_decay("g"), gate("dt")

RULE = Rule("mamba2", decay(g), write(k, v, strength=dt), read(q, scale=1.0))

LAYER = Layer(
    expand_v=2.0,
    conv_bias=True,
    gate_first=True,
    skip=True,
    operands={
        "q": Vector(norm="none"),
        "k": Vector(norm="none"),
        "dt": StepSize(),
        "g": StepDecay("dt", low=1, high=16),
    },
)
