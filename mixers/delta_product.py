"""DeltaProduct: n delta writes a token, one after another (arXiv 2502.10297, Eq. 5; gated: the state decays once, before the first)."""

from archsearch.dsl import Rule, decay, delta_write, gate, key, log_decay, query, read, value


def delta_product(n: int, *, gated: bool) -> Rule:
    """The rule with `n` >= 1 writes at k1 .. kn with values v1 .. vn and strengths beta1 .. betan."""
    writes = [delta_write(key(f"k{j}"), value(f"v{j}"), strength=gate(f"beta{j}")) for j in range(1, n + 1)]
    name = f"{'gated_' if gated else ''}delta_product{'' if n == 2 else n}"
    return Rule(name, *([decay(log_decay("g"))] if gated else []), *writes, read(query("q")))


RULE = delta_product(2, gated=True)
