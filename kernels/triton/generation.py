"""From a normal form to the source of its kernels: the holes of the templates filled."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from functools import lru_cache

from archsearch.dsl import Kind, Operand
from archsearch.kernels.triton import adjoint
from archsearch.kernels.triton.channel.functions import channel_functions
from archsearch.kernels.triton.channel.holes import channel_holes
from archsearch.kernels.triton.expressions import load_text, pointer, pointers_of, vector_text
from archsearch.kernels.triton.gradients.holes import gradient_holes, in_one_place
from archsearch.kernels.triton.gradients.operands import gradient_operands
from archsearch.kernels.triton.serial import serial_holes
from archsearch.kernels.triton.serial_rows import kept_value, serial_operands, solves, span
from archsearch.kernels.triton.single_step import step_holes
from archsearch.kernels.triton.solving import one_gate, solve_functions, solve_holes
from archsearch.kernels.triton.strengths import at_writes, plain_targets
from archsearch.kernels.triton.template import filled, folded
from archsearch.kernels.triton.text import function
from archsearch.lowering import NormalForm, canonical_text

ROLES = ("residual", "write", "read")
STRONGEST = -104.5
"""The log decay from which on a decay is 0 in float32; see `archsearch.kernels.operands.strongest`."""


def keeps_rows(form: NormalForm) -> bool:
    """Whether decayed rows are written once for the serial kernels, which otherwise form them from the operands."""
    return form.decay_kind == "channel"


def has_bonus(form: NormalForm) -> bool:
    """Whether the read adds a bonus that is not zero."""
    bonus = form.read.bonus
    return bonus is not None and all((form.read.address, bonus.weight, bonus.address, bonus.target))


def source(form: NormalForm, chunk_size: int | None = None) -> str:
    """The module that runs `form`, one text for all sizes, dtypes and chunk sizes."""
    del chunk_size  # a parameter of the kernels, not of their text
    return _source(at_writes(form))


def joining() -> str:
    """The module of the kernel that joins pieces of sequences; it knows no rule."""
    return filled("combine", {}, {}) + "\n"


@lru_cache(maxsize=256)
def _source(form: NormalForm) -> str:
    flags = _flags(form)
    holes = _holes(form)
    channel = form.decay_kind == "channel"
    if channel:
        holes |= {"finish": filled("finish", holes, flags)}
    chunks = (
        ("solve_channel", "solve_strong", "scan", "reverse", "pairs", "gradients_channel", "gradients_strong")
        if channel
        else ("solve", "scan", "reverse", "gradients")
    )
    kernels = (*(("quads",) if channel else ()), *chunks, "step")
    parts = [filled(name, holes, flags) for name in ("header", *kernels)]
    text = "\n\n\n".join(part.strip("\n") for part in parts) + "\n"
    opening, doc, code = _used(text).split('"""', 2)
    return '"""'.join((opening, doc, "\n".join(folded(line) for line in code.split("\n"))))


def _used(text: str) -> str:
    """A module without the helpers that nothing in it calls; kernels say what they do not specialize."""
    parts = re.split(r"(?=\n\n\n@triton\.jit)", text)
    names = {part: found[1] for part in parts if (found := re.match(r"\n\n\n@triton\.jit\ndef (\w+)", part))}
    idle = [part for part, name in names.items() if len(re.findall(rf"\b{name}\(", text)) < 2]
    return _used("".join(part for part in parts if part not in idle)) if idle else text


def _flags(form: NormalForm) -> dict[str, bool]:
    return {
        "decay": bool(form.decays),
        "channel": form.decay_kind == "channel",
        "scalar": form.decay_kind != "channel",
        "several": len(form.rows) > 1,
        "spread": len(form.rows) > 1 and form.decay_kind == "scalar",
        "kept": keeps_rows(form),
        "signed": any(decay.sign is not None for decay in form.decays),
        "unsigned": not any(decay.sign is not None for decay in form.decays),
        "learned_decay": adjoint.learned_decay(form),
        "residual": any(row.residual for row in form.rows),
        "solves": solves(form),
        "keeps_targets": kept_value(form) is None,
        "push_targets": (any(row.target for row in form.rows) and not plain_targets(form)) or has_bonus(form),
        "one_place": in_one_place(form),
        "one_gate": one_gate(form),
        "idle": span(form) > len(form.rows),
        "bonus": has_bonus(form),
    }


def _holes(form: NormalForm) -> dict[str, str]:
    channel = form.decay_kind == "channel"
    gradients = [f"g_{operand.name}" for operand in (*gradient_operands(form), *adjoint.numbers(form))]
    return {
        "title": f"{form.name}: generated chunkwise kernels.",
        "form": str(form),
        "hash": hashlib.sha256(canonical_text(form).encode()).hexdigest(),
        "span": str(span(form)),
        "count": str(len(form.rows)),
        "strongest": repr(STRONGEST),
        "pointers": pointers_of(form),
        "gradient_pointers": ", ".join(gradients),
        "seen_by_read": str(sum(row.stage < form.read.stage for row in form.rows)),
        "zero_numbers": "\n".join(f"total_{o.name} = tl.zeros((C,), tl.float32)" for o in adjoint.numbers(form))
        or "pass",
        **(_channel_holes(form) if channel else gradient_holes(form)),
        "advance": "\n".join(_advance(operand) for operand in form.operands if not _has_values(operand)),
        "bonus_pointers": _bonus_pointers(form),
        **serial_holes(form),
        **(channel_holes(form) if form.decay_kind == "channel" else solve_holes(form)),
        "times": str((4 * span(form)).bit_length() - 1),
        "functions": "\n\n\n".join(_functions(form)),
        **step_holes(form),
    }


