"""A language model under `torch.func.vmap`: what torch cannot batch over replicas is batched here.

A rule acts on every head alone, so replicas of it are more heads of one call; a short convolution acts on every channel
alone, so replicas of it are more channels. On CUDA convolutions, norms and the gates behind them are kernels that read
each number once. All else is torch's own to batch.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from archsearch.kernels.call import Result
from archsearch.kernels.dispatch import CompiledRule
from archsearch.kernels.entering import exact
from archsearch.kernels.rowwise import choice
from archsearch.mixers.layer.attention import ConvolutionMixer
from archsearch.mixers.layer.convolution import ShortConvolution
from archsearch.mixers.layer.mixer import Mixer
from archsearch.mixers.layer.output import Finish, Output
from archsearch.mixers.layer.shapes import parted
from archsearch.mixers.models.blocks import Block
from archsearch.mixers.models.language_model import LanguageModel

BATCHED_LAYERS = frozenset({"rule", "conv"})
"""Entries of a model's pattern that are batched over replicas."""
ALIGNMENT = 8
"""Rows of fused projections, and so channels of what they give, begin at multiples of this."""
FUSED_GATES = ("swish", "sigmoid", "none")


def why_not_folded(model: nn.Module) -> str | None:
    """Why replicas of `model` cannot be one batched model; None if they can."""
    if not isinstance(model, LanguageModel):
        return f"a {type(model).__name__} is no language model"
    if model.model.dropout:
        return "replicas with dropout would share their draws"
    others = {type(block.mixer).__name__ for block in _blocks(model)} - {Mixer.__name__, ConvolutionMixer.__name__}
    return f"layers of {', '.join(sorted(others))} are not batched over replicas" if others else None


def fold(model: LanguageModel) -> LanguageModel:
    """`model` itself, changed so that `torch.func.vmap` may map it over parameters and tokens inside `Folding`.

    For training alone: it takes no caches and no packed sequences any more.
    """
    for block in _blocks(model):
        if isinstance(block.mixer, Mixer):
            block.mixer.compiled = cast(CompiledRule, FoldedRule(block.mixer.compiled))
            block.mixer.output.finish = _finish_of(block.mixer.output)
            block.mixer.alignment = ALIGNMENT
    for module in model.modules():
        if isinstance(module, ShortConvolution):
            module.whole = _whole_of(module)
    return model


def kernels_of(model: LanguageModel) -> str:
    """Backend, chunk size and memory of the rules of a folded model, in words; empty without any."""
    mixers = [block.mixer for block in _blocks(model) if isinstance(block.mixer, Mixer)]
    rules = [cast(FoldedRule, cast(Any, mixer.compiled)).compiled for mixer in mixers]
    return " ".join(f"{rule.backend} {rule.chunk_size} {rule.memory}" for rule in rules)


