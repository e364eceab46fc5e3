"""Rules of one row that recalls nothing: `solve` makes no P for them, the serial kernels do, of their own tiles."""

import pytest
import torch

from archsearch.dsl import Rule, bonus, channel_gate, decay, gate, key, log_decay, query, read, value, write
from archsearch.kernels.conformance import run_conformance
from archsearch.kernels.conformance.made_up import RULES as MADE_UP
from archsearch.kernels.conformance.suite import interpreted_sizes
from archsearch.kernels.triton import generation
from archsearch.kernels.triton.serial_rows import kept_value, solves
from archsearch.kernels.triton.strengths import at_writes
from archsearch.lowering import cost, lower
from archsearch.mixers.zoo import rules

q, p, k, k2, v = query("q"), query("p"), key("k"), key("k2"), value("v")
b, c = channel_gate("b"), channel_gate("c")
g, h, turning = log_decay("g"), log_decay("h"), log_decay("turning", signed=True)
beta, lam, mu = gate("beta"), gate("lam"), gate("mu")

RULES = (
    Rule("numbers_on_both_sides", write(k + lam * k, v), read(q - mu * q)),
    Rule("decays_on_both_sides", decay(turning), write(k + lam * k, v, strength=beta), decay(g), read(q - mu * q)),
    Rule("gated_by_channel", decay(turning), write(b * k, v, strength=beta), read(c * q)),
    Rule("decays_after_the_write", decay(g), write(k, v), decay(h), decay(-0.2), read(q)),
    Rule("reads_first", decay(g), read(q), write(k, v, strength=beta)),
    Rule("weighed_value", decay(g), write(k, v - beta * v), read(q)),
    Rule("nothing_is_written_that_is_read", decay(g), write(k - k, v), read(q - q)),
)
SEVERAL = (
    Rule("two_writes", write(k + lam * k2, v), read(q)),
    Rule("two_reads", decay(g), write(k, v), read(q + mu * p)),
    Rule("two_of_both", decay(turning), write(k + lam * k2, v, strength=beta), decay(g), read(q + mu * p)),
    Rule("gated_and_not", decay(g), write(k + b * k, v), read(q)),
    Rule("bonus_beside_pairs", decay(g), read(q, bonus=bonus(k2, k, v)), write(k, v)),
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_pairs_made_in_the_scans_are_those_of_the_rule(rule: Rule, interpreted: torch.device) -> None:
    assert not solves(at_writes(lower(rule)))
    conforms(rule, interpreted)


@pytest.mark.parametrize("rule", SEVERAL, ids=lambda rule: rule.name)
def test_pairs_of_several_products_are_made_once(rule: Rule, interpreted: torch.device) -> None:
    """Compiled for sm_90 with K = V = 128, scans that made four of them, or one beside a bonus, spilled registers."""
    assert solves(at_writes(lower(rule)))
    conforms(rule, interpreted)


def conforms(rule: Rule, interpreted: torch.device) -> None:
    shape, chunks = interpreted_sizes(rule)
    verdicts = run_conformance(rule, "triton", interpreted, torch.float32, shape=shape, chunk_sizes=chunks)
    assert [str(verdict) for verdict in verdicts if not verdict.passed] == []


@pytest.mark.parametrize("name", ["linear", "retnet", "simple_gla", "mamba2"])
def test_no_square_of_a_chunk_and_no_target_passes_through_memory(name: str) -> None:
    source = generation.source(lower(rules[name]))
    assert kept_value(at_writes(lower(rules[name]))) is not None
    for buffer in ("reads", "inverse", "deltas"):
        assert source.count(f"matrix({buffer},") == source.count(f"rows_from({buffer},") == 0
        assert f"store_rows({buffer}," not in source


@pytest.mark.parametrize("name", ["mamba3", "mlstm", "gla", "gated_delta_net"])
def test_rules_of_which_pairs_would_be_made_several_times_have_them_made_once(name: str) -> None:
    """Two rows, a column for the normaliser, decays per channel, and a row that recalls."""
    assert solves(at_writes(lower(rules[name])))


@pytest.mark.parametrize("rule", [*rules.values(), *MADE_UP, *RULES, *SEVERAL], ids=lambda rule: rule.name)
def test_the_byte_model_knows_which_rules_have_them_made_in_the_scans(rule: Rule) -> None:
    form = lower(rule)
    assert cost._solves(form) == solves(at_writes(form))  # pyright: ignore[reportPrivateUsage]
