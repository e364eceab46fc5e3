"""One operand of the layer as code: its sizes, its weights, and how rows of the projection become it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import cast

from archsearch.mixers.export.lines import WIDTH
from archsearch.mixers.layer import options as o
from archsearch.mixers.layer.plan import Part

INDENT = 8
ACTIVATED = {"none": "{}", "silu": "F.silu({})", "relu": "F.relu({})", "elu+1": "(F.elu({}) + 1)"}
GROUPED = ".repeat_interleave(self.num_v_heads // self.num_heads, dim=2)"
NORMED = {"none": "{}", "l2": "unit({})", "rms": "rms({})"}


@dataclass(frozen=True, slots=True)
class Size:
    """Heads and channels as code; no channels for one number a head. `inside` the class they are attributes."""

    heads: str
    dim: str | None

    @property
    def numbers(self) -> str:
        """How many there are."""
        return self.heads if self.dim is None else f"{self.heads} * {self.dim}"

    @property
    def shape(self) -> str:
        """Both, as the arguments of a call."""
        return self.heads if self.dim is None else f"{self.heads}, {self.dim}"

    @property
    def tuple(self) -> str:
        """Both, as a tuple."""
        return f"({self.heads},)" if self.dim is None else f"({self.heads}, {self.dim})"

    @property
    def inside(self) -> Size:
        """Itself where the names are attributes."""
        return Size(f"self.{self.heads}", None if self.dim is None else f"self.{self.dim}")


VALUES = Size("num_v_heads", "head_v_dim")
"""Of values, and of the output's gate."""


