"""Sizes of a pattern's layers that are no rule. Data only; a field may hold a hole while it stands in a `Space`."""

from __future__ import annotations

from dataclasses import dataclass, fields

from archsearch.errors import ConfigError
from archsearch.mixers.layer.checks import need


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
            need(f"latent.{field.name}", value, f">= {least}", lambda x, least=least: x >= least, whole=True)

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


@dataclass(frozen=True, slots=True)
class MambaSizes:
    """Mamba-1, settled: channels of the scan, numbers of each channel's state, rank of the step sizes, conv width."""

    channels: int
    state: int
    rank: int
    conv: int


@dataclass(frozen=True, slots=True)
class Mamba:
    """A Mamba-1 layer (2312.00752).

    expand: channels of the scan over the width. state: numbers of each channel's state. rank: of the map that makes the
    step sizes; None is width / 16, rounded up. conv: kernel width in tokens.
    """

    expand: int = 2
    state: int = 16
    rank: int | None = None
    conv: int = 4

    def __post_init__(self) -> None:
        """Refuse numbers out of range; holes pass until they are filled."""
        _whole("mamba", self)

    def sizes(self, width: int) -> MambaSizes:
        """Every size for a model of this width."""
        return MambaSizes(self.expand * width, self.state, self.rank or -(-width // 16), self.conv)


@dataclass(frozen=True, slots=True)
class GriffinSizes:
    """Griffin's recurrent block, settled: channels of the recurrence, blocks of its gates' matrices, conv width."""

    channels: int
    blocks: int
    conv: int


@dataclass(frozen=True, slots=True)
class Griffin:
    """Griffin's recurrent block with RG-LRU (2402.19427, sections 2.3-2.4).

    channels: of the recurrence; None is the width (the paper has 4 / 3 of it). blocks: the gates' matrices are
    block-diagonal with so many blocks; None is one a head. conv: kernel width in tokens.
    """

    channels: int | None = None
    blocks: int | None = None
    conv: int = 4

    def __post_init__(self) -> None:
        """Refuse numbers out of range; holes pass until they are filled."""
        _whole("griffin", self)

    def sizes(self, width: int, heads: int) -> GriffinSizes:
        """Every size for a model of this width. ConfigError where the blocks do not divide the channels."""
        channels, blocks = self.channels or width, self.blocks or heads
        if channels % blocks:
            raise ConfigError(
                f"griffin needs channels that its blocks divide; got channels={channels}, blocks={blocks}. Change one"
            )
        return GriffinSizes(channels, blocks, self.conv)


def _whole(name: str, options: Mamba | Griffin) -> None:
    for field in fields(options):
        need(f"{name}.{field.name}", getattr(options, field.name), ">= 1", lambda x: x >= 1, whole=True)
