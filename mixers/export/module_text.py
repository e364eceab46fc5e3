"""The one file of an export: what it is, the rule, its kernels, the layer, the model, in this order."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from textwrap import wrap

from archsearch import __version__
from archsearch.dsl import Rule
from archsearch.lowering import lower
from archsearch.lowering.display import equation
from archsearch.mixers.export.kernel_text import kernel_pieces, names_of
from archsearch.mixers.export.layer_text import LayerText
from archsearch.mixers.export.lines import WIDTH
from archsearch.mixers.export.model_text import model_needs, model_pieces
from archsearch.mixers.export.templates import template
from archsearch.mixers.layer.options import Layer
from archsearch.mixers.layer.planning import plan_layer
from archsearch.mixers.models.options import Model
from archsearch.mixers.zoo import MODULES, rules

IMPORTS = {
    "json.": "import json",
    "math.": "import math",
    "sys.": "import sys",
    "Mapping[": "from collections.abc import Mapping",
    "@dataclass": "from dataclasses import dataclass",
    "pairwise(": "from itertools import pairwise",
    "Path": "from pathlib import Path",
    "NamedTuple": "from typing import NamedTuple",
}


@dataclass(frozen=True, slots=True)
class Written:
    """What the file is written from.

    model: None for a layer alone, else with a `vocabulary`. text: whether tokens are bytes.
    """

    name: str
    rule: Rule
    layer: Layer
    width: int
    heads: int
    model: Model | None = None
    vocabulary: int = 0
    text: bool = False


def module_text(written: Written) -> str:
    """The file's text: Python as `ruff format` would have it, torch alone imported."""
    form = lower(written.rule)
    names = names_of(form)
    layer = LayerText(plan_layer(written.rule, written.width, written.heads, written.layer), names)
    model = [] if written.model is None else model_pieces(written.model, written.heads)
    needs = () if written.model is None else model_needs(written.model)
    constants, *kernels = kernel_pieces(form, names)
    body = [
        *kernels,
        *layer.pieces(needs),
        *model,
        template("weights", model="Mixer" if written.model is None else "LanguageModel"),
        *([template("complete")] if written.text else []),
    ]
    text = "\n\n\n".join(body)
    return f"{_head(written, layer, text)}\n\n{_constants(written, constants)}\n\n\n{text}\n"


def origin(rule: Rule) -> str | None:
    """The first line of the zoo's module that holds this rule: its name and its paper."""
    for name, module in MODULES.items():
        if rules[name].hash == rule.hash:
            documentation = import_module(f"archsearch.mixers.{module}").__doc__ or ""
            return documentation.strip().splitlines()[0]
    return None


def _head(written: Written, layer: LayerText, body: str) -> str:
    source = origin(written.rule)
    sizes = layer.plan.sizes
    lines = [
        f'"""{written.name}: a sequence mixer with a matrix memory{", in a language model" if written.model else ""}.',
        "",
        *([*wrap(source, WIDTH - 4), ""] if source else []),
        "The rule, token by token, on the state S (K x V):",
        "",
        *(f"    {line}" for line in equation(written.rule).splitlines()),
        "",
        *(f"    {line}" for line in str(written.rule).splitlines()),
        "",
        "B sequences, T tokens, H key heads, HV value heads, K and V channels of a head; the state is [B, HV, K, V],",
        f"float32. Trained with hidden size {sizes.width}, H = {sizes.heads}, HV = {sizes.value_heads}, "
        f"K = {sizes.key}, V = {sizes.value}.",
        "",
        f"Rule hash {written.rule.hash}.",
        f"Written by archsearch {__version__}; `archsearch export TRIAL DIRECTORY` writes it again. Needs torch alone.",
        '"""',
        "",
        "from __future__ import annotations",
        "",
        *(line for sign, line in IMPORTS.items() if sign in body or sign == "Path"),
        "",
        "import torch",
        "import torch.nn.functional as F",
        "from torch import Tensor, nn",
    ]
    return "\n".join(lines)


def _constants(written: Written, kernel: str) -> str:
    lines = ["HERE = Path(__file__).parent"]
    if written.model is not None:
        pattern = ", ".join(f'"{entry}"' for entry in written.model.entries)
        one = "," if len(written.model.entries) == 1 else ""
        lines += [f"VOCABULARY = {written.vocabulary}", f"WIDTH = {written.width}", f"PATTERN = ({pattern}{one})"]
    lines.append('DTYPES = {"F32": torch.float32, "F64": torch.float64, "BF16": torch.bfloat16, "F16": torch.float16}')
    return "\n".join([*lines, "", kernel])
