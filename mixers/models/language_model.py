"""The language model: tokens in, logits out, whole sequences or piece by piece with a cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from archsearch.dsl import Rule
from archsearch.errors import ConfigError, OperandError
from archsearch.kernels.dispatch import Backend, Memory
from archsearch.mixers.layer.initialisation import Stream
from archsearch.mixers.layer.options import Layer
from archsearch.mixers.layer.planning import layer_of
from archsearch.mixers.models.blocks import Block, LayerCache, mixer_of
from archsearch.mixers.models.counts import flops_per_token
from archsearch.mixers.models.options import Model

Cache = list[LayerCache]


class LanguageModel(nn.Module):
    """Embedding, blocks, RMSNorm, output layer.

    The initial values depend on torch's seed alone, and those of a parameter on its name and shape too: two rules of
    one seed share all that they have in common.

    Errors: ConfigError for a vocabulary below 1 and whatever `Mixer` refuses.
    """

    def __init__(
        self,
        rule: Rule,
        model: Model,
        layer: Layer | None,
        vocabulary: int,
        backend: Backend = "auto",
        chunk_size: int | None = None,
        memory: Memory = "fast",
    ) -> None:
        super().__init__()
        if not isinstance(model, Model):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(
                f"model must be a Model; got {type(model).__name__}. Write Model(width=256, heads=4, ...)"
            )
        if type(vocabulary) is not int or vocabulary < 1:
            raise ConfigError(f"vocabulary must be a whole number of at least 1; got {vocabulary!r}")
        stream = Stream.fresh(model.initial_std)
        self.rule, self.model, self.layer, self.vocabulary = rule, model, layer_of(rule, layer), vocabulary
        self.embedding = nn.Embedding.from_pretrained(
            (stream / "embedding").normal(vocabulary, model.width), freeze=False
        )
        self.dropout = nn.Dropout(model.dropout)
        self.blocks = nn.ModuleList(
            Block(mixer_of(entry, rule, model, self.layer, backend, chunk_size, memory, stream / i), model, stream / i)
            for i, entry in enumerate(model.entries)
        )
        self.norm = nn.RMSNorm(model.width, model.norm_eps)
        self.head = None if model.tie_embeddings else nn.Parameter((stream / "head").normal(vocabulary, model.width))

    def forward(self, tokens: Tensor, cache: Cache | None = None, cu_seqlens: Tensor | None = None) -> Tensor:
        """Tokens int64 [B, T] -> logits float32 [B, T, vocabulary] (float64 in a float64 model).

        cache: from `init_cache`, goes on after what it has seen and is moved on in place. cu_seqlens [N + 1]: packed
        sequences, B = 1. Errors: OperandError for tokens of another shape or type
        or beyond the vocabulary, or a cache of another model.
        """
        return self.headed(self.hidden(tokens, cache, cu_seqlens))

    def headed(self, x: Tensor) -> Tensor:
        """What `hidden` gives, or some of its rows, [..., width] -> logits [..., vocabulary], as `forward`."""
        logits = F.linear(x, self.embedding.weight if self.head is None else self.head)
        return logits if logits.dtype == torch.float64 else logits.float()

    def hidden(self, tokens: Tensor, cache: Cache | None = None, cu_seqlens: Tensor | None = None) -> Tensor:
        """Tokens [B, T] -> what the output layer reads, [B, T, width]. Errors: as `forward`."""
        if tokens.dim() != 2 or tokens.dtype not in (torch.int64, torch.int32):
            raise OperandError(f"tokens must be int64 [B, T]; got {tokens.dtype} {list(tokens.shape)}")
        if cache is not None and len(cache) != len(self.blocks):
            raise OperandError(f"the cache must be of {len(self.blocks)} layers; got {len(cache)}. Use init_cache")
        try:
            x = self.dropout(self.embedding(tokens))
        except IndexError:  # on a CPU; looking beforehand would wait for every device
            least, most = (int(each) for each in torch.aminmax(tokens))
            raise OperandError(f"tokens must be in [0, {self.vocabulary}); got {least} to {most}") from None
        caches: Sequence[LayerCache | None] = [None] * len(self.blocks) if cache is None else cache
        for block, remembered in zip(self.blocks, caches, strict=True):
            x = block(x, remembered, cu_seqlens)
        return self.norm(x)

    @property
    def parameter_count(self) -> int:
        """Numbers that are trained; a tied embedding counts once."""
        return sum(parameter.numel() for parameter in self.parameters())

    @property
    def state_bytes(self) -> int:
        """Bytes of state and convolution inputs of one sequence, all layers; without what attention adds a token."""
        return sum(part.nbytes for part in self.init_cache(1))

    def flops_per_token(self, length: int) -> float:
        """Forward FLOPs a token of a sequence of `length` tokens; see `archsearch.mixers.models.counts`."""
        return flops_per_token(self.rule, self.model, self.layer, self.vocabulary, length)

    def init_cache(self, batch: int) -> Cache:
        """The memory of every layer before the first token, for `batch` sequences."""
        return [cast(Block, block).init_cache(batch) for block in self.blocks]
