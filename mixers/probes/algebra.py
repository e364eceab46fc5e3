"""Lengths, singular values, principal axes: each of a batch of vectors or matrices, in float64 but for lengths."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

SMALL = 1e-12
"""A shorter vector, or a smaller sum, has no direction and no shares."""


def length(vectors: Tensor) -> Tensor:
    """[..., N] -> [...]."""
    return vectors.square().sum(-1).sqrt()


def size(matrices: Tensor) -> Tensor:
    """Frobenius norms: [..., K, V] -> [...]."""
    return length(matrices.flatten(-2))


def recall(state: Tensor, address: Tensor) -> Tensor:
    """S^T x: [..., K, V] and [..., K] -> [..., V]."""
    return torch.einsum("...kv,...k->...v", state, address)


def singular_values(matrices: Tensor) -> Tensor:
    """[..., K, V] -> [..., min(K, V)], largest first."""
    return torch.from_numpy(np.linalg.svd(matrices.detach().double().numpy(), compute_uv=False))


def principal(covariance: Tensor) -> tuple[Tensor, Tensor]:
    """Of symmetric matrices the eigenvalues [..., N], largest first, none below 0, and eigenvectors as columns.

    NaN where a matrix is not of numbers.
    """
    whole = covariance.isfinite().all(-1, keepdim=True).all(-2, keepdim=True)
    values, vectors = np.linalg.eigh(torch.where(whole, covariance, 0.0).detach().double().numpy())
    found = torch.from_numpy(np.maximum(values[..., ::-1], 0.0))
    return torch.where(whole[..., 0], found, torch.nan), torch.from_numpy(vectors[..., ::-1].copy())


def effective_rank(values: Tensor) -> Tensor:
    """exp of the entropy of singular values [..., N] as shares of their sum; NaN where all are zero."""
    total = values.sum(-1, keepdim=True)
    shares = torch.where(total > SMALL, values / total, torch.nan)
    logs = torch.where(shares > 0, shares.log(), shares.clamp(max=0))  # 0 log 0 is 0, and NaN stays
    return (-(shares * logs).sum(-1)).exp()


def cosine(first: Tensor, second: Tensor) -> Tensor:
    """Of [..., N] and [..., N]; NaN where one of them is too short to have a direction."""
    lengths = length(first) * length(second)
    return torch.where(lengths > SMALL, (first * second).sum(-1) / lengths, torch.nan)


def unfolded(values: Tensor, shape: tuple[int, ...]) -> Tensor:
    """[N, ...] -> [*shape, ...]."""
    return values.reshape(*shape, *values.shape[1:])
