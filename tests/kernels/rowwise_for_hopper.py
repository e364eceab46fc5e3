"""Compiles the kernels around a rule for sm_90 without a device and prints what each came to."""

import json
import sys
from typing import Any

import torch
from compiled_for_hopper import FOUND, Kernel

from archsearch.kernels.rowwise import calls


class Context:
    """What a function of autograd keeps."""

    def save_for_backward(self, *tensors: Any) -> None:
        """Kept as they are."""
        self.saved_tensors = tensors


def launched(kernel: Any, grid: Any, *given: Any, **tiles: Any) -> None:
    """Compile in place of launching."""
    Kernel(kernel).compiled(*given, num_warps=4, **tiles)


def main(width: int) -> None:
    """Forward and backward of all, values in bfloat16, weights in float32."""
    calls.launched = launched
    half: Any = {"dtype": torch.bfloat16, "device": "meta"}
    wide: Any = {"dtype": torch.float32, "device": "meta"}
    kept: Any = Context()
    x, weight = torch.empty(8, 64, 256, 6 * width, **half)[..., : 4 * width], torch.empty(8, 4 * width, 4, **wide)
    slopes = calls._Convolution.forward(kept, x, weight, None, (width, 3 * width))
    calls._Convolution.backward(kept, *slopes)
    kept = Context()
    answers = torch.empty(16384, dtype=torch.int64, device="meta")
    losses = calls._CrossEntropy.forward(kept, torch.empty(16384, 64 * width, **half), answers)
    calls._CrossEntropy.backward(kept, losses)
    kept = Context()
    o = torch.empty(8, 64, 256, 2, width, **half)
    y = calls._GatedNorm.forward(
        kept, o, torch.empty_like(o), torch.empty(8, width, **wide), 1e-5, "swish", torch.bfloat16
    )
    calls._GatedNorm.backward(kept, y)
    rows, columns = torch.empty(8, 1000 * width, **wide), [torch.empty(8, 1, **wide) for _ in range(7)]
    calls.adamw(rows, rows, rows, rows, rows[:1], calls.RowRates(*columns))
    sys.stdout.write(json.dumps(FOUND))


if __name__ == "__main__":
    main(*(int(number) for number in sys.argv[1:]))
