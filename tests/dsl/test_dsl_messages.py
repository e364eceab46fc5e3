"""Every message of the language to the letter."""

import math
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from archsearch.dsl import (
    Operand,
    Rule,
    bonus,
    channel_gate,
    decay,
    delta_write,
    erase,
    expand,
    gate,
    key,
    log_decay,
    parse_rule,
    query,
    query_feedback,
    read,
    simultaneous,
    value,
    write,
)
from archsearch.dsl.operands import Kind
from archsearch.errors import HoleError, RuleError
from archsearch.holes import integer, optional, resolve, uniform
from archsearch.lowering.normal_form import NormalForm, lower, verify

q, k, e, v = query("q"), key("k"), key("e"), value("v")
beta, w, g = gate("beta"), channel_gate("w", of="value"), log_decay("g")
LINE = "FILE:LINE"


def form() -> NormalForm:
    return lower(Rule("plain", decay(g), write(k, v), erase(e), read(q)))


MESSAGES: dict[str, tuple[Callable[[], Any], str]] = {
    "a name that is no identifier": (
        lambda: key("two words"),
        (
            "an operand's name must be an identifier other than cu_seqlens, initial_state, scale, self, "
            "state; got 'two words'. Choose another name"
        ),
    ),
    "a name of the call's own": (
        lambda: gate("scale"),
        (
            "an operand's name must be an identifier other than cu_seqlens, initial_state, scale, self, "
            "state; got 'scale'. Choose another name"
        ),
    ),
    "a keyword": (
        lambda: value("lambda"),
        (
            "an operand's name must be an identifier other than cu_seqlens, initial_state, scale, self, "
            "state; got 'lambda'. Choose another name"
        ),
    ),
    "a name that is no text": (
        lambda: query(3),  # pyright: ignore[reportArgumentType]
        (
            "an operand's name must be an identifier other than cu_seqlens, initial_state, scale, self, "
            "state; got 3. Choose another name"
        ),
    ),
    "channels of what has none": (
        lambda: Operand("q", Kind.QUERY, "channel"),
        "query('q') takes per='head' or 'channel' and of='key' or 'value'; got 'channel', 'key'",
    ),
    "two vectors multiplied": (
        lambda: write(k * e, v),
        ("a product holds at most one address, value or log decay; got k * e with k and e. Multiply by gates"),
    ),
    "a text in an expression": (
        lambda: write(k + "e", v),
        '"e" cannot stand in an expression: only operands, finite numbers and holes can',
    ),
    "an infinite number in an expression": (
        lambda: write(float("inf") * k, v),
        "inf cannot stand in an expression: only operands, finite numbers and holes can",
    ),
    "a read in an expression": (
        lambda: write(k + read(q), v),
        (
            "read(q) at FILE:LINE cannot stand in an expression: it depends on S through read(q), so the rule is not "
            "affine in the state. Use operands alone"
        ),
    ),
    "a multiple of a read": (
        lambda: delta_write(k, v, strength=0.5 * read(k)),
        (
            "read(k) at FILE:LINE cannot stand in an expression: it depends on S through read(k), so the rule is not "
            "affine in the state. Use operands alone"
        ),
    ),
    "numbers that overflow": (
        lambda: write(1e308 * k * 10, v),
        "the numbers of an expression must stay finite when multiplied out; got 1e+308 * k * 10",
    ),
    "something else expanded": (lambda: expand("k"), 'an expression is made of operands and numbers; got "k"'),
    "a decay computed from the state": (
        lambda: decay(read(q)),
        (
            "decay is not affine in the state: its log_decay depends on S through read(q); got read(q)\n"
            "  FILE:LINE  decay(read(q))\n"
            "                   ^\n"
            "  use operands alone; such a rule has no chunkwise form"
        ),
    ),
    "a strength computed from the state": (
        lambda: delta_write(k, v, strength=read(q)),
        (
            "delta_write is not affine in the state: its strength depends on S through read(q); got read(q)\n"
            "  FILE:LINE  delta_write(k, v, strength=read(q))\n"
            "                                        ^\n"
            "  use operands alone; such a rule has no chunkwise form"
        ),
    ),
    "an address read from the state": (
        lambda: erase(read(k)),
        (
            "erase is not affine in the state: its address depends on S through read(k); got read(k)\n"
            "  FILE:LINE  erase(read(k))\n"
            "                   ^\n"
            "  use operands alone; such a rule has no chunkwise form"
        ),
    ),
    "a key as decay": (
        lambda: decay(k),
        (
            'decay needs a log decay; got key("k") with shape [B, T, H, K]\n'
            "  FILE:LINE  decay(k)\n"
            "                   ^\n"
            '  use log_decay("g")'
        ),
    ),
    "a growing decay": (
        lambda: decay(0.5),
        (
            "decay needs a log-decay operand or a number <= 0; got 0.5\n"
            "  FILE:LINE  decay(0.5)\n"
            "                   ^\n"
            "  give the natural log of the decay"
        ),
    ),
    "a text as decay": (
        lambda: decay("g"),
        (
            'decay needs a log-decay operand or a number <= 0; got "g"\n'
            '  FILE:LINE  decay("g")\n'
            "                   ^\n"
            "  give the natural log of the decay"
        ),
    ),
    "an expression as decay": (
        lambda: decay(2.0 * g),
        (
            "decay needs a log-decay operand or a number <= 0; got 2 * g\n"
            "  FILE:LINE  decay(2 * g)\n"
            "                   ^\n"
            "  give the natural log of the decay"
        ),
    ),
    "a value erased": (
        lambda: erase(v, strength=beta),
        (
            'erase needs an address of shape [B, T, H, K]; got value("v") with shape [B, T, HV, V]\n'
            "  FILE:LINE  erase(v, strength=beta)\n"
            "                   ^\n"
            "  use a key, or write(k, v) to add a value"
        ),
    ),
    "a number erased": (
        lambda: erase(1.0),
        (
            "erase needs an address of shape [B, T, H, K]; got 1\n"
            "  FILE:LINE  erase(1)\n"
            "                   ^\n"
            "  use a key, or write(k, v) to add a value"
        ),
    ),
    "nothing erased": (
        lambda: erase(None),
        (
            "erase needs an address of shape [B, T, H, K]; got None\n"
            "  FILE:LINE  erase(None)\n"
            "                   ^\n"
            "  use a key, or write(k, v) to add a value"
        ),
    ),
    "a text erased": (
        lambda: erase("e"),
        (
            'erase needs an address of shape [B, T, H, K]; got "e"\n'
            '  FILE:LINE  erase("e")\n'
            "                   ^\n"
            "  use a key, or write(k, v) to add a value"
        ),
    ),
    "a value gate on a key": (
        lambda: erase(w * e),
        (
            "erase needs an address of shape [B, T, H, K]; got w * e\n"
            "  FILE:LINE  erase(w * e)\n"
            "                   ^\n"
            "  use a key, or write(k, v) to add a value"
        ),
    ),
    "a key as strength": (
        lambda: erase(e, strength=e),
        (
            'erase needs a strength that is a number, a gate or their product; got key("e") with shape [B, '
            "T, H, K]\n"
            "  FILE:LINE  erase(e, strength=e)\n"
            "                               ^\n"
            '  use gate("beta")'
        ),
    ),
    "a vector as strength named like the address": (
        lambda: delta_write(k, v, strength=k),
        (
            'delta_write needs a strength that is a number, a gate or their product; got key("k") with '
            "shape [B, T, H, K]\n"
            "  FILE:LINE  delta_write(k, v, strength=k)\n"
            "                                        ^\n"
            '  use gate("beta")'
        ),
    ),
    "a channel gate as strength": (
        lambda: erase(e, strength=channel_gate("b")),
        (
            'erase needs a strength that is a number, a gate or their product; got channel_gate("b") with '
            "shape [B, T, HV, K]\n"
            "  FILE:LINE  erase(e, strength=b)\n"
            "                               ^\n"
            '  use gate("beta")'
        ),
    ),
    "a sum as strength": (
        lambda: erase(e, strength=1.0 - beta),
        (
            "erase needs a strength that is a number, a gate or their product; got 1 - beta\n"
            "  FILE:LINE  erase(e, strength=1 - beta)\n"
            "                               ^\n"
            '  use gate("beta")'
        ),
    ),
    "no strength at all": (
        lambda: erase(e, strength=None),
        (
            "erase needs a strength that is a number, a gate or their product; got None\n"
            "  FILE:LINE  erase(e)\n"
            "             ^\n"
            '  use gate("beta")'
        ),
    ),
    "an unknown state to read": (
        lambda: erase(e, reads="next"),
        (
            "reads is 'previous' (the state before this token) or left out; got \"next\"\n"
            '  FILE:LINE  erase(e, reads="next")\n'
            "                            ^\n"
            "  write reads='previous' or nothing"
        ),
    ),
    "a key written": (
        lambda: write(k, e),
        (
            'write needs a value of shape [B, T, HV, V]; got key("e") with shape [B, T, H, K]\n'
            "  FILE:LINE  write(k, e)\n"
            "                      ^\n"
            "  use a value"
        ),
    ),
    "a key gate on a value": (
        lambda: write(k, channel_gate("b") * v),
        (
            "write needs a value of shape [B, T, HV, V]; got b * v\n"
            "  FILE:LINE  write(k, b * v)\n"
            "                      ^\n"
            "  use a value"
        ),
    ),
    "a gate as address": (
        lambda: write(beta, v),
        (
            'write needs an address of shape [B, T, H, K]; got gate("beta") with shape [B, T, HV]\n'
            "  FILE:LINE  write(beta, v)\n"
            "                   ^\n"
            "  use a key"
        ),
    ),
    "a value as residual": (
        lambda: delta_write(k, v, residual=v),
        (
            'delta_write needs an address of shape [B, T, H, K]; got value("v") with shape [B, T, HV, V]\n'
            "  FILE:LINE  delta_write(k, v, residual=v)\n"
            "                                        ^\n"
            "  use query_feedback(q, lam) or an address such as b * k"
        ),
    ),
    "the state in a residual": (
        lambda: delta_write(k, v, residual=erase(e)),
        (
            "delta_write is not affine in the state: its residual depends on S through erase(e); got "
            "erase(e)\n"
            "  FILE:LINE  delta_write(k, v, residual=erase(e))\n"
            "                                        ^\n"
            "  use operands alone; such a rule has no chunkwise form"
        ),
    ),
    "the state in a target": (
        lambda: write(k, read(q)),
        (
            "write is not affine in the state: its target depends on S through read(q); got read(q)\n"
            "  FILE:LINE  write(k, read(q))\n"
            "                      ^\n"
            "  use operands alone; such a rule has no chunkwise form"
        ),
    ),
    "feedback of a value": (
        lambda: query_feedback(v, beta),
        (
            'query_feedback needs an address of shape [B, T, H, K]; got value("v") with shape [B, T, HV, V]\n'
            "  query_feedback(v, beta)\n"
            "                 ^\n"
            "  use a query"
        ),
    ),
    "feedback by a key": (
        lambda: query_feedback(q, k),
        (
            'query_feedback needs a lam that is a number, a gate or their product; got key("k") with shape '
            "[B, T, H, K]\n"
            "  query_feedback(q, k)\n"
            "                    ^\n"
            '  use gate("beta")'
        ),
    ),
    "a bonus of a value": (
        lambda: bonus(v, k, v),
        (
            'bonus needs an address of shape [B, T, H, K]; got value("v") with shape [B, T, HV, V]\n'
            "  bonus(v, k, v)\n"
            "        ^\n"
            "  use a key"
        ),
    ),
    "a bonus to a key": (
        lambda: bonus(k, k, e),
        (
            'bonus needs a value of shape [B, T, HV, V]; got key("e") with shape [B, T, H, K]\n'
            "  bonus(k, k, e)\n"
            "              ^\n"
            "  use a value"
        ),
    ),
    "a value read": (
        lambda: read(v),
        (
            'read needs an address of shape [B, T, H, K]; got value("v") with shape [B, T, HV, V]\n'
            "  FILE:LINE  read(v)\n"
            "                  ^\n"
            "  use a query"
        ),
    ),
    "a text as scale": (
        lambda: read(q, scale="one"),
        (
            'the scale of a read is a number; got "one"\n'
            '  FILE:LINE  read(q, scale="one")\n'
            "                           ^\n"
            "  write scale=1.0, or leave it out for K ** -0.5"
        ),
    ),
    "a key as bonus": (
        lambda: read(q, bonus=k),
        (
            'the bonus of a read is a bonus; got key("k") with shape [B, T, H, K]\n'
            "  FILE:LINE  read(q, bonus=k)\n"
            "                           ^\n"
            "  write bonus=bonus(u, k, v)"
        ),
    ),
    "one step together": (
        lambda: simultaneous(write(k, v)),
        "simultaneous needs two steps or more; got 1. A single step needs no group",
    ),
    "a decay together": (
        lambda: simultaneous(decay(g), write(k, v)),
        (
            "simultaneous holds writes, delta writes or erases and nothing else\n"
            "  FILE:LINE  simultaneous(decay(g), write(k, v))\n"
            "             ^\n"
            "  put decays and reads outside"
        ),
    ),
    "a rule without a name": (
        lambda: Rule(write(k, v), read(q)),  # pyright: ignore[reportArgumentType]
        'a rule\'s name must be an identifier; got write(k, v). Write Rule("name", step, ...)',
    ),
    "a name with a blank": (
        lambda: Rule("two words", write(k, v), read(q)),
        'a rule\'s name must be an identifier; got "two words". Write Rule("name", step, ...)',
    ),
    "a key as step": (
        lambda: Rule("wrong", k, read(q)),
        "rule 'wrong' is made of steps (decay, erase, delta_write, write, simultaneous, read); got k",
    ),
    "no read": (lambda: Rule("wrong", write(k, v)), "rule 'wrong' must read exactly once; got 0 reads. Add read(q)"),
    "two reads": (
        lambda: Rule("wrong", write(k, v), read(q), read(q)),
        "rule 'wrong' must read exactly once; got 2 reads. Keep one",
    ),
    "nothing written": (
        lambda: Rule("wrong", decay(g), read(q)),
        "rule 'wrong' never changes the state; add a write, a delta_write or an erase",
    ),
    "a name for two operands": (
        lambda: Rule("wrong", decay(g), write(key("g"), v), read(q)),
        "rule 'wrong' uses 'g' for two operands: log_decay(\"g\") and key(\"g\"). Rename one",
    ),
    "a name for an operand and a sign": (
        lambda: Rule("wrong", decay(log_decay("g", signed=True)), write(key("g_sign"), v), read(q)),
        "rule 'wrong' uses 'g_sign' for two operands: sign(\"g_sign\") and key(\"g_sign\"). Rename one",
    ),
    "a decay both ways": (
        lambda: Rule("wrong", decay(g), decay(log_decay("g", per="channel")), write(k, v), read(q)),
        ('rule \'wrong\' uses \'g\' for two operands: log_decay("g") and log_decay("g", per="channel"). Rename one'),
    ),
    "two decays in one": (
        lambda: decay(g, log_decay("h", per="channel")),
        (
            'decay takes one log decay; got log_decay("g") with shape [B, T, HV], log_decay("h", per="channel") with '
            "shape [B, T, HV, K]. Give each a decay of its own: their logs add"
        ),
    ),
    "a text that ends early": (
        lambda: parse_rule('Rule("x", write('),
        ("a rule's text must be one expression Rule(...); got a syntax error in line 1: '(' was never closed"),
    ),
    "a text of something else": (
        lambda: parse_rule('key("k")'),
        "a rule's text must be one expression Rule(...); got 'key(\"k\")'",
    ),
    "a text that calls something else": (
        lambda: parse_rule('Rule("x", print("hi"))'),
        "a rule's text holds calls of the language, numbers and arithmetic; got \"print('hi')\"",
    ),
    "a text with an attribute": (
        lambda: parse_rule('Rule("x", key("k").name)'),
        "a rule's text holds calls of the language, numbers and arithmetic; got \"key('k').name\"",
    ),
    "a text with a wrong argument": (
        lambda: parse_rule('Rule("x", decay(log_decay("g"), by=2))'),
        ("\"decay(log_decay('g'), by=2)\" in a rule's text: decay() got an unexpected keyword argument 'by'"),
    ),
    "a text that adds what cannot be": (
        lambda: parse_rule('Rule("x", read(query("q") + "a"), erase(1 + "a"))'),
        '"a" cannot stand in an expression: only operands, finite numbers and holes can',
    ),
    "a text with a wrong kind": (
        lambda: parse_rule('Rule("x", erase(value("v")), read(query("q")))'),
        (
            'erase needs an address of shape [B, T, H, K]; got value("v") with shape [B, T, HV, V]\n'
            "  erase(v)\n"
            "        ^\n"
            "  use a key, or write(k, v) to add a value"
        ),
    ),
    "open holes": (
        lambda: lower(Rule("open", optional(erase(e), name="erase"), write(k, v, strength=uniform(0.0, 1.0)), read(q))),
        "rule 'open' has open holes: erase, strength. Fill them with archsearch.resolve(rule, choices)",
    ),
    "a wrong kind in a filled hole": (
        lambda: resolve(Rule("open", write(k, v, strength=optional(beta)), read(q)), {"strength": "no"}),
        (
            "write needs a strength that is a number, a gate or their product; got None\n"
            "  FILE:LINE  write(k, v)\n"
            "             ^\n"
            '  use gate("beta")'
        ),
    ),
    "a hash of open holes": (
        lambda: Rule("open", write(k, v, strength=integer(1, 2)), read(q)).hash,
        "rule 'open' has open holes: strength. Fill them with archsearch.resolve(rule, choices)",
    ),
    "a row after decays that are not there": (
        lambda: verify(replace(form(), decays=())),
        "row 0 of 'plain' stands after 1 decay points; there are 0",
    ),
    "rows out of order": (
        lambda: verify(replace(form(), rows=form().rows[::-1])),
        "the rows of 'plain' must stand in the order in which they act",
    ),
    "a value where the form needs an address": (
        lambda: verify(replace(form(), read=replace(form().read, address=form().rows[0].target))),
        "the normal form of 'plain' needs address terms; got v",
    ),
    "a scalar where the form needs an address": (
        lambda: verify(replace(form(), read=replace(form().read, address=expand(2.0 * beta)))),
        "the normal form of 'plain' needs address terms; got 2 beta",
    ),
}


