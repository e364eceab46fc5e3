"""The functions that stand before the kernels: rows of substeps, what decay points leave, scales of targets."""

from __future__ import annotations

from archsearch.dsl import Expression, Operand
from archsearch.kernels.triton.channel.quads import has_signs
from archsearch.kernels.triton.expressions import literal, load_text, pointers_of, scale_text, split, vector_text
from archsearch.kernels.triton.gradients.streams import joined
from archsearch.kernels.triton.serial_rows import factors_of, streams_of
from archsearch.kernels.triton.streams import factor_text
from archsearch.kernels.triton.text import by_row, function
from archsearch.lowering import NormalForm


def channel_functions(form: NormalForm) -> list[str]:
    """The rows of a substep, and what some of a token's decay points make of a state."""
    found = [_row(form, f"write_row_{s}", "The write", row.write) for s, row in enumerate(form.rows)]
    found += [_row(form, f"residual_row_{s}", "The residual", row.residual) for s, row in enumerate(form.rows)]
    found += [_row(form, "read_row", "The read", form.read.address), _log_between(form)]
    found += [_turn_between(form)] if has_signs(form) else []
    return found + [_target_scale(form, t) for t in _scaled_targets(form)]


def _row(form: NormalForm, name: str, role: str, expression: Expression) -> str:
    parts = split(expression)
    sizes = "H: tl.constexpr, HV: tl.constexpr, K: tl.constexpr"
    parameters = f"token, here, head, channel, {pointers_of(form)}, {sizes}"
    if not expression:
        text = "tl.zeros((token.shape[0], channel.shape[0]), tl.float32)"
    else:
        text = f"({vector_text(parts.vector, 'here')}).to(tl.float32)"
        if parts.gates:
            text += f" * ({scale_text(parts, 'here')})[:, None]"
        elif parts.coefficient != 1.0:
            text += f" * {literal(parts.coefficient)}"
    return function(name, parameters, f"{role} address [N, BK] of one substep, in float32.", [f"return {text}"])


def _log_between(form: NormalForm) -> str:
    lines = ["logs = tl.zeros((token.shape[0], channel.shape[0]), tl.float32)"]
    for d, decay in enumerate(form.decays):
        given = decay.log_decay
        if isinstance(given, Operand):
            text = f"log_of_decay({load_text(given, 'token', 'here', 'channel')})"
            text += "[:, None]" if given.per == "head" else ""
        else:
            text = f"log_of_decay(tl.where(here, {given!r}, 0.0))[:, None]"
        lines += [f"if FIRST <= {d}:", f"    if LAST > {d}:", f"        logs += {text}"]
    return function(
        "log_between",
        _between_parameters(form),
        "The log decay [N, BK] of the decay points FIRST .. LAST - 1 of tokens.",
        [*lines, "return logs"],
    )


def _turn_between(form: NormalForm) -> str:
    lines = ["turns = tl.full((token.shape[0], channel.shape[0]), 1.0, tl.float32)"]
    for d, decay in enumerate(form.decays):
        if decay.sign is not None:
            load = load_text(decay.sign, "token", "here", "channel")
            wide = "[:, None]" if decay.sign.per == "head" else ""
            text = f"turns = tl.where({load}{wide} < 0, -turns, turns)"
            lines += [f"if FIRST <= {d}:", f"    if LAST > {d}:", f"        {text}"]
    return function(
        "turn_between",
        _between_parameters(form),
        "The sign [N, BK] of the decay points FIRST .. LAST - 1 of tokens.",
        [*lines, "return turns"],
    )


def _between_parameters(form: NormalForm) -> str:
    sizes = "FIRST: tl.constexpr, LAST: tl.constexpr, HV: tl.constexpr, K: tl.constexpr"
    return f"token, here, head, channel, {pointers_of(form)}, {sizes}"


def _scaled_targets(form: NormalForm) -> list[int]:
    return [t for t, stream in enumerate(streams_of(form, "target")) if not stream.plain]


def _target_scale(form: NormalForm, t: int) -> str:
    lines = by_row(streams_of(form, "target")[t].factors, "tl.where(here, 0.0, 0.0)", factor_text)
    parameters = f"token, sub, here, head, {pointers_of(form)}, HV: tl.constexpr"
    return function(f"target_scale_{t}", parameters, f"The numbers [N] that scale stream {t} of the targets.", lines)


def target_factors(form: NormalForm) -> str:
    """Lines that write the numbers that scale targets in the serial kernels."""
    kept = factors_of(form)
    lines = [
        f"target_s{t} = target_scale_{t}(token, sub, here, head, {pointers_of(form)}, HV)"
        for t in _scaled_targets(form)
    ]
    for each in kept:
        at = f"factors + (slot * {len(kept)} + {each.index}) * C + place"
        mask = "" if len(form.rows) == 1 else f", mask=sub == {each.row}"
        lines.append(f"tl.store({at}, target_s{each.stream}{mask})")
    return joined(lines)
