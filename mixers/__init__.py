"""A rule becomes a layer, a layer a language model, a model a module to take away."""

from archsearch.mixers.gated_delta_product import delta_product

__all__ = ["delta_product"]
