"""Gradients of rows pushed to operands, as Triton text: the product rule over the terms of each expression."""

from __future__ import annotations

from dataclasses import dataclass, field

from archsearch.dsl import Expression, Kind, Operand
from archsearch.kernels.triton.expressions import load_text, product_text
from archsearch.lowering import NormalForm


@dataclass(slots=True)
class Push:
    """Text under construction: what is loaded and what is summed so far. `channel` names the tile's channels."""

    channel: str
    loaded: dict[str, str] = field(default_factory=dict[str, str])
    sums: set[str] = field(default_factory=set[str])
    lines: list[str] = field(default_factory=list[str])

    def add(self, target: str, text: str) -> None:
        """target += text, or = where it is the first."""
        self.lines.append(f"{target} {'+=' if target in self.sums else '='} {text}")
        self.sums.add(target)

    def load(self, operand: Operand) -> None:
        """The operand's tile [C, B] or, for a number a head, [C, 1], once."""
        if operand.name in self.loaded:
            return
        head = operand.per == "head" and operand.is_gate
        text = load_text(operand, "query_token", "query_here", self.channel)
        self.lines.append(f"tile_{operand.name} = {text}" + ("[:, None]" if head else ".to(tl.float32)"))
        self.loaded[operand.name] = f"tile_{operand.name}"

    def expression(self, expression: Expression, gradient: str) -> None:
        """The gradient [C, B] of an expression reaches its vectors and gates; numbers a head sum into total_<name>."""
        for term in expression:
            for operand in (*term.gates, *((term.vector,) if term.vector else ())):
                self.load(operand)
            assert term.vector is not None
            factor = product_text(term, self.loaded, vector=False)
            self.add(f"sum_{term.vector.name}", f"{gradient} * {factor}" if factor else gradient)
            for i, gate in enumerate(term.gates):
                rest = f"{product_text(term, self.loaded, without=i)} * {gradient}"
                if gate.per == "head":
                    self.lines.append(f"total_{gate.name} += tl.sum({rest}, 1)")
                else:
                    self.add(f"sum_{gate.name}", rest)

    def store(self, operands: tuple[Operand, ...], size: str) -> None:
        """Write every tile that was summed."""
        for operand in operands:
            if f"sum_{operand.name}" in self.sums:
                place = f"query_token, query_here, head, {self.channel}"
                self.lines.append(f"store_channels(g_{operand.name}, {place}, sum_{operand.name}, HV, {size})")

    @property
    def text(self) -> str:
        """The lines so far."""
        return "\n".join(self.lines)


def tiled(form: NormalForm) -> tuple[Operand, ...]:
    """Operands with channels that some row, or the read, uses."""
    return tuple(operand for operand in _used(form) if not is_number(operand))


def numbers(form: NormalForm) -> tuple[Operand, ...]:
    """Operands of one number a head that carry a gradient."""
    return tuple(operand for operand in _used(form) if is_number(operand))


def is_number(operand: Operand) -> bool:
    """Whether a head has one number of it, not one a channel."""
    return operand.kind is not Kind.VALUE and not operand.is_address and operand.per == "head"


def targets_text(form: NormalForm) -> str:
    """From d_target [R, BV] to the values and their gates."""
    push = Push("target_channel")
    for r, row in enumerate(form.rows):
        if row.target:
            push.lines.append(f"grad = {_token('d_target', r, form)}")
            push.expression(row.target, "grad")
    if form.read.bonus is not None:
        push.expression(form.read.bonus.target, "d_bonus_target")
    push.store(form.operands, "V")
    return push.text


def keys_text(form: NormalForm) -> str:
    """From d_read [C, BK], d_residual and d_write [R, BK] to addresses, gates, decays, and the numbers a head."""
    push = Push("channel")
    _role(push, form, form.read.address, "d_read", form.read.decays, "+")
    _bonus(push, form)
    for r, row in enumerate(form.rows):
        if row.residual:
            _role(push, form, row.residual, _token("d_residual", r, form), 0 if row.previous else row.decays, "+")
        if row.write:
            _role(push, form, row.write, _token("d_write", r, form), row.decays, "-")
    _decays(push, form)
    push.store(form.operands, "K")
    for operand in numbers(form):
        at = f"g_{operand.name} + query_token * HV + head"
        push.lines.append(
            f"tl.store({at}, total_{operand.name}.to(g_{operand.name}.dtype.element_ty), mask=query_here)"
        )
    return push.text


