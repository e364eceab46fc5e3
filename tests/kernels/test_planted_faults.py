"""The suite must see faults: each one-line change of a kernel or of a pass over a rule fails the property named for it.

`python -m pytest tests/kernels/test_planted_faults.py -n auto` runs them all, two rules each.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType
from typing import NamedTuple

import pytest
import torch

from archsearch.dsl import (
    Rule,
    bonus,
    decay,
    delta_write,
    expressions,
    gate,
    key,
    log_decay,
    query,
    query_feedback,
    read,
    value,
    write,
)
from archsearch.kernels import reference
from archsearch.kernels.conformance import Shape, run_conformance
from archsearch.kernels.conformance.made_up import RULES
from archsearch.kernels.triton import generation, plan, setup, strengths
from archsearch.lowering import lower, normal_form
from archsearch.mixers.zoo import rules

AGREES, FOLLOWS = "chunk_matches_token_loop", "token_loop_follows_the_steps"
STEPS, PACKED, HEADS = "steps_equal_whole", "packed_equals_separate", "value_heads_share_keys"


class Fault(NamedTuple):
    """A line as it is and as it must not be, the template or function it stands in, the rules it spoils, the property
    that sees it.
    """

    name: str
    part: str
    right: str
    wrong: str
    rules: str
    seen_by: str = AGREES
    heads: int = 1


KERNELS = (
    # solve: G, the masks, L, T = (I + L)^-1, P T and the factors
    Fault("read_misses_its_own_token", "solve", "query_place[:, None] + 1", "query_place[:, None]", "mlstm q_delta"),
    Fault("read_sees_the_next_token", "solve", "query_place[:, None] + 1", "query_place[:, None] + 2", "mlstm q_delta"),
    Fault(
        "read_misses_its_last_step",
        "solve",
        "(sub[None, :] < 2)",
        "(sub[None, :] < 1)",
        "eda_scalar gated_delta_product",
    ),
    Fault(
        "residual_misses_the_last_token",
        "solve",
        "< place[:, None]\n",
        "+ 1 < place[:, None]\n",
        "delta_net residual_elsewhere",
    ),
    Fault("group_sees_its_own_steps", "solve", "< seen(sub)", "< 0 * seen(sub) + sub", "joint three_joint_then_one"),
    Fault(
        "transposed_gram",
        "solve",
        "product(tile_1, tl.trans(tile_0)",
        "product(tile_0, tl.trans(tile_1)",
        "q_delta eda_q_delta",
    ),
    Fault("feedback_lost_in_the_gram", "solve", "gram_1_0 * residual_s1", "0 * residual_s1", "q_delta eda_q_delta"),
    Fault("lower_not_decayed", "solve", "lower *= gate\n", "lower *= write_s0[None, :]\n", "gated_delta_net q_delta"),
    Fault(
        "exponent_turned",
        "solve",
        "tl.exp(tl.minimum(last - write_g, 0.0))",
        "tl.exp(write_g)",
        "simple_gla eda_scalar",
    ),
    Fault(
        "decay_counted_after_the_read",
        "solve",
        "scale * tl.exp(read_g)",
        "scale * tl.exp(read_g - point)",
        "gated_delta_net q_delta",
    ),
    Fault("no_scale", "solve", "read_s0 * scale * tl.exp(read_g)", "read_s0 * tl.exp(read_g)", "simple_gla eda_scalar"),
    Fault(
        "inverse_in_float16",
        "solve",
        "solved = solved.to(inverse.dtype.element_ty)",
        "solved = solved.to(tl.float16).to(tl.float32)",
        "q_delta eda_scalar",
    ),
    Fault(
        "sign_lost_between_chunks",
        "solve",
        "tl.exp(last) * last_sign",
        "tl.exp(last)",
        "signed bonus_expressions",
        heads=3,
    ),
    Fault("bonus_not_scaled", "solve", "bonus_weight * scale", "bonus_weight", "bonus_expressions bonus_delta"),
    # header: what the kernels share
    Fault("order_of_steps_lost", "solve", "by_token(lower, SPAN, C)", "lower", "eda_scalar gated_delta_product"),
    Fault("inverse_not_doubled", "header", "tl.static_range(1, 4)", "tl.static_range(1, 3)", "delta_net eda_scalar"),
    Fault(
        "inverse_of_the_wrong_sign",
        "header",
        "return inverse - tl.dot(",
        "return inverse + tl.dot(",
        "delta_net eda_scalar",
    ),
    Fault(
        "own_block_joined_twice",
        "header",
        "near & (rows[:, None] >> LEVEL != rows[None, :] >> LEVEL)",
        "near",
        "delta_net eda_scalar",
    ),
    Fault(
        "packed_sequence_runs_on",
        "header",
        "tl.load(table + 2 * index + 1).to(tl.int64)",
        "start + C",
        "linear q_delta",
        PACKED,
    ),
    Fault("wrong_key_head", "header", "head // (HV // H)) * K", "head % H) * K", "linear q_delta", HEADS),
    # scan: the state from chunk to chunk
    Fault(
        "initial_state_lost",
        "scan",
        "tl.load(initial + corner, mask=inside, other=0.0)",
        "0.0 * tl.load(initial + corner, mask=inside, other=0.0)",
        "linear eda_scalar",
    ),
    Fault(
        "final_state_of_the_last_chunk_but_one",
        "scan",
        "tl.store(final + corner, state,",
        "tl.store(final + corner, low,",
        "linear eda_scalar",
    ),
    Fault(
        "write_decayed_too",
        "scan",
        " state *= left",
        " state *= 1.0",
        "simple_gla q_delta",
    ),
    Fault(
        "inverse_transposed",
        "scan",
        "tl.trans(solved_0_0)",
        "solved_0_0",
        "q_delta delta_net",
    ),
    Fault(
        "state_not_read", "scan", "result = seen_q * f_read_0_0[None, :]", "result = 0 * seen_q", "linear eda_scalar"
    ),
    Fault("recall_added", "scan", "error_0 -= ", "error_0 += ", "q_delta eda_scalar"),
    Fault(
        "first_sequence_for_all_packed",
        "scan",
        "begin = tl.load(offsets + sequence)",
        "begin = tl.load(offsets + 0 * sequence)",
        "linear q_delta",
        PACKED,
    ),
    # scan and reverse: P of rules that recall nothing
    Fault("pairs_miss_their_own_token", "scan", "places[:, None] + 1", "places[:, None]", "linear simple_gla"),
    Fault("pairs_see_the_next_token", "scan", "places[:, None] + 1", "places[:, None] + 2", "linear retnet"),
    Fault(
        "pairs_not_decayed",
        "scan",
        "f_log_read_0_0[:, None] - f_log_read_0_0[None, :]",
        "0.0 * f_log_read_0_0[:, None]",
        "simple_gla mamba2",
    ),
    Fault("pairs_not_scaled", "scan", "DT, PRECISION) * scale", "DT, PRECISION)", "linear simple_gla"),
    Fault("strength_lost_in_the_pairs", "reverse", " * f_near_write_0_0[None, :]", "", "mamba2 halved_writes"),
    Fault(
        "pairs_turned_on_the_way_back",
        "reverse",
        "product(tile_q, tl.trans(tile_k)",
        "product(tile_k, tl.trans(tile_q)",
        "linear simple_gla",
    ),
    Fault(
        "target_is_another_heads_value",
        "gradients",
        "rows_from(x_v, value_row * V",
        "rows_from(x_v, (value_row - head) * V",
        "linear simple_gla",
        heads=2,
    ),
    # reverse and gradients: the adjoint
    Fault(
        "gradient_of_the_initial_state_lost",
        "reverse",
        "tl.store(d_initial + corner, d_state,",
        "tl.store(d_initial + corner, 0 * d_state,",
        "linear eda_scalar",
    ),
    Fault(
        "gradient_of_the_final_state_lost",
        "reverse",
        "d_state = tl.load(d_final + corner, mask=inside, other=0.0)",
        "d_state = 0 * tl.load(d_final + corner, mask=inside, other=0.0)",
        "linear eda_scalar",
    ),
    Fault(
        "adjoint_not_decayed",
        "reverse",
        "d_state *= left",
        "d_state *= 1.0",
        "simple_gla q_delta",
    ),
    Fault(
        "adjoint_misses_the_residual",
        "reverse",
        "d_state += product(-d_target_0",
        "d_state += product(0 * d_target_0",
        "q_delta eda_scalar",
    ),
    Fault(
        "one_place_of_two_forgotten",
        "gradients",
        "d_lower = tl.where(visible, d_lower * -between, 0.0)",
        "d_lower *= -between",
        "gated_delta_net q_delta",
    ),
    Fault(
        "adjoint_of_the_gram_transposed",
        "gradients",
        "product(tl.trans(d_lower)",
        "product(d_lower",
        "eda_scalar gated_delta_product",
    ),
    Fault(
        "gradient_of_the_read_lost",
        "gradients",
        "d_read += product(d_gram, tile_0,",
        "d_read += product(0 * d_gram, tile_0,",
        "q_delta eda_scalar",
    ),
    Fault(
        "feedback_of_the_gradient_lost",
        "gradients",
        "d_lower * residual_f1[:, None] + d_gram",
        "d_gram",
        "q_delta undecayed_feedback",
    ),
    Fault(
        "derivative_of_the_decay_dropped",
        "gradients",
        "energy_1 += tl.where(query_place == C - 1, leaving, 0.0)",
        "energy_1 += 0.0",
        "gated_delta_net eda_scalar",
    ),
    Fault("decay_sums_earlier_tokens", "gradients", "0, reverse=True)", "0)", "gated_delta_net eda_scalar"),
    Fault(
        "derivative_of_a_strength_dropped",
        "gradients",
        "dot = dot / away_from_zero(gate_beta)",
        "dot = dot",
        "q_delta eda_scalar",
    ),
    Fault(
        "derivative_of_the_feedback_dropped",
        "gradients",
        "total_lam = dot",
        "total_lam = 0 * dot",
        "q_delta eda_q_delta",
    ),
    # where channels decay apart
    Fault("chunk_leaves_all", "solve_channel", "remains = tl.exp(last)", "remains = tl.exp(0 * last)", "kda eda"),
    Fault("last_of_four_does_not_decay", "solve_channel", "log_2 + log_3, 0)", "log_2, 0)", "kda gla"),
    Fault("sums_lose_the_last_of_four", "quads", "third += fourth", "third += 0 * fourth", "kda gla"),
    Fault(
        "derivative_of_channel_decays_dropped",
        "gradients_channel",
        "edge += tl.sum(tl.reshape(kept",
        "edge += 0 * tl.sum(tl.reshape(kept",
        "kda gla",
    ),
    Fault(
        "adjoint_of_the_residual_added",
        "gradients_channel",
        "d_residual = d_residual + product(d_target, before, DT, PRECISION)",
        "d_residual = d_residual - product(d_target, before, DT, PRECISION)",
        "kda eda",
    ),
    # step: one token
    Fault("step_does_not_decay", "step", "memory *= tl.exp(o_g)", "memory *= 1.0", "q_delta eda_scalar", STEPS),
    Fault(
        "step_reads_before_it_writes",
        "step",
        "memory += (o_beta * o_k)",
        "memory += 0 * (o_beta * o_k)",
        "q_delta eda_scalar",
        STEPS,
    ),
    # chunks whose decays are strong
    Fault(
        "strong_far_pairs_lost",
        "solve_strong",
        "for level in tl.range(4, LEVELS",
        "for level in tl.range(5, LEVELS",
        "gla kda",
    ),
    Fault(
        "strong_reads_not_decayed_to_the_pair",
        "solve_strong",
        "asked = (read_rows * spread(left, 2)).to(DT)",
        "asked = read_rows.to(DT)",
        "gla kda",
    ),
    Fault(
        "strong_gradient_of_residuals_halved",
        "gradients_strong",
        "d_residual += tl.where(late, d_mixed, 0.0)",
        "d_residual += tl.where(late, 0.5 * d_mixed, 0.0)",
        "kda gdn2",
    ),
    Fault(
        "strong_edge_forgets_its_writes",
        "gradients_strong",
        "tl.sum(edge, 0) + tl.sum(writes * d_write, 0)",
        "tl.sum(edge, 0)",
        "gla kda",
    ),
)
"""In the templates, as filled for a rule; seen under Triton's interpreter."""

