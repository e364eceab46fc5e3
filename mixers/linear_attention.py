"""Linear attention as a weighted mean: a plain write, the read over its normaliser (arXiv 2006.16236, Eqs. 16-20)."""

from archsearch.dsl import Rule, key, query, read, value, write
from archsearch.mixers.linear import LAYER as LAYER

q, k, v = query("q"), key("k"), value("v")

RULE = Rule("linear_attention", write(k, v), read(q, scale=1.0, normaliser=1e-6))
