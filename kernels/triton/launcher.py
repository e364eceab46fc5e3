"""Launches of one setup's kernels. What the first launch compiled is run again as it is, without Triton's own lookup,
which takes longer than many a kernel.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

ALIGNED = 16
"""Bytes on which Triton takes an address to be aligned, and makes other code where one is not."""


class Launcher:
    """Calls kernels of a generated module on one device."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self.compiled: dict[tuple[object, ...], tuple[Any, tuple[str, ...]]] = {}

    def __call__(self, name: str, grid: tuple[int, int, int], arguments: Mapping[str, Any]) -> None:
        """Run kernel `name`; `arguments` by name, with num_warps, num_stages and maxnreg among them."""
        key = (name, *(_kind(argument) for argument in arguments.values()))
        known = self.compiled.get(key)
        if known is not None:
            kernel, parameters = known
            kernel[grid](*(arguments[parameter] for parameter in parameters))
            return
        function = getattr(self.module, name)
        kernel = function[grid](**arguments)
        if kernel is not None:  # under the interpreter nothing is compiled
            self.compiled[key] = kernel, tuple(function.arg_names)


def _kind(argument: object) -> object:
    """What of an argument decides which code runs."""
    if isinstance(argument, Tensor):
        return argument.dtype, argument.data_ptr() % ALIGNED == 0
    if isinstance(argument, TensorDescriptor):
        return argument.base.dtype
    return argument
