"""The one file of an export: what it is, the rule, its kernels, the layer, the model, in this order."""

from __future__ import annotations

import re
import sys
from importlib import import_module
from textwrap import wrap

from archsearch import __version__
from archsearch.dsl import Rule
from archsearch.lowering import lower
from archsearch.lowering.display import equation
from archsearch.mixers.export.kernel_text import kernel_pieces, names_of
from archsearch.mixers.export.layer_text import LayerText
from archsearch.mixers.export.lines import WIDTH
from archsearch.mixers.export.model_text import model_needs, model_pieces, scans
from archsearch.mixers.export.module import Module
from archsearch.mixers.export.scan_text import scan_text
from archsearch.mixers.export.templates import template
from archsearch.mixers.export.triton_text import launching_code, triton_text
from archsearch.mixers.layer.planning import plan_layer
from archsearch.mixers.zoo import rules

IMPORTS: tuple[tuple[str, str | None], ...] = (
    ("collections.abc", "Callable"),
    ("collections.abc", "Mapping"),
    ("collections.abc", "Sequence"),
    ("dataclasses", "dataclass"),
    ("itertools", "pairwise"),
    ("json", None),
    ("math", None),
    ("os", None),
    ("pathlib", "Path"),
    ("sys", None),
    ("types", "SimpleNamespace"),
    ("typing", "Any"),
    ("typing", "NamedTuple"),
)
"""Of the standard library, what a generated file may need beside what the launching code imports."""

BYTES = 256


def module_text(module: Module) -> str:
    """The file's text: Python as `ruff format` would have it, torch alone imported."""
    form = lower(module.rule)
    names = names_of(form)
    layer = LayerText(plan_layer(module.rule, module.width, module.heads, module.layer), names)
    model = [] if module.model is None else model_pieces(module.model, module.heads)
    needs = () if module.model is None else model_needs(module.model)
    constants, *kernels = kernel_pieces(form, names)
    body = [
        *kernels,
        *layer.pieces(needs),
        *model,
        triton_text(form, module.name),
        *([scan_text()] if scans(module.model) else []),
        template("weights", model="Mixer" if module.model is None else "LanguageModel"),
        *([_complete(module)] if module.text else []),
    ]
    text = "\n\n\n".join(body)
    return f"{_head(module, layer, text)}\n\n{_constants(module, constants)}\n\n\n{text}\n"


def source_of(rule: Rule) -> str | None:
    """The first line of the zoo's module that holds this rule, best under its own name: its name and its paper."""
    for name in sorted(rules, key=lambda name: name != rule.name):
        if rules[name].hash == rule.hash:
            documentation = import_module(f"archsearch.mixers.{name}").__doc__ or ""
            return documentation.strip().splitlines()[0]
    return None


def _complete(module: Module) -> str:
    """The function for text; a vocabulary of more than bytes has a token that stands before the first one."""
    if module.vocabulary <= BYTES:
        return template("complete", tokens='list(prompt.encode() or b"\\n")', start_note="")
    return template("complete", tokens=f"[{BYTES}, *prompt.encode()]", start_note=f"; token {BYTES} starts a text")


def _head(module: Module, layer: LayerText, body: str) -> str:
    source = source_of(module.rule)
    sizes = layer.plan.sizes
    model = ["the language model"] if module.model is not None else []
    contents = ["the rule", "its chunkwise form", "the layer", *model, "the kernels", "loading"]
    lines = [
        f'"""{module.name}: a sequence mixer with a matrix memory{", in a language model" if module.model else ""}.',
        "",
        *([*wrap(source, WIDTH - 4), ""] if source else []),
        "The rule, token by token, on the state S (K x V):",
        "",
        *(f"    {line}" for line in equation(module.rule).splitlines()),
        "",
        *(f"    {line}" for line in str(module.rule).splitlines()),
        "",
        "B sequences, T tokens, H key heads, HV value heads, K and V channels of a head; the state is [B, HV, K, V],",
        f"float32. Trained with hidden size {sizes.width}, H = {sizes.heads}, HV = {sizes.value_heads}, "
        f"K = {sizes.key}, V = {sizes.value}.",
        "",
        f"Rule hash {module.rule.hash}.",
        f"Written by archsearch {__version__}; `archsearch export TRIAL DIRECTORY` writes it again.",
        "Needs torch; the backend triton, on a GPU, needs Triton too.",
        "",
        f"In this order: {', '.join(contents)}.",
        '"""',
        "",
        "from __future__ import annotations",
        "",
        *_imports(body),
        "",
        "import torch",
        "import torch.nn.functional as F",
        "from torch import Tensor, nn",
        "",
        template("triton_import"),
    ]
    return "\n".join(lines)


def _imports(body: str) -> list[str]:
    """Import statements of the standard library for what the text uses."""
    known = {*IMPORTS, *(entry for source in launching_code() for entry in source.foreign)}
    named = {"Path", "SimpleNamespace"}  # in the constants, and where Triton is missing
    plain = sorted(module for module, name in known if name is None and re.search(rf"\b{module}\.", body))
    taken: dict[str, list[str]] = {}
    for module, name in sorted((module, name) for module, name in known if name is not None):
        if name in named or re.search(rf"\b{name}\b", body):
            taken.setdefault(module, []).append(name)
    standard = sys.stdlib_module_names
    return [
        *(f"import {module}" for module in plain if module in standard),
        *(
            f"from {module} import {', '.join(names)}"
            for module, names in taken.items()
            if module.partition(".")[0] in standard and module != "__future__"
        ),
    ]


def _constants(module: Module, kernel: str) -> str:
    lines = ["HERE = Path(__file__).parent"]
    if module.model is not None:
        pattern = ", ".join(f'"{entry}"' for entry in module.model.entries)
        one = "," if len(module.model.entries) == 1 else ""
        lines += [f"VOCABULARY = {module.vocabulary}", f"WIDTH = {module.width}", f"PATTERN = ({pattern}{one})"]
    lines.append('DTYPES = {"F32": torch.float32, "I64": torch.int64}  # of the tensors in the .safetensors files')
    return "\n".join([*lines, "", kernel])
