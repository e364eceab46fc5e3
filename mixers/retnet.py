"""RetNet: a plain write under a fixed decay per head (arXiv 2307.08621, Eq. 6; head h decays by 1 - 2^(-5-h))."""

from archsearch.dsl import Rule, decay, key, log_decay, query, read, value, write

q, k, v, g = query("q"), key("k"), value("v"), log_decay("g")

RULE = Rule("retnet", decay(g), write(k, v), read(q))
