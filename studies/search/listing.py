"""The variants of a small space, one by one: what is left to try, and whether anything is."""

from collections.abc import Callable
from typing import Protocol

from archsearch.errors import ArchsearchError
from archsearch.holes import Choose, Chosen, Hole, Uniform
from archsearch.spaces.resolution import structures

LARGEST_LISTED = 2_000
"""Structures of a space that is listed."""


class Variant(Protocol):
    """What a chooser gives."""

    @property
    def variant_hash(self) -> str:
        """Equal for two spellings of one variant."""
        ...


class _RangeMetError(Exception):
    """A range of numbers, which no list exhausts."""


def listed(resolve: Callable[[Choose], Variant], most: int = LARGEST_LISTED) -> dict[str, dict[str, Chosen]] | None:
    """Choices of every variant by its hash; None for a space with a range of numbers or more than `most` structures.

    Choices that make no variant are left out.
    """
    found: dict[str, dict[str, Chosen]] = {}

    def fill(choose: Choose) -> str | None:
        def pick(path: str, hole: Hole) -> Chosen:
            if isinstance(hole, Uniform):
                raise _RangeMetError
            return choose(path, hole)

        try:
            return resolve(pick).variant_hash
        except ArchsearchError:
            return None

    try:
        for number, (choices, variant) in enumerate(structures(fill)):
            if number == most:
                return None
            if variant is not None:
                found.setdefault(variant, choices)
    except _RangeMetError:
        return None
    return found