def _channel_holes(form: NormalForm) -> dict[str, str]:
    buffers = [*gradient_operands(form), *adjoint.numbers(form)]
    return {
        "push_targets": adjoint.targets_text(form),
        "push": adjoint.keys_text(form),
        "advance_all": "\n".join(f"{pointer(o)} += start * ({_width(o)})" for o in form.operands),
        "advance_gradients": "\n".join(f"g_{o.name} += {_first(o)}" for o in buffers),
    }


def _width(operand: Operand) -> str:
    """Elements of a token."""
    if operand.is_address:
        return "H * K"
    if adjoint.is_number(operand):
        return "HV"
    return "HV * V" if _has_values(operand) else "HV * K"


def _first(operand: Operand) -> str:
    """Where the gradients of a chunk's first token stand: an address has one a value head, a number one a K block."""
    if adjoint.is_number(operand):
        return "(part.to(tl.int64) * tokens + start) * HV"
    return "start * (HV * V)" if _has_values(operand) else "start * (HV * K)"


def _functions(form: NormalForm) -> list[str]:
    """The helpers that know the rule: rows of every role, their decay and sign, what a row sees of its own token."""
    signed = any(decay.sign is not None for decay in form.decays)
    channel = form.decay_kind == "channel"
    functions: list[str] = channel_functions(form) if channel else solve_functions(form)
    for role in () if channel else ROLES:
        if role == "residual" and not any(row.residual for row in form.rows):
            continue
        if form.decays:
            functions.append(_decay(form, role))
        if signed:
            functions.append(_sign(form, role))
    if form.decays and not channel:
        functions.append(_decay_of_token(form))
    if signed and not channel:
        functions.append(_flips_of_token(form))
    if has_bonus(form):
        functions += _bonus(form)
    if any(row.residual for row in form.rows):
        functions.append(_seen(form))
    if span(form) > 1:
        functions.append(_substep(form))
    return functions


def _places(form: NormalForm, role: str) -> tuple[int, ...]:
    """How many of the token's decay points act before each substep's use of the state."""
    if role == "read":
        return (form.read.decays,)
    return tuple(0 if role == "residual" and row.previous else row.decays for row in form.rows)


def _advance(operand: Operand) -> str:
    """The operand from the first token of a chunk on."""
    if operand.is_address:
        return f"{pointer(operand)} += start * (H * K)"
    if operand.per == "channel":
        return f"{pointer(operand)} += start * (HV * K)"
    return f"{pointer(operand)} += start * HV"


def _has_values(operand: Operand) -> bool:
    """Whether an operand has V channels."""
    return operand.kind is Kind.VALUE or (operand.per == "channel" and operand.of == "value")


def _bonus_pointers(form: NormalForm) -> str:
    """Parameters of `scan` for the operands of the bonus's target that it does not load anyway."""
    if not has_bonus(form):
        return ""
    known = serial_operands(form)
    return "".join(f"{pointer(operand)}, " for operand in form.operands if operand not in known)


def _bonus(form: NormalForm) -> list[str]:
    bonus = form.read.bonus
    assert bonus is not None
    factors = [f"({vector_text(e, 'here')}).to(tl.float32)" for e in (form.read.address, bonus.weight, bonus.address)]
    keys = f"token, here, head, channel, {pointers_of(form)}, H: tl.constexpr, HV: tl.constexpr, K: tl.constexpr"
    values = f"token, here, head, channel, {pointers_of(form)}, HV: tl.constexpr, V: tl.constexpr"
    return [
        function(
            "bonus_pairs", keys, "The products [N, BK] whose sum weights the bonus.", [f"return {' * '.join(factors)}"]
        ),
        function(
            "bonus_targets", values, "What the bonus adds [N, BV].", [f"return {vector_text(bonus.target, 'here')}"]
        ),
    ]


def _decay(form: NormalForm, role: str) -> str:
    channel = form.decay_kind == "channel"
    lines = [f"rows = {'decayed(decay, slot, place, channel, C, K)' if channel else 'total'}"]
    # Channels past K have no G of their own, so what a number a head takes back there would leave a positive exponent.
    lines += _after_place(form, role, lambda d, here: f"rows -= {_point_text(form, d, here)}")
    parameters = _place_parameters(form, "decay")
    shape = "[N, BK]" if form.decay_kind == "channel" else "[N]"
    return function(
        f"{role}_decay",
        parameters,
        f"G {shape} at the places of the {role} rows.",
        [*lines, "return tl.minimum(rows, 0.0)"],
    )


