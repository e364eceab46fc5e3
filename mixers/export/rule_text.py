"""The rule as code: its operands, one token's program, the token loop. Straight lines, written from the normal form."""

from __future__ import annotations

from archsearch.dsl import Kind, Operand
from archsearch.lowering import Decay, NormalForm, Read, Row
from archsearch.mixers.export.lines import Names, assign, call, terms, unpacked

KINDS = {
    Kind.QUERY: "query",
    Kind.KEY: "key",
    Kind.VALUE: "value",
    Kind.GATE: "gate",
    Kind.CHANNEL_GATE: "gate a channel",
    Kind.LOG_DECAY: "log decay",
    Kind.SIGN: "sign of the decay, -1 or 1",
}


def operands(form: NormalForm, names: Names) -> str:
    """The named tuple of a call's tensors."""
    fields = [f"    {names[operand]}: Tensor  # {KINDS[operand.kind]}, {operand.shape}" for operand in form.operands]
    return "\n".join(
        [
            "class Operands(NamedTuple):",
            '    """What the rule takes of every token. Gates arrive activated, log decays are natural logs <= 0."""',
            "",
            *fields,
        ]
    )


def spread(form: NormalForm, names: Names) -> str:
    """The function that gives every operand the value heads and the dtype of the state."""
    addresses = [operand for operand in form.operands if operand.is_address]
    body = [unpacked(names.all, "(x.to(state.dtype) for x in operands)")]
    if addresses:
        body.append(f"    group = state.shape[1] // {names[addresses[0]]}.shape[2]")
    arguments = [_spread(operand, names) for operand in form.operands]
    return "\n".join(
        [
            "def spread(operands: Operands, state: Tensor) -> Operands:",
            '    """In the dtype of the state; addresses for all value heads [B, T, HV, K], numbers [B, T, HV, 1]."""',
            *body,
            call("return Operands(", arguments),
        ]
    )


def token(form: NormalForm, names: Names) -> str:
    """The function of one token."""
    body = [unpacked(names.all, "operands")]
    if any(row.previous for row in form.rows):
        body.append("    before = state")
    for step in form.program:
        body += _step(step, form, names)
    return "\n".join(
        [
            "def token(state: Tensor, operands: Operands, scale: float) -> tuple[Tensor, Tensor]:",
            '    """One token, the meaning of the rule: state [B, HV, K, V] -> output [B, HV, V], next state."""',
            *body,
            "    return output, state",
        ]
    )


def bonus(read: Read, names: Names, query: str) -> list[str]:
    """Lines that leave the read's bonus in `extra`; none where it is zero."""
    if read.bonus is None or not all((read.bonus.weight, read.bonus.address, read.bonus.target)):
        return []
    weight, address, target = read.bonus.weight, read.bonus.address, read.bonus.target
    return [
        assign("weight", terms(weight, names)),
        assign("place", terms(address, names)),
        assign("added", terms(target, names)),
        f"    extra = ({query} * weight * place).sum(-1, keepdim=True) * added",
    ]


def decay_factor(decay: Decay, names: Names) -> str | None:
    """exp(log decay) with its sign; None where it is 1."""
    if not isinstance(decay.log_decay, Operand):
        return None if decay.log_decay == 0.0 else f"math.exp({decay.log_decay!r})"
    factor = f"{names[decay.log_decay]}.exp()"
    return f"{factor}[..., None]" if decay.sign is None else f"({names[decay.sign]} * {factor})[..., None]"


def _spread(operand: Operand, names: Names) -> str:
    name = names[operand]
    if operand.is_address:
        return f"{name}.repeat_interleave(group, dim=2)"
    if operand.kind is Kind.SIGN:
        return f"{name}.detach()[..., None]" if operand.per == "head" else f"{name}.detach()"
    return f"{name}[..., None]" if operand.per == "head" and operand.kind is not Kind.VALUE else name


def _step(step: Decay | tuple[Row, ...] | Read, form: NormalForm, names: Names) -> list[str]:
    if isinstance(step, Decay):
        factor = decay_factor(step, names)
        return [] if factor is None else [f"    state = {factor} * state"]
    if isinstance(step, Read):
        return _read(step, names)
    rows = [row for row in step if row.write and (row.target or row.residual)]
    if len(rows) == 1:
        return _row(rows[0], names, "state = state + ")
    lines = [line for i, row in enumerate(rows) for line in _row(row, names, f"change_{i} = ")]
    return [*lines, assign("state", ["state", *(f"+ change_{i}" for i in range(len(rows)))])] if rows else []


def _row(row: Row, names: Names, result: str) -> list[str]:
    lines: list[str] = []
    address = _named("address", terms(row.write, names), lines)
    difference = _named("target", terms(row.target, names), lines) if row.target else ""
    if row.residual:
        residual = _named("residual", terms(row.residual, names), lines)
        difference += f"{' - ' if row.target else '-'}recall({'before' if row.previous else 'state'}, {residual})"
    return [*lines, f"    {result}outer({address}, {difference})"]


def _read(step: Read, names: Names) -> list[str]:
    if not step.address:
        return ["    output = torch.zeros_like(state[..., 0, :])"]
    lines: list[str] = []
    query = _named("query", terms(step.address, names), lines)
    if extra := bonus(step, names, query):
        return [*lines, *extra, f"    output = scale * (recall(state, {query}) + extra)"]
    return [*lines, f"    output = scale * recall(state, {query})"]


def _named(name: str, signed: list[str], lines: list[str]) -> str:
    """How to write the sum in an expression: a variable as it is, anything else under a name from a new line."""
    if len(signed) == 1 and signed[0].isidentifier():
        return signed[0]
    lines.append(assign(name, signed))
    return name
