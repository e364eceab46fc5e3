"""Spectra: the transition is the token loop's, and the extremes are the ones known for each rule."""

import math
from dataclasses import replace

import numpy as np
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
    simultaneous,
    value,
)
from archsearch.kernels.reference import token
from archsearch.lowering import lower
from archsearch.lowering.spectrum import DIMENSIONS, Spectrum, spectrum, transition
from archsearch.mixers.gated_delta_product import delta_product
from archsearch.mixers.zoo import rules

q, k, e, v = query("q"), key("k"), key("e"), value("v")
beta, gamma = gate("beta"), gate("gamma")
CHANNELS = log_decay("g", per="channel")
MIXED = delta_write(k, v, strength=beta, residual=query_feedback(q, gate("lam")))
ODD = Rule(
    "odd",
    erase(e, strength=0.5 * gamma),
    decay(log_decay("g", per="channel", signed=True)),
    simultaneous(
        delta_write(k - 0.5 * e, v, strength=beta, residual=channel_gate("b") * k), erase(q, reads="previous")
    ),
    decay(-0.25),
    read(q),
    erase(e),
)


def of(name: str) -> Spectrum:
    return spectrum(lower(rules[name]))


@pytest.mark.parametrize("rule", [*rules.values(), ODD], ids=lambda rule: rule.name)
def test_the_transition_is_that_of_the_token_loop(rule: Rule) -> None:
    """The token loop run on the identity, one column of it a value channel, without values."""
    form = lower(rule)
    form = replace(form, rows=tuple(replace(row, target=()) for row in form.rows))
    random = np.random.default_rng(1)
    size, draws = 5, 4
    values = {
        operand.name: random.uniform(
            -1, 1, (draws, size) if operand.per == "channel" or operand.is_address else (draws,)
        )
        for operand in form.operands
    }
    tensors = {name: torch.from_numpy(x)[:, None] for name, x in values.items()}
    state = torch.eye(size, dtype=torch.float64).expand(draws, 1, size, size)
    _, after = token(form, tensors, state, scale=1.0)
    np.testing.assert_allclose(transition(form, values), after[:, 0].numpy(), atol=1e-12)


@pytest.mark.parametrize("name", ["gated_delta_net", "kda", "eda_scalar", "delta_net", "gated_delta_product"])
def test_symmetric_writes_have_real_eigenvalues_from_0_to_1(name: str) -> None:
    found = of(name)
    assert not (found.negative or found.rotates)
    assert found.real_lowest >= -1e-6 and found.real_highest <= 1 + 1e-6
    assert found.contraction and found.proven


def test_query_feedback_expands_by_at_most_root_two_and_reaches_negative_eigenvalues() -> None:
    found = of("q_delta")
    assert 1.35 < found.singular_highest <= math.sqrt(2) + 1e-9
    assert found.negative and not found.rotates
    assert -1 - 1e-6 <= found.real_lowest < -0.5 and found.real_highest <= 1 + 1e-6
    assert not (found.contraction or found.proven)


def test_eda_contracts_and_turns() -> None:
    """With a decay per channel complex pairs and negative eigenvalues occur, rarely; the norm stays at most 1."""
    found = of("eda")
    assert found.rotates and found.negative
    assert found.share_complex < 0.05 and found.modulus_highest <= 1 + 1e-6
    assert found.contraction and found.proven


def test_gdn2_expands_by_at_most_two_over_root_three() -> None:
    found = of("gdn2")
    assert 1.1 < found.singular_highest <= 2 / math.sqrt(3) + 1e-9
    assert not (found.negative or found.rotates or found.proven)


def test_eda_with_query_feedback_is_no_contraction() -> None:
    found = of("eda_q_delta")
    assert found.rotates and found.negative and not found.contraction


def test_strengths_up_to_two_reflect() -> None:
    found = spectrum(lower(rules["delta_net"]), gate_range=(0.0, 2.0))
    assert found.negative and found.proven
    assert math.isclose(found.real_lowest, -1.0, abs_tol=1e-6)


def test_strengths_above_two_are_not_called_contractions() -> None:
    found = spectrum(lower(rules["delta_net"]), gate_range=(0.0, 3.0))
    assert not (found.proven or found.contraction)
    assert found.verdict.startswith("no contraction")


def test_a_joint_erase_and_write_can_leave_the_unit_ball() -> None:
    rule = Rule("joint", simultaneous(erase(e), delta_write(k, v, strength=1.5 * beta)), read(q))
    found = spectrum(lower(rule))
    assert not (found.proven or found.contraction)


