"""Pre-norm blocks: a mixer and a SwiGLU, each behind an RMSNorm and a residual sum."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from archsearch.dsl import Rule
from archsearch.kernels.dispatch import Backend, Memory
from archsearch.mixers.layer.attending import TokenCache
from archsearch.mixers.layer.attention import Attention, ConvolutionCache, ConvolutionMixer
from archsearch.mixers.layer.cache import MixerCache
from archsearch.mixers.layer.initialisation import Stream
from archsearch.mixers.layer.latent_attention import LatentAttention
from archsearch.mixers.layer.mixer import Mixer
from archsearch.mixers.layer.options import Layer
from archsearch.mixers.layer.recurrent import GriffinLayer, MambaLayer, ScanCache
from archsearch.mixers.layer.shapes import parted
from archsearch.mixers.models.options import Entry, Model

LayerCache = MixerCache | TokenCache | ScanCache | ConvolutionCache
LayerMixer = Mixer | Attention | LatentAttention | MambaLayer | GriffinLayer | ConvolutionMixer


class SwiGLU(nn.Module):
    """W_down (silu(W_gate x) * W_up x): [B, T, width] -> [B, T, width]."""

    def __init__(self, width: int, hidden: int, stream: Stream) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.cat([(stream / name).normal(hidden, width) for name in ("gate", "up")]))
        self.down = nn.Parameter((stream / "down").normal(width, hidden))

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, width] -> [B, T, width]."""
        gate, up = parted(F.linear(x, self.up), self.down.shape[1])
        return F.linear(F.silu(gate) * up, self.down)


class Block(nn.Module):
    """x + mixer(RMSNorm(x)), then x + SwiGLU(RMSNorm(x)) unless the model has no MLP."""

    def __init__(self, mixer: LayerMixer, model: Model, stream: Stream) -> None:
        super().__init__()
        self.mixer_norm = nn.RMSNorm(model.width, model.norm_eps)
        self.mixer = mixer
        hidden = model.mlp_width
        self.mlp_norm = nn.RMSNorm(model.width, model.norm_eps) if hidden else None
        self.mlp = SwiGLU(model.width, hidden, stream / "mlp") if hidden else None
        self.dropout = nn.Dropout(model.dropout)

    def forward(self, x: Tensor, cache: LayerCache | None = None, cu_seqlens: Tensor | None = None) -> Tensor:
        """[B, T, width] -> [B, T, width]."""
        x = x + self.dropout(self.mixer(self.mixer_norm(x), cache=cache, cu_seqlens=cu_seqlens))
        if self.mlp is None or self.mlp_norm is None:
            return x
        return x + self.dropout(self.mlp(self.mlp_norm(x)))

    def init_cache(self, batch: int) -> LayerCache:
        """The mixer's memory before the first token."""
        return self.mixer.init_cache(batch)


def mixer_of(
    entry: Entry,
    rule: Rule,
    model: Model,
    layer: Layer | None,
    backend: Backend,
    chunk_size: int | None,
    memory: Memory,
    stream: Stream,
) -> LayerMixer:
    """The mixer of one place of the pattern."""
    match entry:
        case "rule":
            return Mixer(rule, model.width, model.heads, layer, backend, chunk_size, memory, stream=stream)
        case "attention":
            return Attention(model.width, model.heads, stream=stream)
        case "window":
            return Attention(model.width, model.heads, model.window, stream=stream)
        case "mla":
            return LatentAttention(model.width, model.latent.sizes(model.width, model.heads), stream=stream)
        case "mamba":
            return MambaLayer(model.width, model.mamba.sizes(model.width), backend, stream=stream)
        case "griffin":
            return GriffinLayer(model.width, model.griffin.sizes(model.width, model.heads), backend, stream=stream)
        case "conv":
            return ConvolutionMixer(model.width, model.conv_width, stream)
