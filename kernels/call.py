"""One call of a rule: its tensors, checked against the rule and against each other."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Mapping
from itertools import pairwise
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from archsearch.dsl import Kind, Operand
from archsearch.errors import OperandError
from archsearch.lowering import NormalForm


class Result(NamedTuple):
    """`output` [B, T, HV, V] in the dtype of the values, `state` [B, HV, K, V] after the last token (one a sequence
    when packed).
    """

    output: Tensor
    state: Tensor


class Call(NamedTuple):
    """Checked inputs. `sequences` is B, or the number of packed sequences; `dtype` is that of the state and of all
    accumulation.
    """

    tensors: Mapping[str, Tensor]
    initial_state: Tensor | None
    scale: float
    cu_seqlens: Tensor | None
    batch: int
    tokens: int
    heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    device: torch.device
    dtype: torch.dtype
    output_dtype: torch.dtype

    @property
    def sequences(self) -> int:
        """How many states there are."""
        return self.batch if self.cu_seqlens is None else len(self.cu_seqlens) - 1

    @property
    def spans(self) -> tuple[tuple[int, int], ...]:
        """Start and end of each packed sequence; none when nothing is packed. Waits for the device."""
        return () if self.cu_seqlens is None else _spans(self.cu_seqlens, self.tokens)


def checked(
    form: NormalForm,
    tensors: Mapping[str, Tensor],
    initial_state: Tensor | None,
    scale: float | None,
    cu_seqlens: Tensor | None,
    raw: Collection[str] = (),
    *,
    one_token: bool = False,
) -> Call:
    """The call, or OperandError: what must hold, what came, what to do. Values are looked at in debug mode only
    (ARCHSEARCH_DEBUG=1), those of the `raw` operands never. `one_token`: whoever calls gave shapes without the T of 1
    that `tensors` have, and is told of such.
    """
    key = None if cu_seqlens is not None or torch.compiler.is_compiling() else _likeness(tensors, initial_state)
    known = None if key is None else _checked_before(form)
    like = None if known is None else known.get(key)
    if like is None:
        like = _found(form, tensors, initial_state, cu_seqlens, one_token=one_token)
        if known is not None and key is not None:
            known[key] = like
    if scale is None:
        scale = like.scale
    elif not (_is_number(scale) and math.isfinite(scale)):
        raise OperandError(f"scale must be a finite number; got {scale!r}. Leave it out for the rule's own")
    if os.environ.get("ARCHSEARCH_DEBUG") == "1":
        check_values(form, tensors, raw)
    return like._replace(tensors=tensors, initial_state=initial_state, scale=float(scale), cu_seqlens=cu_seqlens)


_KNOWN: dict[int, tuple[NormalForm, dict[object, Call]]] = {}
MOST = 4096
"""Forms, and kinds of calls of each, that are remembered as right."""


def _checked_before(form: NormalForm) -> dict[object, Call]:
    """By likeness, what calls of this form that were found right have in common; see `_found`."""
    known = _KNOWN.get(id(form))
    if known is None or known[0] is not form or len(known[1]) >= MOST:
        if len(_KNOWN) >= MOST:
            _KNOWN.clear()
        known = _KNOWN[id(form)] = (form, {})
    return known[1]


def _likeness(tensors: Mapping[str, Tensor], state: Tensor | None) -> tuple[object, ...] | None:
    """All that the checks of tensors look at; None where there is more to them than a plain tensor's attributes."""
    found: list[object] = []
    for name, tensor in tensors.items():
        if type(tensor) is not Tensor and type(tensor) is not nn.Parameter:
            return None
        found += (name, tensor.shape, tensor.dtype, tensor.device, tensor.layout)
    if state is not None:
        if type(state) is not Tensor and type(state) is not nn.Parameter:
            return None
        found += (None, state.shape, state.dtype, state.device, state.layout)
    return tuple(found)