PIECES = (
    Fault(
        "transition_transposed",
        "combine",
        "across = channel[:, None] * K + channel[None, :]",
        "across = channel[:, None] + channel[None, :] * K",
        "gated_delta_net eda_scalar",
    ),
    Fault(
        "piece_forgets_what_entered",
        "combine",
        "tl.dot(state, moved, input_precision=PRECISION) + sent",
        "sent",
        "gated_delta_net eda_scalar",
    ),
    Fault("piece_not_decayed", "scan", "through *= left", "through *= 1.0", "simple_gla retnet"),
    Fault(
        "channels_of_a_piece_not_decayed",
        "scan",
        "through *= tl.load(carry",
        "through *= 1.0 + 0.0 * tl.load(carry",
        "gla hgrn2",
    ),
    Fault(
        "targets_in_the_transition",
        "scan",
        "column = tl.where(unit, V, column)",
        "column = column",
        "gated_delta_net eda_scalar",
    ),
    Fault(
        "adjoint_of_the_first_piece_alone",
        "combine",
        "SEGMENTS - 1 - step if REVERSED else step",
        "step",
        "gated_delta_net eda_scalar",
    ),
)
"""The same where pieces of a sequence run side by side."""

COMPILED = (
    Fault(
        "nothing_waits_for_the_last_product",
        "gradients",
        "d_write = d_write + product(delta, after, DT, PRECISION) + zero",
        "d_write += product(delta, after, DT, PRECISION)",
        "gated_delta_net eda_scalar",
    ),
)
"""A race: its products are right wherever they run one after another; seen in the code compiled for a GPU."""