@dataclass(frozen=True, slots=True)
class OperandText:
    """An operand. variable, origins, sign: the variables of itself, of what it is made of, and of its sign.

    memory: what the cache keeps for it, as code.
    """

    part: Part
    variable: str
    origins: tuple[str, ...] = ()
    sign: str = ""
    memory: str = ""

    @property
    def origin(self) -> str:
        """The variable of the first operand that it is made of."""
        return self.origins[0]

    @property
    def size(self) -> Size:
        """Its heads and channels."""
        operand = self.part.operand
        if operand.is_address:
            return Size("num_heads", "head_dim")
        if operand.of == "value":
            return VALUES
        return Size("num_v_heads", "head_dim" if operand.per == "channel" else None)

    @property
    def inputs(self) -> str:
        """Its rows of the fused projection."""
        return inputs(cast("o.Map", self.part.map), self.size)

    @property
    def is_lifted(self) -> bool:
        """Whether its rows of the fused projection need a further step."""
        return self.part.map is not None and self.part.map != o.Linear()

    @property
    def weights(self) -> dict[str, str]:
        """What it has beside those rows, by name."""
        size, source = self.size, self.part.source
        entries = {"lift": lift(cast("o.Map", self.part.map), size)} if self.is_lifted else {}
        match source:
            case o.Projection():
                entries["weight"] = f"normal({size.shape}, {size.dim}, std={size.dim}**-0.5)"
            case o.Static(start=None):
                entries["weight"] = f"normal({size.shape}, std={size.dim}**-0.5)"
            case o.Static(start=start):
                entries["weight"] = f"torch.full(({size.shape}), {start!r})"
            case o.Scaled(start=start, per=per, bounded=bounded):
                shape = f"({size.heads}, {1 if per == 'head' else size.dim})"
                entries["factor"] = f"constant(torch.full({shape}, {_odds(start, 1.0 if bounded else None)!r}))"
            case o.Sigmoid(bias=float() | int() as bias):
                entries["bias"] = f"constant(torch.full({size.tuple}, {float(bias)!r}))"
            case o.Constant(start=start, bound=bound):
                entries["constant"] = f"constant(torch.full({size.tuple}, {_odds(start, bound)!r}))"
            case o.WeightDecay(start=start):
                entries["rate"] = f"constant(torch.full({size.tuple}, {_odds(start, 1.0)!r}))"
            case o.Preconditioner(center=center):
                entries["center"] = f"constant(torch.full(({size.heads},), {center!r}))"
            case o.RampDecay(low=low, high=high):
                entries["bias"] = f"ramp_bias({size.shape}, low={low!r}, high={high!r})"
            case o.StepSize(low=low, high=high, floor=floor):
                entries["dt_bias"] = f"step_bias({size.shape}, low={low!r}, high={high!r}, floor={floor!r})"
            case o.StepDecay(low=low, high=high) | o.MambaDecay(low=low, high=high):
                entries["A_log"] = f"rates({size.heads}, {low!r}, {high!r})"
            case o.BoundedDecay(form="eda"):
                entries["A_log"] = f"rates({size.heads}, 1.0, 16.0)"
            case o.BoundedDecay():
                entries["A_log"] = f"constant(torch.zeros({size.heads}))"
            case o.Exponential(bias=bias):
                entries["bias"] = f"ramp_bias({size.shape}, low={float(bias)!r}, high={float(bias)!r})"
            case o.CappedForget(low=low, high=high):
                entries["bias"] = f"ramp_bias({size.shape}, low={float(low)!r}, high={float(high)!r})"
            case o.SignedDecay():
                entries["bias"] = f"sign_bias({size.shape})"
            case _:
                pass
        if isinstance(source, o.MambaDecay | o.BoundedDecay):
            entries["dt_bias"] = f"step_bias({size.shape})"
        return entries

    def lines(self) -> list[str]:
        """Its rows become the operand: float32, activated, in its shape."""
        body = EVALUATED[type(self.part.source)](self)
        text = "\n".join(body)
        if self.size.dim is not None and re.search(r"\braw\b", text):
            body = [f"raw = exact({self.variable}).unflatten(-1, ({self.size.inside.shape}))", *body]
        if re.search(r"\bown\.", text):
            body = [f'own = self.sources["{self.part.name}"]', *body]
        return body

    @property
    def raw(self) -> str:
        """Its projected rows in float32, [B, T, HV] or [B, T, HV, dim]."""
        return "raw" if self.size.dim is not None else f"exact({self.variable})"

    @property
    def rate(self) -> str:
        """exp(A_log) against its numbers."""
        return "own.A_log.exp()" if self.size.dim is None else "own.A_log.exp()[:, None]"


def inputs(given: o.Map, size: Size) -> str:
    """Rows of the fused projection."""
    if isinstance(given, o.Linear):
        return size.numbers
    return str(given.rank) if given.shared else f"{size.heads} * {given.rank}"


def lift(given: o.Map, size: Size) -> str:
    """The module that lifts rows."""
    bias = f"torch.zeros({size.numbers})" if given.bias else "None"
    if isinstance(given, o.Linear):
        return f"Lift(None, {bias})"
    shape = f"{size.numbers}, {given.rank}" if given.shared else f"{size.heads}, {given.rank}, {size.dim or 1}"
    bend = "" if given.bend == "none" else f", torch.{given.bend}"
    return f"Lift(normal({shape}), {bias}{bend})"


def _odds(start: float, bound: float | None) -> float:
    """The c with bound * sigmoid(c) = start; `start` itself where there is no bound."""
    return start if bound is None else math.log(start / (bound - start))


def _vector(text: OperandText) -> list[str]:
    source, name = cast("o.Vector", text.part.source), text.variable
    activated, normed = ACTIVATED[source.activation or "none"].format(name), NORMED[source.norm or "none"]
    split = f".unflatten(-1, ({text.size.inside.shape}))"
    lines = [f"{name} = {normed.format(activated + split)}"]
    if INDENT + len(lines[0]) > WIDTH:
        lines = [f"{name} = {activated}", f"{name} = {normed.format(name + split)}"]
    if source.delayed:
        return [*lines, f"{name} = delayed({name}, {text.memory}, cu_seqlens)"]
    return [*lines, *([f"{name} = rotated({name}, positions)"] if source.rotary else [])]


