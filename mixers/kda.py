"""Kimi Delta Attention: Gated DeltaNet with a decay per key channel (arXiv 2510.26692, Eq. 1)."""

from archsearch.dsl import Rule, decay, delta_write, gate, key, log_decay, query, read, value

q, k, v = query("q"), key("k"), value("v")
g, beta = log_decay("g", per="channel"), gate("beta")

RULE = Rule("kda", decay(g), delta_write(k, v, strength=beta), read(q))