PASSES = (
    Fault(
        "decay_after_instead_of_before",
        "lower",
        "_row(member, stage, len(decays))",
        "_row(member, stage, 0)",
        "gated_delta_net kda",
        FOLLOWS,
    ),
    Fault("steps_all_at_once", "lower", "stage += 1", "stage += 0", "eda gated_delta_product", FOLLOWS),
    Fault("read_before_the_writes", "lower", "Read(stage, len(decays)", "Read(0, len(decays)", "linear eda", FOLLOWS),
    Fault("previous_state_forgotten", "_row", '== "previous"', '== "before"', "previous previous_per_channel", FOLLOWS),
    Fault(
        "strength_of_an_erase_lost", "_row", "scaled(address, strength), ())", "address, ())", "eda eda_scalar", FOLLOWS
    ),
    Fault(
        "strength_of_a_target_lost",
        "_row",
        "target = scaled(expand(step.target), strength)",
        "target = expand(step.target)",
        "delta_net kda",
        FOLLOWS,
    ),
    Fault(
        "strength_of_a_residual_lost",
        "_row",
        "scaled(residual(step), strength)",
        "residual(step)",
        "delta_net kda",
        FOLLOWS,
    ),
    Fault(
        "feedback_without_the_key",
        "residual",
        "step.address + step.residual.lam",
        "step.residual.lam",
        "q_delta feedback_per_channel",
        FOLLOWS,
    ),
    Fault(
        "coefficient_lost",
        "scaled",
        "term.coefficient * by.coefficient",
        "term.coefficient",
        "expressions joint",
        FOLLOWS,
    ),
    Fault(
        "like_terms_overwritten",
        "expand",
        "merged.get((term.gates, term.vector), 0.0) + term.coefficient",
        "term.coefficient",
        "twice twice_read",
        FOLLOWS,
    ),
    Fault(
        "sign_of_a_decay_lost",
        "_decay",
        "Decay(given, given.sign)",
        "Decay(given, None)",
        "signed signed_per_channel",
        FOLLOWS,
    ),
    Fault(
        "group_reads_its_own_writes",
        "_written",
        "before if row.previous else state",
        "before if row.previous else after",
        "joint joint_per_channel",
        FOLLOWS,
    ),
    Fault(
        "previous_reads_now",
        "_written",
        "before if row.previous else state",
        "state",
        "previous previous_group",
        FOLLOWS,
    ),
    Fault(
        "read_not_scaled",
        "token",
        "_read(step, tensors, state) * scale",
        "_read(step, tensors, state)",
        "linear kda",
        FOLLOWS,
    ),
    Fault(
        "strength_not_divided_out",
        "_divided",
        "Term(term.coefficient / coefficient,",
        "Term(term.coefficient,",
        "decay_by_halves halved",
    ),
)
"""In the passes over a rule and in the token loop, which every backend is held to."""

