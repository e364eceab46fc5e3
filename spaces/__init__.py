"""A rule, a layer or an option with holes becomes points: spaces, their resolution and budgets."""
