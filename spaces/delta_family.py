"""The delta family: how the state decays, what is erased before the write, and what the write takes back.

    decay      none | a number a head | a number a key channel
    erase      none | at a learned address (EDA) | at the query | at a projection of the query
    residual   the address of the write | plus a fixed share of the query | plus a learned share (Q-Delta)

36 structures; delta_net, gated_delta_net, kda, q_delta, eda, eda_scalar and eda_q_delta are among them.
"""

from archsearch.dsl import Rule, decay, delta_write, erase, gate, key, log_decay, query, query_feedback, read, value
from archsearch.holes import log_uniform, one_of, uniform
from archsearch.mixers.layer.options import Layer, Projection
from archsearch.mixers.models.options import Model
from archsearch.spaces.options import Budget, Training
from archsearch.spaces.space import Space

q, k, v, e, p = query("q"), key("k"), value("v"), key("e"), key("p")
beta, gamma, lam = gate("beta"), gate("gamma"), gate("lam")

SPACE = Space(
    rule=Rule(
        "delta_family",
        one_of(none=None, scalar=decay(log_decay("g")), channel=decay(log_decay("g", per="channel")), name="decay"),
        one_of(
            none=None,
            learned=erase(e, strength=gamma),
            query=erase(q, strength=gamma),
            projected=erase(p, strength=gamma),
            name="erase",
        ),
        delta_write(
            k,
            v,
            strength=beta,
            residual=one_of(
                none=None, fixed=query_feedback(q, uniform(0.0, 1.0)), learned=query_feedback(q, lam), name="residual"
            ),
        ),
        read(q),
    ),
    layer=Layer(operands={"p": Projection(of="q")}),
    model=Model(width=128, heads=2, layers=2),
    training=Training(learning_rate=log_uniform(2e-3, 1.25e-2)),
    budget=Budget(tokens=1_000_000),
)
