"""A description of a rule as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.rule import Rule as Line
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from archsearch.kernels.description import Description, operand_row
from archsearch.lowering.cost import Sizes
from archsearch.lowering.display import equation, latex
from archsearch.lowering.spectrum import Spectrum, Step

WIDTH = 100
"""Columns where the output is no terminal."""


def console() -> Console:
    """The terminal, or a page of fixed width where the output goes elsewhere."""
    found = Console()
    return found if found.is_terminal else Console(width=WIDTH)


def show_text(description: Description, width: int = WIDTH) -> str:
    """The description without colours."""
    page = Console(width=width, no_color=True, force_terminal=False, legacy_windows=False)
    with page.capture() as captured:
        print_description(description, page)
    return "\n".join(line.rstrip() for line in captured.get().splitlines()) + "\n"


def print_description(description: Description, page: Console) -> None:
    """Section by section: rule, equation, operands, normal form, plan, cost, spectrum, hash."""
    page.print(Line(Text(description.rule.name, "bold"), style="dim", align="left"))
    for title, body in _sections(description):
        page.print(Text(f"\n{title}", "bold cyan"))
        page.print(Padding(body, (0, 0, 0, 2)))
    page.print(Text("\nNext: archsearch check, with the same RULE", "dim"))


def _sections(description: Description) -> Iterator[tuple[str, RenderableType]]:
    yield "Equation", Text(equation(description.rule), "bold")
    yield "LaTeX", Text(latex(description.rule))
    yield "Operands", _operands(description)
    yield "Code", Syntax(str(description.rule), "python", background_color="default", word_wrap=True)
    yield "Normal form", Text("\n".join(line.removeprefix("  ") for line in str(description.form).splitlines()[1:]))
    yield "What runs", _pairs(_forms(description))
    yield f"Cost at {_sizes_text(description.sizes)}", _pairs(_costs(description))
    yield f"One token's transition ({_drawn(description.spectrum)})", _pairs(_spectrum(description))
    yield "Hash", Text("\n".join([description.rule.hash, *_other_names(description)]))


def _other_names(description: Description) -> Iterator[str]:
    names = [name for name in description.known_as if name != description.rule.name]
    if names:
        yield f"that of {', '.join(names)}: the same rule"


def _operands(description: Description) -> Table:
    table = Table(box=None, padding=(0, 3, 0, 0), header_style="dim")
    rows = [operand_row(operand) for operand in description.form.operands]
    for column in rows[0]:
        table.add_column(column, no_wrap=column != "range")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row.values()))
    return table


def _pairs(rows: Iterator[tuple[str, str]]) -> Table:
    table = Table.grid(padding=(0, 3, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    for name, text in rows:
        table.add_row(Text(name), Text(text))
    return table


def _forms(description: Description) -> Iterator[tuple[str, str]]:
    plan = description.plan
    yield "triton", "chunkwise kernels generated from the normal form, on a CUDA device"
    yield "torch", "the chunkwise form in PyTorch, on any device, float64 too"
    yield "reference", "the token loop: what the rule means"
    yield "chunk", f"{plan.tokens} tokens x {plan.substeps} rows a token = {plan.rows} rows; decay {_decay(plan.decay)}"
    yield "products", ", ".join(f"{reader}·{written}" for reader, written in plan.products) or "none"
    yield "triangle", f"{plan.rows} x {plan.rows}, unit lower" if plan.triangle else "none: no step recalls"


def _decay(kind: str) -> str:
    return {"none": "none", "scalar": "one a head", "channel": "one a key channel"}[kind]


def _costs(description: Description) -> Iterator[tuple[str, str]]:
    found, sizes = description.cost, description.sizes
    each = found.state_bytes // sizes.value_heads
    yield "state", f"{_bytes(found.state_bytes)} a sequence, {_bytes(each)} a head, float32"
    yield "FLOPs a token", f"{_count(found.chunkwise_flops)} chunkwise, {_count(found.recurrent_flops)} token by token"
    yield (
        "bytes a token",
        f"{_bytes(found.forward_bytes)} forward, {_bytes(found.backward_bytes)} backward (fused plan)",
    )
    yield "bytes a step", f"{_bytes(found.step_bytes)} a sequence: the state is read and written once"


def _spectrum(description: Description) -> Iterator[tuple[str, str]]:
    found = description.spectrum
    yield "eigenvalues", _eigenvalues(found)
    yield "singular values", f"at most {_number(found.singular_highest)}"
    yield "stability", found.verdict
    yield "state tracking", found.tracking
    if description.wide is not None and description.wide.tracking != found.tracking:
        yield "", f"with gates up to 2: {description.wide.tracking}"
    for step in found.steps:
        yield "condition", f"{step.condition}; {_drawn_steps(step)}"
    if description.wide is not None:
        wide = description.wide
        largest = f"singular values at most {_number(wide.singular_highest)}"
        yield "gates up to 2", f"{_eigenvalues(wide)}; {largest}: {wide.verdict.partition(':')[0]}"


def _drawn_steps(step: Step) -> str:
    outside = f", outside in {step.share_outside:.1%}" if step.share_outside else ""
    return f"drawn from {_number(step.lowest)} to {_number(step.highest)}{outside}"


def _eigenvalues(found: Spectrum) -> str:
    negative = f"negative in {found.share_negative:.1%} of draws" if found.negative else "never negative"
    turning = f"complex in {found.share_complex:.1%}" if found.rotates else "never complex"
    return f"real from {_number(found.real_lowest)} to {_number(found.real_highest)}; {negative}; {turning}"


def _drawn(found: Spectrum) -> str:
    low, high = found.gate_range
    return f"{found.draws} draws: unit addresses, gates in [{low:g}, {high:g}], decays in (0, 1]"


def _sizes_text(sizes: Sizes) -> str:
    heads = f"H = {sizes.heads}" if sizes.heads == sizes.value_heads else f"H = {sizes.heads}, HV = {sizes.value_heads}"
    return f"{heads}, K = {sizes.key_dim}, V = {sizes.value_dim}, elements of {sizes.width} bytes"


def _number(value: float) -> str:
    """Two decimals; no minus before a zero."""
    return f"{round(value, 2) + 0.0:.2f}"


def _bytes(count: float) -> str:
    for unit, size in (("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f} B"


def _count(count: float) -> str:
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f}"
