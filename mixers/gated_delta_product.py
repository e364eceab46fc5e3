"""DeltaProduct: n delta writes a token, one after another (arXiv 2502.10297, Eq. 5; gated: the state decays once,
before the first).
"""

from archsearch.dsl import Rule, decay, delta_write, gate, key, log_decay, query, read, value
from archsearch.errors import RuleError
from archsearch.mixers.layer.options import Layer, MambaDecay, Sigmoid


def delta_product(n: int, *, gated: bool) -> Rule:
    """The rule with `n` >= 1 writes at k1 .. kn with values v1 .. vn and strengths beta1 .. betan.

    Errors: RuleError for n < 1.
    """
    if n < 1:
        raise RuleError(f"delta_product needs n >= 1 writes a token; got {n}")
    writes = [delta_write(key(f"k{j}"), value(f"v{j}"), strength=gate(f"beta{j}")) for j in range(1, n + 1)]
    name = f"{'gated_' if gated else ''}delta_product{'' if n == 2 else n}"
    return Rule(name, *([decay(log_decay("g"))] if gated else []), *writes, read(query("q")))


def delta_product_layer(n: int, *, gated: bool) -> Layer:
    """The paper's layer of `delta_product(n, gated=gated)`: strengths in (0, 2), which allow reflections."""
    strengths = {f"beta{j}": Sigmoid(scale=2.0) for j in range(1, n + 1)}
    return Layer(expand_v=2.0, operands={**strengths, **({"g": MambaDecay(low=0, high=16)} if gated else {})})


RULE = delta_product(2, gated=True)
LAYER = delta_product_layer(2, gated=True)
