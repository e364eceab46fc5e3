"""Pieces of a sequence that run side by side: what each sends on, put together by its transition."""

from __future__ import annotations

from archsearch.kernels.triton import generation, modules
from archsearch.kernels.triton.launcher import Launcher
from archsearch.kernels.triton.plan import power
from archsearch.kernels.triton.steps import Of, Step

JOINING = "combine"
"""The kernel's name."""


def launcher() -> Launcher:
    """The kernel that joins pieces; it knows no rule."""
    return Launcher(modules.load("combine", generation.joining()))


def joined(
    pieces: int,
    segments: int,
    key_dim: int,
    value_dim: int,
    precision: str,
    entering: str | None,
    *,
    diagonal: bool,
    reverse: bool,
) -> Step:
    """States at the pieces' starts (their gradients at the ends, in reverse), in the buffer "reached".

    "local" [pieces, V, K] is what each piece sends on: the first one, which starts from what `entering` names
    [sequences, HV, K, V], all of it. "transitions" [pieces, K, K], [pieces, K] where they are `diagonal`, are those of
    the pieces between first and last.
    There are `segments` pieces a sequence and head. Products are as exact as `precision` says, which is that of other
    products of float32: what a piece sends on went through products of rounded operands before.
    """
    values = 16
    grid = (pieces // segments * ((value_dim + values - 1) // values), 1, 1)
    return Step(
        "combine",
        grid,
        {
            "local": Of("local"),
            "transition": Of("transitions"),
            "entering": None if entering is None else Of(entering),
            "reached": Of("reached"),
            "K": key_dim,
            "V": value_dim,
            "KP": power(key_dim),
            "BV": values,
            "SEGMENTS": segments,
            "DIAGONAL": diagonal,
            "ENTERS": entering is not None,
            "REVERSED": reverse,
            "PRECISION": precision,
            "num_warps": 8,
        },
    )
