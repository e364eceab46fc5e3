"""A rule taken apart: strengths in residual and target, places of rows and reads, the printed form."""

from __future__ import annotations

import pytest

from archsearch.dsl import (
    Rule,
    bonus,
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
    write,
)
from archsearch.kernels.conformance.made_up import RULES
from archsearch.kernels.conformance.random_rules import random_rule
from archsearch.lowering import Decay, Read, lower
from archsearch.lowering.normal_form import text, verify
from archsearch.mixers.zoo import rules

q, k, e, v, v2 = query("q"), key("k"), key("e"), value("v"), value("v2")
beta, gamma, lam, b = gate("beta"), gate("gamma"), gate("lam"), channel_gate("b")
g, gc, gs = log_decay("g"), log_decay("gc", per="channel"), log_decay("gs", signed=True)


@pytest.mark.parametrize(
    ("step", "write_", "residual", "target"),
    [
        (write(k, v), "k", "0", "v"),
        (write(k, v, strength=0.5 * beta), "k", "0", "0.5 beta v"),
        (erase(e, strength=gamma), "e", "gamma e", "0"),
        (erase(e), "e", "e", "0"),
        (delta_write(k, v, strength=beta), "k", "beta k", "beta v"),
        (delta_write(k, v, strength=beta, residual=query_feedback(q, lam)), "k", "beta k + beta lam q", "beta v"),
        (delta_write(k, v, residual=query_feedback(q, -0.5)), "k", "k - 0.5 q", "v"),
        (delta_write(b * k, v - 2 * v2, residual=b * k - lam * q), "b k", "b k - lam q", "v - 2 v2"),
        (delta_write(k, v, strength=0.0), "k", "0", "0"),
        (delta_write(k, v, residual=query_feedback(k, 1.0)), "k", "2 k", "v"),
        (delta_write(k - k, v), "0", "0", "v"),
    ],
)
def test_strengths_are_folded_into_residual_and_target(step: object, write_: str, residual: str, target: str) -> None:
    row = lower(Rule("one", step, read(q))).rows[0]
    assert (text(row.write), text(row.residual), text(row.target)) == (write_, residual, target)


def test_rows_know_their_stage_and_the_decays_before_them() -> None:
    form = lower(
        Rule(
            "places",
            erase(e, strength=gamma),
            decay(g),
            simultaneous(delta_write(k, v), erase(e, reads="previous")),
            decay(gs),
            decay(-0.5),
            write(k, v2),
            read(q),
        )
    )
    assert [(row.stage, row.decays, row.previous) for row in form.rows] == [
        (0, 0, False),
        (1, 1, False),
        (1, 1, True),
        (2, 3, False),
    ]
    assert form.decays == (Decay(g, None), Decay(gs, gs.sign), Decay(-0.5, None))


@pytest.mark.parametrize("place", range(4))
def test_a_read_knows_what_came_before_it(place: int) -> None:
    steps = [erase(e), decay(g), write(k, v)]
    form = lower(Rule("read", *steps[:place], read(q), *steps[place:]))
    assert (form.read.stage, form.read.decays) == [(0, 0), (1, 0), (1, 1), (2, 1)][place]


@pytest.mark.parametrize("rule", [*rules.values(), *RULES, *map(random_rule, range(40))], ids=lambda rule: rule.name)
def test_the_program_is_the_rule_step_by_step(rule: Rule) -> None:
    """Reordered by stage and place, the steps stand where they were written."""
    form = lower(rule)
    kinds = [type(step).__name__ if isinstance(step, Decay | Read) else "Rows" for step in form.program]
    expected = [name if (name := type(step).__name__) in ("Decay", "Read") else "Rows" for step in rule.steps]
    assert kinds == expected
    assert [row for step in form.program if isinstance(step, tuple) for row in step] == list(form.rows)
    assert verify(form) is form


@pytest.mark.parametrize(
    ("decays", "kind"),
    [((), "none"), ((decay(-0.1),), "scalar"), ((decay(g),), "scalar"), ((decay(g), decay(gc)), "channel")],
)
def test_the_kind_of_decay(decays: tuple[object, ...], kind: str) -> None:
    assert lower(Rule("decays", *decays, write(k, v), read(q))).decay_kind == kind


def test_a_normal_form_prints_as_its_program() -> None:
    rule = Rule(
        "printed",
        decay(gs),
        erase(e, strength=gamma, reads="previous"),
        decay(-0.25),
        delta_write(k, v, strength=beta, residual=query_feedback(q, lam)),
        read(q, scale=1.0, bonus=bonus(e, k, v)),
    )
    assert str(lower(rule)) == (
        "printed(gs, gs_sign, e, gamma, k, v, beta, q, lam)\n"
        "  decay 0: gs_sign exp(gs)\n"
        "  decay 1: exp(-0.25)\n"
        "  row 0 (stage 0, after 1 decays, reads S_(t-1)): b = e | a = gamma e | u = 0\n"
        "  row 1 (stage 1, after 2 decays): b = k | a = beta k + beta lam q | u = beta v\n"
        "  read (before stage 2, after 2 decays): q = q, scale 1, bonus (e, k, v)"
    )