def learned_decay(form: NormalForm) -> bool:
    """Whether some decay point is an operand."""
    return any(isinstance(decay.log_decay, Operand) for decay in form.decays)


def _role(push: Push, form: NormalForm, expression: Expression, gradient: str, place: int, sign: str) -> None:
    if not expression:
        return
    push.lines.append(f"grad = {gradient}")
    push.expression(expression, "grad")
    if learned_decay(form):
        value = " + ".join(product_text(term, push.loaded) for term in expression)
        energy = f"({value}) * grad"
        if form.decay_kind == "scalar":
            energy = f"tl.sum({energy}, 1)"
        push.add(f"energy_{place}", energy if sign == "+" else f"-{energy}")


def _bonus(push: Push, form: NormalForm) -> None:
    """The bonus is a product of three expressions; each receives the product of the other two."""
    bonus = form.read.bonus
    if bonus is None:
        return
    parts = {"address": form.read.address, "weight": bonus.weight, "key": bonus.address}
    for name, expression in parts.items():
        for term in expression:
            for operand in (*term.gates, *((term.vector,) if term.vector else ())):
                push.load(operand)
        push.lines.append(f"bonus_{name} = {' + '.join(product_text(term, push.loaded) for term in expression)}")
    for name, expression in parts.items():
        others = " * ".join(f"bonus_{other}" for other in parts if other != name)
        push.lines.append(f"grad = d_bonus[:, None] * {others}")
        push.expression(expression, "grad")


def _decays(push: Push, form: NormalForm) -> None:
    """Each decay point acts on what comes after it: later tokens whole, of its own token the places behind it."""
    if not learned_decay(form):
        return
    last = "query_place == C - 1"
    if form.decay_kind == "channel":
        push.add(f"energy_{len(form.decays)}", f"tl.where(({last})[:, None], edge[None, :], 0.0)")
    else:
        push.add(f"energy_{len(form.decays)}", f"tl.where({last}, edge, 0.0)")
    places = sorted(int(name.removeprefix("energy_")) for name in push.sums if name.startswith("energy_"))
    whole = " + ".join(f"energy_{place}" for place in places)
    sums = f"sums_behind({whole})" if form.decay_kind == "channel" else f"tl.cumsum({whole}, 0, reverse=True)"
    push.lines.append(f"later = {sums}")
    for d, decay in enumerate(form.decays):
        if not isinstance(decay.log_decay, Operand):
            continue
        text = " - ".join(["later", *(f"energy_{place}" for place in places if place <= d)])
        if decay.per_channel:
            push.add(f"sum_{decay.log_decay.name}", text)
        elif form.decay_kind == "channel":
            push.lines.append(f"total_{decay.log_decay.name} += tl.sum({text}, 1)")
        else:
            push.lines.append(f"total_{decay.log_decay.name} += {text}")


def _token(tile: str, r: int, form: NormalForm) -> str:
    return tile if len(form.rows) == 1 else f"substep({tile}, {r}, C)"


def _used(form: NormalForm) -> tuple[Operand, ...]:
    """Operands that carry a gradient, in the order of the call."""
    expressions = [form.read.address, *(part for row in form.rows for part in (row.write, row.residual, row.target))]
    if form.read.bonus is not None:
        expressions += [form.read.bonus.weight, form.read.bonus.address, form.read.bonus.target]
    names = {o.name for e in expressions for term in e for o in (*term.gates, *((term.vector,) if term.vector else ()))}
    names |= {decay.log_decay.name for decay in form.decays if isinstance(decay.log_decay, Operand)}
    return tuple(operand for operand in form.operands if operand.name in names)
