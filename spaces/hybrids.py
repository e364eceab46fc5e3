"""Which layers a gated delta rule shares a model with, how many of them, and where they stand.

    pattern    all of the rule | every second, or every fourth, another layer | a fourth, the first one
    partner    attention | attention in a window | attention over a latent | Mamba-1 | Griffin | a short convolution
    decay      one number a head | one a key channel

Sizes of a partner exist only where it stands. Width and MLP are solved, so that every hybrid has as many parameters as
gated_delta_net alone.
"""

from archsearch.dsl import Rule, decay, delta_write, gate, key, log_decay, query, read, value
from archsearch.holes import log_uniform, one_of
from archsearch.mixers.layer.partner_options import Latent, Mamba
from archsearch.mixers.models.options import Model
from archsearch.spaces.options import Budget, Training
from archsearch.spaces.space import Space

q, k, v, beta = query("q"), key("k"), value("v"), gate("beta")
PARTNER = one_of("attention", "window", "mla", "mamba", "griffin", "conv", name="partner")

SPACE = Space(
    rule=Rule(
        "gated_delta",
        decay(one_of(scalar=log_decay("g"), channel=log_decay("g", per="channel"), name="decay")),
        delta_write(k, v, strength=beta),
        read(q),
    ),
    model=Model(
        width=128,
        heads=2,
        layers=4,
        pattern=one_of(
            pure=("rule",),
            half=("rule", PARTNER),
            quarter=("rule", "rule", "rule", PARTNER),
            first=(PARTNER, "rule", "rule", "rule"),
        ),
        window=one_of(16, 64),
        latent=Latent(rank=one_of(16, 32)),
        mamba=Mamba(state=one_of(8, 16)),
    ),
    training=Training(learning_rate=log_uniform(1e-3, 1e-2)),
    budget=Budget(parameters="gated_delta_net", tokens=1_000_000),
)
