"""How large a space is: its structures, how many of them are distinct rules, and which are one rule twice."""

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from archsearch.dsl import Rule
from archsearch.errors import ArchsearchError, first_line
from archsearch.holes import Choose, Chosen, Uniform, ways
from archsearch.spaces.canonical import code
from archsearch.spaces.resolution import structures
from archsearch.spaces.space import Space

LIMIT = 2_000
"""Rules that are written out and hashed; of a larger space the first so many."""


@dataclass(frozen=True, slots=True)
class Collapse:
    """Two ways to fill the holes of the rule that give one rule. same_sources: the layer does not tell them apart
    either, so that the choice has no meaning.
    """

    first: Mapping[str, Chosen]
    second: Mapping[str, Chosen]
    rule_hash: str
    same_sources: bool


@dataclass(frozen=True, slots=True)
class Census:
    """holes: of the space. ranges: those of them that are ranges of numbers, which no number of points exhausts.
    structures: ways to fill the others. rules: ways to fill the holes of the rule alone; distinct_rules: hashes among
    them; distinct_sources: pairs of a hash and the layer's sources. collapses: an example of each rule that is written
    twice. broken: ways to fill them that make no rule, with the reasons; they count in nothing else. whole: whether all
    rules were written out, rather than the first `LIMIT`.
    """

    holes: int
    ranges: int
    structures: int
    rules: int
    broken: tuple[tuple[Mapping[str, Chosen], str], ...]
    distinct_rules: int
    distinct_sources: int
    collapses: tuple[Collapse, ...]
    whole: bool


def census(space: Space, limit: int = LIMIT) -> Census:
    """Count the space."""
    tried = list(itertools.islice(structures(lambda choose: _attempt(space, choose)), limit + 1))
    whole, tried = len(tried) <= limit, tried[:limit]
    found = [(choices, hashed.rule, hashed.hash) for choices, hashed in tried if isinstance(hashed, _Hashed)]
    hashes = [rule_hash for _, _, rule_hash in found]
    sources = [_sources(space, rule) for _, rule, _ in found]
    return Census(
        holes=len(space.holes),
        ranges=sum(isinstance(hole, Uniform) for hole in space.holes.values()),
        structures=sum(_beside(space, rule) for _, rule, _ in found),
        rules=len(found),
        broken=tuple((choices, reason) for choices, reason in tried if isinstance(reason, str)),
        distinct_rules=len(set(hashes)),
        distinct_sources=len(set(zip(hashes, sources, strict=True))),
        collapses=tuple(_collapses([choices for choices, _, _ in found], hashes, sources)),
        whole=whole,
    )


class _Hashed(NamedTuple):
    rule: Rule
    hash: str


def _attempt(space: Space, choose: Choose) -> _Hashed | str:
    """A rule and its hash, or in one line why there is none."""
    try:
        rule = space.resolve_rule(choose)
        return _Hashed(rule, rule.hash)
    except ArchsearchError as error:
        return first_line(error)


def _beside(space: Space, rule: Rule) -> int:
    """Ways to fill the holes of layer, model and training that exist beside a rule."""
    total = 0
    for given, parts in structures(lambda choose: space.needed(rule, choose)):
        total += math.prod(
            ways(part, [path.removeprefix(f"{name}/") for path in given if path.startswith(f"{name}/")])
            for name, part in zip(("layer", "model", "training"), parts, strict=True)
        )
    return total


def _sources(space: Space, rule: Rule) -> str:
    """The layer's own sources of the rule's operands, counted by first use, holes and all."""
    given = space.layer.operands
    return "; ".join(f"{i}: {code(given[name])}" for i, name in enumerate(rule.operands) if name in given)


def _collapses(found: list[dict[str, Chosen]], hashes: list[str], sources: list[str]) -> Iterator[Collapse]:
    """The first pair of each rule that is written twice; one that not even the sources tell apart goes first."""
    pairs: dict[str, Collapse] = {}
    firsts: dict[str, int] = {}
    alike: dict[tuple[str, str], int] = {}
    for index, (rule_hash, source) in enumerate(zip(hashes, sources, strict=True)):
        same = alike.setdefault((rule_hash, source), index)
        first = same if same != index else firsts.setdefault(rule_hash, index)
        known = pairs.get(rule_hash)
        if first != index and (known is None or (same != index and not known.same_sources)):
            pairs[rule_hash] = Collapse(found[first], found[index], rule_hash, same_sources=same != index)
    yield from pairs.values()