def _projection(text: OperandText) -> list[str]:
    made = f'torch.einsum("bthk,hkl->bthl", {text.origin}, own.weight)'
    norm = cast("o.Projection", text.part.source).norm or "none"
    return [f"{text.variable} = {NORMED[norm].format(made)}"]


def _static(text: OperandText) -> list[str]:
    made = NORMED[cast("o.Static", text.part.source).norm or "none"].format("own.weight")
    return [f"{text.variable} = {made}.to(mixed.dtype).expand(*x.shape[:2], -1, -1)"]


def _scaled(text: OperandText) -> list[str]:
    source = cast("o.Scaled", text.part.source)
    factor = "torch.sigmoid(own.factor)" if source.bounded else "own.factor"
    return [f"{text.variable} = {NORMED[source.norm].format(f'{text.origin} * {factor}.to({text.origin}.dtype)')}"]


def _gated(text: OperandText) -> list[str]:
    scale = cast("o.Gated", text.part.source).scale
    gate = f"torch.sigmoid({text.raw})" if scale == 1.0 else f"({scale!r} * torch.sigmoid({text.raw}))"
    return [f"{text.variable} = {text.origin} * {gate}.to({text.origin}.dtype)"]


def _complement(text: OperandText) -> list[str]:
    return [f"{text.variable} = -torch.expm1({text.origin}).to(mixed.dtype)"]


def _orthogonal(text: OperandText) -> list[str]:
    of, to, gate = text.origins
    return [
        f"along, lean = exact({to}), {gate} * exact({of})",
        f"{text.variable} = (lean - (along * lean).sum(-1, keepdim=True) * along).to({of}.dtype)",
    ]


def _delayed(text: OperandText) -> list[str]:
    return [f"{text.variable} = delayed({text.origin}, {text.memory}, cu_seqlens)"]


def _constant(text: OperandText) -> list[str]:
    bound = cast("o.Constant", text.part.source).bound
    gate = "own.constant" if bound is None else f"({bound!r} * torch.sigmoid(own.constant))"
    return [f"{text.variable} = {gate}.expand(*x.shape[:2], *own.constant.shape)"]


def _step(text: OperandText) -> list[str]:
    source = cast("o.Step", text.part.source)
    step = {
        "kaczmarz": f"share / (size + {source.eps!r})",
        "implicit": "share / (1 + share * size)",
        "exact_ode": f"-torch.expm1(-share * size.clamp_min({source.eps!r})) / size.clamp_min({source.eps!r})",
    }[source.form]
    return [
        f"share = torch.sigmoid({text.raw})",
        f"size = exact({text.origin}).square().sum(-1){GROUPED}",
        f"{text.variable} = {step}",
    ]


def _preconditioner(text: OperandText) -> list[str]:
    key, strength, *decay = text.origins
    base = cast("o.Preconditioner", text.part.source).base
    return [
        f"added = {strength}[..., None] * exact({key}).square(){GROUPED}",
        f"written = decayed_sum({decay[0] if decay else None}, added, {text.memory}, cu_seqlens)",
        "often = torch.log(written + 1e-6) - own.center[:, None]",
        f"{text.variable} = {base!r} ** (-often / (1 + often.abs()))",
    ]


def _sigmoid(text: OperandText) -> list[str]:
    source = cast("o.Sigmoid", text.part.source)
    gate = f"torch.sigmoid({text.raw}{'' if source.bias is None else ' + own.bias'})"
    return [f"{text.variable} = {gate if source.scale == 1.0 else f'{source.scale!r} * {gate}'}"]


def _step_size(text: OperandText) -> list[str]:
    return [f"{text.variable} = F.softplus({text.raw} + own.dt_bias)"]


