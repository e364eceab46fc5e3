"""Triton is first imported ready for its interpreter where there is no CUDA device; tests of kernels ask for it."""

from importlib import import_module

import pytest
import torch

if not torch.cuda.is_available():
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("TRITON_INTERPRET", "1")  # read when triton, and every kernel, is first imported
        import_module("triton.language")


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """The device on which generated kernels run: CUDA, or the CPU under Triton's interpreter."""
    if torch.cuda.is_available():
        return torch.device("cuda")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    return torch.device("cpu")
