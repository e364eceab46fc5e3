"""Where the rows of a long token go: the pattern of slots that every virtual token has, and the place of each group.

A slot holds rows that act together. A row that reads S_(t-1) needs a place in the first virtual token, which begins
there, and that place is of no use to other rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import product

from archsearch.kernels.triton.relaying import Line, Program

MOST_ROWS = 4
"""Rows of a token in the kernels: sixteen tokens then fill a chunk of 64 rows."""

Slot = tuple[bool, ...]
"""For each of the rows that act together, whether it reads S_(t-1)."""

Pattern = tuple[Slot, ...]


def best(program: Program) -> tuple[Pattern, list[tuple[int, int]]] | None:
    """The pattern of the fewest virtual tokens, then of the fewest rows, and where each group goes."""
    groups = [step for step in program if isinstance(step, tuple)]
    found = [(pattern, places) for pattern in _patterns() if (places := _placed(groups, pattern)) is not None]
    if not found:
        return None
    return min(found, key=lambda pair: (pair[1][-1][0], sum(map(len, pair[0])), sum(map(sum, pair[0]))))


def _patterns() -> Iterator[Pattern]:
    for rows in range(1, MOST_ROWS + 1):
        for joined in product((False, True), repeat=rows - 1):
            for previous in product((False, True), repeat=rows):
                slots: list[Slot] = [previous[:1]]
                for together, reads in zip(joined, previous[1:], strict=True):
                    slots = [*slots[:-1], (*slots[-1], reads)] if together else [*slots, (reads,)]
                yield tuple(slots)


def _placed(groups: Sequence[tuple[Line, ...]], pattern: Pattern) -> list[tuple[int, int]] | None:
    """(virtual token, slot) of every group; None where one does not fit."""
    places: list[tuple[int, int]] = []
    token, following = 0, 0
    for group in groups:
        fitting = [slot for slot in range(len(pattern)) if _fits(group, pattern[slot])]
        if any(slot >= following for slot in fitting):
            slot = next(slot for slot in fitting if slot >= following)
        elif fitting:
            token, slot = token + 1, fitting[0]
        else:
            return None
        if token and any(line.previous for line in group):
            return None
        places.append((token, slot))
        following = slot + 1
    return places


def _fits(group: tuple[Line, ...], slot: Slot) -> bool:
    need, have = Counter(line.previous for line in group), Counter(slot)
    return all(need[kind] <= have[kind] for kind in need)
