"""Sizes and layer pattern of a language model. Data only; any field may hold a hole while it stands in a `Space`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from typing import Any, Literal, cast

from archsearch.errors import ConfigError
from archsearch.holes import is_hole
from archsearch.mixers.layer.checks import LARGEST_RATIO, need
from archsearch.mixers.layer.partner_options import Griffin, Latent, Mamba
from archsearch.typed_data import check_fields

Entry = Literal["rule", "attention", "window", "mla", "mamba", "griffin", "conv"]
ENTRIES = ("rule", "attention", "window", "mla", "mamba", "griffin", "conv")
MULTIPLE = 16
MOST_LAYERS = 256
LONGEST_WINDOW = 1 << 24
SIZES: dict[Entry, str] = {
    "window": "window",
    "mla": "latent",
    "mamba": "mamba",
    "griffin": "griffin",
    "conv": "conv_width",
}
"""The field that holds the sizes of layers of a kind."""


@dataclass(frozen=True, slots=True)
class Model:
    """Pre-norm blocks: x + mixer(RMSNorm(x)), then x + SwiGLU(RMSNorm(x)).

    width: channels of the residual stream. heads: of every mixer. layers: blocks. pattern: repeated over the layers;
    "rule" is the mixer, "attention" softmax attention with rotary positions, "window" the same over the last `window`
    tokens, "mla" attention over a latent, "mamba" Mamba-1, "griffin" a recurrent block with RG-LRU, "conv" a
    short convolution times a linear map. mlp_ratio: hidden channels of the SwiGLU over the width, rounded to a multiple
    of 16; 0 is no MLP. dropout: of the embedding and of every branch, in [0, 1). tie_embeddings: the output layer is
    the embedding's transpose. norm_eps: of the RMSNorms. initial_std: of embeddings and projections. conv_width: tokens
    that a "conv" layer sees. window: tokens that a "window" layer sees. latent, mamba, griffin: sizes of such layers.
    """

    width: int = 128
    heads: int = 2
    layers: int = 2
    pattern: tuple[Entry, ...] = ("rule",)
    mlp_ratio: float = 8 / 3
    dropout: float = 0.0
    tie_embeddings: bool = True
    norm_eps: float = 1e-6
    initial_std: float = 0.02
    conv_width: int = 3
    window: int = 128
    latent: Latent = field(default_factory=Latent)
    mamba: Mamba = field(default_factory=Mamba)
    griffin: Griffin = field(default_factory=Griffin)

    def __post_init__(self) -> None:
        """Refuse numbers out of range; holes pass until they are filled."""
        for name in ("width", "heads", "layers", "conv_width", "window"):
            most = {"layers": MOST_LAYERS, "window": LONGEST_WINDOW}.get(name)
            need(f"model.{name}", getattr(self, name), ">= 1", lambda x: x >= 1, whole=True, most=most)
        need("model.mlp_ratio", self.mlp_ratio, ">= 0 (0: no MLP)", lambda x: x >= 0, most=LARGEST_RATIO)
        need("model.dropout", self.dropout, "in [0, 1)", lambda x: 0 <= x < 1)
        need("model.norm_eps", self.norm_eps, "> 0", lambda x: x > 0)
        need("model.initial_std", self.initial_std, "> 0", lambda x: x > 0)
        entries = cast(object, self.pattern)
        if isinstance(entries, tuple | list) and not _are_entries(cast(Sequence[object], entries)):
            raise ConfigError(f"model.pattern must hold one or more of {', '.join(ENTRIES)}; got {self.pattern}")
        check_fields(self, "model", is_hole)

    @property
    def mlp_width(self) -> int:
        """Hidden channels of the SwiGLU: a multiple of 16, 0 for none, at least 16 otherwise."""
        if self.mlp_ratio == 0:
            return 0
        return max(MULTIPLE, MULTIPLE * round(self.mlp_ratio * self.width / MULTIPLE))

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The kind of each layer's mixer, first to last."""
        return tuple(self.pattern[i % len(self.pattern)] for i in range(self.layers))

    def only(self, entries: Collection[Entry]) -> Model:
        """Itself, sizes of layers that are not among `entries` as by default: the model of one point of a space."""
        unused = {SIZES[entry] for entry in SIZES if entry not in entries}
        return replace(self, **{f.name: _default(f) for f in fields(self) if f.name in unused})


def _are_entries(pattern: Sequence[object]) -> bool:
    return len(pattern) > 0 and all(is_hole(entry) or entry in ENTRIES for entry in pattern)


def _default(option: Field[Any]) -> Any:
    return option.default if option.default_factory is MISSING else option.default_factory()
