"""The generated kernels as torch operations: opcheck, one graph, an explicit backward."""

import dataclasses
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from archsearch.dsl import Kind, Rule
from archsearch.kernels.conformance import Shape
from archsearch.kernels.conformance.inputs import draw
from archsearch.kernels.dispatch import compile
from archsearch.kernels.triton import eager, forms, launch, operation, plan
from archsearch.kernels.triton import setup as setups
from archsearch.kernels.triton.setup import setup_of
from archsearch.lowering import lower
from archsearch.mixers.gated_delta_product import delta_product
from archsearch.mixers.zoo import rules

pytestmark = pytest.mark.usefixtures("interpreted")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SHAPE = Shape(batch=1, tokens=19, heads=1, value_heads=2, key_dim=16, value_dim=16)
PRODUCTS = ("mm", "matmul", "einsum", "dot", "mv", "linear", "conv", "attention", "ger", "outer")


def operands(rule: Rule) -> dict[str, Tensor]:
    drawn = draw(lower(rule), SHAPE, dtype=torch.float32, device=DEVICE)
    return {name: tensor.requires_grad_() for name, tensor in drawn.tensors.items()}


def arguments(rule: Rule) -> tuple[Any, ...]:
    """What the operation takes, for a rule at a chunk size of 16."""
    form, given = lower(rule), operands(rule)
    state = torch.randn(1, 2, 16, 16, device=DEVICE, requires_grad=True)
    return ([given[operand.name] for operand in form.operands], state, None, 0.25, 16, True, forms.key(form))


@pytest.mark.parametrize("name", ["q_delta", "gla"])
def test_opcheck_passes(name: str) -> None:
    torch.library.opcheck(operation.chunkwise, arguments(rules[name]))


def test_opcheck_of_a_token_passes() -> None:
    tensors, state, _, scale, _, _, key = arguments(rules["q_delta"])
    token = [tensor[:, :1].detach() for tensor in tensors]
    torch.library.opcheck(operation.single_step, (token, state.detach(), scale, key))


@pytest.mark.parametrize("count", [8, 9, 16])
def test_tokens_of_many_steps_agree_with_the_token_loop(count: int) -> None:
    rule, given = delta_product(count, gated=True), operands(delta_product(count, gated=True))
    with torch.no_grad():
        expected, found = (compile(rule, backend)(scale=None, **given) for backend in ("reference", "triton"))
    torch.testing.assert_close(found.output, expected.output, rtol=0, atol=1e-4)
    torch.testing.assert_close(found.state, expected.state, rtol=0, atol=1e-4)


def test_the_compiler_keeps_one_graph_and_the_same_numbers() -> None:
    rule = rules["gated_delta_net"]
    compiled_rule, given = compile(rule, "triton"), operands(rule)

    def loss(given: dict[str, Tensor]) -> Tensor:
        result = compiled_rule(scale=None, **given)
        return result.output.square().sum() + result.state.sum()

    backend = "inductor" if DEVICE == "cuda" else "aot_eager"
    fast: Callable[[dict[str, Tensor]], Tensor] = torch.compile(loss, fullgraph=True, backend=backend)  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
    expected = torch.autograd.grad(loss(given), list(given.values()))
    found = torch.autograd.grad(fast(given), list(given.values()))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def results(rule: Rule, given: dict[str, Tensor], start: Tensor | None = None) -> list[Tensor]:
    """Output, final state and all gradients, that of the initial state last."""
    found = compile(rule, "triton", chunk_size=32)(scale=None, initial_state=start, **given)
    loss = found.output.square().sum() + found.state.sum()
    wanted = [*given.values(), *([] if start is None else [start])]
    return [found.output, found.state, *torch.autograd.grad(loss, wanted)]


@pytest.mark.parametrize("name", ["q_delta", "kda"])
def test_the_operation_and_the_eager_function_give_the_same_bits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given = operands(rules[name])
    one = results(rules[name], given)
    monkeypatch.setattr(eager, "applies", lambda tensors: False)
    assert all(torch.equal(a, b) for a, b in zip(one, results(rules[name], given), strict=True))


