"""Mamba-3: the write is shared between a token and the one before, as the trapezoidal rule has it (state-spaces/mamba;
one value head a state, SISO).

    S = exp(g) (S_(t-1) + (1 - lam) dt k1 v1^T) + lam dt k v^T        k1, v1 = k_(t-1), v_(t-1)        (scale 1)

lam = 1 is Mamba-2. The paper turns q and k by angles that depend on the tokens; here they turn with the position.
"""

from archsearch.dsl import Rule, decay, gate, key, log_decay, query, read, value, write
from archsearch.mixers.layer.options import Delayed, Layer, Sigmoid, StepDecay, StepSize, Vector

q, k, k1, v, v1 = query("q"), key("k"), key("k1"), value("v"), value("v1")
g, dt, lam = log_decay("g"), gate("dt"), gate("lam")

RULE = Rule(
    "mamba3",
    write(k1, (1 - lam) * v1, strength=dt),
    decay(g),
    write(k, v, strength=lam * dt),
    read(q, scale=1.0),
)

LAYER = Layer(
    conv=0,
    expand_v=2.0,
    gate_first=True,
    skip=True,
    operands={
        "q": Vector(activation="none", norm="rms", rotary=True),
        "k": Vector(activation="none", norm="rms", rotary=True),
        "k1": Delayed("k"),
        "v": Vector(activation="none"),
        "v1": Delayed("v"),
        "dt": StepSize(),
        "g": StepDecay("dt", low=1, high=16),
        "lam": Sigmoid(bias=0.0),
    },
)
