"""A rule becomes a layer, a layer a language model, a model a module to take away."""