@pytest.mark.parametrize(("descriptors", "count"), [(False, 2), (True, 3)])
@pytest.mark.parametrize("name", ["gated_delta_net", "eda_scalar", "kda"])
def test_pieces_of_a_sequence_side_by_side_change_nothing(
    name: str, descriptors: bool, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = dataclasses.replace(SHAPE, tokens=150)
    drawn = draw(lower(rules[name]), shape, dtype=torch.float32, device=DEVICE)
    given = {operand: tensor.requires_grad_() for operand, tensor in drawn.tensors.items()}
    start = torch.randn(1, 2, 16, 16, device=DEVICE, requires_grad=True) if count > 2 else None
    whole = results(rules[name], given, start)
    plans: list[plan.Plan] = []

    def cut(problem: plan.Problem, chunk_size: int | None) -> plan.Plan:
        found = plan.plan(problem, chunk_size)
        use = dataclasses.replace(found.scan, descriptors=descriptors)
        plans.append(dataclasses.replace(found, segments=count, scan=use, pieces=use, reverse=use))
        return plans[-1]

    setups.setup.cache_clear()
    monkeypatch.setattr(setups, "plan", cut)
    pieces = results(rules[name], given, start)
    setups.setup.cache_clear()
    assert plans and all(use.segments == count and use.scan.descriptors is descriptors for use in plans)
    for one, other in zip(pieces, whole, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("traced", [False, True])
def test_the_initial_states_gradient_does_not_hang_on_how_the_final_states_lies(
    traced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if traced:
        monkeypatch.setattr(eager, "applies", lambda tensors: False)
    given = operands(rules["gated_delta_net"])
    start = torch.randn(1, 2, 16, 16, device=DEVICE, requires_grad=True)
    weights = torch.randn(1, 2, 16, 16, device=DEVICE)

    def gradient(*, turned: bool) -> Tensor:
        state = compile(rules["gated_delta_net"], "triton")(initial_state=start, scale=None, **given).state
        total = (state.mT * weights.mT.contiguous()).sum() if turned else (state * weights).sum()
        return torch.autograd.grad(total, start)[0]

    torch.testing.assert_close(gradient(turned=True), gradient(turned=False), rtol=1e-5, atol=1e-6)


def test_operands_may_begin_at_any_address() -> None:
    given = {name: tensor.detach() for name, tensor in operands(rules["gated_delta_net"]).items()}
    shifted = {name: torch.cat([x.flatten()[:1], x.flatten()])[1:].view(x.shape) for name, x in given.items()}
    assert all(x.data_ptr() % 16 for x in shifted.values())
    call = compile(rules["gated_delta_net"], "triton")
    assert torch.equal(call(scale=None, **shifted).output, call(scale=None, **given).output)
    assert all(launch.laid_out(x).data_ptr() % 16 == 0 for x in shifted.values())


def test_gradients_of_gradients_are_refused() -> None:
    given = operands(rules["gated_delta_net"])
    output = compile(rules["gated_delta_net"], "triton")(scale=None, **given).output
    first = torch.autograd.grad(output.square().sum(), list(given.values()), create_graph=True)
    plain = torch.autograd.grad(
        compile(rules["gated_delta_net"], "triton")(scale=None, **given).output.square().sum(), list(given.values())
    )
    assert all(torch.equal(one, other) for one, other in zip(first, plain, strict=True))
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first[0].sum().backward()


class Calls(TorchDispatchMode):
    """The names of all operations that reach the dispatcher."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(func.name().removeprefix("aten::"))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", rules)
def test_the_passes_call_neither_products_nor_autograd_of_torch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rule = rules[name]
    tensors, state, _, scale, chunk, keep, key = arguments(rule)
    setup = setup_of(key, tensors, state, None, chunk)

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("autograd was called")

    with Calls() as calls, torch.no_grad():
        output, final, saved = launch.forward(setup, tensors, state, None, scale, keep=keep)
        monkeypatch.setattr(torch.autograd, "grad", refuse)
        monkeypatch.setattr(torch.autograd, "backward", refuse)
        ones = torch.ones_like(output), torch.ones_like(final)
        found = launch.backward(setup, tensors, state, None, saved, *ones, scale)
        gradients = launch.whole(setup, tensors, found.operands, found.targets)
    assert "empty.memory_format" in calls.names
    assert not {called for called in calls.names if any(product in called.split(".")[0] for product in PRODUCTS)}
    slopes = zip(lower(rule).operands, gradients, strict=True)
    assert all(x.isfinite().all() and bool(x.abs().max()) == (operand.kind is not Kind.SIGN) for operand, x in slopes)


def test_a_form_has_one_key_and_another_form_another() -> None:
    form = lower(rules["kda"])
    assert forms.key(form) == forms.key(dataclasses.replace(form))
    assert forms.key(form) != forms.key(lower(rules["gla"]))
    assert forms.form(forms.key(form)) == form


def test_a_rule_unpickled_in_another_process_is_known_there(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = pickle.dumps(compile(rules["kda"], "triton"))
    monkeypatch.setattr(forms, "_FORMS", {})
    forms.key.cache_clear()
    again = pickle.loads(packed)
    assert forms.form(again.key) == again.normal_form == lower(rules["kda"])
    forms.key.cache_clear()


@pytest.mark.parametrize("memory", ["fast", "low"])
def test_a_negative_view_is_negated(memory: Any) -> None:
    rule: Any = compile(rules["gated_delta_net"], "triton", 16, memory=memory)
    given, slope = operands(rules["gated_delta_net"]), torch.randn(1, 19, 2, 16, device=DEVICE)
    found: list[list[Tensor]] = []
    views: Any = torch  # a negative view's memory holds the opposite
    for negative in (views._neg_view, torch.neg):
        output = rule(**{**given, "q": negative(given["q"])}).output
        found.append([output, *torch.autograd.grad(output, list(given.values()), negative(slope))])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))
