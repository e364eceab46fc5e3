"""A mixer becomes a language model: blocks, layer pattern, generation, exact counts.

Enters: a rule, a `Model` (options.py, data only) and a `Layer`. Leaves: `LanguageModel` (language_model.py).
"""
