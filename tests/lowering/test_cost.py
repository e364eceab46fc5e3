"""Costs: equal to what the token loop and the chunkwise form are seen to do, and to the byte budget of the plan."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from archsearch.dsl import (
    Kind,
    Rule,
    bonus,
    decay,
    delta_write,
    erase,
    gate,
    key,
    log_decay,
    query,
    read,
    simultaneous,
    value,
    write,
)
from archsearch.kernels import chunkwise
from archsearch.kernels.call import checked
from archsearch.kernels.reference import token
from archsearch.lowering import NormalForm, lower
from archsearch.lowering.cost import Sizes, cost
from archsearch.lowering.plan import chunk_plan
from archsearch.mixers.gated_delta_product import delta_product
from archsearch.mixers.zoo import rules

q, k, e, u, v = query("q"), key("k"), key("e"), key("u"), value("v")
ODD = Rule(
    "odd",
    erase(e, strength=0.5 * gate("gamma")),
    decay(log_decay("g", per="channel", signed=True)),
    simultaneous(write(k - 0.5 * e, v), erase(q - k)),
    read(q + k, bonus=bonus(u, k, v)),
    decay(-0.1),
)
SMALL = Sizes(key_dim=12, value_dim=20, heads=1, value_heads=1)


class Arithmetic(TorchDispatchMode):
    """Counts the multiplications and additions that run inside it."""

    count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name in ("mul", "add", "sub", "rsub"):
            self.count += result.numel()
        elif name == "sum":
            self.count += args[0].numel()
        return result


def operands(form: NormalForm, sizes: Sizes, length: int) -> dict[str, Tensor]:
    dims = {"B": 1, "T": length, "H": sizes.heads, "HV": sizes.value_heads, "K": sizes.key_dim, "V": sizes.value_dim}
    made = {
        operand.name: torch.rand([dims[dim] for dim in operand.shape.strip("[]").split(", ")])
        for operand in form.operands
    }
    return {
        operand.name: -made[operand.name] if operand.kind is Kind.LOG_DECAY else made[operand.name]
        for operand in form.operands
    }


@pytest.mark.parametrize("rule", [*rules.values(), delta_product(3, gated=False), ODD], ids=lambda rule: rule.name)
def test_recurrent_flops_are_those_of_the_token_loop(rule: Rule) -> None:
    form = lower(rule)
    columns, divisions = form.columns(SMALL.value_dim), SMALL.value_dim if form.read.normaliser else 0
    tensors = {name: x[:, 0] for name, x in operands(form, replace(SMALL, value_dim=columns), 1).items()}
    with Arithmetic() as counted:
        token(form, tensors, torch.zeros(1, 1, SMALL.key_dim, columns), scale=0.5)
    assert cost(form, SMALL).recurrent_flops == counted.count + divisions


@pytest.mark.parametrize(
    "name", ["delta_net", "gated_delta_net", "q_delta", "eda_scalar", "eda_q_delta", "gated_delta_product"]
)
def test_chunkwise_products_are_those_of_the_torch_form(name: str) -> None:
    form, chunk, chunks = lower(rules[name]), 8, 3
    call = checked(form, operands(form, SMALL, chunk * chunks), None, None, None)
    with FlopCounterMode(display=False) as counter:
        chunkwise.run(form, call, chunk)
    rows = chunk * len(form.rows)
    solve = chunks * rows * (rows - 1) * SMALL.value_dim
    assert cost(form, SMALL, chunk).chunkwise_flops * chunk * chunks - solve == counter.get_total_flops()


def test_a_rule_that_recalls_nothing_needs_no_triangle() -> None:
    assert not chunk_plan(lower(rules["linear"])).triangle
    assert cost(lower(rules["linear"]), SMALL).chunkwise_flops < cost(lower(rules["delta_net"]), SMALL).chunkwise_flops


UNIT = 16 * 128 * 2
"""One tensor of [tokens, 16, 128] in 16 bits, a token."""


def moved(name: str, *, recompute: bool = False) -> tuple[float, float]:
    """Forward, and forward with backward, in units a token."""
    found = cost(lower(rules[name]), Sizes(128, 128, 16, 16, width=2), recompute=recompute)
    return found.forward_bytes / UNIT, found.training_bytes / UNIT


def test_bytes_are_the_budget_of_the_plan() -> None:
    """Gated DeltaNet, numbers a head below 3 %: solve reads q, k and writes T, P (3); scan reads q, k, v, T, P and
    writes o (5). Training keeps states and D (3); reverse reads q, k, dO, T, P and writes dS, dW (7); the gradients
    read q, k, states, dS, D, dW, dO and write dq, dk (11): dW is dv.
    """
    assert moved("gated_delta_net") == pytest.approx((8, 29), rel=0.03)


def test_a_value_that_meets_a_gate_of_its_own_is_read_again() -> None:
    """The value's gradient is then no row's: v is read beside dW, and dv written."""
    strength = gate("beta")
    steps = (delta_write(key("k"), gate("w") * value("v"), strength=strength), read(query("q")))
    apart = cost(lower(Rule("gated_value", *steps)), Sizes()).training_bytes / UNIT
    assert apart - moved("delta_net")[1] == pytest.approx(2, abs=0.1)


def test_bytes_of_a_decay_a_channel() -> None:
    """KDA, decays of two units: solve reads q, k, g and writes G at the ends of four tokens (0.5), T, P, three decayed
    rows (8.5); scan (6). Training keeps 3; reverse reads rows, T, P, dO (5) and writes 3; pairs read D, dW, dO (3) and
    write their gradients (1), which the gradients read beside q, k, g, G, states, dS, D, dW, dO (12.5), to write dq,
    dk, dg (4).
    """
    assert moved("kda") == pytest.approx((14.5, 46), rel=0.02)


def test_recomputed_states_are_one_scan_more() -> None:
    """It reads k, v and T."""
    assert moved("gated_delta_net", recompute=True)[1] - moved("gated_delta_net")[1] == pytest.approx(2.5, rel=0.03)
    assert moved("gated_delta_net", recompute=True)[0] == moved("gated_delta_net")[0]


def test_bytes_of_a_rule_that_recalls_nothing() -> None:
    """Linear attention: its scans make P, so solve reads nothing and writes three numbers a head (the write's, the
    target's, the read's), which the scan reads beside q, k, v to write o (4). Training keeps states (2); reverse reads
    q, k, dO, the numbers once more, and writes dS, dW (6); the gradients read q, k, v, states, dS, dO and write dq, dk
    (10): dW is dv. A decay adds its log to those numbers, which both scans read; solve also reads g and writes G, which
    the gradients read to write dg.
    """
    number = 16 * 4 / UNIT
    assert moved("linear") == pytest.approx((4 + 6 * number, 22 + 9 * number))
    assert moved("simple_gla") == pytest.approx((4 + 10 * number, 22 + 17 * number))


def test_scores_are_kept_where_the_scans_would_make_several() -> None:
    """With two vectors written, or a bonus, solve reads q and k (2) and writes P, a half, which the scan reads (1); a
    second vector is read by both (2), that of the bonus by solve (1).
    """
    g, q, k, v = log_decay("g"), query("q"), key("k"), value("v")
    sizes = Sizes(128, 128, 16, 16, width=2)

    def forward(*steps: Any) -> float:
        return cost(lower(Rule("made", *steps)), sizes).forward_bytes / UNIT

    plain = forward(decay(g), write(k, v), read(q))
    assert forward(decay(g), write(k + 0.5 * u, v), read(q)) - plain == pytest.approx(2 + 1 + 2, abs=0.05)
    assert forward(decay(g), write(k, v), read(q, bonus=bonus(u, k, v))) - plain == pytest.approx(2 + 1 + 1, abs=0.05)


def test_feedback_costs_no_further_tensor() -> None:
    """Q-Delta recalls along q as well, which both kernels have read for its scores: only its gate is new."""
    for plain, feedback in zip(moved("gated_delta_net"), moved("q_delta"), strict=True):
        assert 0 < feedback - plain < 0.1


def test_two_steps_a_token_fill_a_triangle_of_their_own() -> None:
    """Solve reads q, k1, k2 and writes T (1, twice that of one step) and P; scan reads those, v1, v2 and writes o."""
    assert moved("gated_delta_product")[0] == pytest.approx((3 + 1 + 0.5) + (3 + 1 + 0.5 + 2 + 1), rel=0.03)


def test_the_state_is_float32_whatever_the_rule() -> None:
    for form in map(lower, rules.values()):
        assert cost(form, Sizes(64, 32, 2, 4)).state_bytes == 4 * 64 * form.columns(32) * 4


def test_a_step_reads_and_writes_the_state_once() -> None:
    found = cost(lower(rules["linear"]), Sizes(64, 32, 2, 4, width=2))
    assert found.step_bytes == 2 * found.state_bytes + 2 * (2 * 2 * 64) + 2 * (4 * 32) * 2


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("q_delta", (("k", "k"), ("q", "k"))),
        ("gdn2", (("b k", "k"), ("q", "k"))),
        ("eda", (("e", "e"), ("e", "k"), ("k", "e"), ("k", "k"), ("q", "e"), ("q", "k"))),
        ("linear", (("q", "k"),)),
    ],
)
def test_the_plan_names_each_product_once(name: str, expected: tuple[tuple[str, str], ...]) -> None:
    assert chunk_plan(lower(rules[name])).products == expected


def test_a_chunk_is_64_rows_and_at_least_16_tokens() -> None:
    def tokens(n: int) -> int:
        return chunk_plan(lower(delta_product(n, gated=True))).tokens

    assert [tokens(n) for n in (1, 2, 3, 4, 16)] == [64, 32, 16, 16, 16]


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 9])
def test_the_plan_is_the_one_the_kernels_follow(n: int) -> None:
    from archsearch.kernels.triton import generation, plan

    form = lower(delta_product(n, gated=True))
    assert chunk_plan(form).tokens == plan.tokens_of_chunk(generation.span(form), None)
