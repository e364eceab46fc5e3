"""Planted faults: each one-line change of the chunkwise form must fail the property that exists to see it."""

import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from archsearch.dsl import Rule
from archsearch.kernels import chunkwise, dispatch, reference
from archsearch.kernels.call import Call
from archsearch.kernels.conformance import run_conformance
from archsearch.kernels.conformance.made_up import RULES
from archsearch.kernels.conformance.random_rules import random_rule
from archsearch.kernels.conformance.tolerances import LEAK
from archsearch.lowering import NormalForm
from archsearch.mixers.zoo import rules

KNOWN: dict[str, Rule] = {rule.name: rule for rule in (*rules.values(), *RULES)}

AGREES, LEAKS = "chunk_matches_token_loop", "future_does_not_leak"


class Fault(NamedTuple):
    """A place of the chunkwise form as it is and as it must not be, the rules it spoils, the property that sees it."""

    name: str
    right: str
    wrong: str
    rules: str
    seen_by: str


FAULTS = [
    Fault(
        "decay_after_the_read",
        "gq, stages = decays.places[form.read.decays]",
        "gq, stages = decays.places[0]",
        "gated_delta_net kda",
        AGREES,
    ),
    Fault(
        "state_not_read",
        "output = (q * gq.exp()) @ torch.stack(entering, 2) + ",
        "output = ",
        "linear eda",
        AGREES,
    ),
    Fault(
        "state_not_recalled",
        "- addresses[:, :, n] @ state",
        "- 0 * addresses[:, :, n] @ state",
        "delta_net eda",
        AGREES,
    ),
    Fault(
        "transposed_gram",
        "_gram(a, ga, b, gb, stages.rows",
        "_gram(b, gb, a, ga, stages.rows",
        "q_delta eda_q_delta",
        AGREES,
    ),
    Fault(
        "read_sees_next_token",
        "read = (tokens[:, None] > token[None, :])",
        "read = (tokens[:, None] + 2 > token[None, :])",
        "linear simple_gla",
        LEAKS,
    ),
    Fault(
        "read_misses_own_token",
        "stage[None, :] < form.read.stage",
        "stage[None, :] < 0",
        "linear eda",
        AGREES,
    ),
    Fault(
        "group_sees_itself",
        "stage[:, None] > stage[None, :]",
        "stage[:, None] >= stage[None, :]",
        "joint joint_per_channel",
        AGREES,
    ),
    Fault(
        "previous_decayed",
        "place = 0 if row.previous",
        "place = row.decays if row.previous",
        "previous previous_per_channel",
        AGREES,
    ),
    Fault(
        "previous_sees_own_token",
        " & ~previous[:, None]",
        "",
        "previous_after_write",
        AGREES,
    ),
    Fault(
        "lost_gradient_of_the_state",
        "form, call, tensors, initial(call), chunk",
        "form, call, tensors, initial(call).detach(), chunk",
        "linear eda",
        AGREES,
    ),
    Fault(
        "lost_gradient_of_an_address",
        "a * ga.exp()], dim=-1)",
        "a.detach() * ga.exp()], dim=-1)",
        "delta_net q_delta",
        AGREES,
    ),
    Fault(
        "writes_not_decayed",
        "leaving = (b * (decays.whole - gb).exp())",
        "leaving = (b * gb.exp())",
        "simple_gla kda",
        AGREES,
    ),
    Fault(
        "decays_in_half",
        "_accumulated(sum(logs, zero))",
        "_accumulated(sum(logs, zero)).half().to(zero)",
        "gated_delta_net gla",
        AGREES,
    ),
    Fault(
        "signs_lost",
        "return x if decays.signs is None",
        "return x if True",
        "signed signed_per_channel",
        AGREES,
    ),
    Fault(
        "no_scale",
        "* call.scale, state",
        ", state",
        "linear kda",
        AGREES,
    ),
    Fault(
        "padding_decays",
        "log_decay(decay.log_decay, tensors, present).clamp(min=least) * present",
        "log_decay(decay.log_decay, tensors, present).clamp(min=least)",
        "decay_by_numbers",
        AGREES,
    ),
    Fault(
        "one_state_for_all_packed",
        "initial(call)[n : n + 1]",
        "initial(call)[:1]",
        "linear eda",
        "packed_equals_separate",
    ),
    Fault(
        "last_row_for_all",
        "entering.append(state)",
        "entering.append(state[-1:].expand_as(state))",
        "linear kda",
        "result_does_not_depend_on_the_batch",
    ),
    Fault(
        "anchor_ahead",
        "anchor = entry[:, :, :, half :: 2 * half, None, :]",
        "anchor = entry[:, :, :, :: 2 * half, None, :]",
        "kda eda",
        "edges_stay_finite",
    ),
    Fault(
        "padding_before_the_last_decay",
        "_padded(decays.places[0], size, decays.whole)",
        "_padded(decays.places[0], size, decays.places[0][..., -1:, :])",
        "kda eda",
        "edges_stay_finite",
    ),
]
SENSITIVE = random_rule(2002)
"""It reads at the address that it has just erased, next to what it recalled before the token and a signed decay."""