def _found(
    form: NormalForm,
    tensors: Mapping[str, Tensor],
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
    *,
    one_token: bool,
) -> Call:
    """The checks of tensors, one by one; a call that holds none of them yet, with the rule's own scale."""
    _check_names(form, tensors, one_token=one_token)
    for name, given in (("state" if one_token else "initial_state", initial_state), ("cu_seqlens", cu_seqlens)):
        if given is not None and not isinstance(given, Tensor):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise OperandError(f"{name} must be a tensor; got {type(given).__name__}. Make it one with torch.tensor")
        if given is not None and given.layout != torch.strided:
            raise OperandError(f"{name} must be dense; got {given.layout}. Convert it with .to_dense()")
    sizes = _sizes(form, tensors, initial_state, one_token=one_token)
    device = next(iter(tensors.values())).device
    for operand in form.operands:
        _check_tensor(form, operand, tensors[operand.name], sizes, device, one_token=one_token)
    for name, size in sizes.items():
        if size == 0 and name not in ("B", "T"):
            raise OperandError(f"{name} must be at least 1; got 0 for rule {form.name!r}. Only B and T may be 0")
    if sizes["HV"] % sizes["H"]:
        raise OperandError(
            f"value heads must be a multiple of key heads; got HV={sizes['HV']}, H={sizes['H']} for rule {form.name!r}"
        )
    if cu_seqlens is not None:
        _check_offsets(cu_seqlens, sizes, device)
    states = sizes["B"] if cu_seqlens is None else len(cu_seqlens) - 1
    if initial_state is not None:
        _check_state(initial_state, (states, sizes["HV"], sizes["K"], form.columns(sizes["V"])), device)
    double = any(tensor.dtype == torch.float64 for tensor in tensors.values())
    values = [tensors[operand.name] for operand in form.operands if operand.kind is Kind.VALUE]
    addresses = [tensors[operand.name] for operand in form.operands if operand.is_address]
    return Call(
        tensors={},
        initial_state=None,
        cu_seqlens=None,
        scale=sizes["K"] ** -0.5 if form.read.scale is None else form.read.scale,
        batch=sizes["B"],
        tokens=sizes["T"],
        heads=sizes["H"],
        value_heads=sizes["HV"],
        key_dim=sizes["K"],
        value_dim=sizes["V"],
        device=device,
        dtype=torch.float64 if double else torch.float32,
        output_dtype=(values or addresses)[0].dtype,
    )


def check_values(form: NormalForm, tensors: Mapping[str, Tensor], raw: Collection[str] = ()) -> None:
    """OperandError for a positive log decay or a sign other than -1 and 1; `raw` operands are not looked at."""
    for operand in form.operands:
        if operand.name in raw:
            continue
        tensor = tensors[operand.name]
        if operand.kind is Kind.LOG_DECAY and tensor.numel() and tensor.max().item() > 0:
            raise OperandError(
                f"log decay {operand.name!r} must be <= 0 everywhere; got a maximum of {tensor.max().item():g}. "
                "Pass the natural log of the decay"
            )
        if operand.kind is Kind.SIGN and not bool((tensor.abs() == 1).all()):
            raise OperandError(f"sign {operand.name!r} must be -1 or 1 everywhere; got other values")


def _check_names(form: NormalForm, tensors: Mapping[str, Tensor], *, one_token: bool) -> None:
    names = [operand.name for operand in form.operands]
    wants = f"rule {form.name!r} takes {', '.join(names)}"
    missing = [name for name in names if name not in tensors]
    extra = [name for name in tensors if name not in names]
    if missing:
        came = f" and {extra[0]!r} is none of them" if extra else ""
        raise OperandError(
            f"{wants}; {missing[0]!r} is missing{came}. "
            f"Pass it by keyword, shape {_shape_of(form, missing[0], one_token=one_token)}"
        )
    if extra:
        raise OperandError(f"{wants}; got {extra[0]!r} as well. Leave it out")
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise OperandError(
                f"operand {name!r} must be a tensor of shape {_shape_of(form, name, one_token=one_token)}; "
                f"got {type(tensor).__name__}"
            )


