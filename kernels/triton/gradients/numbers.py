"""From the dots to the gradients of numbers a head: gates and decays."""

from __future__ import annotations

from collections.abc import Iterator

from archsearch.dsl import Operand
from archsearch.kernels.triton.adjoint import learned_decay, numbers
from archsearch.kernels.triton.expressions import pointer
from archsearch.kernels.triton.gradients.operands import summed_gates
from archsearch.kernels.triton.gradients.push import factor_value, gates_of
from archsearch.kernels.triton.gradients.streams import ROLES, folds_writes, has_dot, has_several, place_of, streams_in
from archsearch.lowering import NormalForm


def sums_of(form: NormalForm) -> dict[str, str]:
    """What a block of keys leaves for the numbers a head, and the places of each."""
    found = {f"total_{gate.name}": "query_place" for gate in summed_gates(form)}
    for role, t, stream in streams_in(form, ROLES):
        if has_dot(form, stream):
            found[f"dot_{role}_{t}"] = "query_place" if role == "read" else "rows"
    return found | ({"leaving": "0"} if learned_decay(form) else {})


def store_lines(form: NormalForm) -> Iterator[str]:
    """What a block of keys leaves, written for `numbers`."""
    if learned_decay(form):
        decayed = "tl.exp(last) * last_turn" if any(decay.sign is not None for decay in form.decays) else "tl.exp(last)"
        yield f"leaving = tl.sum(edge) * {decayed} + tl.sum(edge_rows)"
    for f, (name, places) in enumerate(sums_of(form).items()):
        yield f"tl.store(at_sums + {f} * (tl.num_programs(0) // blocks) * S + {places}, {name})"


def load_lines(form: NormalForm) -> Iterator[str]:
    """Blocks are summed one after another, so that the order never changes."""
    found = sums_of(form)
    for f, (name, places) in enumerate(found.items()):
        yield f"{name} = tl.load(sums + ({f} * slots + slot) * S + {places})"
        yield "for block in tl.static_range(1, BLOCKS):"
        yield f"    {name} += tl.load(sums + ((block * {len(found)} + {f}) * slots + slot) * S + {places})"


def number_lines(form: NormalForm) -> Iterator[str]:
    """From the dots to the gradients of gates and decays, all [C]."""
    known = {f"total_{gate.name}" for gate in summed_gates(form)}
    factors = [
        (role, t, r, f)
        for role, t, s in streams_in(form, ROLES)
        for r, f in enumerate(s.factors)
        if f and has_dot(form, s)
    ]
    for gate in dict.fromkeys(gate for *_, factor in factors for gate in gates_of(factor)):
        yield f"gate_{gate.name} = number({pointer(gate)}, query_token, query_here, head, HV)"
    for role, t, r, factor in factors:
        apart = has_several(form) and role != "read"
        yield f"dot = row_numbers(dot_{role}_{t}, {r}, C)" if apart else f"dot = dot_{role}_{t}"
        folded = role == "write" and folds_writes(form)
        if learned_decay(form):
            name, sign = f"energy_{place_of(form, role, r)}", "-" if role == "write" else ""
            yield _add(name, f"{sign}dot{'' if folded else _times(factor_value(factor))}", known)
        if folded and gates_of(factor):
            yield f"dot = dot / away_from_zero({factor_value(factor)})"
        for term in factor:
            for i, gate in enumerate(term.gates):
                yield _add(f"total_{gate.name}", f"dot{_times(factor_value((term,), without=i))}", known)
    if learned_decay(form):
        yield from _decay_lines(form, known)
    for operand in numbers(form):
        at = f"g_{operand.name} + value_row + query_place * HV"
        total = f"total_{operand.name}" if f"total_{operand.name}" in known else "tl.zeros((C,), tl.float32)"
        yield f"tl.store({at}, {total}.to(g_{operand.name}.dtype.element_ty), mask=query_here)"


def _times(text: str) -> str:
    return "" if text == "1.0" else f" * {text}"


def _add(name: str, text: str, known: set[str]) -> str:
    line = f"{name} {'+=' if name in known else '='} {text}"
    known.add(name)
    return line


def _decay_lines(form: NormalForm, known: set[str]) -> Iterator[str]:
    """Each decay point acts on what comes after it: later tokens whole, of its own token the places behind it."""
    yield _add(f"energy_{len(form.decays)}", "tl.where(query_place == C - 1, leaving, 0.0)", known)
    places = sorted(int(name.removeprefix("energy_")) for name in known if name.startswith("energy_"))
    yield f"later = tl.cumsum({' + '.join(f'energy_{place}' for place in places)}, 0, reverse=True)"
    for d, decay in enumerate(form.decays):
        if isinstance(decay.log_decay, Operand):
            text = " - ".join(["later", *(f"energy_{place}" for place in places if place <= d)])
            yield _add(f"total_{decay.log_decay.name}", text, known)
