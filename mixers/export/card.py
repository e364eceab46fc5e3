"""README.md of an export: what it is, what is known of it, and how it is used; a test runs each snippet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from archsearch.lowering.display import equation, latex
from archsearch.mixers.export.module import Module, Origin
from archsearch.mixers.export.module_text import BYTES, source_of
from archsearch.mixers.export.templates import template
from archsearch.mixers.layer.planning import plan_layer
from archsearch.mixers.models.counts import flops_per_token

SEVERAL = "A trial trains a model for each of its tasks; this is the one of `{task}`."
LENGTH = 1024
"""Tokens of the sequence for which FLOPs are counted."""


def card(
    module: Module, counts: Mapping[str, int], versions: Mapping[str, str], origin: Origin, files: Mapping[str, str]
) -> str:
    """The page as Markdown with the hub's front matter."""
    kind = "A sequence mixer" if module.model is None else "A language model"
    return (
        template(
            "card.md",
            name=module.name,
            front=_front(module),
            what=f"{kind} with a matrix memory",
            source=source_of(module.rule) or "",
            equation=equation(module.rule),
            latex=latex(module.rule),
            rule=str(module.rule),
            hash=module.rule.hash,
            inputs=_inputs(module),
            generation=_generation(module),
            sizes=_table(["quantity", "value"], _sizes(module, counts)),
            results=_results(origin),
            files="\n".join(f"- `{name}` `{value}`" for name, value in files.items()),
            provenance=_table(
                ["what", "value"], [[name, _text(value)] for name, value in {**origin.trial, **versions}.items()]
            ),
            command=origin.command,
        )
        + "\n"
    )


def _front(module: Module) -> str:
    task = ["pipeline_tag: text-generation"] if module.text else []
    return "\n".join([*task, "tags:", "- archsearch", "- linear-attention", f"- {module.rule.name}"])


def _inputs(module: Module) -> str:
    if module.model is None:
        return f"y = model(torch.randn(1, 16, {module.width}))  # [1, 16, {module.width}]"
    start = f"{BYTES}, " if module.vocabulary > BYTES else ""
    tokens = f'[{start}*b"def main("]' if module.text else "[0, 1, 2, 3]"
    return f"tokens = torch.tensor([{tokens}])\nlogits = model(tokens)  # [1, T, {module.vocabulary}]"


def _generation(module: Module) -> str:
    if module.model is None:
        return ""
    made = f"{module.name}.load().generate(torch.tensor([[0, 1, 2, 3]]), 8)"
    if module.text:
        made = f'{module.name}.complete("def main(", 40)'
    inputs = _inputs(module).replace("model(tokens)", "model(tokens).logits")
    return "\n".join(
        [
            template("generation.md", name=module.name, generated=f"print({made})"),
            template("transformers.md", inputs=inputs),
            "",
        ]
    )


def _sizes(module: Module, counts: Mapping[str, int]) -> list[list[str]]:
    sizes = plan_layer(module.rule, module.width, module.heads, module.layer).sizes
    rows = [
        ["parameters", _text(counts["parameters"])],
        ["state between two tokens, bytes a sequence", _text(counts["state_bytes"])],
        ["hidden size", _text(sizes.width)],
        ["key heads x channels", f"{sizes.heads} x {sizes.key}"],
        ["value heads x channels", f"{sizes.value_heads} x {sizes.value}"],
    ]
    if module.model is None:
        return rows
    flops = flops_per_token(module.rule, module.model, module.layer, module.vocabulary, LENGTH)
    vocabulary = f"{module.vocabulary}, {'bytes' if module.text else 'symbols of the task'}"
    return [
        *rows,
        [f"forward FLOPs a token, at length {LENGTH:,}", f"{flops:,.0f}"],
        ["layers", ", ".join(module.model.entries)],
        ["vocabulary", vocabulary],
    ]


def _results(origin: Origin) -> str:
    parts = [f"Trained on {origin.data}."] if origin.data else []
    if origin.results:
        columns = list(dict.fromkeys(name for row in origin.results for name in row))
        cells = [[_text(row.get(name, "")) for name in columns] for row in origin.results]
        heading = "This module first, then others at the same budget:" if len(cells) > 1 else "What was measured:"
        parts += [heading, _table(columns, cells)]
        parts += [SEVERAL.format(task=origin.trial["task"])] if "task" in origin.trial else []
    return "\n\n".join(parts) or "None were recorded."


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_text(each)}" for name, each in cast(Mapping[str, Any], value).items())
    if isinstance(value, float):
        return f"{value:.5g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
