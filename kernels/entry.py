"""How raw operands enter a rule: features and norms of vectors, curves of gates and decays. Data only.

`archsearch.kernels.entering` gives it its meaning in torch; the generated kernels do the same in one launch.

    unit = tuple(VectorEntry(name, Feature.SILU, Norm.L2) for name in ("q", "k"))
    decay = GateEntry("g", Curve.SOFTPLUS_DECAY, bias="dt_bias", rate="A_log")
    fn = archsearch.compile(rule, entry=Entry(unit, (decay, GateEntry("beta", Curve.SIGMOID))))
    fn(q=q, k=k, v=v, g=a, beta=b, dt_bias=dt_bias, A_log=A_log)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from archsearch.dsl import Kind, Operand
from archsearch.dsl.operands import RESERVED
from archsearch.errors import ConfigError
from archsearch.lowering import NormalForm

EPSILON = 1e-6
"""Under the root of a norm."""


class Feature(Enum):
    """What becomes of each channel of a vector."""

    NONE = "none"
    SILU = "silu"
    RELU = "relu"
    ELU = "elu+1"


class Norm(Enum):
    """Of a vector u with N channels: L2 is u / sqrt(u.u + 1e-6), RMS is sqrt(N) times that."""

    NONE = "none"
    L2 = "l2"
    RMS = "rms"


class Curve(Enum):
    """What becomes of z = a + bias; r = exp(rate)."""

    SIGMOID = "factor * sigmoid(z)"
    SOFTPLUS = "softplus(z)"
    LOG_SIGMOID = "logsigmoid(z) / factor"
    SOFTPLUS_DECAY = "-r * softplus(z)"
    SIGMOID_DECAY = "factor * sigmoid(r * z)"
    EXPONENTIAL_DECAY = "-factor * expm1(r / factor * softplus(z))"

    @property
    def is_decay(self) -> bool:
        """Whether it gives a log decay, <= 0, and no gate."""
        return self not in (Curve.SIGMOID, Curve.SOFTPLUS)

    @property
    def is_bounded(self) -> bool:
        """Whether its factor is the lowest log decay that it gives."""
        return self in (Curve.SIGMOID_DECAY, Curve.EXPONENTIAL_DECAY)

    @property
    def scaled(self) -> bool:
        """Whether it has a factor."""
        return "factor" in self.value

    @property
    def rated(self) -> bool:
        """Whether it has a rate, one a head."""
        return self.is_decay and self is not Curve.LOG_SIGMOID


@dataclass(frozen=True, slots=True)
class VectorEntry:
    """An address or a value, its norm taken over a head's channels after the feature. It keeps its dtype."""

    operand: str
    feature: Feature = Feature.NONE
    norm: Norm = Norm.NONE

    def __post_init__(self) -> None:
        """Refuse what is no name, no Feature or no Norm."""
        _check_type("the operand of a VectorEntry", self.operand, str)
        _check_type(f"the feature of {self.operand!r}", self.feature, Feature)
        _check_type(f"the norm of {self.operand!r}", self.norm, Norm)


@dataclass(frozen=True, slots=True)
class GateEntry:
    """A gate or a log decay, in float32 whatever the raw number's dtype (float64 stays).

    bias, rate: the names by which a call brings these constants: a bias one a number of the operand, [HV] or [HV, K or
    V] of channels, for curves that are to have one; a rate [HV] for those that need it. Operands may share a constant.
    """

    operand: str
    curve: Curve
    factor: float = 1.0
    bias: str | None = None
    rate: str | None = None

    def __post_init__(self) -> None:
        """Refuse a factor of the wrong sign, a factor or rate where none belongs, a missing rate, and other types."""
        _check_type("the operand of a GateEntry", self.operand, str)
        _check_type(f"the curve of {self.operand!r}", self.curve, Curve)
        _check_type(f"the factor of {self.operand!r}", self.factor, float)
        for name in self.constants:
            _check_type(f"the name of a constant of {self.operand!r}", name, str)
        low, entry = self.curve.is_bounded, f"the entry of {self.operand!r}, {self.curve.value}"
        if not math.isfinite(self.factor) or (self.factor >= 0 if low else self.factor <= 0):
            raise ConfigError(f"{entry}, needs a factor {'< 0' if low else '> 0'}; got {self.factor}")
        if self.factor != 1.0 and not self.curve.scaled:
            raise ConfigError(f"{entry}, has no factor; got {self.factor}")
        if self.curve.rated is not (self.rate is not None):
            raise ConfigError(f"{entry}, {'needs a' if self.curve.rated else 'has no'} rate; got {self.rate!r}")

    @property
    def constants(self) -> tuple[str, ...]:
        """The names of its constants, the bias first."""
        return tuple(name for name in (self.bias, self.rate) if name is not None)


