"""Raw operands: what an entry makes of them, where it stands in a call, and what is refused."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from archsearch.dsl import Rule
from archsearch.errors import ConfigError, OperandError
from archsearch.kernels.dispatch import compile
from archsearch.kernels.entering import Constants, curved, entered
from archsearch.kernels.entry import Curve, Entry, Feature, GateEntry, Norm, VectorEntry
from archsearch.mixers.zoo import rules

ENTRY = Entry(
    (VectorEntry("q", Feature.SILU, Norm.L2), VectorEntry("k", norm=Norm.L2)),
    (GateEntry("g", Curve.SOFTPLUS_DECAY, biased=True), GateEntry("beta", Curve.SIGMOID, 2.0)),
)
RULE = rules["gated_delta_net"]


def raw(batch: int = 2, tokens: int = 7) -> dict[str, Tensor]:
    """Of 2 key heads and 4 value heads, K = 8 and V = 6."""
    shapes = {"q": (2, 8), "k": (2, 8), "v": (4, 6), "g": (4,), "beta": (4,)}
    return {name: torch.randn(batch, tokens, *shape, dtype=torch.float64) for name, shape in shapes.items()}


def constants() -> dict[str, Constants]:
    return {"g": Constants(bias=torch.randn(4, dtype=torch.float64), rate=torch.randn(4, dtype=torch.float64))}


def by_hand(given: dict[str, Tensor], numbers: dict[str, Constants]) -> dict[str, Tensor]:
    bias, rate = numbers["g"]
    assert bias is not None and rate is not None

    def unit(x: Tensor) -> Tensor:
        return x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt()

    return {
        "q": unit(given["q"] * given["q"].sigmoid()),
        "k": unit(given["k"]),
        "v": given["v"],
        "g": -rate.exp() * torch.log1p((given["g"] + bias).exp()),
        "beta": 2 * given["beta"].sigmoid(),
    }


@pytest.mark.parametrize("backend", ["reference", "torch"])
def test_a_call_with_raw_operands_equals_one_with_those_made_by_hand(backend: Any) -> None:
    given, numbers = raw(), constants()
    found = compile(RULE, backend, 4, ENTRY)(
        cu_seqlens=None, scale=None, initial_state=None, constants=numbers, **given
    )
    expected = compile(RULE, backend, 4)(scale=None, **by_hand(given, numbers))
    torch.testing.assert_close(found.output, expected.output)
    torch.testing.assert_close(found.state, expected.state)


def test_steps_of_raw_tokens_equal_the_whole() -> None:
    given, numbers, run = raw(), constants(), compile(RULE, "torch", entry=ENTRY)
    state = torch.zeros(2, 4, 8, 6, dtype=torch.float64)
    outputs: list[Tensor] = []
    for t in range(7):
        output, state = run.step(
            state=state, scale=None, constants=numbers, **{name: x[:, t] for name, x in given.items()}
        )
        outputs.append(output)
    whole = run(cu_seqlens=None, scale=None, initial_state=None, constants=numbers, **given)
    torch.testing.assert_close(torch.stack(outputs, 1), whole.output)
    torch.testing.assert_close(state, whole.state)


def test_operands_that_the_entry_does_not_name_are_the_same_tensors() -> None:
    given = raw()
    made = entered(ENTRY, given, constants())
    assert made["v"] is given["v"] and set(made) == set(given)


FORMULAS: dict[Curve, Callable[[Tensor, Tensor, float], Tensor]] = {
    Curve.SIGMOID: lambda z, r, c: c / (1 + (-z).exp()),
    Curve.SOFTPLUS: lambda z, r, c: torch.log1p(z.exp()),
    Curve.LOG_SIGMOID: lambda z, r, c: -torch.log1p((-z).exp()) / c,
    Curve.SOFTPLUS_DECAY: lambda z, r, c: -r * torch.log1p(z.exp()),
    Curve.SIGMOID_DECAY: lambda z, r, c: c / (1 + (-r * z).exp()),
    Curve.EXPONENTIAL_DECAY: lambda z, r, c: c * (1 - (r / c * torch.log1p(z.exp())).exp()),
}


@pytest.mark.parametrize("channels", [(), (6,)])
@pytest.mark.parametrize("curve", Curve)
def test_a_curve_is_its_formula_and_a_decay_is_never_positive(curve: Curve, channels: tuple[int, ...]) -> None:
    a, bias = (4 * torch.randn(*shape, 4, *channels, dtype=torch.float64) for shape in ((2, 5), ()))
    rate = torch.randn(4, dtype=torch.float64) if curve.rated else None
    factor = -3.0 if curve.is_bounded else 3.0
    found = curved(a, GateEntry("g", curve, factor, biased=True), Constants(bias, rate))
    r = torch.ones(4).double() if rate is None else rate.exp()
    torch.testing.assert_close(found, FORMULAS[curve](a + bias, r[:, None] if channels else r, factor))
    assert not curve.is_decay or found.max() <= 0


def test_gates_of_bfloat16_numbers_are_float32() -> None:
    a = torch.randn(1, 3, 4, dtype=torch.bfloat16)
    found = curved(a, GateEntry("beta", Curve.SIGMOID))
    assert found.dtype == torch.float32
    assert torch.equal(found, a.float().sigmoid())


def call(**changes: Any) -> Callable[[], object]:
    given: dict[str, Any] = {"constants": constants(), **raw(), **changes}
    return lambda: compile(RULE, "torch", entry=ENTRY)(**given)


def refused(entry: Entry, rule: Rule = RULE) -> Callable[[], object]:
    return lambda: compile(rule, entry=entry)


BIAS = torch.zeros(4, dtype=torch.float64)
MESSAGES: dict[str, tuple[Callable[[], object], str]] = {
    "no constants": (
        call(constants=None),
        "the entry needs the constant 'g'.bias of shape [4]; got none. Pass it in constants",
    ),
    "constants of another": (
        call(constants={"q": Constants()}),
        "constants are for g, beta of rule 'gated_delta_net'; got some for 'q'. Leave them out",
    ),
    "a constant too many": (
        call(constants={**constants(), "beta": Constants(bias=BIAS)}),
        "the entry takes no constant 'beta'.bias; got one. Leave it out",
    ),
    "a shape": (
        call(constants={"g": Constants(bias=BIAS, rate=BIAS[:2])}),
        "the constant 'g'.rate must hold floats of shape [4] on cpu; got torch.float64 [2] on cpu",
    ),
    "constants without an entry": (
        lambda: compile(RULE, "torch")(scale=None, constants=constants(), **raw()),
        "constants are for no operand of rule 'gated_delta_net'; got some for 'g'. Leave them out",
    ),
    "a name": (
        refused(Entry((VectorEntry("x"),))),
        "the entry names 'x'; rule 'gated_delta_net' takes g, k, v, beta, q. Leave it out",
    ),
    "a name twice": (
        refused(Entry((VectorEntry("q"), VectorEntry("q")))),
        "the entry names 'q' more than once. Name it once",
    ),
    "a gate as a vector": (
        refused(Entry((VectorEntry("g"),))),
        "the entry of 'g' makes a query, a key or a value; it is a log_decay. Use GateEntry",
    ),
    "a decay of a gate": (
        refused(Entry((), (GateEntry("beta", Curve.LOG_SIGMOID),))),
        "the entry of 'beta' makes a log decay; it is a gate. Use VectorEntry, or a curve of its kind",
    ),
    "a gate of a decay": (
        refused(Entry((), (GateEntry("g", Curve.SIGMOID),))),
        "the entry of 'g' makes a gate; it is a log_decay. Use a curve of log decays",
    ),
    "a factor": (
        lambda: GateEntry("g", Curve.SIGMOID_DECAY, 5.0),
        "the entry of 'g', factor * sigmoid(r * z), needs a factor < 0; got 5.0",
    ),
    "no number": (
        lambda: GateEntry("g", Curve.LOG_SIGMOID, math.inf),
        "the entry of 'g', logsigmoid(z) / factor, needs a factor > 0; got inf",
    ),
}


@pytest.mark.parametrize("case", MESSAGES)
def test_what_does_not_fit_is_refused_in_one_line(case: str) -> None:
    run, message = MESSAGES[case]
    with pytest.raises((ConfigError, OperandError)) as caught:
        run()
    assert str(caught.value) == message
