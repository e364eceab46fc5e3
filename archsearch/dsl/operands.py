"""Operands: the tensors that a rule is called with."""

from __future__ import annotations

import keyword
from dataclasses import dataclass
from enum import Enum
from typing import Literal

from archsearch.dsl.expressions import Algebra
from archsearch.errors import RuleError

RESERVED = frozenset({"cu_seqlens", "initial_state", "scale", "self", "state"})


class Kind(Enum):
    """What an operand is; decides its shape, its place in a rule and its default source in a layer."""

    QUERY = "query"
    KEY = "key"
    VALUE = "value"
    GATE = "gate"
    CHANNEL_GATE = "channel_gate"
    LOG_DECAY = "log_decay"
    SIGN = "sign"


SHAPES = {
    (Kind.QUERY, "head", "key"): "[B, T, H, K]",
    (Kind.KEY, "head", "key"): "[B, T, H, K]",
    (Kind.VALUE, "head", "value"): "[B, T, HV, V]",
    (Kind.GATE, "head", "key"): "[B, T, HV]",
    (Kind.CHANNEL_GATE, "channel", "key"): "[B, T, HV, K]",
    (Kind.CHANNEL_GATE, "channel", "value"): "[B, T, HV, V]",
    (Kind.LOG_DECAY, "head", "key"): "[B, T, HV]",
    (Kind.LOG_DECAY, "channel", "key"): "[B, T, HV, K]",
    (Kind.SIGN, "head", "key"): "[B, T, HV]",
    (Kind.SIGN, "channel", "key"): "[B, T, HV, K]",
}


@dataclass(frozen=True, slots=True)
class Operand(Algebra):
    """One tensor by name. `per`: one number a head, or one a channel; `of`: which channels; `signed`: a log decay with
    a sign operand beside it.
    """

    name: str
    kind: Kind
    per: Literal["head", "channel"] = "head"
    of: Literal["key", "value"] = "key"
    signed: bool = False

    def __post_init__(self) -> None:
        if not _is_name(self.name) or keyword.iskeyword(self.name) or self.name in RESERVED:
            raise RuleError(
                f"an operand's name must be an identifier other than {', '.join(sorted(RESERVED))}; got {self.name!r}. "
                "Choose another name"
            )
        if (self.kind, self.per, self.of) not in SHAPES:
            raise RuleError(
                f"{self.kind.value}({self.name!r}) takes per='head' or 'channel' and of='key' or 'value'; "
                f"got {self.per!r}, {self.of!r}"
            )

    def __str__(self) -> str:
        return self.name

    @property
    def shape(self) -> str:
        """The symbolic shape of its tensor."""
        return SHAPES[self.kind, self.per, self.of]

    @property
    def is_gate(self) -> bool:
        """Whether it scales: a gate or a channel gate."""
        return self.kind in (Kind.GATE, Kind.CHANNEL_GATE)

    @property
    def is_address(self) -> bool:
        """Whether it lies in the key space: a query or a key."""
        return self.kind in (Kind.QUERY, Kind.KEY)

    @property
    def sign(self) -> Operand | None:
        """The sign operand of a signed log decay."""
        return Operand(f"{self.name}_sign", Kind.SIGN, self.per) if self.signed else None

    @property
    def code(self) -> str:
        """Itself as code: `log_decay("g", per="channel")`."""
        options = [f'"{self.name}"']
        if self.kind is Kind.LOG_DECAY and self.per == "channel":
            options.append('per="channel"')
        if self.kind is Kind.CHANNEL_GATE and self.of == "value":
            options.append('of="value"')
        if self.signed:
            options.append("signed=True")
        return f"{self.kind.value}({', '.join(options)})"


def _is_name(name: object) -> bool:
    return isinstance(name, str) and name.isidentifier()


def query(name: str) -> Operand:
    """An address [B, T, H, K]; in a layer a query by default."""
    return Operand(name, Kind.QUERY)


def key(name: str) -> Operand:
    """An address [B, T, H, K]; in a layer a key by default."""
    return Operand(name, Kind.KEY)


def value(name: str) -> Operand:
    """A target [B, T, HV, V]."""
    return Operand(name, Kind.VALUE, of="value")


def gate(name: str) -> Operand:
    """A number a head and token [B, T, HV], already activated."""
    return Operand(name, Kind.GATE)


def channel_gate(name: str, *, of: Literal["key", "value"] = "key") -> Operand:
    """A number a channel: [B, T, HV, K] of the key, or [B, T, HV, V] of the value; already activated."""
    return Operand(name, Kind.CHANNEL_GATE, "channel", of)


def log_decay(name: str, *, per: Literal["head", "channel"] = "head", signed: bool = False) -> Operand:
    """A natural log of the decay, <= 0: [B, T, HV], or [B, T, HV, K] per key channel. `signed` adds an operand
    `<name>_sign` in {-1, 1}.
    """
    return Operand(name, Kind.LOG_DECAY, per, signed=signed)