class _Mapped(torch.autograd.Function):
    """What is called under `torch.func.vmap` alone: a subclass says its form over replicas, and no other is made."""

    @staticmethod
    def forward(*given: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """A single replica has no need of this."""
        raise NotImplementedError("what is folded runs under torch.func.vmap alone")

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Gradients are those of what the mapped form calls."""


class FoldedRule:
    """A compiled rule whose calls may be mapped over replicas."""

    def __init__(self, compiled: CompiledRule) -> None:
        """`compiled` is what runs, with as many times its heads as there are replicas."""
        self.compiled = compiled

    def __call__(self, *, scale: float | None, cu_seqlens: Tensor | None, **tensors: Tensor) -> Result:
        """The output of a call without packing; the state is not handed on."""
        assert scale is None and cu_seqlens is None
        output = cast(Any, _Recalled).apply(self.compiled, tuple(tensors), *tensors.values())
        return Result(output, output.new_empty(0))


class _Recalled(_Mapped):
    """(rule, names, tensors...) -> output [B, T, HV, V]"""

    @staticmethod
    def vmap(  # pyright: ignore[reportIncompatibleMethodOverride]
        info: Any, in_dims: tuple[Any, ...], compiled: CompiledRule, names: tuple[str, ...], *tensors: Tensor
    ) -> tuple[Tensor, int]:
        """Replicas as heads; a group of value heads stays with its key head."""
        replicas = cast(int, info.batch_size)
        constants = () if compiled.entry is None else compiled.entry.constants
        folded: dict[str, Tensor] = {}
        for name, tensor, dim in zip(names, tensors, in_dims[2:], strict=True):
            first = tensor.expand(replicas, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
            folded[name] = first.flatten(0, 1) if name in constants else first.movedim(0, 2).flatten(2, 3)
        output = compiled(scale=None, cu_seqlens=None, **folded).output
        batch, length, heads, channels = output.shape
        return output.view(batch, length, replicas, heads // replicas, channels), 2


class Folding(TorchFunctionMode):
    """Inside, under `torch.func.vmap`, convolutions and norms take the forms below."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Every call of torch passes here."""
        if func is F.conv1d:
            return _convolved(*args, **(kwargs or {}))
        if func is F.rms_norm:
            return _normalised(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _convolved(rows: Tensor, weight: Tensor, bias: Tensor | None = None, *, groups: int) -> Tensor:
    """A convolution of as many groups as channels, [B, C, T] -> [B, C, T - W + 1]."""
    assert groups == len(weight)
    return cast(Any, _Convolved).apply(rows, weight, bias)


def _normalised(x: Tensor, shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None) -> Tensor:
    """The norm over the last dimension, and the weights, which differ between replicas.

    On CUDA a norm with weights comes out in the type of products, which is what reads it.
    """
    assert len(shape) == 1
    if weight is not None and choice.applies(x):
        half = torch.is_autocast_enabled(x.device.type)
        out = torch.get_autocast_dtype(x.device.type) if half else x.dtype
        return _gated(x, None, weight, torch.finfo(x.dtype).eps if eps is None else eps, "none", out)
    normal = cast(Tensor, cast(Any, _Normal).apply(x, eps))
    return normal if weight is None else normal * weight


def _finish_of(output: Output) -> Finish | None:
    """Norm and gate of a layer's output as one kernel; None where it is no such norm, and torch's own are taken."""
    if output.norm_bias is not None or output.gate_first or output.gate not in FUSED_GATES:
        return None
    kind = "none" if output.lift is None else output.gate

    def finish(o: Tensor, gate: Tensor | None) -> Tensor:
        if not choice.applies(o):
            return output.finished(o, gate)
        return _gated(o, gate, exact(output.norm), output.eps, kind, o.dtype)

    return finish


def _gated(o: Tensor, gate: Tensor | None, weight: Tensor, eps: float, kind: str, out: torch.dtype) -> Tensor:
    return cast(Tensor, cast(Any, _GatedNorm).apply(o, gate, weight, eps, kind, out))


class _GatedNorm(_Mapped):
    """(o [..., N], gate or None, weight [N], eps, gate's kind, dtype) -> [..., N]"""

    @staticmethod
    def vmap(  # pyright: ignore[reportIncompatibleMethodOverride]
        info: Any,
        in_dims: tuple[int | None, ...],
        o: Tensor,
        gate: Tensor | None,
        weight: Tensor,
        eps: float,
        kind: Any,
        out: torch.dtype,
    ) -> tuple[Tensor, int]:
        """Rows of replicas are rows like any others, under weights of their own."""
        from archsearch.kernels.rowwise import calls

        tensors = zip((o, gate, weight), in_dims, strict=False)
        rows, gates, weights = (None if x is None else x.movedim(cast(int, dim), 0) for x, dim in tensors)
        assert rows is not None and weights is not None
        return calls.gated_norm(rows, gates, weights, eps, kind, out), 0


def _whole_of(convolution: ShortConvolution) -> Callable[[Tensor, tuple[int, ...]], tuple[Tensor, ...]]:
    """The convolution of whole sequences [B, T, C] as one kernel, which takes tokens as they lie."""

    def whole(x: Tensor, sizes: tuple[int, ...]) -> tuple[Tensor, ...]:
        if not choice.applies(x):
            return parted(convolution(x), sizes)
        return cast(Any, _Whole).apply(x, convolution.weight, convolution.bias, sizes)

    return whole


class _Whole(_Mapped):
    """(x [B, T, C], weight [C, W], bias [C] or None, sizes) -> [B, T, n] of each size"""

    @staticmethod
    def vmap(  # pyright: ignore[reportIncompatibleMethodOverride]
        info: Any,
        in_dims: tuple[Any, ...],
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        sizes: tuple[int, ...],
    ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        """Each replica under its own filters."""
        from archsearch.kernels.rowwise import calls

        rows, filters = x.movedim(cast(int, in_dims[0]), 0), weight.movedim(cast(int, in_dims[1]), 0)
        shift = None if bias is None else bias.movedim(cast(int, in_dims[2]), 0)
        return calls.convolution(rows, filters, shift, sizes), (2,) * len(sizes)


class _Normal(_Mapped):
    """(x [..., N], eps) -> x over its root mean square"""

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int, None], x: Tensor, eps: float | None) -> tuple[Tensor, int]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Rows of replicas are rows like any others."""
        rows = x.movedim(in_dims[0], 0)
        return F.rms_norm(rows, rows.shape[-1:], None, eps), 0


class _Convolved(_Mapped):
    """(x [B, C, T], weight [C, 1, W], bias [C] or None) -> [B, C, T - W + 1]"""

    @staticmethod
    def vmap(  # pyright: ignore[reportIncompatibleMethodOverride]
        info: Any, in_dims: tuple[int | None, ...], x: Tensor, weight: Tensor, bias: Tensor | None
    ) -> tuple[Tensor, int]:
        """Replicas as channels of one convolution."""
        rows = x.movedim(cast(int, in_dims[0]), 1)  # [B, R, C, T]
        filters = weight.movedim(cast(int, in_dims[1]), 0).flatten(0, 1)
        shift = None if bias is None else bias.movedim(cast(int, in_dims[2]), 0).flatten(0, 1)
        found = F.conv1d(rows.flatten(1, 2), filters, shift, groups=len(filters))
        return found.view(*rows.shape[:3], found.shape[-1]), 1


def _blocks(model: LanguageModel) -> list[Block]:
    return [cast(Block, block) for block in model.blocks]