ON_A_SENSITIVE_RULE = (
    "decay_after_the_read",
    "state_not_read",
    "state_not_recalled",
    "transposed_gram",
    "read_misses_own_token",
    "previous_decayed",
    "lost_gradient_of_the_state",
    "lost_gradient_of_an_address",
    "writes_not_decayed",
    "signs_lost",
    "no_scale",
)
CASES = [(fault, rule) for fault in FAULTS for rule in fault.rules.split()]


@pytest.mark.parametrize(("fault", "rule"), CASES, ids=[f"{fault.name}-{rule}" for fault, rule in CASES])
def test_planted_fault_is_seen(fault: Fault, rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "chunkwise", _changed(monkeypatch, fault.right, fault.wrong))
    assert not run_conformance(KNOWN[rule], "torch", properties=[fault.seen_by])[0].passed


@pytest.mark.parametrize(
    "fault", [fault for fault in FAULTS if fault.name in ON_A_SENSITIVE_RULE], ids=lambda f: f.name
)
def test_planted_fault_is_seen_through_widened_bounds(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "chunkwise", _changed(monkeypatch, fault.right, fault.wrong))
    verdict = run_conformance(SENSITIVE, "torch", dtype=torch.bfloat16, properties=[AGREES])[0]
    assert not verdict.error <= 2 * verdict.bound  # NaN is no error within bounds


WEAK_ROUNDED = (
    "lower = pairs(_gram(a, ga, b, gb, stages.rows, decays, len(form.rows)))",
    "lower = _gram(a, ga, b, gb, stages.rows, decays, len(form.rows))\n"
    "    strong = decays.whole.amin(-1, keepdim=True) < -60\n"
    "    lower = torch.where(strong, lower, lower.bfloat16().to(lower))",
)
"""Weak and strong chunks in two ways, as the generated kernels have them: each right, and a rounding apart."""

SCORES = "scores = _gram(q, gq, b, gb, stages.reads, decays, len(form.rows))"
WEAK = "decays.whole.amin(-1, keepdim=True) >= -60"
LEAK_IN = {way: f"{SCORES} + 1e-2 * (({WEAK}) == {way == 'weak'}) * (q @ b.mT)" for way in ("weak", "strong")}
SWITCHED = f"{SCORES}\n    scores = torch.where({WEAK}, scores, 1.05 * scores)"


@pytest.mark.parametrize("rule", ["kda", "eda", "signed_between"])
def test_two_ways_of_a_chunk_that_differ_by_rounding_leak_nothing(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "chunkwise", _changed(monkeypatch, *WEAK_ROUNDED))
    verdict = run_conformance(KNOWN[rule], "torch", dtype=torch.bfloat16, properties=[LEAKS], strict=True)[0]
    assert verdict.passed and verdict.error > LEAK[torch.bfloat16], "the two ways were one"


@pytest.mark.parametrize("rule", ["kda", "eda"])
@pytest.mark.parametrize("way", LEAK_IN)
def test_a_leak_in_one_way_of_a_chunk_is_seen(way: str, rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "chunkwise", _changed(monkeypatch, SCORES, LEAK_IN[way]))
    verdict = run_conformance(KNOWN[rule], "torch", dtype=torch.bfloat16, properties=[LEAKS])[0]
    assert not verdict.passed and f"{way} decay" in verdict.where


@pytest.mark.parametrize("rule", ["kda", "eda"])
def test_a_leak_by_the_choice_between_two_ways_is_seen(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """How strong later decays are shows in what earlier tokens read."""
    monkeypatch.setattr(dispatch, "chunkwise", _changed(monkeypatch, SCORES, SWITCHED))
    verdict = run_conformance(KNOWN[rule], "torch", dtype=torch.bfloat16, properties=[LEAKS])[0]
    assert not verdict.passed and "to a strong decay" in verdict.where


def test_wrong_key_head_is_seen_though_both_forms_share_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def spread(form: NormalForm, call: Call) -> Mapping[str, Tensor]:
        group = call.value_heads // call.heads
        kinds = {operand.name: operand for operand in form.operands}
        return {name: x.repeat(1, 1, group, 1) if kinds[name].is_address else x for name, x in call.tensors.items()}

    monkeypatch.setattr(reference, "spread", spread)
    monkeypatch.setattr(chunkwise, "spread", spread)
    agreement, heads = run_conformance(rules["kda"], "torch", properties=[AGREES, "value_heads_share_keys"])
    assert agreement.passed
    assert not heads.passed


def test_wrong_derivative_is_seen_though_both_forms_share_it(monkeypatch: pytest.MonkeyPatch) -> None:
    right = reference.log_decay
    monkeypatch.setattr(reference, "log_decay", lambda given, tensors, like: right(given, tensors, like).detach())  # pyright: ignore[reportUnknownArgumentType, reportUnknownLambdaType]
    verdict = run_conformance(rules["kda"], "reference", properties=["gradient_matches_finite_differences"])[0]
    assert not verdict.passed


def _changed(monkeypatch: pytest.MonkeyPatch, right: str, wrong: str) -> ModuleType:
    """The chunkwise form with one place changed."""
    text = Path(str(chunkwise.__file__)).read_text(encoding="utf-8")
    assert right in text, f"the chunkwise form no longer holds {right!r}"
    module = ModuleType("chunkwise_changed")
    monkeypatch.setitem(sys.modules, module.__name__, module)  # where its dataclasses look their module up
    exec(compile(text.replace(right, wrong), "chunkwise_changed.py", "exec"), module.__dict__)
    return module
