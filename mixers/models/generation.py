"""Text from a model, token by token with its cache."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from archsearch.errors import ConfigError, OperandError
from archsearch.mixers.models.language_model import LanguageModel


def generate(
    model: LanguageModel,
    prompt: Tensor,
    count: int,
    *,
    temperature: float = 0.0,
    top_k: int | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """`prompt` int64 [B, T >= 1] with `count` new tokens after it, [B, T + count].

    temperature 0 takes the likeliest token; else tokens are drawn from softmax(logits / temperature), of the `top_k`
    likeliest only if given. Errors: ConfigError for numbers out of range, OperandError for an empty prompt.
    """
    return torch.cat(
        [prompt, *stream(model, prompt, count, temperature=temperature, top_k=top_k, generator=generator)], 1
    )


def stream(
    model: LanguageModel,
    prompt: Tensor,
    count: int,
    *,
    temperature: float = 0.0,
    top_k: int | None = None,
    generator: torch.Generator | None = None,
) -> Iterator[Tensor]:
    """As `generate`, each new token [B, 1] as soon as it is there. The model decides in evaluation mode."""
    if temperature < 0 or count < 0 or (top_k is not None and top_k < 1):
        raise ConfigError(f"count and temperature must be >= 0 and top_k >= 1; got {count}, {temperature}, {top_k}")
    if prompt.dim() != 2 or prompt.shape[1] == 0:
        raise OperandError(f"the prompt must be int64 [B, T] with T >= 1; got {list(prompt.shape)}. Give a first token")
    return _tokens(model, prompt, count, temperature, top_k, generator)


@torch.no_grad()
def _tokens(
    model: LanguageModel,
    prompt: Tensor,
    count: int,
    temperature: float,
    top_k: int | None,
    generator: torch.Generator | None,
) -> Iterator[Tensor]:
    training = model.training
    model.eval()
    try:
        cache = model.init_cache(prompt.shape[0])
        piece = prompt
        for _ in range(count):
            piece = _chosen(model(piece, cache)[:, -1], temperature, top_k, generator)
            yield piece
    finally:
        model.train(training)


def _chosen(logits: Tensor, temperature: float, top_k: int | None, generator: torch.Generator | None) -> Tensor:
    """[B, vocabulary] -> [B, 1]."""
    if temperature == 0:
        return logits.argmax(-1, keepdim=True)
    if top_k is not None and top_k < logits.shape[-1]:
        lowest = logits.topk(top_k).values[:, -1:]
        logits = logits.masked_fill(logits < lowest, float("-inf"))
    return torch.multinomial((logits / temperature).softmax(-1), 1, generator=generator)
