"""A plan runs: a rule and a backend become a callable. The only floor that imports Triton."""
