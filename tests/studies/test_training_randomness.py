"""What is asked of torch so that steps on a GPU repeat their bits, and that it is as before afterwards."""

import os

import pytest
import torch

from archsearch.studies.training.randomness import deterministic, repeatable


def asked() -> tuple[bool, bool, bool]:
    """Deterministic operations, warnings instead of errors where there are none, buffers filled before use."""
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        deterministic.fill_uninitialized_memory,
    )


def test_on_a_gpu_deterministic_operations_are_asked_for_until_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    before = asked()
    with pytest.raises(KeyError), repeatable(torch.device("cuda")):
        assert asked() == (True, True, False)
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
        raise KeyError
    assert asked() == before == (False, False, True)


def test_who_wants_errors_instead_of_warnings_keeps_them() -> None:
    torch.use_deterministic_algorithms(True)
    try:
        with repeatable(torch.device("cuda")):
            assert asked() == (True, False, False)
        assert asked() == (True, False, True)
    finally:
        torch.use_deterministic_algorithms(False)


def test_a_cpu_is_left_alone() -> None:
    before = asked()
    with repeatable(torch.device("cpu")):
        assert asked() == before