def shown(error: Exception) -> str:
    """The message with the place of this file as FILE:LINE, the caret moved along."""
    lines = str(error).split("\n")
    place = re.search(r"dsl/test_dsl_messages\.py:\d+", str(error))
    if place is None:
        return str(error)
    width = len(place.group()) - len(LINE)
    return "\n".join(line[width:] if line.strip() == "^" else line.replace(place.group(), LINE) for line in lines)


@pytest.mark.parametrize("case", MESSAGES)
def test_messages(case: str) -> None:
    act, message = MESSAGES[case]
    with pytest.raises((RuleError, HoleError)) as caught:
        act()
    assert shown(caught.value) == message


STATE: Any = read(q)


@pytest.mark.parametrize(
    "act",
    [
        lambda: STATE**2,
        lambda: 2**STATE,
        lambda: abs(STATE),
        lambda: max(STATE, 1.0),
        lambda: STATE @ k,
        lambda: STATE / 2,
        lambda: math.tanh(STATE),
        lambda: torch.ones(1) * 0 if STATE > 0 else None,
    ],
)
def test_no_operator_makes_an_expression_of_the_state(act: Callable[[], Any]) -> None:
    with pytest.raises(RuleError) as caught:
        act()
    assert shown(caught.value) == (
        "read(q) at FILE:LINE cannot stand in an expression: it depends on S through read(q), so the rule is not "
        "affine in the state. Use operands alone"
    )


@pytest.mark.parametrize(
    ("act", "through"),
    [
        (lambda: torch.tanh(STATE), "tanh"),
        (lambda: torch.clamp(input=STATE, min=-1, max=1), "clamp"),
        (lambda: torch.nn.functional.layer_norm(STATE, (4,)), "layer_norm"),
        (lambda: torch.stack([torch.ones(1), STATE]), "stack"),
        (lambda: torch.ones(1) * STATE, "mul"),
        (lambda: np.tanh(STATE), "tanh"),
        (lambda: np.ones(1) * STATE, "multiply"),
    ],
)
def test_a_function_of_the_state_is_refused_with_its_name(act: Callable[[], Any], through: str) -> None:
    with pytest.raises(RuleError) as caught:
        act()
    assert shown(caught.value) == (
        f"{through} of read(q) at FILE:LINE cannot stand in an expression: it depends on S through {through}, so the "
        "rule is not affine in the state. Use operands alone"
    )
