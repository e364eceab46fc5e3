"""The labelled positions of a batch: a model's output layer is needed there alone."""

import torch
from torch import Tensor

from archsearch.studies.tasks.task import IGNORED

ROUNDING = 64
"""Labelled positions are filled up to a multiple of this, so that the batches of a task look alike."""


def rounded(count: int) -> int:
    """So many labels filled up, at least one multiple."""
    return max(1, -(-count // ROUNDING)) * ROUNDING


def labelled(targets: Tensor, least: int = 0) -> tuple[Tensor, Tensor]:
    """(places, answers), int64 [M]: the labelled positions of targets [B, T] in the flat batch, and what to predict.

    M is a multiple of `ROUNDING`, `least` or more; filled up with place 0 and answer `IGNORED`.
    """
    flat = targets.flatten()
    places = (flat != IGNORED).nonzero()[:, 0]
    missing = max(least, rounded(len(places))) - len(places)
    return (
        torch.nn.functional.pad(places, (0, missing)),
        torch.nn.functional.pad(flat[places], (0, missing), value=IGNORED),
    )
