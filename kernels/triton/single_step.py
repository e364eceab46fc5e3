"""The holes of the kernel for one token: the program of the rule, statement by statement."""

from __future__ import annotations

from archsearch.dsl import Expression, Kind, Operand
from archsearch.kernels.triton.expressions import pointer, product_text
from archsearch.lowering import Decay, NormalForm, Read, Row


def step_holes(form: NormalForm) -> dict[str, str]:
    """`step_loads` and `step_program`. Names: o_<operand> is loaded, recall_<row> what a row recalls."""
    lines = [f"recall_{r} = {_recall(row)}" for r, row in enumerate(form.rows) if row.previous and row.residual]
    for step in form.program:
        if isinstance(step, Decay):
            lines += _decay(step)
        elif isinstance(step, Read):
            lines += _read(step)
        else:
            lines += _group(form, step)
    return {"step_loads": "\n".join(_load(operand) for operand in form.operands), "step_program": "\n".join(lines)}


def _load(operand: Operand) -> str:
    if operand.is_address:
        at, index, size = "(token * H + head // (HV // H)) * K", "channel", "K"
    elif operand.kind is Kind.VALUE or operand.of == "value":
        at, index, size = "lane * V", "target_channel", "V"
    elif operand.per == "channel":
        at, index, size = "lane * K", "channel", "K"
    else:
        return f"o_{operand.name} = tl.load({pointer(operand)} + lane).to(tl.float32)"
    load = f"tl.load({pointer(operand)} + {at} + {index}, mask={index} < {size}, other=0.0)"
    return f"o_{operand.name} = {load}.to(tl.float32)"


def _text(expression: Expression) -> str:
    """An expression [KP] or [BV] of loaded operands."""
    names = {
        o.name: f"o_{o.name}" for term in expression for o in (*term.gates, *((term.vector,) if term.vector else ()))
    }
    return " + ".join(product_text(term, names) for term in expression)


def _recall(row: Row) -> str:
    return f"tl.sum(memory * ({_text(row.residual)})[:, None], 0)"


def _decay(decay: Decay) -> list[str]:
    if not isinstance(decay.log_decay, Operand):
        return [f"memory *= tl.exp({decay.log_decay!r})"] if decay.log_decay else []
    factor = f"tl.exp(o_{decay.log_decay.name})"
    if decay.sign is not None:
        factor += f" * o_{decay.sign.name}"
    return [f"memory *= ({factor})[:, None]" if decay.per_channel else f"memory *= {factor}"]


def _group(form: NormalForm, rows: tuple[Row, ...]) -> list[str]:
    """Rows that act together: all recall first, then all write."""
    numbered = [(form.rows.index(row), row) for row in rows]
    lines = [f"recall_{r} = {_recall(row)}" for r, row in numbered if row.residual and not row.previous]
    for r, row in numbered:
        value = " ".join(
            [f"({_text(row.target)})" if row.target else "", f"- recall_{r}" if row.residual else ""]
        ).strip()
        if row.write and value:
            lines.append(f"memory += ({_text(row.write)})[:, None] * ({value})[None, :]")
    return lines


def _read(read: Read) -> list[str]:
    if not read.address:
        return []
    lines = [f"address_read = {_text(read.address)}", "result = tl.sum(memory * address_read[:, None], 0)"]
    bonus = read.bonus
    if bonus is not None and bonus.weight and bonus.address and bonus.target:
        weight = f"tl.sum(address_read * ({_text(bonus.weight)}) * ({_text(bonus.address)}), 0)"
        lines.append(f"result += {weight} * ({_text(bonus.target)})")
    return lines
