"""Without a CUDA device the generated kernels run under Triton's interpreter, which must be chosen before triton is first imported."""

import os

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
