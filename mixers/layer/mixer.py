"""The mixer: a rule with sources for its operands, an output norm and gate, and a cache."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from archsearch.dsl import Rule
from archsearch.errors import OperandError
from archsearch.kernels.dispatch import Backend, Memory, compile
from archsearch.kernels.entering import entered
from archsearch.mixers.layer.cache import MixerCache, advance, positions_of
from archsearch.mixers.layer.convolution import ShortConvolution
from archsearch.mixers.layer.entries import entry_of
from archsearch.mixers.layer.history import History
from archsearch.mixers.layer.initialisation import Stream, gate_constant
from archsearch.mixers.layer.options import Layer, Linear, Preconditioner
from archsearch.mixers.layer.output import Output
from archsearch.mixers.layer.packing import Packing, packing_of
from archsearch.mixers.layer.plan import TOKEN_SHIFT, LayerPlan, Part
from archsearch.mixers.layer.planning import layer_of, plan_layer
from archsearch.mixers.layer.shapes import parted
from archsearch.mixers.layer.sources import Source, source_key, source_of


@dataclass(frozen=True, slots=True)
class Block:
    """Neighbouring rows of the fused projection that share a convolution, or one source without any.

    sources: their keys. lifts: whether any of them lifts its rows. inputs: rows of each source before that; sizes: of
    each operand after it. convolution: its number, if any.
    """

    sources: tuple[str, ...]
    lifts: bool
    inputs: tuple[int, ...]
    sizes: dict[str, int]
    convolution: int | None


class Mixer(nn.Module):
    """A layer from any rule: [B, T, width] -> [B, T, width].

    layer: None is the paper's layer for a rule of the zoo, else `Layer()`. backend, chunk_size, memory: as in
    `archsearch.compile`. stream: where initial values come from; None is torch's generator.

    Errors: HoleError for open holes, ConfigError for sizes or sources that do not fit, BackendError.
    """

    def __init__(
        self,
        rule: Rule,
        width: int,
        heads: int,
        layer: Layer | None = None,
        backend: Backend = "auto",
        chunk_size: int | None = None,
        memory: Memory = "fast",
        *,
        stream: Stream | None = None,
    ) -> None:
        super().__init__()
        self.plan = plan_layer(rule, width, heads, layer_of(rule, layer))
        self.entry = entry_of(self.plan)
        self.compiled = compile(rule, backend=backend, chunk_size=chunk_size, entry=self.entry, memory=memory)
        stream = stream or Stream.fresh()
        alike = self.plan.alike()
        self.projection = nn.Parameter(_projection(self.plan, stream))
        self.shift = _shift(self.plan) if self.plan.layer.token_shift else None
        self.sources = nn.ModuleDict(
            {source_key(parts): source_of(self.plan, parts, stream / source_key(parts)) for parts in alike}
        )
        self.convolutions = nn.ModuleList(_convolutions(self.plan, stream))
        self.output = Output(self.plan, stream)
        self._blocks = _blocks(self.plan, alike)
        self._order = _order(self.plan, alike)
        self.alignment = 1
        """Rows of the fused projection begin at multiples of this: products of a GPU are faster at multiples of 8."""

    def forward(self, x: Tensor, cache: MixerCache | None = None, cu_seqlens: Tensor | None = None) -> Tensor:
        """[B, T, width] -> [B, T, width], T >= 0.

        cache: goes on after the pieces it has seen and is moved on in place; it carries no gradient. cu_seqlens
        [N + 1]: sequences packed along T, B = 1; the cache is then one of N sequences.

        Errors: OperandError for shapes that do not fit.
        """
        raw, gate = self._taken(x, cache, cu_seqlens)
        return self.output(self._recalled(raw, cache, cu_seqlens), gate, raw)

    def operands(self, x: Tensor, cu_seqlens: Tensor | None = None) -> dict[str, Tensor]:
        """What the rule acts on for x [B, T, width] from the first token on, by name, in the rule's shapes."""
        return entered(self.entry, self._taken(x, None, cu_seqlens)[0], self._constants())

    def init_cache(self, batch: int) -> MixerCache:
        """The memory before the first token, for `batch` sequences. Errors: OperandError for no number of sequences."""
        if type(batch) is not int or batch < 0:
            raise OperandError(f"init_cache takes a number of sequences; got {batch!r}")
        sizes, weight = self.plan.sizes, self.projection
        state_type = torch.float64 if weight.dtype == torch.float64 else torch.float32
        shape = (batch, sizes.value_heads, sizes.key, self.compiled.normal_form.columns(sizes.value))
        return MixerCache(
            torch.zeros(shape, dtype=state_type, device=weight.device),
            tuple(weight.new_zeros(batch, width - 1, channels) for width, channels in self.plan.convolutions),
            torch.zeros(batch, dtype=torch.int64, device=weight.device) if self.plan.rotary else None,
            {
                name: weight.new_zeros(batch, *numbers, dtype=state_type if name in self._sums else None)
                for name, numbers in self.plan.memories.items()
            },
        )

    def extra_repr(self) -> str:
        """Rule and sizes, for printing a model."""
        sizes = self.plan.sizes
        heads = f"heads={sizes.heads}, value_heads={sizes.value_heads}, K={sizes.key}, V={sizes.value}"
        return f"{self.plan.rule.name}, width={sizes.width}, {heads}"

    def _taken(
        self, x: Tensor, cache: MixerCache | None, cu_seqlens: Tensor | None
    ) -> tuple[dict[str, Tensor], Tensor]:
        """The operands as the entry takes them, and the output gate's rows [B, T, gate_inputs]."""
        self._check(x)
        packing = packing_of(x, cu_seqlens)
        if cache is not None:
            self._check_cache(cache, len(x) if packing is None else packing.sequences)
        history = History(packing, {} if cache is None else cache.memories)
        *blocks, gate = self._split(self._projected(x, history))
        rows: dict[str, Tensor] = {}
        for block, given in zip(self._blocks, blocks, strict=True):
            rows |= self._prepared(block, given, cache, packing)
        positions = self._positions(x, cache, packing)
        operands: dict[str, Tensor] = {}
        for name in self._order:  # each after the one that it is made of
            operands |= self._source(name)(rows, positions, operands, history)
        return operands, gate

    def _projected(self, x: Tensor, history: History) -> Tensor:
        """All rows [B, T, inputs] of the tokens; with a shift W x_t + (W * m) (x_(t-1) - x_t), m one row an operand."""
        if self.shift is None:
            return F.linear(x, self._aligned(self.projection))
        rows = F.linear(x, self.projection)
        counts = list(self.plan.projected.values())
        mix = torch.cat([each.expand(n, -1) for each, n in zip(self.shift[:, None], counts, strict=True)])
        return rows + F.linear(history.delayed(TOKEN_SHIFT, x) - x, self.projection * mix.to(self.projection.dtype))

    @property
    def _sums(self) -> set[str]:
        """Memories that are sums over many tokens."""
        return {part.name for part in self.plan.parts if isinstance(part.source, Preconditioner)}

    @property
    def _splits(self) -> list[int]:
        return [*(sum(block.inputs) for block in self._blocks), self.plan.gate_inputs]

    def _aligned(self, weight: Tensor) -> Tensor:
        """The projection, each block filled up with zeros to a multiple of `alignment` rows."""
        if self.alignment == 1:
            return weight
        blocks = parted(weight, self._splits, 0)
        return torch.cat([F.pad(block, (0, 0, 0, -len(block) % self.alignment)) for block in blocks])

    def _split(self, rows: Tensor) -> list[Tensor]:
        """The rows [B, T, n] of each block and of the gate."""
        sizes = self._splits
        if self.shift is not None or self.alignment == 1:
            return list(parted(rows, sizes))
        filled = parted(rows, [size + -size % self.alignment for size in sizes])
        return [part if part.shape[-1] == size else part[..., :size] for part, size in zip(filled, sizes, strict=True)]

    def _prepared(
        self, block: Block, rows: Tensor, cache: MixerCache | None, packing: Packing | None
    ) -> dict[str, Tensor]:
        """The block's rows, lifted and convolved, by operand."""
        if block.lifts:
            pieces = zip(block.sources, parted(rows, block.inputs), strict=True)
            lifted = [self._source(name).lifted(piece) for name, piece in pieces]
            rows = lifted[0] if len(lifted) == 1 else torch.cat(lifted, dim=-1)
        if block.convolution is not None:
            convolution = cast(ShortConvolution, self.convolutions[block.convolution])
            past = None if cache is None else cache.convolutions[block.convolution]
            return dict(
                zip(block.sizes, convolution.apart(rows, list(block.sizes.values()), past, packing), strict=True)
            )
        return dict(zip(block.sizes, parted(rows, list(block.sizes.values())), strict=True))

    def _constants(self) -> dict[str, Tensor]:
        """What the entry takes beside the raw operands, by name."""
        made = {name: x for source in self._order for name, x in self._source(source).constants().items()}
        return {name: made[name] for name in self.entry.constants}

    def _recalled(self, raw: dict[str, Tensor], cache: MixerCache | None, cu_seqlens: Tensor | None) -> Tensor:
        """The entry and the rule itself: [B, T, HV, V]. One token with a cache is one step."""
        one, constants = next(iter(raw.values())), self._constants()
        with torch.autocast(one.device.type, enabled=False):
            if cache is None:
                return self.compiled(scale=None, cu_seqlens=cu_seqlens, **raw, **constants).output
            state = cache.state.clone() if torch.is_grad_enabled() else cache.state
            if one.shape[1] == 1 and cu_seqlens is None:
                token = {name: x[:, 0] for name, x in raw.items()}
                result = self.compiled.step(state=state, scale=None, **token, **constants)
                result = result._replace(output=result.output[:, None])
            else:
                result = self.compiled(initial_state=state, scale=None, cu_seqlens=cu_seqlens, **raw, **constants)
        cache.state.copy_(result.state.detach())
        return result.output

    def _positions(self, x: Tensor, cache: MixerCache | None, packing: Packing | None) -> Tensor | None:
        if not self.plan.rotary:
            return None
        past = None if cache is None else cache.position
        positions = positions_of(x, packing, past)
        if past is not None:
            advance(past, x, packing)
        return positions

    def _source(self, name: str) -> Source:
        return cast(Source, self.sources[name])

    def _check(self, x: Tensor) -> None:
        width, weight = self.plan.sizes.width, self.projection
        if not isinstance(x, Tensor):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise OperandError(f"the mixer takes a tensor [B, T, {width}]; got {type(x).__name__}")
        if x.dim() != 3 or x.shape[2] != width:
            raise OperandError(f"the mixer takes [B, T, {width}]; got {list(x.shape)}")
        cast_by_torch = x.is_floating_point() and torch.is_autocast_enabled(x.device.type)
        if x.device != weight.device or (x.dtype != weight.dtype and not cast_by_torch):
            raise OperandError(
                f"the mixer takes {weight.dtype} on {weight.device}, as its weights are; got {x.dtype} on {x.device}. "
                "Convert one of them with .to"
            )

    def _check_cache(self, cache: MixerCache, sequences: int) -> None:
        if not isinstance(cache, MixerCache):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise OperandError(f"cache must come from init_cache({sequences}); got {type(cache).__name__}")
        held = cache.state.shape[0]
        if held != sequences:
            raise OperandError(f"the cache must hold {sequences} sequences; got {held}. Use init_cache({sequences})")
        sizes = self.plan.sizes
        kept = [*cache.convolutions, *cache.memories.values()]
        states = [list(cache.state.shape[1:]), *(list(each.shape[1:]) for each in kept)]
        before = [*([w - 1, c] for w, c in self.plan.convolutions), *map(list, self.plan.memories.values())]
        columns = self.compiled.normal_form.columns(sizes.value)
        own = [[sizes.value_heads, sizes.key, columns], *before]
        if states != own:
            raise OperandError(
                f"the cache holds {states} a sequence; this mixer needs {own}. Use its own init_cache({sequences})"
            )