@dataclass(frozen=True, slots=True)
class Entry:
    """Of a rule's operands; those that it does not name are taken as they come."""

    vectors: tuple[VectorEntry, ...] = ()
    gates: tuple[GateEntry, ...] = ()

    def __post_init__(self) -> None:
        """Refuse anything but a tuple of each."""
        for name, given, kind in (("vectors", self.vectors, VectorEntry), ("gates", self.gates, GateEntry)):
            _check_type(f"the {name} of an Entry", given, tuple)
            for each in given:
                _check_type(f"each of the {name} of an Entry", each, kind)

    @property
    def operands(self) -> tuple[str, ...]:
        """The names of those that come raw."""
        return tuple(each.operand for each in (*self.vectors, *self.gates))

    @property
    def constants(self) -> tuple[str, ...]:
        """The names of all constants, each once."""
        return tuple(dict.fromkeys(name for gate in self.gates for name in gate.constants))


def check_entry(entry: Entry, form: NormalForm) -> None:
    """ConfigError unless each named operand is one of the rule's, named once, and of the kind that its entry makes."""
    if not isinstance(entry, Entry):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(f"entry must be an Entry; got {type(entry).__name__}. Write Entry(vectors, gates)")
    known = {operand.name: operand for operand in form.operands}
    for name in entry.operands:
        if name not in known:
            raise ConfigError(f"the entry names {name!r}; rule {form.name!r} takes {', '.join(known)}. Leave it out")
        if entry.operands.count(name) > 1:
            raise ConfigError(f"the entry names {name!r} more than once. Name it once")
    for name in entry.constants:
        if name in known or name in RESERVED:
            raise ConfigError(f"the entry names a constant {name!r}, which a call has already. Choose another name")
    for each in entry.vectors:
        if not (known[each.operand].is_address or known[each.operand].kind is Kind.VALUE):
            raise ConfigError(_misfit(known[each.operand], "a query, a key or a value", "GateEntry"))
    for each in entry.gates:
        operand = known[each.operand]
        if operand.kind is not Kind.LOG_DECAY and (not operand.is_gate or each.curve.is_decay):
            wanted = "a log decay" if each.curve.is_decay else "a gate"
            raise ConfigError(_misfit(operand, wanted, "VectorEntry, or a curve of its kind"))
        if operand.kind is Kind.LOG_DECAY and not each.curve.is_decay:
            raise ConfigError(_misfit(operand, "a gate", "a curve of log decays"))


def _check_type(what: str, given: object, kind: type) -> None:
    """ConfigError for another type; a whole number is a float, a truth value is none."""
    if isinstance(given, kind) or (kind is float and type(given) is int):
        return
    name = {str: "string", float: "number"}.get(kind, kind.__name__)
    hint = {
        tuple: "Write (x,) for one",
        str: "Write its name in quotes",
        float: "Write it as a number",
    }.get(kind, f"Import {name} from archsearch.kernels.entry")
    raise ConfigError(f"{what} must be a {name}; got {type(given).__name__}. {hint}")


def _misfit(operand: Operand, wanted: str, instead: str) -> str:
    return f"the entry of {operand.name!r} makes {wanted}; it is a {operand.kind.value}. Use {instead}"
