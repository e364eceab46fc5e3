"""Bounds of 16-bit floats follow the sensitivity of the rule itself, and of no rule that is well conditioned."""

from __future__ import annotations

import pytest
import torch

from archsearch.dsl import (
    Rule,
    channel_gate,
    decay,
    delta_write,
    erase,
    gate,
    key,
    log_decay,
    query,
    query_feedback,
    read,
    value,
)
from archsearch.kernels.conformance import Inputs, Quantity, Shape, Verdict, bound
from archsearch.kernels.conformance.sensitivity import Sensitivity
from archsearch.kernels.conformance.setting import Outcome, Setting, quantity_of, token_loop
from archsearch.kernels.conformance.short_products import rounded
from archsearch.kernels.conformance.suite import setting_of
from archsearch.kernels.conformance.tolerances import MOST_WIDENED, ORDINARY
from archsearch.mixers.zoo import rules

DELTA = delta_write(key("k"), value("v"), strength=gate("beta"))
CANCELLING = Rule(
    "cancelling", decay(log_decay("g")), DELTA, erase(query("q"), strength=gate("gamma")), read(query("q"))
)
"""What it reads is what is left of the erased: with gamma near 1, nearly nothing."""

GROWING = Rule(
    "growing",
    delta_write(channel_gate("c") * key("e"), value("v"), strength=-0.5, residual=query_feedback(query("p"), -0.25)),
    read(key("e")),
)
"""Its state grows 5e4-fold in 131 tokens, and a product of short numbers near 1 is rounded to one side."""

FEEDBACK = Rule(
    "feedback", delta_write(key("k"), value("v"), residual=query_feedback(query("q"), gate("lam"))), read(query("q"))
)
"""Nothing decays: what L loses is never forgotten."""

SHAPE = Shape(batch=1, tokens=131, heads=1, value_heads=2, key_dim=60, value_dim=30)
VALUE = bound(torch.bfloat16, Quantity.VALUE, hard=True)


def measured(rule: Rule, **fixed: float) -> tuple[Setting, Sensitivity, Outcome]:
    setting = setting_of(rule, "torch", dtype=torch.bfloat16, shape=SHAPE)
    inputs: Inputs = setting.inputs().mapped(lambda name, x: torch.full_like(x, fixed[name]) if name in fixed else x)
    expected = token_loop(rule, inputs)
    return setting, Sensitivity(rule, inputs, expected), expected


def judged(rule: Rule, error: float, **fixed: float) -> Verdict:
    """The verdict on an output with that error, everything else exact."""
    setting, sensitivity, expected = measured(rule, **fixed)
    verdicts = [Verdict("agrees", error, VALUE, "output"), Verdict("agrees", 0.0, VALUE, "state")]
    return sensitivity.widened(setting, Outcome(expected.output, expected.state, {}), verdicts)[0]


@pytest.mark.parametrize("rule", ["linear", "gated_delta_net", "kda", "eda"])
def test_contractions_keep_the_bounds_of_the_table(rule: str) -> None:
    setting, sensitivity, expected = measured(rules[rule])
    for name in ("output", "state", *expected.gradients):
        assert sensitivity.of(name) < 1.1 * ORDINARY[quantity_of(setting.form, name)], name


def test_the_state_that_a_sequence_begins_with_is_rounded_with_the_operands() -> None:
    """Where nothing is written, the last state is the first, and an output two rounded factors."""
    _, sensitivity, _ = measured(rules["linear"], v=0.0)
    assert sensitivity.of("state") == pytest.approx(1.0, rel=0.1)
    assert sensitivity.of("output") == pytest.approx(2**0.5, rel=0.1)


def test_a_cancellation_widens_the_bound_of_what_it_spoils() -> None:
    _, sensitivity, _ = measured(CANCELLING, gamma=0.75)
    assert sensitivity.of("output") > 2 * ORDINARY[Quantity.VALUE]
    assert sensitivity.of("state") < 1.2 * ORDINARY[Quantity.VALUE]
    verdict = judged(CANCELLING, 1.5 * VALUE, gamma=0.75)
    assert verdict.passed and verdict.bound == pytest.approx(VALUE * sensitivity.of("output") / 2)


@pytest.mark.parametrize("rule", ["linear", "gated_delta_net", "kda", "eda", "mlstm"])
def test_products_of_contractions_lose_what_the_table_holds(rule: str) -> None:
    setting, sensitivity, expected = measured(rules[rule])
    for name in ("output", "state", *expected.gradients):
        assert sensitivity.lost(name, setting) < 0.25 * setting.bound(quantity_of(setting.form, name)), name


@pytest.mark.parametrize(("rule", "tensor"), [(GROWING, 0), (GROWING, 1), (FEEDBACK, 0), (FEEDBACK, 1)])
def test_what_products_lose_adds_to_the_bound_in_squares(rule: Rule, tensor: int) -> None:
    setting, sensitivity, expected = measured(rule)
    lost = sensitivity.lost(("output", "state")[tensor], setting)
    assert 0.6 * VALUE < lost < 2 * VALUE
    verdicts = [Verdict("agrees", 1.0, VALUE, name) for name in ("output", "state")]
    widened = sensitivity.widened(setting, Outcome(expected.output, expected.state, {}), verdicts)[tensor]
    assert widened.bound == pytest.approx((VALUE**2 + lost**2) ** 0.5)


def test_a_rounding_is_that_of_the_dtype_and_leaves_the_gradient() -> None:
    x = torch.cat([torch.zeros(1), torch.randn(1000)]).double().requires_grad_()
    for dtype in (torch.bfloat16, torch.float16):
        found = rounded(x, dtype)
        assert torch.equal(found.detach(), x.detach().to(dtype).double())
        (slope,) = torch.autograd.grad(found.sum(), x)
        assert torch.equal(slope, torch.ones_like(x))
    beyond = torch.tensor(3.0 * 2.0**200 + 1.0, dtype=torch.float64)
    assert rounded(beyond, torch.float16) == 3.0 * 2.0**200


def test_a_verdict_that_passes_keeps_its_bound() -> None:
    assert judged(CANCELLING, 0.9 * VALUE, gamma=0.75).bound == VALUE


def test_no_bound_is_widened_without_end() -> None:
    verdict = judged(CANCELLING, 1.0, gamma=0.99609375)
    assert verdict.bound == pytest.approx(MOST_WIDENED * VALUE) and not verdict.passed


def judged_in_float32(rule: Rule, error: float) -> Verdict:
    """The verdict on a gradient of v with that error."""
    setting = setting_of(rule, "torch", dtype=torch.float32)
    inputs = setting.inputs()
    expected = token_loop(rule, inputs)
    found = Outcome(expected.output, expected.state, {"v": expected.gradients["v"]})
    verdicts = [Verdict("agrees", 0.0, 1e-4), Verdict("agrees", 0.0, 1e-4), Verdict("agrees", error, 1e-4)]
    return Sensitivity(rule, inputs, expected).widened(setting, found, verdicts)[2]


def test_floats_of_32_bits_have_the_table() -> None:
    assert judged_in_float32(CANCELLING, 1.0) == Verdict("agrees", 1.0, 1e-4)


def test_what_is_erased_as_soon_as_it_is_written_has_a_wider_bound_in_32_bits() -> None:
    gone = Rule("gone", delta_write(key("k"), value("v")), erase(key("k")), read(query("q")))
    assert 2e-4 < judged_in_float32(gone, 1.0).bound <= 1e-2
    assert not judged_in_float32(gone, 2e-2).passed
