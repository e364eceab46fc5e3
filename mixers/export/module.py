"""What is exported, as plain data: a module without its weights, and what is known of its making."""

from __future__ import annotations

import keyword
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from archsearch.dsl import Rule
from archsearch.errors import ExportError
from archsearch.kernels.dispatch import Backend
from archsearch.mixers.layer.mixer import Mixer
from archsearch.mixers.layer.options import Layer
from archsearch.mixers.models.language_model import LanguageModel
from archsearch.mixers.models.options import Model

FOREIGN = {"archsearch", "numpy", "safetensors", "selftest", "torch", "transformers", "triton"}


@dataclass(frozen=True, slots=True)
class Module:
    """A layer alone, or a language model around it.

    name: of the file, NAME.py. model: None for a layer alone, else with a `vocabulary`. text: whether tokens are bytes.
    """

    name: str
    rule: Rule
    layer: Layer
    width: int
    heads: int
    model: Model | None = None
    vocabulary: int = 0
    text: bool = False

    def __post_init__(self) -> None:
        """Refuse a name that cannot be imported, or that hides another module."""
        plain = self.name.isidentifier() and self.name.isascii() and not keyword.iskeyword(self.name)
        if not plain or self.name in FOREIGN or self.name in sys.stdlib_module_names:
            raise ExportError(
                f"the name of an export must be a Python identifier that no other module has; got {self.name!r}. "
                "Give one with --name"
            )

    def build(self, backend: Backend = "auto") -> nn.Module:
        """The module itself, untrained."""
        if self.model is None:
            return Mixer(self.rule, self.width, self.heads, self.layer, backend)
        return LanguageModel(self.rule, self.model, self.layer, self.vocabulary, backend)


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a module comes from, for its configuration and its card.

    trial: study, number, seed, tokens and whatever else names the run. results: rows of one table, the module's own
    first, then baselines at the same budget. data: what it was trained on, in words. command: what writes it again.
    """

    trial: Mapping[str, Any] = field(default_factory=dict[str, Any])
    results: Sequence[Mapping[str, Any]] = ()
    data: str = ""
    command: str = "archsearch export STUDY-OR-TRIAL DIRECTORY"
