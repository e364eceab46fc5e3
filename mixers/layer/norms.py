"""Norms and activations of operands, computed in float32 (float64 stays)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from archsearch.mixers.layer.options import Activation, Norm

EPSILON = 1e-6


def exact(x: Tensor) -> Tensor:
    """`x` in float32 unless it is float64 already."""
    return x if x.dtype.itemsize >= 4 else x.float()


def normalised(x: Tensor, norm: Norm) -> Tensor:
    """Norm over the last dimension, in the dtype of `x`: "l2" is u / sqrt(u.u + 1e-6), "rms" is sqrt(K) times that."""
    if norm == "none":
        return x
    wide = exact(x)
    size = x.shape[-1]
    wide = F.rms_norm(wide, (size,), eps=EPSILON / size)  # u / sqrt(u.u / K + eps / K) = sqrt(K) u / sqrt(u.u + eps)
    return (wide if norm == "rms" else wide * size**-0.5).to(x.dtype)


def activated(x: Tensor, activation: Activation) -> Tensor:
    """The feature map of an operand, elementwise."""
    match activation:
        case "none":
            return x
        case "silu":
            return F.silu(x)
        case "relu":
            return F.relu(x)
        case "elu+1":
            return F.elu(x) + 1
