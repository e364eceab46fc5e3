"""What the kernels of an entry know of a rule: one section an operand. Kept by a key that an operation can take."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache

from archsearch.kernels.entry import Entry, GateEntry, VectorEntry
from archsearch.lowering import NormalForm


@dataclass(frozen=True, slots=True)
class Section:
    """One operand. channel: whether it is [B, T, heads, channels], else [B, T, heads]."""

    entry: VectorEntry | GateEntry
    channel: bool

    @property
    def name(self) -> str:
        """The operand's."""
        return self.entry.operand

    @property
    def constants(self) -> tuple[str, ...]:
        """What it takes beside the raw operand, in the order of a call."""
        if isinstance(self.entry, VectorEntry):
            return ()
        return (*(("bias",) if self.entry.bias else ()), *(("rate",) if self.entry.rate else ()))


_KNOWN: dict[str, tuple[Section, ...]] = {}


@cache
def key(entry: Entry, form: NormalForm) -> str:
    """The key of an entry of a rule. Not for functions that torch compiles: ask before, and pass the key."""
    channel = {operand.name: operand.shape.count(",") == 3 for operand in form.operands}
    found = tuple(Section(each, channel[each.operand]) for each in (*entry.vectors, *entry.gates))
    text = hashlib.sha256(repr(found).encode()).hexdigest()[:24]
    _KNOWN[text] = found
    return text


def sections(key: str) -> tuple[Section, ...]:
    """Those that were given this key in this process, in the order of a call."""
    return _KNOWN[key]
