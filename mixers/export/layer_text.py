"""The layer as code: one class written from the layer's plan, with the pieces that it needs and no others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import cast

from archsearch.mixers.export.lines import WIDTH, Group, Names, call, laid_out, unpacked
from archsearch.mixers.export.templates import template
from archsearch.mixers.layer import options as o
from archsearch.mixers.layer.plan import LayerPlan, Part

INDENT = 8
ACTIVATED = {"none": "{}", "silu": "F.silu({})", "relu": "F.relu({})", "elu+1": "(F.elu({}) + 1)"}
NORMED = {"none": "{}", "l2": "unit({})", "rms": "rms({})"}
SPACE = " " * INDENT


class LayerText:
    """The text of `Mixer` and of what stands before it."""

    def __init__(self, plan: LayerPlan, names: Names) -> None:
        self.plan = plan
        self.names = names
        self.parts = tuple(plan.evaluation())

    def pieces(self, also: Collection[str] = ()) -> list[str]:
        """Helpers, cache and class, in the order in which they stand; `also` names templates that others need."""
        body = self._class()
        helpers = [template(name) for name, needed in self._needed(body).items() if needed or name in also]
        return [*helpers, body, template("drop_in")]

    def _needed(self, body: str) -> Mapping[str, bool]:
        used = "".join(text for part in self.plan.parts for text in self.weights(part).values())
        return {
            "exact": True,
            "unit": "unit(" in body,
            "rms": "rms(" in body,
            "rotated": self.plan.rotary,
            "positions": self.plan.rotary,
            "parameters": True,
            "rates": "rates(" in used,
            "step_bias": "step_bias(" in used,
            "sign_bias": "sign_bias(" in used,
            "lift": "Lift(" in body,
            "convolution": bool(self.plan.convolutions),
            "cache": True,
        }

    def _class(self) -> str:
        return "\n".join(
            [
                "class Mixer(nn.Module):",
                '    """The layer: [B, T, hidden_size] -> [B, T, hidden_size].',
                "",
                *(f"    {line}" for line in self.description()),
                '    """',
                "",
                *self._constructor(),
                "",
                *self._forward(),
                "",
                template("mixer_methods", cache=self._cache()),
            ]
        )

    def description(self) -> list[str]:
        """A line an operand: where it comes from."""
        return [f"{self.names[part.operand]}: {described(part)}" for part in self.plan.parts]

    def _constructor(self) -> list[str]:
        sizes = self.plan.sizes
        return [
            template(
                "mixer_init",
                width=str(sizes.width),
                heads=str(sizes.heads),
                head_dim=str(sizes.key),
                value_heads=str(sizes.value_heads),
                expand_v=repr(self.plan.layer.expand_v),
                norm_eps=repr(self.plan.layer.norm_eps),
            ),
            *self._rows_table(),
            f"{SPACE}self.projection = normal(sum(self.rows), hidden_size)",
            *self._sources(),
            *self._convolutions(),
            *self._output_weights(),
        ]

    def _rows_table(self) -> list[str]:
        rows = [self.total(block) if len(block) > 1 else self.inputs(block[0]) for block in self.blocks()]
        gate = self.plan.gate_map
        rows += [self._inputs(gate, "num_v_heads", "head_v_dim")] if gate is not None else []
        return [call("self.rows = [", rows, "]", INDENT)]

    def _sources(self) -> list[str]:
        """The weights of each operand that has some beside its rows of the projection."""
        entries = tuple(
            _weights(f'"{part.name}": ', weights) for part in self.plan.parts if (weights := self.weights(part))
        )
        made = Group("self.sources = nn.ModuleDict(", (Group("{", entries, "}"),), ")")
        return laid_out(made, INDENT) if entries else []

    def _convolutions(self) -> list[str]:
        bias = ("bias=True",) if self.plan.layer.conv_bias else ()
        made = tuple(
            Group(
                "ShortConvolution(",
                (self.total([part for part in self.plan.parts if part.conv == width]), str(width), *bias),
                ")",
            )
            for width, _ in self.plan.convolutions
        )
        group = Group("self.convolutions = nn.ModuleList(", (Group("[", made, "]"),), ")")
        return laid_out(group, INDENT) if made else []

    def _output_weights(self) -> list[str]:
        gate = self.plan.gate_map
        entries = {"norm": "torch.ones(head_v_dim)"}
        if gate is not None and gate != o.Linear():
            entries["lift"] = lift(gate, "num_v_heads", "head_v_dim")
        if self.plan.skipped is not None:
            entries["D"] = "constant(torch.ones(num_v_heads))"
        entries["projection"] = "normal(hidden_size, num_v_heads * head_v_dim)"
        return laid_out(_weights("self.output = ", entries), INDENT)

    def blocks(self) -> list[list[Part]]:
        """Neighbours of the fused projection that are split as one: those of one convolution, where none is lifted."""
        blocks: list[list[Part]] = []
        for part in self.plan.parts:
            if not part.inputs:
                continue
            joins = part.conv and blocks and blocks[-1][0].conv == part.conv
            if joins and not any(lifted(each) for each in (part, *blocks[-1])):
                blocks[-1].append(part)
            else:
                blocks.append([part])
        return blocks

    def _forward(self) -> list[str]:
        plan = self.plan
        variables = [self._variable(block) for block in self.blocks()] + (["gate"] if plan.gate_map is not None else [])
        lines = [template("mixer_forward_head"), f"{SPACE}mixed = F.linear(x, self.projection)"]
        if plan.rotary:
            lines.append(f"{SPACE}positions = positions_of(x, None if cache is None else cache.position, cu_seqlens)")
        lines.append(unpacked(variables, "mixed.split(self.rows, dim=-1)", INDENT))
        for part in filter(lifted, plan.parts):
            name = self.names[part.operand]
            lines.append(f'{SPACE}{name} = self.sources["{part.name}"].lift({name})')
        for index, (width, _) in enumerate(plan.convolutions):
            lines += self._convolved(index, [part for part in plan.parts if part.conv == width])
        for part in self.parts:
            lines += self._evaluated(part)
        lines += [
            call("operands = Operands(", [f"{name}={name}" for name in self.names.all], indent=INDENT),
            f"{SPACE}o = exact(self.recalled(operands, cache, cu_seqlens))",
            *self._output(),
        ]
        return lines

    def _variable(self, block: list[Part]) -> str:
        return self.names[block[0].operand] if len(block) == 1 else f"mixed_{block[0].conv}"

    def _convolved(self, index: int, parts: list[Part]) -> list[str]:
        names = [self.names[part.operand] for part in parts]
        joined = [block for block in self.blocks() if block[0].conv == parts[0].conv]
        source = self._variable(joined[0]) if len(joined) == 1 else f"torch.cat([{', '.join(names)}], dim=-1)"
        memory = f"None if cache is None else cache.convolutions[{index}]"
        made = f"self.convolutions[{index}]({source}, {memory}, cu_seqlens)"
        if len(names) == 1:
            return [f"{SPACE}{names[0]} = {made}"]
        sizes = [self.size(part, "self.") for part in parts]
        return [
            f"{SPACE}mixed = {made}",
            call("sizes = [", sizes, "]", INDENT),
            unpacked(names, "mixed.split(sizes, dim=-1)", INDENT),
        ]

    def _evaluated(self, part: Part) -> list[str]:
        """Its rows become the operand: float32, activated, in its shape."""
        body = EVALUATED[type(part.source)](self, part)
        lines: list[str] = []
        if any("own." in line for line in body):
            lines.append(f'own = self.sources["{part.name}"]')
        _, dim = self.dims(part)
        if dim is not None and any("raw" in line for line in body):
            lines.append(f"raw = exact({self.names[part.operand]}).unflatten(-1, {self.shape(part)})")
        return [SPACE + line for line in (*lines, *body)]

    def _output(self) -> list[str]:
        layer = self.plan.layer
        lines: list[str] = []
        if self.plan.skipped is not None:
            skipped = next(part.operand for part in self.plan.parts if part.name == self.plan.skipped)
            lines.append(f"{SPACE}o = o + self.output.D[:, None] * exact({self.names[skipped]})")
        norm = f"{SPACE}o = F.rms_norm(o, o.shape[-1:], exact(self.output.norm), self.norm_eps)"
        if self.plan.gate_map is not None:
            raw = "self.output.lift(gate)" if self.plan.gate_map != o.Linear() else "gate"
            lines.append(f"{SPACE}gate = exact({raw}).unflatten(-1, (self.num_v_heads, self.head_v_dim))")
            gated = f"{SPACE}o = o * {'F.silu' if layer.output_gate == 'swish' else 'torch.sigmoid'}(gate)"
            lines += [gated, norm] if layer.gate_first else [norm, gated]
        else:
            lines.append(norm)
        return [*lines, f"{SPACE}return F.linear(o.flatten(-2).to(mixed.dtype), self.output.projection)"]

    def _cache(self) -> str:
        """The memory before the first token, as a line of code."""
        convolutions = "[each.empty(batch) for each in self.convolutions]" if self.plan.convolutions else "[]"
        position = ["state.new_zeros(batch, dtype=torch.int64)"] if self.plan.rotary else []
        return call("return Cache(", ["state", convolutions, *position], indent=INDENT)

    def origin(self, part: Part) -> str:
        """The operand that it is made of."""
        return self.names[next(each.operand for each in self.plan.parts if each.name == part.origin)]

    def size(self, part: Part, owner: str = "") -> str:
        """Numbers a token of an operand, as code."""
        heads, dim = self.dims(part, owner)
        return heads if dim is None else f"{heads} * {dim}"

    def total(self, parts: Sequence[Part]) -> str:
        """Numbers a token of several operands, as code."""
        counted = Counter(self.size(part) for part in parts)
        return " + ".join(size if count == 1 else f"{count} * {size}" for size, count in counted.items())

    def dims(self, part: Part, owner: str = "") -> tuple[str, str | None]:
        """Heads and channels of an operand, as code; no channels for one number a head."""
        operand = part.operand
        heads = "num_heads" if operand.is_address else "num_v_heads"
        if operand.per == "head" and not operand.is_address and operand.of != "value":
            return f"{owner}{heads}", None
        return f"{owner}{heads}", f"{owner}{'head_v_dim' if operand.of == 'value' else 'head_dim'}"

    def inputs(self, part: Part) -> str:
        """Its rows of the fused projection, as code."""
        heads, dim = self.dims(part)
        return self._inputs(cast("o.Map", part.map), heads, dim)

    def _inputs(self, given: o.Map, heads: str, dim: str | None) -> str:
        if isinstance(given, o.Linear):
            return heads if dim is None else f"{heads} * {dim}"
        return str(given.rank) if given.shared else f"{heads} * {given.rank}"

    def weights(self, part: Part) -> dict[str, str]:
        """The entries of its `Weights` by name, as code."""
        heads, dim = self.dims(part)
        entries: dict[str, str] = {}
        if lifted(part):
            entries["lift"] = lift(cast("o.Map", part.map), heads, dim)
        shape = heads if dim is None else f"{heads}, {dim}"
        match part.source:
            case o.Projection():
                entries["weight"] = f"normal({shape}, {dim}, std={dim}**-0.5)"
            case o.Static():
                entries["weight"] = f"normal({shape}, std={dim}**-0.5)"
            case o.Sigmoid(bias=float() | int() as bias):
                entries["bias"] = f"constant(torch.full(({shape}{',' if dim is None else ''}), {float(bias)!r}))"
            case o.StepSize(low=low, high=high, floor=floor):
                entries["dt_bias"] = f"step_bias({shape}, low={low!r}, high={high!r}, floor={floor!r})"
            case o.StepDecay(low=low, high=high) | o.MambaDecay(low=low, high=high):
                entries["A_log"] = f"rates({heads}, {low!r}, {high!r})"
            case o.BoundedDecay(form="eda"):
                entries["A_log"] = f"rates({heads}, 1.0, 16.0)"
            case o.BoundedDecay():
                entries["A_log"] = f"constant(torch.zeros({heads}))"
            case o.SignedDecay():
                entries["bias"] = f"sign_bias({shape})"
            case _:
                pass
        if isinstance(part.source, o.MambaDecay | o.BoundedDecay):
            entries["dt_bias"] = f"step_bias({shape})"
        return entries

    def shape(self, part: Part) -> str:
        """(heads, channels), as code inside the class."""
        heads, dim = self.dims(part, "self.")
        return f"({heads}, {dim})"

    def raw(self, part: Part) -> str:
        """Its projected rows in float32, [B, T, HV] or [B, T, HV, dim], as code."""
        return "raw" if self.dims(part)[1] is not None else f"exact({self.names[part.operand]})"

    def rate(self, part: Part) -> str:
        """exp(A_log) against its numbers, as code."""
        return "own.A_log.exp()" if self.dims(part)[1] is None else "own.A_log.exp()[:, None]"


