"""What an entry means, in torch: raw operands become those that a rule takes. Computed in float32 (float64 stays)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from archsearch.errors import OperandError
from archsearch.kernels.call import Call
from archsearch.kernels.entry import EPSILON, Curve, Entry, Feature, GateEntry, Norm
from archsearch.lowering import NormalForm


def exact(x: Tensor) -> Tensor:
    """`x` in float32 unless it is float64 already."""
    return x if x.dtype.itemsize >= 4 else x.float()


def featured(x: Tensor, feature: Feature) -> Tensor:
    """The feature of each channel, in the dtype of `x`."""
    match feature:
        case Feature.NONE:
            return x
        case Feature.SILU:
            return F.silu(x)
        case Feature.RELU:
            return F.relu(x)
        case Feature.ELU:
            return F.elu(x) + 1


def normalised(x: Tensor, norm: Norm) -> Tensor:
    """The norm over the last dimension, in the dtype of `x`."""
    if norm is Norm.NONE:
        return x
    size = x.shape[-1]
    wide = F.rms_norm(exact(x), (size,), eps=EPSILON / size)  # u / sqrt(u.u / N + eps / N), sqrt(N) times L2
    return (wide if norm is Norm.RMS else wide * size**-0.5).to(x.dtype)


def curved(x: Tensor, entry: GateEntry, bias: Tensor | None = None, rate: Tensor | None = None) -> Tensor:
    """A gate or log decay [B, T, HV] or [B, T, HV, N] of raw numbers, in float32."""
    z = exact(x) if bias is None else exact(x) + exact(bias)
    r = z if rate is None else _against(exact(rate).exp(), z)  # no curve without a rate looks at it
    match entry.curve:
        case Curve.SIGMOID:
            return torch.sigmoid(z) if entry.factor == 1.0 else torch.sigmoid(z) * entry.factor
        case Curve.SOFTPLUS:
            return F.softplus(z)
        case Curve.LOG_SIGMOID:
            return F.logsigmoid(z) / entry.factor
        case Curve.SOFTPLUS_DECAY:
            return -r * F.softplus(z)
        case Curve.SIGMOID_DECAY:
            return entry.factor * torch.sigmoid(r * z)
        case Curve.EXPONENTIAL_DECAY:
            return -entry.factor * torch.expm1(r / entry.factor * F.softplus(z))


def entered(entry: Entry, tensors: Mapping[str, Tensor], constants: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The operands as the rule takes them, [B, T, ...] each; those that the entry does not name stay as they are."""
    made = dict(tensors)
    for vector in entry.vectors:
        made[vector.operand] = normalised(featured(tensors[vector.operand], vector.feature), vector.norm)
    for gate in entry.gates:
        bias, rate = (None if name is None else constants[name] for name in (gate.bias, gate.rate))
        made[gate.operand] = curved(tensors[gate.operand], gate, bias, rate)
    return made


def parted(
    entry: Entry, form: NormalForm, tensors: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """A call's operands and its constants. OperandError for a constant that is missing."""
    for name in entry.constants:
        if name not in tensors:
            raw = ", ".join(gate.operand for gate in entry.gates if name in gate.constants)
            wanted = f"rule {form.name!r} takes the constant {name!r} for its raw {raw}"
            raise OperandError(f"{wanted}; it is missing. Pass it by keyword")
    operands = {name: tensor for name, tensor in tensors.items() if name not in entry.constants}
    return operands, {name: tensors[name] for name in entry.constants}


def check_constants(entry: Entry, call: Call, constants: Mapping[str, Tensor]) -> None:
    """OperandError unless each constant fits the operands that it is for."""
    for gate in entry.gates:
        shape = list(call.tensors[gate.operand].shape[2:])
        for name, expected in ((gate.bias, shape), (gate.rate, shape[:1])):
            if name is not None:
                _check_constant(gate, name, constants[name], expected, call)


def _check_constant(gate: GateEntry, name: str, given: Tensor, expected: list[int], call: Call) -> None:
    if not isinstance(given, Tensor) or not given.is_floating_point():  # pyright: ignore[reportUnnecessaryIsInstance]
        what = given.dtype if isinstance(given, Tensor) else type(given).__name__  # pyright: ignore[reportUnnecessaryIsInstance]
        raise OperandError(f"the constant {name!r} must be a tensor of floats of shape {expected}; got {what}")
    if given.layout != torch.strided:
        raise OperandError(f"the constant {name!r} must be dense; got {given.layout}. Convert it with .to_dense()")
    if list(given.shape) != expected or given.device != call.device:
        raise OperandError(
            f"the constant {name!r} of {gate.operand!r} must have shape {expected} on {call.device}; "
            f"got {list(given.shape)} on {given.device}"
        )


def _against(rate: Tensor, z: Tensor) -> Tensor:
    """[HV] against [B, T, HV] or [B, T, HV, N]."""
    return rate if z.dim() == 3 else rate[:, None]
