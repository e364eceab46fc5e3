"""Raw operands: what an entry makes of them, where it stands in a call, and what is refused."""

import math
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from archsearch.dsl import Rule
from archsearch.errors import ConfigError, OperandError
from archsearch.kernels.dispatch import compile
from archsearch.kernels.entering import curved, entered
from archsearch.kernels.entry import Curve, Entry, Feature, GateEntry, Norm, VectorEntry
from archsearch.mixers.zoo import rules

ENTRY = Entry(
    (VectorEntry("q", Feature.SILU, Norm.L2), VectorEntry("k", norm=Norm.L2)),
    (GateEntry("g", Curve.SOFTPLUS_DECAY, bias="dt_bias", rate="A_log"), GateEntry("beta", Curve.SIGMOID, 2.0)),
)
RULE = rules["gated_delta_net"]


def raw(batch: int = 2, tokens: int = 7) -> dict[str, Tensor]:
    """Of 2 key heads and 4 value heads, K = 8 and V = 6."""
    shapes = {"q": (2, 8), "k": (2, 8), "v": (4, 6), "g": (4,), "beta": (4,)}
    return {name: torch.randn(batch, tokens, *shape, dtype=torch.float64) for name, shape in shapes.items()}


def constants() -> dict[str, Tensor]:
    return {name: torch.randn(4, dtype=torch.float64) for name in ENTRY.constants}


def by_hand(given: dict[str, Tensor], numbers: dict[str, Tensor]) -> dict[str, Tensor]:
    bias, rate = numbers["dt_bias"], numbers["A_log"]

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
    found = compile(RULE, backend, 4, entry=ENTRY)(scale=None, **numbers, **given)
    expected = compile(RULE, backend, 4)(scale=None, **by_hand(given, numbers))
    torch.testing.assert_close(found.output, expected.output)
    torch.testing.assert_close(found.state, expected.state)


def test_steps_of_raw_tokens_equal_the_whole() -> None:
    given, numbers, run = raw(), constants(), compile(RULE, "torch", entry=ENTRY)
    state = torch.zeros(2, 4, 8, 6, dtype=torch.float64)
    outputs: list[Tensor] = []
    for t in range(7):
        output, state = run.step(state=state, scale=None, **numbers, **{name: x[:, t] for name, x in given.items()})
        outputs.append(output)
    whole = run(scale=None, **numbers, **given)
    torch.testing.assert_close(torch.stack(outputs, 1), whole.output)
    torch.testing.assert_close(state, whole.state)


def test_operands_that_the_entry_does_not_name_are_the_same_tensors() -> None:
    given = raw()
    made = entered(ENTRY, given, constants())
    assert made["v"] is given["v"] and set(made) == set(given)


def test_raw_numbers_are_no_decays_that_debugging_would_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARCHSEARCH_DEBUG", "1")
    given = raw()
    given["g"] = given["g"].abs() + 1
    assert compile(RULE, "torch", entry=ENTRY)(scale=None, **constants(), **given).output.isfinite().all()
    with pytest.raises(OperandError, match="must be <= 0"):
        compile(RULE, "torch")(scale=None, **given)


def test_an_entry_survives_pickling() -> None:
    given, numbers, run = raw(), constants(), compile(RULE, "torch", entry=ENTRY)
    again = pickle.loads(pickle.dumps(run))
    assert torch.equal(again(**numbers, **given).output, run(scale=None, **numbers, **given).output)


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
    factor = -3.0 if curve.is_bounded else 3.0 if curve.scaled else 1.0
    entry = GateEntry("g", curve, factor, "bias", "rate" if curve.rated else None)
    found = curved(a, entry, bias, rate)
    r = torch.ones(4).double() if rate is None else rate.exp()
    torch.testing.assert_close(found, FORMULAS[curve](a + bias, r[:, None] if channels else r, entry.factor))
    assert not curve.is_decay or found.max() <= 0


def test_gates_of_bfloat16_numbers_are_float32() -> None:
    a = torch.randn(1, 3, 4, dtype=torch.bfloat16)
    found = curved(a, GateEntry("beta", Curve.SIGMOID))
    assert found.dtype == torch.float32
    assert torch.equal(found, a.float().sigmoid())


def call(**changes: Any) -> Callable[[], object]:
    given: dict[str, Any] = {**constants(), **raw(), **changes}
    return lambda: compile(RULE, "torch", entry=ENTRY)(**given)