def _weights(before: str, entries: Mapping[str, str]) -> Group:
    """`Weights({...})` of entries by name."""
    parts = tuple(f'"{name}": {text}' for name, text in entries.items())
    return Group(f"{before}Weights(", (Group("{", parts, "}"),), ")")


def lifted(part: Part) -> bool:
    """Whether its rows of the fused projection need a further step."""
    return part.map is not None and part.map != o.Linear()


def lift(given: o.Map, heads: str, dim: str | None) -> str:
    """The module that lifts rows, as code."""
    flat = heads if dim is None else f"{heads} * {dim}"
    bias = f"torch.zeros({flat})" if given.bias else "None"
    if isinstance(given, o.Linear):
        return f"Lift(None, {bias})"
    shape = f"{flat}, {given.rank}" if given.shared else f"{heads}, {given.rank}, {'1' if dim is None else dim}"
    return f"Lift(normal({shape}), {bias})"


def _vector(text: LayerText, part: Part) -> list[str]:
    source, name = cast("o.Vector", part.source), text.names[part.operand]
    activated = ACTIVATED[source.activation or "none"].format(name)
    normed = NORMED[source.norm or "none"]
    lines = [f"{name} = {normed.format(f'{activated}.unflatten(-1, {text.shape(part)})')}"]
    if INDENT + len(lines[0]) > WIDTH:
        lines = [f"{name} = {activated}", f"{name} = {normed.format(f'{name}.unflatten(-1, {text.shape(part)})')}"]
    return [*lines, *([f"{name} = rotated({name}, positions)"] if source.rotary else [])]


