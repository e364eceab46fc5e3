"""How the state forgets: the kind of the decay and what makes it of the token, under a delta write or a plain one.

    write    delta | plain
    decay    none | one number for all tokens | one a head | one a key channel | one a channel with a sign
    source   of a decay a head: Mamba, GLA, bounded (KDA's form), fixed by the head (RetNet)
             of one a channel: Mamba, GLA, bounded in KDA's form or in EDA's, RWKV-7's ramp

2 x (1 + 1 + 4 + 5 + 1) = 24 structures; the bounds are ranges. linear, simple_gla, gla, delta_net, gated_delta_net, kda
and ckda are among them.
"""

from archsearch.dsl import Rule, decay, delta_write, gate, key, log_decay, query, read, value, write
from archsearch.holes import log_uniform, one_of, uniform
from archsearch.mixers.layer.options import BoundedDecay, FixedDecay, Layer, LogSigmoid, MambaDecay, RampDecay
from archsearch.mixers.models.options import Model
from archsearch.spaces.options import Budget, Training
from archsearch.spaces.space import Space

q, k, v, beta = query("q"), key("k"), value("v"), gate("beta")

SPACE = Space(
    rule=Rule(
        "decays",
        one_of(
            none=None,
            constant=decay(uniform(-0.1, -0.001, name="log")),
            head=decay(log_decay("g")),
            channel=decay(log_decay("c", per="channel")),
            signed=decay(log_decay("s", per="channel", signed=True)),
            name="decay",
        ),
        one_of(delta=delta_write(k, v, strength=beta), plain=write(k, v), name="write"),
        read(q),
    ),
    layer=Layer(
        operands={
            "g": one_of(
                mamba=MambaDecay(),
                gla=LogSigmoid(),
                bounded=BoundedDecay(bound=uniform(-8.0, -1.0)),
                fixed=FixedDecay(),
            ),
            "c": one_of(
                mamba=MambaDecay(),
                gla=LogSigmoid(),
                kda=BoundedDecay(bound=uniform(-8.0, -1.0)),
                eda=BoundedDecay(form="eda", bound=uniform(-8.0, -1.0)),
                ramp=RampDecay(form="sigmoid"),
            ),
        }
    ),
    model=Model(width=128, heads=2, layers=2),
    training=Training(learning_rate=log_uniform(2e-3, 1.25e-2)),
    budget=Budget(tokens=1_000_000),
)
