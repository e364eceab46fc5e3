"""Pieces of a sequence that run side by side: what each sends on, put together by its transition."""

from __future__ import annotations

import torch
from torch import Tensor

from archsearch.kernels.triton import generation, modules
from archsearch.kernels.triton.launcher import Launcher
from archsearch.kernels.triton.plan import power


def launcher() -> Launcher:
    """The kernel that joins pieces; it knows no rule."""
    return Launcher(modules.load("combine", generation.joining()))


def joined(
    launch: Launcher,
    local: Tensor,
    transition: Tensor,
    entering: Tensor | None,
    segments: int,
    *,
    reverse: bool = False,
) -> Tensor:
    """States [sequences * HV * segments, V, K] at the pieces' starts (their gradients at the ends, in reverse).

    `local` [pieces, V, K] is what each piece sends on: the first one, which starts from `entering` [sequences, HV, K, V],
    all of it. `transition` [pieces, K, K] is that of the pieces between the first and the last.
    """
    pieces, value_dim, key_dim = local.shape
    reached = torch.empty_like(local)
    values = 16
    arguments = {
        "local": local,
        "transition": transition,
        "entering": entering,
        "reached": reached,
        "K": key_dim,
        "V": value_dim,
        "KP": power(key_dim),
        "BV": values,
        "SEGMENTS": segments,
        "ENTERS": entering is not None,
        "REVERSED": reverse,
        "num_warps": 8,
    }
    launch("combine", (pieces // segments * ((value_dim + values - 1) // values), 1, 1), arguments)
    return reached
