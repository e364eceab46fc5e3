"""Gradients against finite differences."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from archsearch.kernels.conformance.inputs import Difficulty, Inputs, draw
from archsearch.kernels.conformance.setting import Setting, differentiate, forward, length
from archsearch.kernels.conformance.tolerances import FINITE_DIFFERENCES
from archsearch.kernels.conformance.verdict import Verdict, worst
from archsearch.kernels.dispatch import CompiledRule, compile

NAME = "gradient_matches_finite_differences"
STEP = 1e-6


def gradient_matches_finite_differences(setting: Setting) -> Verdict:
    """Each operand and the initial state moved along a random direction, in float64. A backend without float64 is held
    to the token loop's gradients by `chunk_matches_token_loop`; here the token loop itself is measured for it.
    """
    double = setting.dtype == torch.float64
    compiled = setting.compiled() if double else compile(setting.rule, "reference")
    shape = replace(setting.shape, tokens=setting.chunk_sizes[0] + 3)
    kind = Difficulty.EASY
    inputs = draw(setting.form, shape, seed=setting.seed, difficulty=kind, dtype=torch.float64, device=setting.device)
    gradients = differentiate(compiled, inputs).gradients
    generator = torch.Generator().manual_seed(setting.seed)
    verdicts: list[Verdict] = []
    for name, gradient in gradients.items():
        direction = torch.randn(gradient.shape, generator=generator, dtype=torch.float64).to(setting.device)
        slope = (
            _loss(compiled, _moved(inputs, name, STEP * direction))
            - _loss(compiled, _moved(inputs, name, -STEP * direction))
        ) / (2 * STEP)
        error = abs(slope - (gradient * direction).sum().item()) / (length(gradient) or 1.0)
        verdicts.append(Verdict(NAME, error, FINITE_DIFFERENCES, f"gradient of {name}"))
    return worst(NAME, verdicts)


def _moved(inputs: Inputs, name: str, by: Tensor) -> Inputs:
    if name == "initial_state":
        return replace(inputs, initial_state=inputs.initial_state + by)
    return inputs.mapped(lambda operand, tensor: tensor + by if operand == name else tensor)


def _loss(compiled: CompiledRule, inputs: Inputs) -> float:
    result = forward(compiled, inputs)
    return ((result.output * inputs.output_slope).sum() + (result.state * inputs.state_slope).sum()).item()
