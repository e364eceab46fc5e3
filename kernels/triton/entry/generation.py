"""The source of an entry's kernels: one pair of functions an operand, called by two kernels."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from archsearch.kernels.entry import EPSILON, Curve, Feature, GateEntry, Norm, VectorEntry
from archsearch.kernels.triton.entry.sections import Section
from archsearch.kernels.triton.template import filled, folded

STRIDES = ("at_batch", "at_token", "at_head", "at_channel")
SIZES = ("HEADS", "N", "W", "R")

FEATURES: Mapping[Feature, tuple[str, str]] = {
    Feature.NONE: ("x", "1.0"),
    Feature.SILU: ("x * sigmoid(x)", "sigmoid(x) * (1.0 + x * sigmoid(-x))"),
    Feature.RELU: ("tl.where(x < 0, 0.0, x)", "tl.where(x > 0, 1.0, 0.0)"),
    Feature.ELU: ("tl.where(x > 0, x + 1.0, tl.exp(-tl.abs(x)))", "tl.where(x > 0, 1.0, tl.exp(-tl.abs(x)))"),
}
"""The feature of x and its slope."""

CURVES: Mapping[Curve, tuple[str, str, str]] = {
    Curve.SIGMOID: ("{c} * sigmoid(z)", "{c} * sigmoid(z) * sigmoid(-z)", ""),
    Curve.SOFTPLUS: ("softplus(z)", "sigmoid(z)", ""),
    Curve.LOG_SIGMOID: ("-softplus(-z) / {c}", "sigmoid(-z) / {c}", ""),
    Curve.SOFTPLUS_DECAY: ("-r * softplus(z)", "-r * sigmoid(z)", "-r * softplus(z)"),
    Curve.SIGMOID_DECAY: (
        "{c} * sigmoid(r * z)",
        "{c} * r * sigmoid(r * z) * sigmoid(-r * z)",
        "{c} * r * z * sigmoid(r * z) * sigmoid(-r * z)",
    ),
    Curve.EXPONENTIAL_DECAY: (
        "-{c} * expm1(r / {c} * softplus(z))",
        "-r * sigmoid(z) * tl.exp(r / {c} * softplus(z))",
        "-r * softplus(z) * tl.exp(r / {c} * softplus(z))",
    ),
}
"""The curve at z, its slope, and its slope in the rate; {c} is the factor."""


@lru_cache(maxsize=256)
def source(sections: tuple[Section, ...]) -> str:
    """The module of these sections, one text for all sizes and dtypes."""
    functions = "\n\n\n".join(_functions(section).strip("\n") for section in sections)
    flags = {name: f"{name}(" in functions for name in ("softplus", "expm1")}
    holes = {
        "about": "\n".join(f"{section.name}: {described(section)}" for section in sections),
        "functions": functions,
        "constants": ", ".join(f"{size}_{section.name}: tl.constexpr" for section in sections for size in SIZES),
    }
    for way in ("enter", "leave"):
        holes[f"{way}_pointers"] = ", ".join(f"{name}_{each.name}" for each in sections for name in _own(each, way))
        holes[f"{way}_calls"] = "\n".join(_call(section, way) for section in sections)
    opening, doc, code = filled("entry", holes, flags).split('"""', 2)
    return '"""'.join((opening, doc, "\n".join(folded(line) for line in code.split("\n"))))


def described(section: Section) -> str:
    """What becomes of an operand, in words."""
    entry = section.entry
    if isinstance(entry, GateEntry):
        parts = [entry.curve.value, "z = a + bias" if entry.bias else "z = a"]
        parts += [*(["r = exp(rate)"] if entry.rate else []), f"factor = {entry.factor:g}"]
        return ", ".join(parts)
    return f"feature {entry.feature.value}, norm {entry.norm.value}"


def _functions(section: Section) -> str:
    entry = section.entry
    holes = {"name": section.name, "about": f"{section.name}: {described(section)}"}
    holes |= {f"{way}_parameters": ", ".join(["program", *_parameters(section, way)]) for way in ("enter", "leave")}
    return _vector(entry, holes) if isinstance(entry, VectorEntry) else _gate(entry, section, holes)


def _vector(entry: VectorEntry, common: Mapping[str, str]) -> str:
    feature, slope = FEATURES[entry.feature]
    times = " * N**0.5" if entry.norm is Norm.RMS else ""
    holes = {"feature": feature, "slope": slope, "times": times, "epsilon": repr(EPSILON)}
    flags = {"normed": entry.norm is not Norm.NONE, "featured": entry.feature is not Feature.NONE}
    return filled("entry_vector", {**common, **holes}, flags)


def _gate(entry: GateEntry, section: Section, common: Mapping[str, str]) -> str:
    value, slope, rate_slope = (text.format(c=repr(float(entry.factor))) for text in CURVES[entry.curve])
    rate = "rate + head" if section.channel else "rate + channel, mask=channel < N, other=0.0"
    holes = {
        "value": value,
        "slope": slope,
        "rate_slope": f"({rate_slope})",
        "rate": f"tl.load({rate}).to(tl.float32)",
    }
    flags = {
        "biased": entry.bias is not None,
        "rated": entry.rate is not None,
        "channel": section.channel,
        "summed": bool(section.constants),
    }
    return filled("entry_gate", {**common, **holes}, flags)


def _own(section: Section, way: str) -> list[str]:
    """What a section's function takes of its own."""
    if way == "enter":
        return ["raw", "made", *STRIDES, *section.constants]
    return ["raw", "d_made", "d_raw", *STRIDES, *section.constants, *(f"{name}_at" for name in section.constants)]


def _shared(section: Section, way: str) -> list[str]:
    """What it takes as others do; gates on their way back run over a stretch of tokens."""
    stretch = ["stretch"] if way == "leave" and isinstance(section.entry, GateEntry) else []
    return [*(["partial", "numbers"] if stretch and section.constants else []), *stretch, "T", "tokens"]


def _parameters(section: Section, way: str) -> list[str]:
    return [*_own(section, way), *_shared(section, way)]


def _call(section: Section, way: str) -> str:
    """The section's share of the programs."""
    name, shared = section.name, _shared(section, way)
    tokens = "stretch" if "stretch" in shared else f"R_{name}"
    own = [f"{given}_{name}" for given in _own(section, way)]
    sizes = [f"{size}_{name}" for size in SIZES]
    return "\n".join(
        [
            f"share = tl.cdiv(tokens, {tokens}) * HEADS_{name}",
            "if (program >= 0) & (program < share):",
            f"    {way}_{name}(program, {', '.join([*own, *shared, *sizes])})",
            "program -= share",
        ]
    )
