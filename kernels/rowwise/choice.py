"""Where the kernels of `calls` run; to ask needs no Triton."""

from torch import Tensor


def applies(x: Tensor) -> bool:
    """Whether they take the place of torch's functions for `x`."""
    return x.is_cuda