def _sign(form: NormalForm, role: str) -> str:
    lines = [f"rows = {'decayed(sign, slot, place, channel, C, K)' if form.decay_kind == 'channel' else 'total'}"]

    def flip(d: int, here: str) -> str | None:
        sign = form.decays[d].sign
        if sign is None:
            return None
        load = load_text(sign, "token", here, "channel")
        wide = "[:, None]" if form.decay_kind == "channel" and sign.per == "head" else ""
        return f"rows = tl.where({load}{wide} < 0, -rows, rows)"

    lines += _after_place(form, role, flip)
    return function(
        f"{role}_sign",
        _place_parameters(form, "sign"),
        f"The sign of the decay since the chunk's start at the places of the {role} rows.",
        [*lines, "return rows"],
    )


def _place_parameters(form: NormalForm, buffer: str) -> str:
    """Where channels decay, G or its sign is loaded from a buffer; elsewhere `total` is its value at each row."""
    if form.decay_kind == "channel":
        sizes = "HV: tl.constexpr, K: tl.constexpr, C: tl.constexpr"
        return f"token, place, sub, here, head, channel, slot, {buffer}, {pointers_of(form)}, {sizes}"
    return f"total, token, place, sub, here, head, channel, {pointers_of(form)}, HV: tl.constexpr, K: tl.constexpr"


def _after_place(form: NormalForm, role: str, text: Callable[[int, str], str | None]) -> list[str]:
    """Lines that take back, for each row, the decay points of its token that act after its place."""
    places = _places(form, role)
    lines: list[str] = []
    for d in range(len(form.decays)):
        early = [r for r, place in enumerate(places) if place <= d]
        if not early:
            continue
        here = "here"
        if len(early) < len(places):
            here = f"here & ({' | '.join(f'(sub == {r})' for r in early)})"
        line = text(d, here)
        lines += [] if line is None else [line]
    return lines


def _point_text(form: NormalForm, d: int, here: str) -> str:
    """The log decay of one point, as wide as G."""
    given = form.decays[d].log_decay
    channel = form.decay_kind == "channel"
    if not isinstance(given, Operand):
        return f"tl.where({here}, {max(given, STRONGEST)!r}, 0.0)" + ("[:, None]" if channel else "")
    load = f"log_of_decay({load_text(given, 'token', here, 'channel')})"
    return load + ("[:, None]" if channel and given.per == "head" else "")


def _decay_of_token(form: NormalForm) -> str:
    texts = [_point_text(form, d, "here") for d in range(len(form.decays))]
    zero = " + tl.zeros((token.shape[0], channel.shape[0]), tl.float32)" if form.decay_kind == "channel" else ""
    parameters = f"token, here, head, channel, {pointers_of(form)}, HV: tl.constexpr, K: tl.constexpr"
    return function(
        "decay_of_token",
        parameters,
        "The log decay of all decay points of a token.",
        [f"return {_bracketed(texts, zero)}"],
    )


def _flips_of_token(form: NormalForm) -> str:
    texts: list[str] = []
    for decay in form.decays:
        if decay.sign is not None:
            wide = "[:, None]" if form.decay_kind == "channel" and decay.sign.per == "head" else ""
            texts.append(f"({load_text(decay.sign, 'token', 'here', 'channel')}{wide} < 0).to(tl.int32)")
    zero = " + tl.zeros((token.shape[0], channel.shape[0]), tl.int32)" if form.decay_kind == "channel" else ""
    parameters = f"token, here, head, channel, {pointers_of(form)}, HV: tl.constexpr, K: tl.constexpr"
    return function(
        "flips_of_token",
        parameters,
        "How many decay points of a token turn the sign.",
        [f"return {_bracketed(texts, zero)}"],
    )


def _bracketed(texts: list[str], zero: str) -> str:
    return f"({' + '.join(texts)}{zero})" if len(texts) > 1 or zero else texts[0]


def _seen(form: NormalForm) -> str:
    """Rows stand in the order of their stages, so what a row sees of its own token is a count."""
    counts = [0 if row.previous else sum(other.stage < row.stage for other in form.rows) for row in form.rows]
    doc = "How many rows of its own token a row's residual sees."
    if counts == list(range(len(counts))):
        return function("seen", "sub", doc, ["return sub"])
    lines = [
        "count = sub * 0",
        *(f"count = tl.where(sub == {r}, {count}, count)" for r, count in enumerate(counts) if count),
    ]
    return function("seen", "sub", doc, [*lines, "return count"])


def _substep(form: NormalForm) -> str:
    n = span(form)
    lines = [
        f"parts = tl.reshape(tile, (C, {n}, tile.shape[1]))",
        f"mine = (tl.arange(0, {n}) == sub)[None, :, None]",
        "return tl.sum(tl.where(mine, parts, 0.0), 1)",
    ]
    return function(
        "substep", "tile, sub: tl.constexpr, C: tl.constexpr", "The rows of one substep: [R, B] -> [C, B].", lines
    )
