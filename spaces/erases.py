"""What an erase takes away, and when: beside a gated delta write, a second address is erased or none is.

    order      none | before the write (EDA) | after it | both on the state at their entry
    address    learned | the query | a projection of the query | the key of the write, a second time
    strength   a gate of its own | the gate of the write

1 + 3 x 4 x 2 = 25 structures; gated_delta_net and eda_scalar are among them. A learned address and a projected one are
one rule with different layers.
"""

from archsearch.dsl import Rule, decay, delta_write, erase, gate, key, log_decay, query, read, simultaneous, value
from archsearch.holes import log_uniform, one_of
from archsearch.mixers.layer.options import Layer, Projection
from archsearch.mixers.models.options import Model
from archsearch.spaces.options import Budget, Training
from archsearch.spaces.space import Space

q, k, v, e, p = query("q"), key("k"), value("v"), key("e"), key("p")
beta, gamma = gate("beta"), gate("gamma")

WRITE = delta_write(k, v, strength=beta)
ERASE = erase(
    one_of(learned=e, query=q, projected=p, key=k, name="address"),
    strength=one_of(own=gamma, shared=beta, name="strength"),
)

SPACE = Space(
    rule=Rule(
        "erases",
        decay(log_decay("g")),
        one_of(
            none=WRITE,
            before=(ERASE, WRITE),
            after=(WRITE, ERASE),
            joint=simultaneous(WRITE, ERASE),
            name="order",
        ),
        read(q),
    ),
    layer=Layer(operands={"p": Projection(of="q")}),
    model=Model(width=128, heads=2, layers=2),
    training=Training(learning_rate=log_uniform(2e-3, 1.25e-2)),
    budget=Budget(tokens=1_000_000),
)
