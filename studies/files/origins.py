"""Who asked for a trial, a sampler or a user by name: what trial.json and Optuna's records say of it."""

PROPOSAL = "proposal"
"""A sampler's."""

BASELINE = "baseline:"
"""Before the name of a rule that a search is compared with."""

ENTRANT = "entrant:"
"""Before the name of a trial of a study of entrants."""

IMPORT = "import"
"""What an older study had tried."""


def name_in(origin: str) -> str:
    """The name that was asked for; empty of a proposal."""
    return origin.partition(":")[2]
