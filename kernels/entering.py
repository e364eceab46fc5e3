"""What an entry means, in torch: raw operands become those that a rule takes. Computed in float32 (float64 stays)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from archsearch.errors import OperandError
from archsearch.kernels.call import Call
from archsearch.kernels.entry import EPSILON, Curve, Entry, Feature, GateEntry, Norm
from archsearch.lowering import NormalForm


class Constants(NamedTuple):
    """What an operand's curve takes beside its raw numbers: `bias` one a number, `rate` [HV]."""

    bias: Tensor | None = None
    rate: Tensor | None = None


NO_CONSTANTS = Constants()


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


def curved(x: Tensor, entry: GateEntry, constants: Constants = NO_CONSTANTS) -> Tensor:
    """A gate or log decay [..., HV] or [..., HV, N] of raw numbers, in float32."""
    z = exact(x) if constants.bias is None else exact(x) + exact(constants.bias)
    rate = _rate(z, constants)
    match entry.curve:
        case Curve.SIGMOID:
            return torch.sigmoid(z) if entry.factor == 1.0 else torch.sigmoid(z) * entry.factor
        case Curve.SOFTPLUS:
            return F.softplus(z)
        case Curve.LOG_SIGMOID:
            return F.logsigmoid(z) / entry.factor
        case Curve.SOFTPLUS_DECAY:
            return -rate * F.softplus(z)
        case Curve.SIGMOID_DECAY:
            return entry.factor * torch.sigmoid(rate * z)
        case Curve.EXPONENTIAL_DECAY:
            return -entry.factor * torch.expm1(rate / entry.factor * F.softplus(z))


def entered(entry: Entry, tensors: Mapping[str, Tensor], constants: Mapping[str, Constants]) -> dict[str, Tensor]:
    """The operands as the rule takes them, [B, T, ...] each; those that the entry does not name stay as they are."""
    made = dict(tensors)
    for vector in entry.vectors:
        made[vector.operand] = normalised(featured(tensors[vector.operand], vector.feature), vector.norm)
    for gate in entry.gates:
        made[gate.operand] = curved(tensors[gate.operand], gate, constants.get(gate.operand, NO_CONSTANTS))
    return made


def check_constants(entry: Entry, form: NormalForm, call: Call, constants: Mapping[str, Constants]) -> None:
    """OperandError unless each curve has the constants that it takes, in their shapes, and no others are given."""
    gates = {gate.operand: gate for gate in entry.gates}
    for name in constants:
        if name not in gates:
            wanted = f"constants are for {', '.join(gates) or 'no operand'} of rule {form.name!r}"
            raise OperandError(f"{wanted}; got some for {name!r}. Leave them out")
    for name, gate in gates.items():
        shape = list(call.tensors[name].shape[2:])
        given = constants.get(name, NO_CONSTANTS)
        _check_constant(f"{name!r}.bias", given.bias, shape if gate.biased else None, call)
        _check_constant(f"{name!r}.rate", given.rate, shape[:1] if gate.curve.rated else None, call)


def _check_constant(name: str, given: Tensor | None, shape: list[int] | None, call: Call) -> None:
    if given is None and shape is None:
        return
    if given is None:
        raise OperandError(f"the entry needs the constant {name} of shape {shape}; got none. Pass it in constants")
    if shape is None:
        raise OperandError(f"the entry takes no constant {name}; got one. Leave it out")
    if list(given.shape) != shape or not given.is_floating_point() or given.device != call.device:
        raise OperandError(
            f"the constant {name} must hold floats of shape {shape} on {call.device}; "
            f"got {given.dtype} {list(given.shape)} on {given.device}"
        )


def _rate(z: Tensor, constants: Constants) -> Tensor:
    """exp of the rate [HV] against [B, T, HV] or [B, T, HV, N]; unused where there is none."""
    if constants.rate is None:
        return z
    rate = exact(constants.rate).exp()
    return rate if z.dim() == 3 else rate[:, None]
