"""The rule's part of the generated file: token loop, chunkwise form, and the function that chooses between them."""

from __future__ import annotations

from archsearch.dsl import Kind
from archsearch.lowering import NormalForm
from archsearch.mixers.export import rule_text
from archsearch.mixers.export.chunk_text import Chunkwise
from archsearch.mixers.export.lines import Names
from archsearch.mixers.export.templates import taken, template


def names_of(form: NormalForm) -> Names:
    """The variables of the operands in the generated file."""
    names = {
        f"{prefix}_{i}" for prefix in ("log", "sign", "change") for i in range(len(form.decays) + len(form.rows) + 1)
    }
    parts = {f"{part}_{i}" for part in ("address", "residual", "target") for i in range(len(form.rows))}
    return Names(form.operands, taken() | names | parts)


def kernel_pieces(form: NormalForm, names: Names) -> list[str]:
    """Everything from the operands to `mix`, function by function."""
    chunkwise = Chunkwise(form, names)
    typed = next((operand for operand in form.operands if operand.kind is Kind.VALUE), form.operands[0])
    fixed, divided = form.read.scale, form.read.normaliser is not None
    return [
        chunkwise.constants(),
        rule_text.operands(form, names),
        rule_text.token(form, names),
        template("state"),
        template("reference"),
        rule_text.spread(form, names),
        chunkwise.text(),
        template("chunked"),
        *([template("rows")] if len(chunkwise.rows) > 1 else []),
        *([template(f"gram_{chunkwise.kind}")] if chunkwise.rows else []),
        template(
            "mix",
            function="unnormalised" if divided else "mix",
            scale="K ** -0.5" if fixed is None else f"{fixed:g}",
            default_scale="state.shape[2] ** -0.5" if fixed is None else repr(float(fixed)),
            like="state" if divided else "values",
            output="output" if divided else f"output.to(operands.{names[typed]}.dtype)",
        ),
        *_normalised(form, names),
        template("chosen"),
    ]


def _normalised(form: NormalForm, names: Names) -> list[str]:
    """The function that counts what is written and divides by it, where a read is normalised."""
    if form.read.normaliser is None:
        return []
    values = [names[operand] for operand in form.operands if operand.kind is Kind.VALUE]
    given = ", ".join(f"{name}=counted(operands.{name}, spare)" for name in values)
    return [template("normalised", least=repr(float(form.read.normaliser)), values=given, typed=values[0])]