def test_the_step_at_the_mixed_address_stays_inside_its_bounds() -> None:
    (step,) = of("q_delta").steps
    assert step.product == "β (k + λ q)·k"
    assert step.lowest >= 0 - 1e-9 and 1.9 < step.highest <= 2 + 1e-9 and step.share_outside == 0
    assert [step.row for step in of("eda").steps] == [0, 1]
    assert of("gla").steps == ()


def test_an_unbounded_chain_of_writes_is_proven_only_with_its_stages_apart() -> None:
    apart = spectrum(lower(delta_product(3, gated=False)))
    together = Rule("t", simultaneous(delta_write(k, v, strength=beta), delta_write(e, v, strength=gamma)), read(q))
    assert apart.proven and not spectrum(lower(together)).proven


def test_query_feedback_beside_a_decay_per_channel_turns_and_expands() -> None:
    found = spectrum(lower(Rule("q_delta_channel", decay(CHANNELS), MIXED, read(q))))
    assert found.rotates and found.negative and not found.contraction
    assert found.share_complex > of("eda").share_complex


def test_a_removal_beside_a_bounded_decay_stays_real_and_above_its_bound() -> None:
    """RWKV-7: Diag(alpha) - (a * k) k^T with alpha above 0.545 is similar to a symmetric matrix, its norm is not 1."""
    recall = delta_write(channel_gate("a") * k, v - v, residual=k, reads="previous")
    form = lower(Rule("removal", decay(CHANNELS), simultaneous(recall, erase(e, strength=0.0)), read(q)))
    found = spectrum(form, decay_range=(0.545, 1.0))
    assert not found.rotates and found.negative and not found.proven
    assert -0.455 - 1e-6 <= found.real_lowest < -0.3
    assert 1.01 < found.singular_highest < 1.25


def test_a_query_inside_a_gated_residual_turns_and_expands() -> None:
    """QED: k | b * k + lam d | w * v behind a decay per channel."""
    row = delta_write(k, v, residual=channel_gate("b") * k + gate("lam") * key("d"))
    found = spectrum(lower(Rule("inside", decay(CHANNELS), row, read(q))))
    assert found.rotates and found.singular_highest > 1.1


def test_the_condition_is_of_the_state_where_a_row_reads_what_it_writes() -> None:
    (mixed,) = of("q_delta").steps
    assert mixed.condition.startswith("0 < β (k + λ q)·k < 2: the row shrinks the error at its residual address")
    erased, written = of("eda").steps
    assert erased.condition == "0 ≤ γ e·e ≤ 2: it enlarges no state"
    assert written.condition == "0 ≤ β k·k ≤ 2: it enlarges no state"
    (free,) = of("dplr").steps
    assert free.condition.startswith("0 < −b·a < 2: ")
    (gated,) = of("gdn2").steps
    assert not gated.symmetric and gated.product == "(b ⊙ k)·k"
    previous = spectrum(lower(Rule("p", decay(CHANNELS), delta_write(k, v, reads="previous"), read(q))))
    assert not previous.steps[0].symmetric
    together = Rule("t", simultaneous(delta_write(k, v, strength=beta), erase(e, strength=gamma)), read(q))
    assert not any(step.symmetric for step in spectrum(lower(together)).steps)


@pytest.mark.parametrize("lam", [0.0, 0.3, 0.8])
def test_the_norm_of_query_feedback_is_bounded_by_its_strength(lam: float) -> None:
    found = spectrum(lower(Rule("fixed", delta_write(k, v, strength=beta, residual=query_feedback(q, lam)), read(q))))
    assert found.singular_highest <= math.sqrt(1 + lam**2) + 1e-9
    assert found.singular_highest > math.sqrt(1 + lam**2) - 0.05


def test_what_can_be_tracked_is_said() -> None:
    wide = spectrum(lower(rules["gated_delta_product"]), gate_range=(0.0, 2.0))
    assert of("kda").tracking == "no eigenvalue is negative or complex: parity cannot be tracked"
    assert of("q_delta").tracking == "negative eigenvalues are reached: parity can be tracked"
    assert wide.tracking == "complex and negative eigenvalues are reached: turns can be tracked, and parity"


def test_the_same_rule_gives_the_same_spectrum() -> None:
    assert of("eda") == of("eda")
    assert of("eda").draws == sum(DIMENSIONS.values())
