"""How values are named and written for people."""

SHARES = ("recall", "accuracy")
"""Beginnings of the names of values that are shares of 1."""


def spoken(name: str) -> str:
    """The name of a value in words."""
    return name.replace("_", " ")


def shown(name: str, value: float) -> str:
    """A value of an objective as text."""
    return f"{100 * value:.1f} %" if name.startswith(SHARES) else f"{value:.3f}"