def _sizes(
    form: NormalForm, tensors: Mapping[str, Tensor], initial_state: Tensor | None, *, one_token: bool
) -> dict[str, int]:
    """B, T, H, HV, K, V as the first tensor that shows each of them says."""
    sizes: dict[str, int] = {}
    for operand in form.operands:
        tensor, dims = tensors[operand.name], operand.shape.strip("[]").split(", ")
        if tensor.dim() != len(dims):
            wanted, came = _shape_of(form, operand.name, one_token=one_token), _came(tensor, one_token=one_token)
            takes = f"step takes one token: operand {operand.name!r}" if one_token else f"operand {operand.name!r}"
            without = ", without T" if one_token else ""
            raise OperandError(f"{takes} must have shape {wanted}{without}; got {came}")
        for dim, size in zip(dims, tensor.shape, strict=True):
            sizes.setdefault(dim, size)
    if initial_state is not None and initial_state.dim() == 4:
        sizes.setdefault("HV", initial_state.shape[1])
        sizes.setdefault("V", initial_state.shape[3])  # a rule without values has no normaliser
    sizes.setdefault("HV", sizes["H"])
    if "V" not in sizes:
        raise OperandError(
            f"rule {form.name!r} has no value operand, so V comes from initial_state [B, HV, K, V]; pass one"
        )
    return sizes


def _check_tensor(
    form: NormalForm,
    operand: Operand,
    tensor: Tensor,
    sizes: dict[str, int],
    device: torch.device,
    *,
    one_token: bool,
) -> None:
    expected = [sizes[dim] for dim in operand.shape.strip("[]").split(", ")]
    if list(tensor.shape) != expected:
        wanted = _shape_of(form, operand.name, one_token=one_token)
        of = expected[:1] + expected[2:] if one_token else expected
        raise OperandError(
            f"operand {operand.name!r} of rule {form.name!r} must have shape {wanted} = {of}; "
            f"got {_came(tensor, one_token=one_token)}"
        )
    if tensor.layout != torch.strided:
        raise OperandError(f"operand {operand.name!r} must be dense; got {tensor.layout}. Convert it with .to_dense()")
    if not tensor.is_floating_point():
        raise OperandError(f"operand {operand.name!r} must hold floats; got {tensor.dtype}. Convert it with .float()")
    if tensor.device != device:
        raise OperandError(
            f"all operands must be on one device; {operand.name!r} is on {tensor.device}, others on {device}"
        )


def _check_state(state: Tensor, expected: tuple[int, ...], device: torch.device) -> None:
    if tuple(state.shape) != expected:
        raise OperandError(
            f"the state must have shape [B, HV, K, V] = {list(expected)} (one a sequence when packed); "
            f"got {list(state.shape)}"
        )
    if not state.is_floating_point() or state.device != device:
        raise OperandError(f"the state must hold floats on {device}; got {state.dtype} on {state.device}")


def _check_offsets(cu_seqlens: Tensor, sizes: dict[str, int], device: torch.device) -> None:
    if sizes["B"] != 1:
        raise OperandError(
            f"cu_seqlens packs sequences along T with B = 1; got B = {sizes['B']}. Reshape to [1, B * T, ...]"
        )
    if (
        cu_seqlens.dim() != 1
        or len(cu_seqlens) < 2
        or cu_seqlens.dtype not in (torch.int32, torch.int64)
        or cu_seqlens.device != device
    ):
        raise OperandError(
            f"cu_seqlens must be [N + 1] int32 or int64 offsets on {device}; "
            f"got {cu_seqlens.dtype} {list(cu_seqlens.shape)} on {cu_seqlens.device}"
        )
    if cu_seqlens.device.type == "cpu":
        _spans(cu_seqlens, sizes["T"])


def _spans(cu_seqlens: Tensor, tokens: int) -> tuple[tuple[int, int], ...]:
    offsets = cast("list[int]", cu_seqlens.tolist())
    if offsets[0] != 0 or offsets[-1] != tokens or offsets != sorted(offsets):
        raise OperandError(f"cu_seqlens must rise from 0 to T = {tokens}; got {offsets}")
    return tuple(pairwise(offsets))


def _is_number(given: object) -> bool:
    return isinstance(given, int | float) and not isinstance(given, bool)


def _shape_of(form: NormalForm, name: str, *, one_token: bool) -> str:
    shape = next(operand.shape for operand in form.operands if operand.name == name)
    return shape.replace("T, ", "") if one_token else shape


def _came(tensor: Tensor, *, one_token: bool) -> list[int]:
    """The shape as it was given."""
    return [*tensor.shape[:1], *tensor.shape[2:]] if one_token else list(tensor.shape)
