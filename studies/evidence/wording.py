"""How values are named and written for people."""

SHARES = ("recall", "overwrite", "accuracy")
"""Beginnings of the names of values that are shares of 1, but for the losses among them."""


FAR = 0.1
"""Ten points: seeds or rates whose shares differ by more are not of one kind."""


def spoken(name: str) -> str:
    """The name of a value in words."""
    return name.replace("_", " ")


def is_share(name: str) -> bool:
    """Whether a value is a share of 1, written in percent."""
    return name.startswith(SHARES) and not name.endswith("loss")


def within(name: str, value: float) -> float:
    """The nearest value that an objective can have: Student's t knows no ends of a share, which has 0 and 1."""
    return min(max(value, 0.0), 1.0) if is_share(name) else value


def shown(name: str, value: float) -> str:
    """A value of an objective as text."""
    return f"{100 * value:.1f} %" if is_share(name) else f"{value:.3f}"
