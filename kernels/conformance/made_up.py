"""Rules that nobody trains: between them they use every feature of the language, for whoever tests a backend."""

from __future__ import annotations

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

q, p, k, k2, k3, e = query("q"), query("p"), key("k"), key("k2"), key("k3"), key("e")
v, v2, v3 = value("v"), value("v2"), value("v3")
beta, gamma, lam, eta = gate("beta"), gate("gamma"), gate("lam"), gate("eta")
b, w, u = channel_gate("b"), channel_gate("w", of="value"), key("u")
g, h = log_decay("g"), log_decay("h")
gc, hc = log_decay("gc", per="channel"), log_decay("hc", per="channel")
gs, gcs = log_decay("gs", signed=True), log_decay("gcs", per="channel", signed=True)

DELTA = delta_write(k, v, strength=beta)
SECOND = delta_write(k2, v2, strength=lam)
ERASE = erase(e, strength=gamma)

RULES: tuple[Rule, ...] = (
    Rule("normalised_write", decay(g), write(k, v, strength=beta), read(q, normaliser=0.5), decay(h)),
    Rule(
        "normalised_delta",
        decay(gc),
        ERASE,
        read(q, bonus=bonus(u, k, v2), normaliser=0.25),
        delta_write(k, v2 - 0.5 * v, strength=beta, reads="previous"),
    ),
    Rule(
        "joint", decay(g), simultaneous(erase(e, strength=0.5 * gamma), delta_write(k, v, strength=0.5 * beta)), read(q)
    ),
    Rule(
        "joint_per_channel",
        decay(gc),
        simultaneous(erase(e, strength=0.5 * gamma), write(k, v), delta_write(k2, v2, strength=0.3)),
        read(q),
    ),
    Rule("delta_then_erase", decay(gc), DELTA, erase(e, strength=gamma), read(q)),
    Rule("erase_before_decay", erase(e, strength=gamma), decay(gc), DELTA, read(q)),
    Rule("decay_between", decay(g), erase(e, strength=gamma), decay(hc), DELTA, read(q)),
    Rule("decay_last", DELTA, read(q), decay(gc)),
    Rule("decay_twice", decay(g), decay(g), DELTA, read(q)),
    Rule("decay_by_numbers", decay(-0.05), DELTA, decay(-0.2), erase(e, strength=gamma), read(q)),
    Rule("number_beside_channels", decay(-0.05), decay(gc), DELTA, decay(h), read(q)),
    Rule("signed", decay(gs), DELTA, read(q)),
    Rule("signed_per_channel", decay(gcs), DELTA, read(q)),
    Rule("signed_between", erase(e, strength=gamma), decay(gcs), DELTA, decay(gs), write(k2, v2), read(q)),
    Rule("previous", decay(g), delta_write(k, v, strength=beta, residual=p, reads="previous"), read(q - 0.5 * p)),
    Rule("previous_per_channel", decay(gc), delta_write(k, v, strength=beta, reads="previous"), read(q)),
    Rule(
        "previous_group",
        decay(gc),
        simultaneous(erase(e, strength=gamma, reads="previous"), write(k, v)),
        read(q, scale=1.0),
    ),
    Rule(
        "previous_after_write",
        decay(gcs),
        write(k, v, strength=beta),
        erase(e, strength=0.5 * gamma, reads="previous"),
        read(q),
    ),
    Rule("read_first", read(q), decay(gc), DELTA),
    Rule("read_decayed", decay(gc), read(q), DELTA),
    Rule("read_between", decay(g), erase(e, strength=gamma), read(q), decay(hc), DELTA),
    Rule("bonus", read(q, scale=1.0, bonus=bonus(u, k, v)), decay(gc), write(k, v)),
    Rule("bonus_expressions", decay(gs), DELTA, read(q + p, bonus=bonus(gamma * u, b * k, w * v - v2))),
    Rule("channel_gates", decay(gc), delta_write(b * k, w * v, strength=beta, residual=b * k + lam * p), read(b * q)),
    Rule("feedback_per_channel", decay(gc), delta_write(k, v, strength=beta, residual=query_feedback(q, lam)), read(q)),
    Rule(
        "feedback_signed_number", decay(g), delta_write(k, v, strength=beta, residual=query_feedback(q, -0.3)), read(q)
    ),
    Rule("erase_at_query", decay(g), erase(q, strength=gamma), DELTA, read(q)),
    Rule("erase_alone", decay(g), erase(e, strength=gamma), read(q)),
    Rule(
        "expressions",
        decay(g),
        delta_write(k - 0.5 * e, v - lam * v2, strength=0.5 * beta * gamma, residual=k + e - lam * q),
        read(q + 0.5 * k),
    ),
    Rule("residual_elsewhere", delta_write(k, v, strength=beta, residual=e), read(q)),
    Rule("three", decay(gc), DELTA, erase(e, strength=gamma), delta_write(k2, v2, strength=lam), read(q)),
    Rule(
        "three_joint_then_one",
        decay(g),
        simultaneous(write(k, v), erase(e, strength=gamma)),
        delta_write(k3, v3, strength=beta),
        read(q),
    ),
    Rule(
        "four",
        DELTA,
        delta_write(k2, v2, strength=gamma),
        decay(g),
        erase(e, strength=lam),
        write(k3, v3, strength=eta),
        read(q),
    ),
    Rule(
        "four_per_channel",
        decay(gc),
        DELTA,
        erase(e, strength=gamma),
        decay(hc),
        delta_write(k2, v2, strength=lam),
        write(k3, v3),
        read(q),
    ),
    Rule("nothing_written", decay(g), delta_write(0.0 * k, v, strength=beta), write(k2, v2), read(q)),
    Rule("no_strength", decay(gc), delta_write(k, v), erase(e), read(q)),
)
"""Each compiles and is stable on the suite's inputs."""

LONG: tuple[Rule, ...] = (
    Rule(
        "signed_channels",
        decay(gc),
        DELTA,
        ERASE,
        delta_write(b * k2, w * v2, strength=lam * eta, residual=k2 + lam * q),
        decay(g),
        write(k3, v3),
        read(q + 0.5 * p),
        erase(p, strength=0.5),
        decay(gcs),
        write(k, v2),
    ),
    Rule(
        "joint",
        decay(g),
        simultaneous(DELTA, erase(e, strength=0.5 * gamma)),
        SECOND,
        simultaneous(write(k3, v3), erase(p, strength=0.2)),
        DELTA,
        read(q),
    ),
    Rule(
        "five_joint",
        decay(g),
        simultaneous(
            DELTA,
            erase(e, strength=0.25 * gamma),
            delta_write(k2, v2, strength=0.2 * lam),
            write(k3, v3),
            erase(p, strength=0.2),
        ),
        read(q),
    ),
    Rule(
        "previous_early",
        delta_write(k, v, strength=beta, reads="previous"),
        decay(gs),
        simultaneous(erase(p, strength=0.2, reads="previous"), DELTA),
        ERASE,
        SECOND,
        write(k3, v3),
        decay(-0.1),
        read(q),
    ),
    Rule(
        "previous_late",
        decay(gs),
        DELTA,
        ERASE,
        SECOND,
        write(k3, v3),
        decay(-0.1),
        erase(p, strength=0.2, reads="previous"),
        read(q, bonus=bonus(u, k, v)),
    ),
    Rule("read_first", read(q), decay(gc), DELTA, ERASE, SECOND, write(k3, v3), erase(p), decay(g)),
    Rule("erases", *(erase(address, strength=gamma) for address in (e, k, k2, k3, p)), read(q)),
)
"""Of more than four steps a token, some of them together or late readers of S_(t-1)."""