def _projection(text: LayerText, part: Part) -> list[str]:
    source = cast("o.Projection", part.source)
    made = f'torch.einsum("bthk,hkl->bthl", {text.origin(part)}, own.weight)'
    return [f"{text.names[part.operand]} = {NORMED[source.norm or 'none'].format(made)}"]


def _static(text: LayerText, part: Part) -> list[str]:
    made = NORMED[cast("o.Static", part.source).norm or "none"].format("own.weight")
    return [f"{text.names[part.operand]} = {made}.to(mixed.dtype).expand(*x.shape[:2], -1, -1)"]


def _sigmoid(text: LayerText, part: Part) -> list[str]:
    source = cast("o.Sigmoid", part.source)
    gate = f"torch.sigmoid({text.raw(part)}{'' if source.bias is None else ' + own.bias'})"
    return [f"{text.names[part.operand]} = {gate if source.scale == 1.0 else f'{source.scale!r} * {gate}'}"]


def _step_size(text: LayerText, part: Part) -> list[str]:
    return [f"{text.names[part.operand]} = F.softplus({text.raw(part)} + own.dt_bias)"]


def _step_decay(text: LayerText, part: Part) -> list[str]:
    return [f"{text.names[part.operand]} = -{text.rate(part)} * {text.origin(part)}"]


