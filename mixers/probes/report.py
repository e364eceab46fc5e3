"""What a probe writes: one JSON file with every number, and one page with the plots that needs no network."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from archsearch import __version__
from archsearch.dsl import Rule
from archsearch.lowering.display import equation
from archsearch.mixers.probes.probe import LayerProbe, Samples

SCHEMA_VERSION = 1
CONTEXT = 14
"""Bytes of text that name a place."""


@dataclass(frozen=True, slots=True)
class Probed:
    """A probe of a model. source: where the model came from; text: what it read, in words.

    tokens: [B][T], as it read them. bytes: whether they are bytes, else symbols.
    """

    source: str
    rule: Rule
    text: str
    tokens: Sequence[Sequence[int]]
    bytes: bool
    samples: Samples
    layers: Sequence[LayerProbe]

    def json(self) -> str:
        """The file; NaN and infinities are null."""
        data: dict[str, Any] = {
            "schema_version": SCHEMA_VERSION,
            "archsearch": __version__,
            "source": self.source,
            "rule": str(self.rule),
            "rule_hash": self.rule.hash,
            "equation": equation(self.rule).splitlines(),
            "text": self.text,
            "samples": asdict(self.samples),
            "layers": [layer.as_json() for layer in self.layers],
            "tokens": [list(sequence) for sequence in self.tokens],
        }
        return json.dumps(data, ensure_ascii=False, allow_nan=False) + "\n"

    def left_out(self) -> dict[str, str]:
        """What the rule has no part for, and why."""
        return {each.name.value: each.reason for layer in self.layers for each in layer.left_out}

    def place(self, sequence: int, time: int) -> str:
        """A token in words: its number, and the text up to it or the symbol."""
        tokens = self.tokens[sequence]
        if not self.bytes:
            return f"{time}: symbol {tokens[time]}"
        before = bytes(token for token in tokens[max(0, time + 1 - CONTEXT) : time + 1] if token < 256)
        return f"{time}: …{before.decode(errors='replace')}".replace("\n", "⏎")