def _step_decay(text: OperandText) -> list[str]:
    return [f"{text.variable} = -{text.rate} * {text.origin}"]


def _mamba_decay(text: OperandText) -> list[str]:
    return [f"{text.variable} = -{text.rate} * F.softplus({text.raw} + own.dt_bias)"]


def _bounded_decay(text: OperandText) -> list[str]:
    source = cast("o.BoundedDecay", text.part.source)
    if source.form == "eda":
        step = f"step = {text.rate} / {source.bound!r} * F.softplus({text.raw} + own.dt_bias)"
        return [step, f"{text.variable} = {-source.bound!r} * torch.expm1(step)"]
    return [f"{text.variable} = {source.bound!r} * torch.sigmoid({text.rate} * ({text.raw} + own.dt_bias))"]


def _log_sigmoid(text: OperandText) -> list[str]:
    return [f"{text.variable} = F.logsigmoid({text.raw}) / {cast('o.LogSigmoid', text.part.source).divisor!r}"]


def _capped(text: OperandText) -> list[str]:
    source = cast("o.Exponential | o.CappedForget", text.part.source)
    z = f"{source.cap!r} * torch.tanh(({text.raw} + own.bias) / {source.cap!r})"
    return [f"{text.variable} = {'torch.exp' if isinstance(source, o.Exponential) else 'F.logsigmoid'}({z})"]


def _lower_bound(text: OperandText) -> list[str]:
    floor = cast("o.LowerBound", text.part.source).floor
    log = f"F.logsigmoid({text.raw})"
    bounded = f"torch.log({floor!r} + {1 - floor!r} * torch.sigmoid({text.raw}))"
    return [f"{text.variable} = {log if floor == 0 else bounded}"]


def _ramp_decay(text: OperandText) -> list[str]:
    z = f"({text.raw} + own.bias)"
    sigmoid = cast("o.RampDecay", text.part.source).form == "sigmoid"
    return [f"{text.variable} = {f'-math.exp(-0.5) * torch.sigmoid{z}' if sigmoid else f'-{z}.exp()'}"]


def _weight_decay(text: OperandText) -> list[str]:
    return [f"{text.variable} = torch.log1p(-(torch.sigmoid(own.rate) * {text.origin}).clamp_max(0.99))"]


def _fixed_decay(text: OperandText) -> list[str]:
    dim = text.size.inside.dim
    spread = ".expand(*x.shape[:2], -1)" if dim is None else f"[:, None].expand(*x.shape[:2], -1, {dim})"
    return [
        "head = torch.arange(self.num_v_heads, dtype=torch.float64, device=x.device)",
        f"{text.variable} = torch.log1p(-(2.0 ** (-5 - head))).float(){spread}",
    ]


def _signed_decay(text: OperandText) -> list[str]:
    return [
        f"alpha = torch.tanh({text.raw} + own.bias)",
        f"{text.sign} = torch.where(alpha < 0, -1.0, 1.0).to(alpha.dtype)",
        f"{text.variable} = alpha.abs().clamp_min(math.exp(-20.0)).log()",
    ]


EVALUATED: Mapping[type, Callable[[OperandText], list[str]]] = {
    o.Vector: _vector,
    o.Projection: _projection,
    o.Static: _static,
    o.Scaled: _scaled,
    o.Gated: _gated,
    o.Complement: _complement,
    o.Orthogonal: _orthogonal,
    o.Delayed: _delayed,
    o.Sigmoid: _sigmoid,
    o.StepSize: _step_size,
    o.Constant: _constant,
    o.Step: _step,
    o.Preconditioner: _preconditioner,
    o.StepDecay: _step_decay,
    o.MambaDecay: _mamba_decay,
    o.BoundedDecay: _bounded_decay,
    o.LogSigmoid: _log_sigmoid,
    o.Exponential: _capped,
    o.CappedForget: _capped,
    o.LowerBound: _lower_bound,
    o.RampDecay: _ramp_decay,
    o.WeightDecay: _weight_decay,
    o.FixedDecay: _fixed_decay,
    o.SignedDecay: _signed_decay,
}