def _mamba_decay(text: LayerText, part: Part) -> list[str]:
    return [f"{text.names[part.operand]} = -{text.rate(part)} * F.softplus({text.raw(part)} + own.dt_bias)"]


def _bounded_decay(text: LayerText, part: Part) -> list[str]:
    source, name = cast("o.BoundedDecay", part.source), text.names[part.operand]
    if source.form == "eda":
        step = f"step = {text.rate(part)} / {source.bound!r} * F.softplus({text.raw(part)} + own.dt_bias)"
        return [step, f"{name} = {-source.bound!r} * torch.expm1(step)"]
    return [f"{name} = {source.bound!r} * torch.sigmoid({text.rate(part)} * ({text.raw(part)} + own.dt_bias))"]


def _log_sigmoid(text: LayerText, part: Part) -> list[str]:
    divisor = cast("o.LogSigmoid", part.source).divisor
    return [f"{text.names[part.operand]} = F.logsigmoid({text.raw(part)}) / {divisor!r}"]


def _fixed_decay(text: LayerText, part: Part) -> list[str]:
    _, dim = text.dims(part, "self.")
    spread = ".expand(*x.shape[:2], -1)" if dim is None else f"[:, None].expand(*x.shape[:2], -1, {dim})"
    return [
        "head = torch.arange(self.num_v_heads, dtype=torch.float64, device=x.device)",
        f"{text.names[part.operand]} = torch.log1p(-(2.0 ** (-5 - head))).float(){spread}",
    ]


