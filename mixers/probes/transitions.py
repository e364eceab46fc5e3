"""The spectrum of what tokens do to a state, S_t = M_t S_(t-1) + ...: of one and of many in a row, in float64."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from archsearch.lowering.normal_form import NormalForm
from archsearch.lowering.spectrum import NOISE, transition
from archsearch.mixers.probes.algebra import unfolded
from archsearch.mixers.probes.quantities import Found, LeftOut, Name, Quantity, curve, least, mean, most, places

WINDOW = 64
"""Tokens of a product, where the sequence has so many."""

Array = NDArray[np.float64]


def transitions(form: NormalForm, tensors: dict[str, Tensor], windows: int) -> list[Found]:
    """Eigenvalues and norms of M_t at the first tokens of some windows of each sequence, and of the windows' products.

    Operands [B, T, HV, ...].
    """
    if not all(bool(tensor.isfinite().all()) for tensor in tensors.values()):
        return [LeftOut(Name.TRANSITION, "an operand is not finite")]
    batch, tokens, heads = next(iter(tensors.values())).shape[:3]
    length = min(WINDOW, tokens)
    starts = places(tokens - length + 1, windows)
    shape = (batch, len(starts), heads)
    arrays = {name: tensor.double().numpy() for name, tensor in tensors.items()}
    product, norms = _at(form, arrays, starts), dict[int, Tensor]()
    figures = _eigenvalues(product, shape)
    for count in range(1, length + 1):
        if count > 1:
            with np.errstate(over="ignore", invalid="ignore"):  # growth without bound is told as such
                product = _at(form, arrays, [start + count - 1 for start in starts]) @ product
        if count & (count - 1) == 0 or count == length:
            norms[count] = _norms(product, shape).flatten(0, 1)  # [windows, HV]
    figures |= {
        "norm": mean(norms[1]),
        "norm_most": most(norms[1]),
        "product_norm": mean(norms[length]),
        "product_norm_most": most(norms[length]),
    }
    curves = {
        "product_norm": curve(list(norms), torch.stack([each.mean(0) for each in norms.values()], -1)),
        "product_norm_most": curve(list(norms), torch.stack([each.amax(0) for each in norms.values()], -1)),
    }
    return [Quantity(Name.TRANSITION, "", figures, curves)]


def _at(form: NormalForm, arrays: Mapping[str, Array], tokens: Sequence[int]) -> Array:
    """M [B x tokens x HV, K, K]."""
    return transition(form, {name: x[:, list(tokens)].reshape(-1, *x.shape[3:]) for name, x in arrays.items()})


def _eigenvalues(matrices: Array, shape: tuple[int, ...]) -> dict[str, tuple[float | None, ...]]:
    values = np.linalg.eigvals(matrices).astype(np.complex128)
    turning = np.abs(values.imag) > NOISE
    real = unfolded(torch.from_numpy(np.where(turning, np.nan, values.real)), shape)
    negative = (values.real < -NOISE) & ~turning

    def share(found: NDArray[np.bool_]) -> tuple[float | None, ...]:
        return mean(unfolded(torch.from_numpy(found.any(1).astype(np.float64)), shape))

    return {
        "real_lowest": least(real.transpose(-1, -2)),
        "modulus_most": most(unfolded(torch.from_numpy(np.abs(values).max(1)), shape)),
        "share_negative": share(negative),
        "share_complex": share(turning),
    }


def _norms(matrices: Array, shape: tuple[int, ...]) -> Tensor:
    """The largest singular value of each [N], as `shape`; infinite where the matrix is no longer of numbers."""
    whole: NDArray[np.bool_] = np.all(np.isfinite(matrices), axis=(1, 2))
    found = np.linalg.norm(np.where(whole[:, None, None], matrices, 0.0), ord=2, axis=(1, 2))
    return unfolded(torch.from_numpy(np.where(whole, found, np.inf)), shape)
