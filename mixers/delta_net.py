"""DeltaNet: the write replaces what the key recalled (arXiv 2102.11174, Eq. 24; chunkwise 2406.06484)."""

from archsearch.dsl import Rule, delta_write, gate, key, query, read, value
from archsearch.mixers.layer.options import Layer

q, k, v, beta = query("q"), key("k"), value("v"), gate("beta")

RULE = Rule("delta_net", delta_write(k, v, strength=beta), read(q))

LAYER = Layer(output_gate="none")
