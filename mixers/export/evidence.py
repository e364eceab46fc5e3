"""selftest.safetensors: fixed inputs, and what archsearch makes of them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from archsearch.dsl import Kind, Operand
from archsearch.kernels.dispatch import compile
from archsearch.lowering import lower
from archsearch.mixers.export.kernel_text import names_of
from archsearch.mixers.export.module import Module
from archsearch.mixers.layer.plan import Sizes
from archsearch.mixers.layer.planning import plan_layer

TOKENS = 131
"""Two chunks of 64 and three tokens."""

KEPT = 4
"""Positions whose logits are kept."""


def evidence(module: Module, trained: nn.Module) -> dict[str, Tensor]:
    """`operand.*`, `state` and what the rule makes of them; `tokens` or `x` and what the module makes of those."""
    generator = torch.Generator().manual_seed(0)
    sizes = plan_layer(module.rule, module.width, module.heads, module.layer).sizes
    operands = {name: _drawn(operand, sizes, generator) for name, operand in module.rule.operands.items()}
    form = lower(module.rule)
    state = torch.randn(1, sizes.value_heads, sizes.key, form.columns(sizes.value), generator=generator)
    if form.read.normaliser is not None:  # far from a divisor of 0
        state[..., -1].abs_()
        operands = {name: x.abs() if module.rule.operands[name].is_address else x for name, x in operands.items()}
    loop = compile(module.rule, backend="reference")
    result = loop(initial_state=state.double(), scale=None, cu_seqlens=None, **_double(operands))
    inputs = _inputs(module, generator)
    with torch.no_grad():
        output = trained(next(iter(inputs.values())))[:, -KEPT:]
    variables = names_of(form).all
    return {
        **{f"operand.{name}": tensor for name, tensor in zip(variables, operands.values(), strict=True)},
        "state": state,
        "expected.output": result.output.float(),
        "expected.state": result.state.float(),
        **inputs,
        "expected.module": output.float().contiguous(),
    }


def _inputs(module: Module, generator: torch.Generator) -> dict[str, Tensor]:
    if module.model is None:
        return {"x": torch.randn(1, TOKENS, module.width, generator=generator)}
    return {"tokens": torch.randint(module.vocabulary, (1, TOKENS), generator=generator)}


def _drawn(operand: Operand, sizes: Sizes, generator: torch.Generator) -> Tensor:
    """One operand: correlated unit addresses, gates in (0, 1), log decays from near 0 to strong."""
    lengths = {
        "B": 1,
        "T": TOKENS,
        "H": sizes.heads,
        "HV": sizes.value_heads,
        "K": sizes.key,
        "V": sizes.value,
    }
    shape = [lengths[dim] for dim in operand.shape.strip("[]").split(", ")]
    raw = torch.randn(shape, generator=generator)
    match operand.kind:
        case Kind.QUERY | Kind.KEY:
            return F.normalize(raw + torch.randn(shape[-1], generator=generator), dim=-1)
        case Kind.GATE | Kind.CHANNEL_GATE:
            return raw.sigmoid()
        case Kind.LOG_DECAY:
            return -0.1 * raw.exp()
        case Kind.SIGN:
            return torch.where(raw < 0, -1.0, 1.0)
        case Kind.VALUE:
            return raw


def _double(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.double() for name, tensor in tensors.items()}
