"""Compiles the kernels of the scans for sm_90 without a device and prints what each came to."""

import json
import sys
from typing import Any

import torch
from compiled_for_hopper import FOUND, Kernel

from archsearch.kernels.scan import launching


class Context:
    """What a function of autograd keeps, and what it is asked for."""

    needs_input_grad = (True,)

    def save_for_backward(self, *tensors: Any) -> None:
        """Kept as they are."""
        self.saved_tensors = tensors


def launched(kernel: Any, grid: Any, *tensors: Any, num_warps: int, **sizes: int) -> None:
    """Compile in place of launching."""
    Kernel(kernel).compiled(*tensors, num_warps=num_warps, **sizes)


def main(channels: int, numbers: int) -> None:
    """Forward and backward of both, values in bfloat16, packed."""
    launching.launched = launched
    wide: Any = {"dtype": torch.float32, "device": "meta"}
    v, q = (torch.empty(1, 4096, size, dtype=torch.bfloat16, device="meta") for size in (channels, numbers))
    step, rates = torch.empty(v.shape, **wide), torch.empty(channels, numbers, **wide)
    state, offsets = torch.empty(8, channels, numbers, **wide), torch.empty(9, dtype=torch.int64, device="meta")
    kept: Any = Context()
    output, final = launching.Scan.forward(kept, step, step, state[..., 0].contiguous(), offsets)
    launching.Scan.backward(kept, output, final)
    kept = Context()
    output, final = launching.Selective.forward(kept, q, q, v, step, rates, state, offsets)
    launching.Selective.backward(kept, output, final)
    sys.stdout.write(json.dumps(FOUND))


if __name__ == "__main__":
    main(*(int(number) for number in sys.argv[1:]))