def _projection(plan: LayerPlan, stream: Stream) -> Tensor:
    """[inputs, width], the rows of each operand drawn by its name."""
    blocks = [(part.name, part.inputs) for part in plan.parts] + [("gate", plan.gate_inputs)]
    return torch.cat([(stream / name / "projection").normal(rows, plan.sizes.width) for name, rows in blocks])


def _shift(plan: LayerPlan) -> nn.Parameter:
    """[operands, width], from 1 in the first channel down to 0."""
    ramp = 1 - torch.arange(plan.sizes.width) / plan.sizes.width
    return gate_constant(ramp.repeat(len(plan.projected), 1))


def _convolutions(plan: LayerPlan, stream: Stream) -> list[ShortConvolution]:
    def channels(width: int) -> list[tuple[Stream, int]]:
        return [(stream / part.name, part.size) for part in plan.parts if part.conv == width]

    return [ShortConvolution(channels(width), width, bias=plan.layer.conv_bias) for width, _ in plan.convolutions]


def _blocks(plan: LayerPlan, alike: tuple[tuple[Part, ...], ...]) -> list[Block]:
    widths = [width for width, _ in plan.convolutions]
    keyed = ((parts[0].conv or -1 - index, parts) for index, parts in enumerate(alike))
    blocks: list[Block] = []
    for width, group in groupby(keyed, key=lambda pair: pair[0]):
        members = [parts for _, parts in group]
        inputs = tuple(sum(part.inputs for part in parts) for parts in members)
        lifts = any(part.map not in (None, Linear()) for parts in members for part in parts)
        sizes = {part.name: 0 if part.map is None else part.size for parts in members for part in parts}
        blocks.append(
            Block(tuple(map(source_key, members)), lifts, inputs, sizes, widths.index(width) if width > 0 else None)
        )
    return blocks


def _order(plan: LayerPlan, alike: tuple[tuple[Part, ...], ...]) -> list[str]:
    place = {part.name: place for place, part in enumerate(plan.evaluation())}
    return [source_key(parts) for parts in sorted(alike, key=lambda parts: max(place[part.name] for part in parts))]