def without(name: str) -> Callable[[], object]:
    given: dict[str, Any] = {key: x for key, x in {**constants(), **raw()}.items() if key != name}
    return lambda: compile(RULE, "torch", entry=ENTRY)(**given)


def refused(entry: Entry, rule: Rule = RULE) -> Callable[[], object]:
    return lambda: compile(rule, entry=entry)


MESSAGES: dict[str, tuple[Callable[[], object], str]] = {
    "no constant": (
        without("A_log"),
        "rule 'gated_delta_net' takes the constant 'A_log' for its raw g; it is missing. Pass it by keyword",
    ),
    "a shape": (
        call(A_log=torch.zeros(2)),
        "the constant 'A_log' of 'g' must have shape [4] on cpu; got [2] on cpu",
    ),
    "a type": (
        call(dt_bias=torch.zeros(4, dtype=torch.int64)),
        "the constant 'dt_bias' must be a tensor of floats of shape [4]; got torch.int64",
    ),
    "no tensor": (
        call(dt_bias=[0.0]),
        "the constant 'dt_bias' must be a tensor of floats of shape [4]; got list",
    ),
    "a constant too many": (
        call(bias=torch.zeros(4)),
        "rule 'gated_delta_net' takes g, k, v, beta, q; got 'bias' as well. Leave it out",
    ),
    "an operand's name for a constant": (
        refused(Entry((), (GateEntry("beta", Curve.SIGMOID, bias="q"),))),
        "the entry names a constant 'q', which a call has already. Choose another name",
    ),
    "no rate": (
        lambda: GateEntry("g", Curve.SOFTPLUS_DECAY),
        "the entry of 'g', -r * softplus(z), needs a rate; got None",
    ),
    "a rate": (
        lambda: GateEntry("beta", Curve.SIGMOID, rate="A_log"),
        "the entry of 'beta', factor * sigmoid(z), has no rate; got 'A_log'",
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
    "no entry": (
        refused("q"),  # pyright: ignore[reportArgumentType]
        "entry must be an Entry; got str. Write Entry(vectors, gates)",
    ),
    "a factor": (
        lambda: GateEntry("g", Curve.SIGMOID_DECAY, 5.0),
        "the entry of 'g', factor * sigmoid(r * z), needs a factor < 0; got 5.0",
    ),
    "a factor of nothing": (
        lambda: GateEntry("dt", Curve.SOFTPLUS, 2.0),
        "the entry of 'dt', softplus(z), has no factor; got 2.0",
    ),
    "one vector": (
        lambda: Entry(VectorEntry("q")),  # pyright: ignore[reportArgumentType]
        "the vectors of an Entry must be a tuple; got VectorEntry. Write (x,) for one",
    ),
    "a name for a vector": (
        lambda: Entry(("q",)),  # pyright: ignore[reportArgumentType]
        "each of the vectors of an Entry must be a VectorEntry; got str. "
        "Import VectorEntry from archsearch.kernels.entry",
    ),
    "a vector among gates": (
        lambda: Entry((), (VectorEntry("q"),)),  # pyright: ignore[reportArgumentType]
        "each of the gates of an Entry must be a GateEntry; got VectorEntry. "
        "Import GateEntry from archsearch.kernels.entry",
    ),
    "a feature's name": (
        lambda: VectorEntry("q", "silu"),  # pyright: ignore[reportArgumentType]
        "the feature of 'q' must be a Feature; got str. Import Feature from archsearch.kernels.entry",
    ),
    "a curve's name": (
        lambda: GateEntry("beta", "sigmoid"),  # pyright: ignore[reportArgumentType]
        "the curve of 'beta' must be a Curve; got str. Import Curve from archsearch.kernels.entry",
    ),
    "a factor as text": (
        lambda: GateEntry("g", Curve.LOG_SIGMOID, "1"),  # pyright: ignore[reportArgumentType]
        "the factor of 'g' must be a number; got str. Write it as a number",
    ),
    "a bias as it is": (
        lambda: GateEntry("g", Curve.LOG_SIGMOID, bias=torch.zeros(4)),  # pyright: ignore[reportArgumentType]
        "the name of a constant of 'g' must be a string; got Tensor. Write its name in quotes",
    ),
    "a sparse constant": (
        call(A_log=torch.zeros(4).to_sparse()),
        "the constant 'A_log' must be dense; got torch.sparse_coo. Convert it with .to_dense()",
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