def described(part: Part) -> str:
    """Where an operand comes from, in words."""
    through = "W x" if not isinstance(part.map, o.LowRank) else f"W_up W_down x (rank {part.map.rank})"
    match part.source:
        case o.Vector(activation=activation, norm=norm, rotary=rotary, delayed=delayed):
            steps = [through, *([f"causal convolution of {part.conv} tokens"] if part.conv else [])]
            steps += [activation] if activation not in (None, "none") else []
            steps += [{"l2": "unit length", "rms": "RMS norm"}[norm]] if norm not in (None, "none") else []
            steps += ["of the token before"] if delayed else []
            return ", ".join([*steps, *(["rotary positions"] if rotary else [])])
        case o.Projection(of=of):
            return f"P {of}, a K x K matrix a head"
        case o.Static():
            return "learned, the same for every token"
        case o.Scaled(of=of, per=per, norm=norm):
            return f"{of} times a learned factor a {per}{'' if norm == 'none' else ', normalised'}"
        case o.Gated(of=of, scale=scale):
            return f"{'' if scale == 1.0 else f'{scale:g} '}sigmoid({through}) * {of}"
        case o.Complement(of=of):
            return f"1 - exp({of})"
        case o.Orthogonal(of=of, to=to, gate=gate):
            return f"(I - {to} {to}^T) ({gate} * {of})"
        case o.Delayed(of=of):
            return f"{of} of the token before"
        case o.Constant(bound=bound):
            return f"learned, the same for every token{'' if bound is None else f', in (0, {bound:g})'}"
        case o.Step(of=of, form=form):
            return f"the {form.replace('_', ' ')} step at {of} for sigmoid({through})"
        case o.Preconditioner(key=key, strength=strength, base=base):
            return f"{base:g}^(-r / (1 + |r|)), r = log A - center, A the decayed sum of {strength} {key} * {key}"
        case o.LowerBound(floor=floor):
            inside = f"sigmoid({through})" if floor == 0 else f"{floor:g} + {1 - floor:g} sigmoid({through})"
            return f"log({inside})"
        case o.RampDecay(form=form):
            return f"-exp({through} + bias)" if form == "exp" else f"-exp(-1/2) sigmoid({through} + bias)"
        case o.WeightDecay(of=of):
            return f"log(1 - sigmoid(rate) {of})"
        case o.Sigmoid(bias=bias, scale=scale):
            return f"{'' if scale == 1.0 else f'{scale:g} '}sigmoid({through}{'' if bias is None else ' + bias'})"
        case o.StepSize():
            return f"softplus({through} + dt_bias)"
        case o.StepDecay(of=of):
            return f"-exp(A_log) {of}"
        case o.MambaDecay():
            return f"-exp(A_log) softplus({through} + dt_bias)"
        case o.BoundedDecay(form="eda", bound=bound):
            return f"{bound:g} (1 - exp(-exp(A_log) / {-bound:g} softplus({through} + dt_bias)))"
        case o.BoundedDecay(bound=bound):
            return f"{bound:g} sigmoid(exp(A_log) ({through} + dt_bias))"
        case o.LogSigmoid(divisor=divisor):
            return f"logsigmoid({through}) / {divisor:g}"
        case o.Exponential(cap=cap):
            return f"exp(z), z = {cap:g} tanh(({through} + bias) / {cap:g})"
        case o.CappedForget(cap=cap):
            return f"logsigmoid(z), z = {cap:g} tanh(({through} + bias) / {cap:g})"
        case o.FixedDecay():
            return "log(1 - 2^(-5-h)) of head h, nothing learned"
        case o.SignedDecay():
            return f"log and sign of tanh({through} + bias)"
        case _:
            return through