def _signed_decay(text: LayerText, part: Part) -> list[str]:
    name, sign = text.names[part.operand], part.operand.sign
    return [
        f"alpha = torch.tanh({text.raw(part)} + own.bias)",
        *([] if sign is None else [f"{text.names[sign]} = torch.where(alpha < 0, -1.0, 1.0).to(alpha.dtype)"]),
        f"{name} = alpha.abs().clamp_min(math.exp(-20.0)).log()",
    ]


EVALUATED: Mapping[type, Callable[[LayerText, Part], list[str]]] = {
    o.Vector: _vector,
    o.Projection: _projection,
    o.Static: _static,
    o.Sigmoid: _sigmoid,
    o.StepSize: _step_size,
    o.StepDecay: _step_decay,
    o.MambaDecay: _mamba_decay,
    o.BoundedDecay: _bounded_decay,
    o.LogSigmoid: _log_sigmoid,
    o.FixedDecay: _fixed_decay,
    o.SignedDecay: _signed_decay,
}


def described(part: Part) -> str:
    """Where an operand comes from, in words."""
    through = "W x" if not isinstance(part.map, o.LowRank) else f"W_up W_down x (rank {part.map.rank})"
    match part.source:
        case o.Vector(activation=activation, norm=norm, rotary=rotary):
            steps = [through, *([f"causal convolution of {part.conv} tokens"] if part.conv else [])]
            steps += [activation] if activation not in (None, "none") else []
            steps += [{"l2": "unit length", "rms": "RMS norm"}[norm]] if norm not in (None, "none") else []
            return ", ".join([*steps, *(["rotary positions"] if rotary else [])])
        case o.Projection(of=of):
            return f"P {of}, a K x K matrix a head"
        case o.Static():
            return "learned, the same for every token"
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
        case o.FixedDecay():
            return "log(1 - 2^(-5-h)) of head h, nothing learned"
        case o.SignedDecay():
            return f"log and sign of tanh({through} + bias)"
        case _:
            return through
