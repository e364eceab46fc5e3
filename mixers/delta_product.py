"""DeltaProduct without a decay: two delta writes a token, one after another (arXiv 2502.10297, Eq. 5).

`delta_product3`, `gated_delta_product4`, ... name the rules of more writes; strengths in (0, 2) allow reflections.
"""

from archsearch.mixers.gated_delta_product import delta_product, delta_product_layer

RULE = delta_product(2, gated=False)

LAYER = delta_product_layer(2, gated=False)
