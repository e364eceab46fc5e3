"""A call with a wrong tensor is refused in one line that says what must hold, what came and what to do."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from archsearch.dsl import Rule, decay, key, log_decay, query, read, value, write
from archsearch.errors import BackendError, HoleError, OperandError
from archsearch.holes import one_of
from archsearch.kernels.call import check_values
from archsearch.kernels.dispatch import compile
from archsearch.lowering import lower
from archsearch.mixers.zoo import rules

B, T, H, K, V = 2, 5, 2, 4, 6
Tensors = dict[str, Tensor]


def tensors() -> Tensors:
    return {
        "q": torch.ones(B, T, H, K),
        "k": torch.ones(B, T, H, K),
        "v": torch.ones(B, T, H, V),
        "g": -torch.ones(B, T, H),
        "beta": torch.ones(B, T, H),
    }


def call(given: Tensors, **options: Tensor | None) -> None:
    initial_state, cu_seqlens = options.get("initial_state"), options.get("cu_seqlens")
    compiled = compile(rules["gated_delta_net"], "torch")
    compiled(initial_state=initial_state, scale=None, cu_seqlens=cu_seqlens, **given)


def without(name: str) -> Tensors:
    return {other: tensor for other, tensor in tensors().items() if other != name}


TAKES = "rule 'gated_delta_net' takes g, k, v, beta, q"
MISTAKES: dict[str, tuple[Callable[[], Tensors], str]] = {
    "missing": (lambda: without("beta"), f"{TAKES}; 'beta' is missing. Pass it by keyword, shape [B, T, HV]"),
    "extra": (lambda: tensors() | {"lam": torch.ones(B, T, H)}, f"{TAKES}; got 'lam' as well. Leave it out"),
    "rank": (lambda: tensors() | {"g": torch.ones(B, T)}, "operand 'g' must have shape [B, T, HV]; got [2, 5]"),
    "shape": (
        lambda: tensors() | {"v": torch.ones(B, T + 1, H, V)},
        "operand 'v' of rule 'gated_delta_net' must have shape [B, T, HV, V] = [2, 5, 2, 6]; got [2, 6, 2, 6]",
    ),
    "dtype": (
        lambda: tensors() | {"k": torch.ones(B, T, H, K, dtype=torch.int64)},
        "operand 'k' must hold floats; got torch.int64. Convert it with .float()",
    ),
    "device": (
        lambda: tensors() | {"beta": torch.ones(B, T, H, device="meta")},
        "all operands must be on one device; 'beta' is on meta, others on cpu",
    ),
    "heads": (
        lambda: tensors() | {"q": torch.ones(B, T, 3, K), "k": torch.ones(B, T, 3, K)},
        "value heads must be a multiple of key heads; got HV=2, H=3 for rule 'gated_delta_net'",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_wrong_tensor_is_refused(mistake: str) -> None:
    given, message = MISTAKES[mistake]
    with pytest.raises(OperandError) as refused:
        call(given())
    assert str(refused.value) == message


def test_a_state_of_another_shape_is_refused() -> None:
    with pytest.raises(OperandError) as refused:
        call(tensors(), initial_state=torch.ones(B, H, V, K))
    wants = "the state must have shape [B, HV, K, V] = [2, 2, 4, 6] (one a sequence when packed)"
    assert str(refused.value) == f"{wants}; got [2, 2, 6, 4]"


@pytest.mark.parametrize("offsets", [[0, 3], [1, 10], [0, 7, 3, 10]])
def test_offsets_that_do_not_rise_from_0_to_t_are_refused(offsets: list[int]) -> None:
    packed = {name: tensor.reshape(1, B * T, *tensor.shape[2:]) for name, tensor in tensors().items()}
    with pytest.raises(OperandError) as refused:
        call(packed, cu_seqlens=torch.tensor(offsets))
    assert str(refused.value) == f"cu_seqlens must rise from 0 to T = 10; got {offsets}"


def test_packing_takes_one_batch_row() -> None:
    with pytest.raises(OperandError, match=r"B = 1; got B = 2. Reshape to \[1, B \* T, ...\]"):
        call(tensors(), cu_seqlens=torch.tensor([0, T]))


def test_values_are_looked_at_in_debug_mode_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    given = tensors() | {"g": torch.full((B, T, H), 0.5)}
    monkeypatch.delenv("ARCHSEARCH_DEBUG", raising=False)
    call(given)
    monkeypatch.setenv("ARCHSEARCH_DEBUG", "1")
    with pytest.raises(OperandError) as refused:
        call(given)
    wants = "log decay 'g' must be <= 0 everywhere"
    assert str(refused.value) == f"{wants}; got a maximum of 0.5. Pass the natural log of the decay"


def test_a_sign_is_minus_one_or_one() -> None:
    rule = Rule("signed", decay(log_decay("g", signed=True)), write(key("k"), value("v")), read(query("q")))
    given = tensors() | {"g_sign": torch.full((B, T, H), -1.0)}
    check_values(lower(rule), given)
    with pytest.raises(OperandError, match="sign 'g_sign' must be -1 or 1 everywhere"):
        check_values(lower(rule), given | {"g_sign": torch.zeros(B, T, H)})


def test_an_unknown_backend_is_refused_with_the_known_ones() -> None:
    with pytest.raises(BackendError, match=r"must be one of auto, reference, torch, triton; got 'cuda'"):
        compile(rules["linear"], "cuda")  # pyright: ignore[reportArgumentType]


def test_a_chunk_of_no_tokens_is_refused() -> None:
    with pytest.raises(BackendError, match="at least 1 token; got 0"):
        compile(rules["linear"], "torch", 0)


def test_open_holes_are_refused_with_their_paths() -> None:
    rule = Rule("open", write(key("k"), value("v"), strength=one_of(1.0, 0.5, name="strength")), read(query("q")))
    with pytest.raises(HoleError, match="open holes: strength"):
        compile(rule)
