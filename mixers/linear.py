"""Linear attention: a plain write, no decay (arXiv 2006.16236, Eqs. 16-19, without the normaliser)."""

from archsearch.dsl import Rule, key, query, read, value, write

q, k, v = query("q"), key("k"), value("v")

RULE = Rule("linear", write(k, v), read(q))
