"""The low-memory mode: the numbers of the fast one, and what each of them holds at once."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from archsearch.dsl import Kind, Rule
from archsearch.errors import BackendError
from archsearch.kernels.bench.timing import peak_bytes
from archsearch.kernels.conformance import Shape
from archsearch.kernels.conformance.inputs import draw
from archsearch.kernels.conformance.setting import relative_error
from archsearch.kernels.dispatch import Memory, compile
from archsearch.kernels.triton import ahead, forms, launch, low_memory, plan, stretches
from archsearch.kernels.triton import setup as setups
from archsearch.lowering import lower
from archsearch.mixers.gated_delta_product import delta_product
from archsearch.mixers.zoo import rules

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SHAPE = Shape(batch=2, tokens=150, heads=1, value_heads=2, key_dim=16, value_dim=16)
FLA = {"gated_delta_net": 1.82 * 2**30, "simple_gla": 1540 * 2**20}
"""Bytes that flash-linear-attention 0.6.0 holds above inputs and dO in forward + backward."""
SHARES: dict[Memory, float] = {"fast": 0.75, "low": 0.5}


def results(
    rule: Rule, shape: Shape, memory: Memory, cu_seqlens: Tensor | None = None, *, initial: bool = True
) -> list[Tensor]:
    """Output, final state, every gradient."""
    drawn = draw(lower(rule), shape, dtype=torch.float32, device=DEVICE)
    signs = {operand.name for operand in rule.operands.values() if operand.kind is Kind.SIGN}
    given = {name: x.clone().requires_grad_(name not in signs) for name, x in drawn.tensors.items()}
    count = shape.batch if cu_seqlens is None else len(cu_seqlens) - 1
    generator = torch.Generator().manual_seed(1)
    size = dataclasses.replace(shape, batch=count).state_of(lower(rule))
    start = torch.randn(size, generator=generator).to(DEVICE).requires_grad_()
    found = compile(rule, "triton", memory=memory)(
        initial_state=start if initial else None, scale=None, cu_seqlens=cu_seqlens, **given
    )
    loss = found.output.square().sum() + found.state.square().sum()
    wanted = [x for x in (*given.values(), *([start] if initial else [])) if x.requires_grad]
    return [found.output, found.state, *torch.autograd.grad(loss, wanted)]


@pytest.mark.parametrize(
    ("rule", "tokens", "initial"),
    [
        (rules["q_delta"], 150, True),
        (rules["eda_scalar"], 150, False),
        (rules["kda"], 70, False),
        (rules["simple_gla"], 150, True),
        (delta_product(5, gated=True), 7, True),
    ],
    ids=lambda given: given.name if isinstance(given, Rule) else str(given),
)
@pytest.mark.usefixtures("interpreted")
def test_both_modes_give_the_same_bits(rule: Rule, tokens: int, initial: bool) -> None:
    shape = dataclasses.replace(SHAPE, tokens=tokens)
    pairs = zip(*(results(rule, shape, memory, initial=initial) for memory in ("fast", "low")), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


@pytest.mark.parametrize("name", ["gated_delta_net", "gla"])
@pytest.mark.usefixtures("interpreted")
def test_packed_sequences_are_cut_anywhere(name: str) -> None:
    shape = dataclasses.replace(SHAPE, batch=1, value_heads=1, tokens=110)
    offsets = torch.tensor([0, 0, 30, 81, 81, 110], device=DEVICE)
    pairs = zip(*(results(rules[name], shape, memory, offsets) for memory in ("fast", "low")), strict=True)
    assert max(relative_error(one, other) for one, other in pairs) < 1e-5


@pytest.mark.usefixtures("interpreted")
def test_pieces_of_a_stretch_may_run_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = dataclasses.replace(SHAPE, value_heads=1, batch=1, tokens=430)
    whole = results(rules["gated_delta_net"], shape, "fast")

    def cut(problem: plan.Problem, chunk_size: int | None) -> plan.Plan:
        return dataclasses.replace(plan.plan(problem, chunk_size), segments=2)

    stretches.cut_up.cache_clear()
    monkeypatch.setattr(stretches, "plan", cut)
    pieces = results(rules["gated_delta_net"], shape, "low")
    stretches.cut_up.cache_clear()
    for one, other in zip(pieces, whole, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("tokens", [0, 1, 70])
@pytest.mark.usefixtures("interpreted")
def test_any_number_of_tokens_works(tokens: int) -> None:
    shape = dataclasses.replace(SHAPE, tokens=tokens)
    pairs = zip(*(results(rules["gated_delta_net"], shape, memory) for memory in ("fast", "low")), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


@pytest.mark.usefixtures("interpreted")
def test_opcheck_passes_and_the_compiler_keeps_one_graph() -> None:
    rule = rules["gated_delta_net"]
    shape = dataclasses.replace(SHAPE, tokens=70)
    given = {
        n: x.requires_grad_() for n, x in draw(lower(rule), shape, dtype=torch.float32, device=DEVICE).tensors.items()
    }
    call = compile(rule, "triton", memory="low")
    tensors = [given[operand.name] for operand in lower(rule).operands]
    torch.library.opcheck(low_memory.stretched, (tensors, None, None, 0.25, 0, call.key))

    def loss(given: Mapping[str, Tensor]) -> Tensor:
        return call(scale=None, initial_state=None, cu_seqlens=None, **given).output.square().sum()

    fast: Any = torch.compile(loss, fullgraph=True, backend="inductor" if DEVICE == "cuda" else "aot_eager")
    expected = torch.autograd.grad(loss(given), list(given.values()))
    for one, other in zip(torch.autograd.grad(fast(given), list(given.values())), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_a_mode_is_named_or_refused() -> None:
    with pytest.raises(BackendError, match="memory must be one of fast, low; got 'small'"):
        compile(rules["gla"], memory="small")  # pyright: ignore[reportArgumentType]
    with pytest.raises(BackendError, match="a mode of the generated kernels; got backend 'torch'"):
        compile(rules["gla"], "torch", memory="low")


class Held(TorchDispatchMode):
    """Counts the bytes of all storages that were made inside and are still alive: the most at any time."""

    def __init__(self) -> None:
        super().__init__()
        self.alive: dict[int, tuple[StorageWeakRef, int]] = {}
        self.most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        given = {x.untyped_storage()._cdata for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)}
        self.alive = {key: (ref, size) for key, (ref, size) in self.alive.items() if not ref.expired()}
        for x in tree_leaves(found):
            if isinstance(x, Tensor) and x.untyped_storage()._cdata not in given:
                storage = x.untyped_storage()
                self.alive.setdefault(storage._cdata, (StorageWeakRef(storage), storage.nbytes()))
        self.most = max(self.most, sum(size for _, size in self.alive.values()))
        return found


def held_at_full_size(name: str, memory: Memory, batch: int, tokens: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Bytes above inputs and dO that both passes hold on a device of 132 processors, its kernels left out."""
    form = lower(rules[name])
    sizes = {"B": batch, "T": tokens, "H": 16, "HV": 16, "K": 128, "V": 128}
    tensors: list[Tensor] = []
    for operand in form.operands:
        kind = torch.float32 if operand.kind in (Kind.GATE, Kind.LOG_DECAY) else torch.bfloat16
        tensors.append(
            torch.empty([sizes[d] for d in operand.shape.strip("[]").split(", ")], dtype=kind, device="meta")
        )
    slope = torch.empty(batch, tokens, 16, 128, dtype=torch.bfloat16, device="meta")
    monkeypatch.setattr(setups, "processors", lambda device: 132)
    monkeypatch.setattr(setups.Launcher, "__call__", lambda *_: None)
    monkeypatch.setattr(ahead, "prepare", lambda *_: None)
    setup = setups.setup_of(forms.key(form), tensors, None, None, 0)
    passes = stretches if memory == "low" else launch
    with Held() as held:
        if passes is stretches:
            output, _, kept = stretches.forward(setup, tensors, None, None, 1.0)
            found = stretches.backward(setup, tensors, None, None, kept, slope, None, 1.0)
        else:
            output, _, saved = launch.forward(setup, tensors, None, None, 1.0, keep=True)
            found = launch.backward(setup, tensors, None, None, saved, slope, None, 1.0)
        assert output.shape == slope.shape and len(launch.whole(setup, tensors, found.operands, found.targets)) > 3
    return held.most


