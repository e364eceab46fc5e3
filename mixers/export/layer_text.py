"""The layer as code: one class written from the layer's plan, with the pieces that it needs and no others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from archsearch.lowering import lower
from archsearch.mixers.export.lines import Group, Names, call, laid_out, unpacked
from archsearch.mixers.export.operand_text import INDENT, VALUES, OperandText, described, inputs, lift
from archsearch.mixers.export.templates import template
from archsearch.mixers.layer import options as o
from archsearch.mixers.layer.plan import TOKEN_SHIFT, LayerPlan, Part

SPACE = " " * INDENT
CURVES = {"swish": "F.silu(gate)", "sigmoid": "torch.sigmoid(gate)", "linear": "gate"}


class LayerText:
    """The text of `Mixer` and of what stands before it."""

    def __init__(self, plan: LayerPlan, names: Names) -> None:
        self.plan = plan
        self.names = names
        variables = {part.name: names[part.operand] for part in plan.parts}
        self.operands = {part.name: _operand_text(part, plan, names, variables) for part in plan.parts}

    def pieces(self, also: Collection[str] = ()) -> list[str]:
        """Helpers, cache and class, in the order in which they stand; `also` names templates that others need."""
        body = self._class()
        helpers = [template(name) for name, needed in self._needed(body).items() if needed or name in also]
        return [*helpers, body, template("drop_in")]

    def _needed(self, body: str) -> Mapping[str, bool]:
        return {
            "exact": True,
            "unit": " unit(" in body,
            "rms": " rms(" in body,
            "rotated": self.plan.rotary,
            "positions": self.plan.rotary,
            "parameters": True,
            "rates": " rates(" in body,
            "step_bias": " step_bias(" in body,
            "sign_bias": " sign_bias(" in body,
            "ramp_bias": " ramp_bias(" in body,
            "lift": " Lift(" in body,
            "convolution": bool(self.plan.convolutions),
            "delayed": " delayed(" in body,
            "decayed_sum": " decayed_sum(" in body,
            "cache": True,
        }

    def _class(self) -> str:
        return "\n".join(
            [
                "class Mixer(nn.Module):",
                '    """The layer: [B, T, hidden_size] -> [B, T, hidden_size].',
                "",
                *(f"    {each.variable}: {described(each.part)}" for each in self.operands.values()),
                '    """',
                "",
                *self._constructor(),
                "",
                *self._forward(),
                "",
                template("mixer_methods", cache=self._cache(), columns=self._columns()),
            ]
        )

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
            *self._rows(),
            f"{SPACE}self.projection = normal(sum(self.rows), hidden_size)",
            *self._shift(),
            *self._sources(),
            *self._convolutions(),
            *self._output_weights(),
        ]

    def _rows(self) -> list[str]:
        rows = [_total(block) if len(block) > 1 else block[0].inputs for block in self._blocks()]
        rows += [] if self.plan.gate_map is None else [inputs(self.plan.gate_map, VALUES)]
        return [call("self.rows = [", rows, "]", INDENT)]

    def _shift(self) -> list[str]:
        """How much of the token before each operand and the gate see, and how many rows each has."""
        if not self.plan.layer.token_shift:
            return []
        rows = [each.inputs for each in self.operands.values() if each.part.inputs]
        rows += [] if self.plan.gate_map is None else [inputs(self.plan.gate_map, VALUES)]
        ramp = "1 - torch.arange(hidden_size) / hidden_size"
        return [
            call("self.shifted = [", rows, "]", INDENT),
            f"{SPACE}self.shift = constant(({ramp}).repeat(len(self.shifted), 1))",
        ]

    def _projected(self) -> list[str]:
        """The fused product, of the token or of its mix with the token before."""
        if not self.plan.layer.token_shift:
            return ["mixed = F.linear(x, self.projection)"]
        return [
            f"step = delayed(x, {_memory(self.plan, TOKEN_SHIFT)}, cu_seqlens) - x",
            "each = zip(self.shift[:, None].to(self.projection.dtype), self.shifted, strict=True)",
            "shift = torch.cat([share.expand(rows, -1) for share, rows in each])",
            "mixed = F.linear(x, self.projection) + F.linear(step, self.projection * shift)",
        ]

    def _sources(self) -> list[str]:
        """The weights of each operand that has some beside its rows of the projection."""
        weights = {name: each.weights for name, each in self.operands.items() if each.weights}
        entries = tuple(_weights(f'"{name}": ', entries) for name, entries in weights.items())
        made = Group("self.sources = nn.ModuleDict(", (Group("{", entries, "}"),), ")")
        return laid_out(made, INDENT) if entries else []

    def _convolutions(self) -> list[str]:
        bias = ("bias=True",) if self.plan.layer.conv_bias else ()
        made = tuple(
            Group("ShortConvolution(", (_total(self._convolved_by(width)), str(width), *bias), ")")
            for width, _ in self.plan.convolutions
        )
        group = Group("self.convolutions = nn.ModuleList(", (Group("[", made, "]"),), ")")
        return laid_out(group, INDENT) if made else []

    def _output_weights(self) -> list[str]:
        gate = self.plan.gate_map
        entries = {"norm": "torch.ones(head_v_dim)"}
        if self.plan.layer.output_norm == "group":
            shape = "num_v_heads, head_v_dim"
            entries = {"norm": f"torch.ones({shape})", "norm_bias": f"torch.zeros({shape})"}
        if gate is not None and gate != o.Linear():
            entries["lift"] = lift(gate, VALUES)
        if self.plan.skipped is not None:
            entries["D"] = "constant(torch.ones(num_v_heads))"
        entries["projection"] = "normal(hidden_size, num_v_heads * head_v_dim)"
        return laid_out(_weights("self.output = ", entries), INDENT)

    def _blocks(self) -> list[list[OperandText]]:
        """Neighbours of the fused projection that are split as one: those of one convolution, where none is lifted."""
        blocks: list[list[OperandText]] = []
        for each in self.operands.values():
            if not each.part.inputs:
                continue
            joins = each.part.conv and blocks and blocks[-1][0].part.conv == each.part.conv
            if joins and not any(other.is_lifted for other in (each, *blocks[-1])):
                blocks[-1].append(each)
            else:
                blocks.append([each])
        return blocks

    def _convolved_by(self, width: int) -> list[OperandText]:
        return [each for each in self.operands.values() if each.part.conv == width]

    def _forward(self) -> list[str]:
        gate = [] if self.plan.gate_map is None else ["gate"]
        lines = [template("mixer_forward_head"), *(SPACE + line for line in self._projected())]
        if self.plan.rotary:
            lines.append(f"{SPACE}positions = positions_of(x, None if cache is None else cache.position, cu_seqlens)")
        variables = [*map(_variable, self._blocks()), *gate]
        lines.append(unpacked(variables, "mixed.split(self.rows, dim=-1)", INDENT))
        for name, each in self.operands.items():
            if each.is_lifted:
                lines.append(f'{SPACE}{each.variable} = self.sources["{name}"].lift({each.variable})')
        for index, (width, _) in enumerate(self.plan.convolutions):
            lines += self._convolved(index, self._convolved_by(width))
        for part in self.plan.evaluation():
            lines += [SPACE + line for line in self.operands[part.name].lines()]
        return [
            *lines,
            call("operands = Operands(", [f"{name}={name}" for name in self.names.all], indent=INDENT),
            f"{SPACE}o = exact(self.recalled(operands, cache, cu_seqlens))",
            *(SPACE + line for line in self._output()),
        ]

    def _convolved(self, index: int, operands: Sequence[OperandText]) -> list[str]:
        names = [each.variable for each in operands]
        joined = [block for block in self._blocks() if block[0].part.conv == operands[0].part.conv]
        source = _variable(joined[0]) if len(joined) == 1 else f"torch.cat([{', '.join(names)}], dim=-1)"
        memory = f"None if cache is None else cache.convolutions[{index}]"
        made = f"self.convolutions[{index}]({source}, {memory}, cu_seqlens)"
        if len(names) == 1:
            return [f"{SPACE}{names[0]} = {made}"]
        return [
            f"{SPACE}mixed = {made}",
            call("sizes = [", [each.size.inside.numbers for each in operands], "]", INDENT),
            unpacked(names, "mixed.split(sizes, dim=-1)", INDENT),
        ]

    def _output(self) -> list[str]:
        gate, layer = self.plan.gate_map, self.plan.layer
        skipped = self.plan.skipped
        skip = [] if skipped is None else [f"o = o + self.output.D[:, None] * exact({self.operands[skipped].variable})"]
        norm = "o = F.rms_norm(o, o.shape[-1:], exact(self.output.norm), self.norm_eps)"
        if layer.output_norm == "group":
            norm = "o = F.layer_norm(o, o.shape[-1:], eps=self.norm_eps) * exact(self.output.norm)"
            norm += f"\n{SPACE}o = o + exact(self.output.norm_bias)"
        last = "return F.linear(o.flatten(-2).to(mixed.dtype), self.output.projection)"
        if gate is None:
            return [*skip, norm, last]
        raw = "gate" if gate == o.Linear() else "self.output.lift(gate)"
        gated = f"o = o * {CURVES[layer.output_gate]}"
        ordered = [gated, norm] if layer.gate_first else [norm, gated]
        return [*skip, f"gate = exact({raw}).unflatten(-1, ({VALUES.inside.shape}))", *ordered, last]

    def _columns(self) -> str:
        """Columns of the state as code."""
        more = lower(self.plan.rule).columns(0)
        return f"self.head_v_dim + {more}" if more else "self.head_v_dim"

    def _cache(self) -> str:
        """The memory before the first token, as a line of code."""
        convolutions = "[each.empty(batch) for each in self.convolutions]" if self.plan.convolutions else "[]"
        position = ["state.new_zeros(batch, dtype=torch.int64)"] if self.plan.rotary else []
        kept = ["weight.new_zeros(batch, weight.shape[1])"] if self.plan.layer.token_shift else []
        for each in self.operands.values():
            if each.part.remembers:
                tensor = "state" if isinstance(each.part.source, o.Preconditioner) else "weight"
                kept.append(f"{tensor}.new_zeros(batch, {each.size.inside.shape})")
        if not kept:
            return call("return Cache(", ["state", convolutions, *position], indent=INDENT)
        memories = call("memories = [", kept, "]", INDENT)
        made = call("return Cache(", ["state", convolutions, *position, "memories=memories"], indent=INDENT)
        return f"{memories}\n{made}"


def _operand_text(part: Part, plan: LayerPlan, names: Names, variables: Mapping[str, str]) -> OperandText:
    sign = part.operand.sign
    origins = tuple(variables[origin] for origin in part.origins)
    memory = _memory(plan, part.name) if part.remembers else ""
    return OperandText(part, variables[part.name], origins, "" if sign is None else names[sign], memory)


def _memory(plan: LayerPlan, name: str) -> str:
    """What the cache keeps under a name, as code."""
    return f"None if cache is None else cache.memories[{list(plan.memories).index(name)}]"


def _variable(block: Sequence[OperandText]) -> str:
    return block[0].variable if len(block) == 1 else f"mixed_{block[0].part.conv}"


def _total(operands: Sequence[OperandText]) -> str:
    """Numbers a token of several operands."""
    counted = Counter(each.size.numbers for each in operands)
    return " + ".join(size if count == 1 else f"{count} * {size}" for size, count in counted.items())


def _weights(before: str, entries: Mapping[str, str]) -> Group:
    """`Weights({...})` of entries by name."""
    parts = tuple(f'"{name}": {text}' for name, text in entries.items())
    return Group(f"{before}Weights(", (Group("{", parts, "}"),), ")")
