"""Sizes of a pattern's layers that are no rule. Data only; a field may hold a hole while it stands in a `Space`."""

from __future__ import annotations

from dataclasses import dataclass, fields

from archsearch.errors import ConfigError
from archsearch.holes import is_hole


@dataclass(frozen=True, slots=True)
class LatentSizes:
    """Multi-head latent attention, settled: heads, the latent's rank, and of a head's query and key the channels
    `content` and `rotary`, of its value `value`. query_rank 0: queries are made of the token itself."""

    heads: int
    rank: int
    content: int
    rotary: int
    value: int
    query_rank: int

    @property
    def queries(self) -> int:
        """Channels of all queries."""
        return self.heads * (self.content + self.rotary)


@dataclass(frozen=True, slots=True)
class Latent:
    """Multi-head latent attention (2405.04434). With d = width // heads:

    rank: of the latent that keys and values are made of; None is the smaller of 4 d (section 3.1.2) and width // 2.
    content: channels of a head's query and key without a position; None is d. rotary: channels with one, even; None is
    d // 2, made even. value: channels of a head's value; None is d. query_rank: of the latent that queries are made of;
    0 is none. d = 128 gives the published 512, 128, 64, 128.
    """

    rank: int | None = None
    content: int | None = None
    rotary: int | None = None
    value: int | None = None
    query_rank: int = 0

    def __post_init__(self) -> None:
        """Refuse numbers out of range; holes pass until they are filled."""
        for field in fields(self):
            value = getattr(self, field.name)
            least = 0 if field.name == "query_rank" else 2 if field.name == "rotary" else 1
            if not (value is None or is_hole(value) or (type(value) is int and value >= least)):
                raise ConfigError(f"latent.{field.name} must be a whole number >= {least}; got {value!r}")

    def sizes(self, width: int, heads: int) -> LatentSizes:
        """Every size for a model of this width. ConfigError where the heads do not divide it, or an odd `rotary`."""
        if width % heads:
            raise ConfigError(f"mla needs a width that its heads divide; got width={width}, heads={heads}. Change one")
        dim = width // heads
        rotary = self.rotary or max(2, dim // 4 * 2)
        if rotary % 2:
            raise ConfigError(f"latent.rotary must be even, for its channels turn in pairs; got {rotary}")
        rank = self.rank or max(1, min(4 * dim, width // 2))
        return LatentSizes(heads, rank, self.content or dim, rotary, self.value or dim, self.query_rank)
