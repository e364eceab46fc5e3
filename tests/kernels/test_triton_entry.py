"""The entry's generated kernels: the same numbers and gradients as torch, however the raw operands lie."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from archsearch.dsl import Rule, channel_gate, decay, delta_write, gate, key, log_decay, query, read, value
from archsearch.kernels.dispatch import compile
from archsearch.kernels.entering import entered
from archsearch.kernels.entry import Curve, Entry, Feature, GateEntry, Norm, VectorEntry
from archsearch.kernels.triton import eager
from archsearch.kernels.triton.entry import launch, operation, sections
from archsearch.lowering import lower
from archsearch.mixers.layer.initialisation import Stream
from archsearch.mixers.layer.mixer import Mixer
from archsearch.mixers.layer.options import Layer
from archsearch.mixers.layer.papers import paper_layer
from archsearch.mixers.zoo import rules

pytestmark = pytest.mark.usefixtures("interpreted")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
q, k, v = query("q"), key("k"), value("v")
RULE = Rule(
    "everything",
    decay(log_decay("g", per="channel")),
    decay(log_decay("d")),
    delta_write(k, channel_gate("w", of="value") * v, strength=gate("beta")),
    read(q),
)
HEADS, VALUE_HEADS = 2, 6
PAPERS = {name: layer for name in rules if (layer := paper_layer(rules[name])) is not None}


def gates(curve: Curve) -> Entry:
    """Both decays by one curve, or both gates."""
    factor = -3.0 if curve.is_bounded else 1.5 if curve.scaled else 1.0
    names = ("g", "d") if curve.is_decay else ("w", "beta")
    rates = {name: f"{name}.rate" if curve.rated else None for name in names}
    return Entry((), tuple(GateEntry(name, curve, factor, f"{name}.bias", rates[name]) for name in names))


def vectors(feature: Feature, norm: Norm) -> Entry:
    return Entry(tuple(VectorEntry(name, feature, norm) for name in ("q", "v")))


def raw(
    entry: Entry, batch: int = 2, tokens: int = 5, key_dim: int = 12, value_dim: int = 20, size: float = 3.0
) -> dict[str, Tensor]:
    """Operands of RULE, those that the entry does not name as zeros."""
    sizes = {"B": batch, "T": tokens, "H": HEADS, "HV": VALUE_HEADS, "K": key_dim, "V": value_dim}
    found: dict[str, Tensor] = {}
    for operand in lower(RULE).operands:
        shape = [sizes[dim] for dim in operand.shape.strip("[]").split(", ")]
        drawn = size * torch.randn(shape, device=DEVICE) if operand.name in entry.operands else torch.zeros(shape)
        found[operand.name] = drawn.to(DEVICE)
    return found


def constants(entry: Entry, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for each in entry.gates:
        shape = given[each.operand].shape[2:]
        found |= {} if each.bias is None else {each.bias: torch.randn(shape, device=DEVICE)}
        found |= {} if each.rate is None else {each.rate: torch.randn(shape[:1], device=DEVICE)}
    return found


Run = Callable[[Mapping[str, Tensor], Mapping[str, Tensor]], dict[str, Tensor]]


def by_kernels(entry: Entry) -> Run:
    name = sections.key(entry, lower(RULE))
    return lambda tensors, numbers: operation.run(entry, name, tensors, numbers)


def by_torch(entry: Entry) -> Run:
    return lambda tensors, numbers: entered(entry, tensors, numbers)


def leaves(given: Mapping[str, Tensor], numbers: Mapping[str, Tensor], names: tuple[str, ...]) -> list[Tensor]:
    return [tensor.requires_grad_() for tensor in (*(given[name] for name in names), *numbers.values())]


def results(run: Run, entry: Entry, given: Mapping[str, Tensor], numbers: Mapping[str, Tensor]) -> list[Tensor]:
    """The operands that the entry names, and the gradients of a loss in raw operands and constants."""
    own = leaves(given, numbers, entry.operands)
    made = run(given, numbers)
    operands = [made[name] for name in entry.operands]
    generator = torch.Generator().manual_seed(1)
    slopes = [torch.randn(x.shape, generator=generator).to(x) for x in operands]
    loss = torch.stack([(x * slope).sum() for x, slope in zip(operands, slopes, strict=True)]).sum()
    return [*operands, *torch.autograd.grad(loss, own)]


def agree(entry: Entry, given: Mapping[str, Tensor], numbers: Mapping[str, Tensor], tolerance: float = 2e-5) -> None:
    """With float64 in torch, relative to the largest number of each tensor."""
    wide = {name: x.detach().double() for name, x in given.items()}
    exact = {name: x.detach().double() for name, x in numbers.items()}
    expected = results(by_torch(entry), entry, wide, exact)
    for one, other in zip(results(by_kernels(entry), entry, given, numbers), expected, strict=True):
        assert one.shape == other.shape
        bound = tolerance * max(float(other.detach().abs().max()), 1e-6)
        assert float((one.detach().double() - other.detach()).abs().max()) <= bound


@pytest.mark.parametrize("curve", Curve)
def test_curves_and_their_constants_gradients_agree_with_float64(curve: Curve) -> None:
    entry = gates(curve)
    given = raw(entry, tokens=131)
    agree(entry, given, constants(entry, given))


@pytest.mark.parametrize("norm", Norm)
@pytest.mark.parametrize("feature", Feature)
def test_features_and_norms_agree_with_float64(feature: Feature, norm: Norm) -> None:
    entry = vectors(feature, norm)
    agree(entry, raw(entry), {})


@pytest.mark.parametrize("size", [16, 60, 100, 256])
def test_heads_of_any_width_agree_with_float64(size: int) -> None:
    entry = Entry(vectors(Feature.SILU, Norm.L2).vectors, gates(Curve.SOFTPLUS_DECAY).gates)
    given = raw(entry, 1, 37, size, 16)
    agree(entry, given, constants(entry, given))


def test_float16_is_rounded_once() -> None:
    entry = Entry(vectors(Feature.SILU, Norm.L2).vectors, (GateEntry("beta", Curve.SIGMOID),))
    given = {name: x.half() for name, x in raw(entry).items()}
    found = results(by_kernels(entry), entry, given, {})
    expected = results(by_kernels(entry), entry, {name: x.detach().float() for name, x in given.items()}, {})
    assert [x.dtype for x in found[:3]] == [torch.float16, torch.float16, torch.float32]
    for one, other in zip(found[:3], expected[:3], strict=True):
        assert torch.equal(one, other.to(one.dtype))


@pytest.mark.parametrize("norm", [Norm.L2, Norm.RMS])
def test_a_zero_vector_has_a_finite_gradient(norm: Norm) -> None:
    entry = vectors(Feature.NONE, norm)
    agree(entry, {name: torch.zeros_like(x) for name, x in raw(entry).items()}, {})


@pytest.mark.parametrize("curve", Curve)
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_huge_numbers_stay_finite(curve: Curve, sign: float) -> None:
    entry = Entry(vectors(Feature.SILU, Norm.L2).vectors, gates(curve).gates)
    given = {name: sign * 1e4 * torch.sign(x + 0.5) for name, x in raw(entry).items()}
    agree(entry, given, constants(entry, given))


def test_small_decays_keep_their_digits() -> None:
    """Where log(1 + exp(z)) and exp(z) - 1 would cancel; against the formula number by number."""
    for curve in (Curve.SOFTPLUS_DECAY, Curve.EXPONENTIAL_DECAY, Curve.LOG_SIGMOID):
        factor = -5.0 if curve.is_bounded else 1.0
        entry = Entry((), (GateEntry("d", curve, factor, rate="rate" if curve.rated else None),))
        given = raw(entry, tokens=64)
        line = torch.linspace(-30.0, 30.0, given["d"].numel(), device=DEVICE).view_as(given["d"])
        given["d"] = -line if curve is Curve.LOG_SIGMOID else line
        numbers = constants(entry, given)
        found, expected = (run(entry)(given, numbers)["d"] for run in (by_kernels, by_torch))
        torch.testing.assert_close(found, expected, rtol=2e-5, atol=0)


@pytest.mark.parametrize("turned", [False, True])
def test_raw_operands_may_lie_anyhow(turned: bool) -> None:
    """As parts of a wider tensor, or with tokens as the innermost dimension, as a convolution leaves them."""
    entry = Entry(vectors(Feature.SILU, Norm.L2).vectors, gates(Curve.SOFTPLUS_DECAY).gates)
    given = raw(entry, tokens=9)
    numbers = constants(entry, given)
    expected = [x.detach() for x in results(by_kernels(entry), entry, given, numbers)]

    def laid(x: Tensor) -> Tensor:
        if turned:
            return x.detach().movedim(1, -1).contiguous().movedim(-1, 1)
        return torch.cat([x, x, x], 2).detach()[:, :, x.shape[2] : 2 * x.shape[2]]

    found = results(by_kernels(entry), entry, {name: laid(x) for name, x in given.items()}, numbers)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("shape", [(0, 5), (2, 0), (1, 1)])
def test_few_or_no_tokens_are_legal(shape: tuple[int, int]) -> None:
    entry = Entry(vectors(Feature.SILU, Norm.L2).vectors, gates(Curve.SOFTPLUS_DECAY).gates)
    given = raw(entry, *shape)
    numbers = constants(entry, given)
    for one in results(by_kernels(entry), entry, given, numbers):
        assert one.isfinite().all()
        assert shape == (1, 1) or one.shape[:2] == shape or not one.any()


def test_buffers_full_of_nan_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = Entry(vectors(Feature.SILU, Norm.L2).vectors, gates(Curve.SOFTPLUS_DECAY).gates)
    given = raw(entry, tokens=150)
    numbers = constants(entry, given)
    expected = results(by_kernels(entry), entry, given, numbers)
    new, like = Tensor.new_empty, torch.empty_like
    monkeypatch.setattr(Tensor, "new_empty", lambda *given, **named: new(*given, **named).fill_(torch.nan))
    monkeypatch.setattr(torch, "empty_like", lambda *given, **named: like(*given, **named).fill_(torch.nan))
    for one, other in zip(results(by_kernels(entry), entry, given, numbers), expected, strict=True):
        assert torch.equal(one, other)


def test_opcheck_passes() -> None:
    entry = Entry(vectors(Feature.SILU, Norm.L2).vectors, gates(Curve.SOFTPLUS_DECAY).gates)
    given = raw(entry)
    numbers = constants(entry, given)
    own = leaves(given, numbers, entry.operands)
    count = len(entry.operands)
    torch.library.opcheck(operation.enter, (own[:count], own[count:], sections.key(entry, lower(RULE))))


def test_the_operation_and_the_eager_function_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = Entry(vectors(Feature.SILU, Norm.L2).vectors, gates(Curve.SOFTPLUS_DECAY).gates)
    given = raw(entry)
    numbers = constants(entry, given)
    one = results(by_kernels(entry), entry, given, numbers)
    monkeypatch.setattr(eager, "applies", lambda tensors: False)
    assert all(torch.equal(a, b) for a, b in zip(one, results(by_kernels(entry), entry, given, numbers), strict=True))


def gated_delta_net(tokens: int = 19) -> tuple[Any, dict[str, Tensor], dict[str, Tensor]]:
    """The rule with an entry on the generated kernels, and what it takes."""
    entry = Entry(
        (VectorEntry("q", Feature.SILU, Norm.L2), VectorEntry("k", Feature.SILU, Norm.L2)),
        (GateEntry("g", Curve.SOFTPLUS_DECAY, bias="dt_bias", rate="A_log"), GateEntry("beta", Curve.SIGMOID)),
    )
    shapes = {"q": (1, 16), "k": (1, 16), "v": (2, 16), "g": (2,), "beta": (2,)}
    given = {name: torch.randn(1, tokens, *shape, device=DEVICE).requires_grad_() for name, shape in shapes.items()}
    return entry, given, {name: torch.randn(2, device=DEVICE).requires_grad_() for name in entry.constants}


@pytest.mark.parametrize("packed", [False, True])
def test_a_rule_with_an_entry_agrees_with_torch(packed: bool) -> None:
    entry, given, numbers = gated_delta_net()
    offsets = torch.tensor([0, 7, 7, 19], device=DEVICE) if packed else None
    own = [*given.values(), *numbers.values()]
    found: list[list[Tensor]] = []
    for backend in ("torch", "triton"):
        result = compile(rules["gated_delta_net"], backend, 16, entry=entry)(
            scale=None, cu_seqlens=offsets, **numbers, **given
        )
        loss = result.output.square().sum() + result.state.sum()
        found.append([result.output, result.state, *torch.autograd.grad(loss, own)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


@torch.no_grad()
def test_steps_equal_the_whole() -> None:
    entry, given, numbers = gated_delta_net(5)
    run = compile(rules["gated_delta_net"], "triton", 16, entry=entry)
    state = torch.zeros(1, 2, 16, 16, device=DEVICE)
    outputs: list[Tensor] = []
    for t in range(5):
        output, state = run.step(state=state, scale=None, **numbers, **{name: x[:, t] for name, x in given.items()})
        outputs.append(output)
    whole = run(scale=None, **numbers, **given)
    torch.testing.assert_close(torch.stack(outputs, 1), whole.output, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(state, whole.state, rtol=1e-4, atol=1e-5)


def test_the_compiler_keeps_one_graph_and_the_same_numbers() -> None:
    entry, given, numbers = gated_delta_net()
    run = compile(rules["gated_delta_net"], "triton", 16, entry=entry)

    def loss(given: dict[str, Tensor]) -> Tensor:
        result = run(scale=None, **given)
        return result.output.square().sum() + result.state.sum()

    backend = "inductor" if DEVICE == "cuda" else "aot_eager"
    fast: Any = torch.compile(loss, fullgraph=True, backend=backend)
    every = {**given, **numbers}
    expected = torch.autograd.grad(loss(every), list(every.values()))
    for one, other in zip(torch.autograd.grad(fast(every), list(every.values())), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_a_pass_each_way_is_one_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    entry, given, numbers = gated_delta_net()
    launched: list[str] = []
    run = launch.Setup.launch
    monkeypatch.setattr(
        launch.Setup, "launch", lambda self, use, tensors: (launched.append(use.kernel), run(self, use, tensors))[1]
    )
    made = operation.run(entry, sections.key(entry, lower(rules["gated_delta_net"])), given, numbers)
    torch.stack([made[name].sum() for name in entry.operands]).sum().backward()
    assert launched == ["enter", "leave"]


@pytest.mark.parametrize("name", ["gated_delta_net", "kda", "mamba2"])
def test_a_mixer_on_the_kernels_agrees_with_one_on_torch(name: str) -> None:
    """Forward, backward to every weight, packed sequences, and tokens one by one."""
    layer = Layer(head_dim=16, expand_v=1.0, skip=name == "mamba2", operands=PAPERS[name].operands)
    exact = Mixer(rules[name], 16, 2, layer, backend="torch", stream=Stream(3)).to(DEVICE)
    fast = Mixer(rules[name], 16, 2, layer, backend="triton", chunk_size=16, stream=Stream(3)).to(DEVICE)
    x, offsets = torch.randn(1, 19, 16, device=DEVICE), torch.tensor([0, 7, 7, 19], device=DEVICE)
    found = [mixer(x, cu_seqlens=offsets) for mixer in (fast, exact)]
    for y in found:
        y.square().sum().backward()
    torch.testing.assert_close(*found, rtol=1e-3, atol=1e-5)
    for (path, one), other in zip(fast.named_parameters(), exact.parameters(), strict=True):
        assert one.grad is not None and other.grad is not None
        assert (one.grad - other.grad).norm() <= 1e-3 * other.grad.norm() + 1e-6, path
    with torch.no_grad():
        cache = fast.init_cache(1)
        steps = [fast(x[:, t : t + 1], cache=cache) for t in range(3)]
        torch.testing.assert_close(torch.cat(steps, 1), exact(x)[:, :3], rtol=1e-3, atol=1e-5)
