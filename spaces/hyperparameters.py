"""How one rule, gated_delta_net, wants to be built and trained: its layer, its model's shape, its optimiser.

layer       short convolution, output gate, norm and activation of the key, what the write's gate may reach, V / K
model       heads, layers; the width is solved, so that every shape has as many parameters
training    learning rate, weight decay, warm-up, schedule and, where it has one, the share of its decay, clipping
"""

from archsearch.holes import integer, log_uniform, one_of, uniform
from archsearch.mixers.gated_delta_net import RULE
from archsearch.mixers.layer.options import Layer, Sigmoid, Vector
from archsearch.mixers.models.options import Model
from archsearch.spaces.options import Budget, Schedule, Training
from archsearch.spaces.space import Space

SPACE = Space(
    rule=RULE,
    layer=Layer(
        expand_v=one_of(1.0, 2.0),
        conv=one_of(4, 0, 2),
        output_gate=one_of("swish", "sigmoid", "none"),
        operands={
            "k": Vector(activation=one_of("silu", "none"), norm=one_of("l2", "rms")),
            "beta": Sigmoid(scale=one_of(1.0, 2.0)),
        },
    ),
    model=Model(width=128, heads=one_of(2, 1, 4), layers=integer(2, 4)),
    training=Training(
        learning_rate=log_uniform(5e-4, 2e-2),
        weight_decay=one_of(0.1, 0.01, 0.0),
        warmup=uniform(0.01, 0.1),
        schedule=one_of(wsd=Schedule.WSD, cosine=Schedule.COSINE),
        decay=uniform(0.1, 0.4),
        clip=one_of(1.0, 0.5),
    ),
    budget=Budget(parameters="gated_delta_net", tokens=1_000_000),
)