FUNCTIONS: dict[str, FunctionType] = {
    function.__name__: function
    for function in (
        normal_form.lower,
        normal_form._row,
        normal_form.residual,
        normal_form.scaled,
        normal_form._decay,
        expressions.expand,
        reference._written,
        reference.token,
        strengths._divided,
    )
}

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # a fault may overflow

q, k, k2, v = query("q"), key("k"), key("k2"), value("v")
DELTA = delta_write(k, v, strength=gate("beta"))
OWN = (
    Rule("bonus_delta", decay(log_decay("g")), DELTA, read(q, bonus=bonus(k2, k, v))),
    Rule("twice", write(k, v), read(q + 0.5 * q)),
    Rule("twice_read", write(k + 0.5 * k, v), read(q)),
    Rule("halved_writes", decay(log_decay("g")), write(k, v, strength=0.5 * gate("beta")), read(q)),
    Rule("halved", decay(log_decay("g")), delta_write(k, v, strength=0.5 * gate("beta")), read(q)),
    Rule(
        "undecayed_feedback", delta_write(k, v, strength=gate("beta"), residual=query_feedback(q, gate("lam"))), read(q)
    ),
    Rule("decay_by_halves", decay(-0.5), delta_write(k, v, strength=0.5), read(q)),
)
KNOWN: dict[str, Rule] = {rule.name: rule for rule in (*rules.values(), *RULES, *OWN)}


