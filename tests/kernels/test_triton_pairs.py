"""Rules of one row that recalls nothing: `solve` makes no P for them, the serial kernels do, of their own tiles."""

import pytest
import torch

from archsearch.dsl import Rule, bonus, decay, gate, key, log_decay, query, read, value, write
from archsearch.kernels.conformance import run_conformance
from archsearch.kernels.conformance.suite import interpreted_sizes
from archsearch.kernels.triton import generation
from archsearch.kernels.triton.serial_rows import kept_value, solves
from archsearch.kernels.triton.strengths import at_writes
from archsearch.lowering import lower
from archsearch.mixers.zoo import rules

q, p, k, k2, v = query("q"), query("p"), key("k"), key("k2"), value("v")
g, h, turning = log_decay("g"), log_decay("h"), log_decay("turning", signed=True)
beta, lam, mu = gate("beta"), gate("lam"), gate("mu")

RULES = (
    Rule("two_addresses", write(k + lam * k2, v), read(q + mu * p)),
    Rule("decays_on_both_sides", decay(turning), write(k + lam * k2, v, strength=beta), decay(g), read(q + mu * p)),
    Rule("decays_after_the_write", decay(g), write(k, v), decay(h), decay(-0.2), read(q)),
    Rule("reads_first", decay(g), read(q), write(k, v, strength=beta)),
    Rule("bonus_beside_pairs", decay(g), read(q, bonus=bonus(k2, k, v)), write(k, v)),
    Rule("weighed_value", decay(g), write(k, v - beta * v), read(q)),
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_pairs_made_in_the_scans_are_those_of_the_rule(rule: Rule, interpreted: torch.device) -> None:
    assert not solves(at_writes(lower(rule)))
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