@pytest.mark.parametrize("memory", SHARES)
@pytest.mark.parametrize(("batch", "tokens"), [(8, 4096), (2, 16384), (1, 32768)])
@pytest.mark.parametrize("name", FLA)
@pytest.mark.usefixtures("interpreted")
def test_each_mode_holds_its_share_of_what_others_hold(
    name: str, batch: int, tokens: int, memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    setups.setup.cache_clear()
    held = held_at_full_size(name, memory, batch, tokens, monkeypatch)
    setups.setup.cache_clear()
    assert held <= SHARES[memory] * FLA[name], f"{held / 2**30:.3f} GiB"


@pytest.mark.gpu
@pytest.mark.parametrize("memory", SHARES)
@pytest.mark.parametrize(("batch", "tokens"), [(8, 4096), (1, 32768)])
@pytest.mark.parametrize("name", FLA)
def test_the_device_holds_what_was_worked_out(
    name: str, batch: int, tokens: int, memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule, device = rules[name], torch.device("cuda")
    shape = Shape(batch, tokens, 16, 16, 128, 128)
    leaves = {
        operand.name: torch.rand(
            shape.of(operand),
            device=device,
            dtype=torch.float32 if operand.kind in (Kind.GATE, Kind.LOG_DECAY) else torch.bfloat16,
        )
        .mul_(-0.1 if operand.kind is Kind.LOG_DECAY else 0.1)
        .requires_grad_()
        for operand in lower(rule).operands
    }
    slope = torch.rand(batch, tokens, 16, 128, device=device, dtype=torch.bfloat16)
    call = compile(rule, "triton", memory=memory)

    def both() -> None:
        output = call(initial_state=None, scale=None, cu_seqlens=None, **leaves).output
        torch.autograd.grad(output, list(leaves.values()), slope)

    both()
    peak = peak_bytes(both, device)
    with monkeypatch.context() as patched:
        expected = held_at_full_size(rule.name, memory, batch, tokens, patched)
    setups.setup.cache_clear()
    stretches.cut_up.cache_clear()
    assert peak is not None
    assert peak <= SHARES[memory] * FLA[name], f"{peak / 2**30:.3f} GiB"
    assert abs(peak / expected - 1) < 0.03, f"{peak / 2**30:.3f} GiB, worked out {expected / 2**30:.3f}"