def cases(faults: tuple[Fault, ...]) -> list[object]:
    return [pytest.param(fault, rule, id=f"{fault.name}-{rule}") for fault in faults for rule in fault.rules.split()]


@pytest.fixture(autouse=True)
def nothing_is_kept() -> Iterator[None]:
    yield
    forget()


def seen(fault: Fault, rule: Rule, device: torch.device, *, chunks: int = 1) -> bool:
    """Whether the property fails, on chunks of the smallest size that the kernels have and six tokens of the next."""
    chunk = 32 if len(lower(rule).rows) == 1 else 16
    shape = Shape(batch=1, tokens=chunks * chunk + 6, heads=1, value_heads=fault.heads, key_dim=5, value_dim=7)
    verdicts = run_conformance(
        rule, "triton", device, torch.float32, properties=[fault.seen_by], shape=shape, chunk_sizes=(chunk, chunk)
    )
    return not verdicts[0].passed


@pytest.mark.parametrize(("fault", "rule"), cases(KERNELS))
def test_fault_of_a_kernel_is_seen(
    fault: Fault, rule: str, interpreted: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(fault, monkeypatch)
    assert seen(fault, KNOWN[rule], interpreted)


@pytest.mark.parametrize(("fault", "rule"), cases(PIECES))
def test_fault_between_pieces_is_seen(
    fault: Fault, rule: str, interpreted: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(problem: plan.Problem, chunk_size: int | None) -> plan.Plan:
        return dataclasses.replace(plan.plan(problem, chunk_size), segments=4)

    monkeypatch.setattr(setup, "plan", cut)
    forget()
    assert not seen(fault, KNOWN[rule], interpreted, chunks=4)
    plant(fault, monkeypatch)
    assert seen(fault, KNOWN[rule], interpreted, chunks=4)


@pytest.mark.parametrize(("fault", "rule"), cases(COMPILED))
def test_fault_of_compiled_code_is_seen(fault: Fault, rule: str) -> None:
    script, root = Path(__file__).with_name("faulty_for_hopper.py"), str(Path(__file__).parents[2])
    command = [sys.executable, str(script), rule, fault.part, fault.right, fault.wrong]
    environment = {**os.environ, "TRITON_INTERPRET": "0", "PYTHONPATH": root}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    assert json.loads(run.stdout)[fault.part]["in flight"] > 0


@pytest.mark.parametrize(("fault", "rule"), cases(PASSES))
def test_fault_of_a_pass_is_seen(
    fault: Fault, rule: str, interpreted: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(fault, monkeypatch)
    assert seen(fault, KNOWN[rule], interpreted)


@pytest.mark.parametrize("rule", sorted({rule for fault in (*KERNELS, *PASSES) for rule in fault.rules.split()}))
def test_sound_kernels_pass_where_faults_do_not(rule: str, interpreted: torch.device) -> None:
    """Else a rule that fails anyway would prove nothing."""
    for name in sorted({fault.seen_by for fault in (*KERNELS, *PASSES) if rule in fault.rules.split()}):
        assert not seen(Fault("", "", "", "", rule, name), KNOWN[rule], interpreted)


def test_a_line_that_is_gone_fails_loudly() -> None:
    with pytest.raises(AssertionError, match="scan no longer holds 'no such line'"):
        changed(Fault("x", "scan", "no such line", "", "linear", AGREES), "text")


def test_every_fault_is_planted_in_two_rules() -> None:
    every = (*KERNELS, *PIECES, *COMPILED, *PASSES)
    assert len({fault.name for fault in every}) == len(every) == 79
    assert all(len(set(fault.rules.split())) == 2 for fault in every)


def plant(fault: Fault, patch: pytest.MonkeyPatch) -> None:
    """Change the line. Fails where it no longer stands there."""
    if fault.part in FUNCTIONS:
        _plant_in_function(fault, patch)
    else:
        _plant_in_template(fault, patch)
    forget()


def _plant_in_template(fault: Fault, patch: pytest.MonkeyPatch) -> None:
    sound = generation.filled

    def filled(name: str, holes: dict[str, str], flags: dict[str, bool]) -> str:
        text = sound(name, holes, flags)
        return changed(fault, text) if name == fault.part else text

    patch.setattr(generation, "filled", filled)


def _plant_in_function(fault: Fault, patch: pytest.MonkeyPatch) -> None:
    """In its code, so that whoever has imported the function meets the fault."""
    function = FUNCTIONS[fault.part]
    text = changed(fault, textwrap.dedent(inspect.getsource(function)))
    made: dict[str, FunctionType] = {}
    exec(
        compile("from __future__ import annotations\n" + text, inspect.getfile(function), "exec"),
        function.__globals__,
        made,
    )
    patch.setattr(function, "__code__", made[function.__name__].__code__)


def changed(fault: Fault, text: str) -> str:
    """The text with the fault in it."""
    assert fault.right in text, f"{fault.name}: {fault.part} no longer holds {fault.right!r}"
    return text.replace(fault.right, fault.wrong)


def forget() -> None:
    """Empty every cache that holds what was made from a rule."""
    for name, module in list(sys.modules.items()):
        if name.startswith(("archsearch.kernels.triton", "archsearch.lowering")):
            for cached in vars(module).values():
                if hasattr(cached, "cache_clear") and cached.__name__ != "key":
                    cached.cache_clear()
