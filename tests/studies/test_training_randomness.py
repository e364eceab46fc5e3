"""What is asked of torch so that steps on a GPU repeat their bits, and that it is as before afterwards."""

import os

import pytest
import torch

from archsearch.studies.training import randomness


def asked() -> tuple[bool, bool, bool]:
    """Deterministic operations, warnings instead of errors where there are none, buffers filled before use."""
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        randomness.deterministic.fill_uninitialized_memory,
    )


@pytest.fixture(params=[True, False])
def products(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether products on the GPU repeat: not where torch had multiplied there without a workspace of its own."""
    monkeypatch.setattr(randomness, "products_repeat", lambda device: request.param)  # pyright: ignore[reportUnknownArgumentType, reportUnknownLambdaType]
    return bool(request.param)


@pytest.mark.parametrize("before", [(False, False), (True, False), (True, True)])
def test_on_a_gpu_deterministic_operations_are_asked_for_until_the_end(
    before: tuple[bool, bool], products: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    torch.use_deterministic_algorithms(before[0], warn_only=before[1])
    try:
        with pytest.raises(KeyError), randomness.repeatable(torch.device("cuda")):
            assert asked() == (True, not products, False)
            assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
            raise KeyError
        assert asked() == (*before, True)
    finally:
        torch.use_deterministic_algorithms(False)


def test_a_cpu_is_left_alone() -> None:
    before = asked()
    with randomness.repeatable(torch.device("cpu")):
        assert asked() == before


@pytest.mark.parametrize(("message", "repeat"), [(None, True), ("set CUBLAS_WORKSPACE_CONFIG=:4096:8", False)])
def test_torch_is_asked_whether_products_repeat(
    message: str | None, repeat: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_products(message, monkeypatch)
    assert randomness.products_repeat(torch.device("cpu")) is repeat


def test_another_error_of_a_product_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_products("no memory", monkeypatch)
    with pytest.raises(RuntimeError, match="no memory"):
        randomness.products_repeat(torch.device("cpu"))


def refuse_products(message: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    def product(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        if message is not None:
            raise RuntimeError(message)
        return one

    monkeypatch.setattr(torch, "mm", product)
