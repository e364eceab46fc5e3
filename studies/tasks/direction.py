"""Which way the values of evaluations are better."""

from enum import Enum


class Direction(Enum):
    """Which way an objective is better."""

    MAXIMIZE = "maximize"
    MINIMIZE = "minimize"
