"""No token sees a later one, in values or in gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import torch
from torch import Tensor

from archsearch.dsl import Kind
from archsearch.kernels.conformance.handover import without_slopes_after
from archsearch.kernels.conformance.inputs import Inputs
from archsearch.kernels.conformance.setting import Outcome, Setting, differentiate, relative_error
from archsearch.kernels.conformance.tolerances import LEAK
from archsearch.kernels.conformance.verdict import Verdict, worst

NAME = "future_does_not_leak"


def future_does_not_leak(setting: Setting) -> Verdict:
    """Later tokens are changed, once a little and once a hundredfold, inside a chunk and at its edge. What earlier
    tokens give, and the gradients they get, may move by rounding alone; the large change may not move them more than
    the small one. Later tokens get no gradient.
    """
    chunk = setting.chunk_sizes[0]
    verdicts: list[Verdict] = []
    for last in (chunk - 1, chunk + chunk // 2):
        verdicts += _measured(setting, last)
    return worst(NAME, verdicts)


def _measured(setting: Setting, last: int) -> list[Verdict]:
    limit, place = LEAK[setting.dtype], f"tokens after {last} changed"
    inputs = without_slopes_after(setting.inputs(), last + 1)
    before = differentiate(setting.compiled(), inputs)
    other = replace(setting, seed=setting.seed + 1).inputs()
    signs = {operand.name for operand in setting.form.operands if operand.kind is Kind.SIGN}
    small = differentiate(setting.compiled(), inputs.mapped(_changed(last, 1.001, inputs, signs)))
    large = differentiate(setting.compiled(), inputs.mapped(_changed(last, 100.0, other, signs)))
    little, much = _moved(small, before, last), _moved(large, before, last)
    growth = max(10 * little, 64 * torch.finfo(setting.dtype).eps)
    return [
        Verdict(NAME, little, limit, f"{place} by a thousandth"),
        Verdict(NAME, much, min(limit, growth), f"{place} a hundredfold"),
        Verdict(NAME, _late(large, last), limit, f"gradients after {last}"),
    ]


def _changed(last: int, factor: float, later: Inputs, signs: set[str]) -> Callable[[str, Tensor], Tensor]:
    """The next token times `factor`, those after it from `later`: one huge token suffices, and several would overflow
    by themselves.
    """

    def changed(operand: str, tensor: Tensor) -> Tensor:
        result = torch.cat([tensor[:, : last + 1], later.tensors[operand][:, last + 1 :]], dim=1)
        if operand not in signs:
            result[:, last + 1] *= factor
        return result

    return changed


def _moved(after: Outcome, before: Outcome, last: int) -> float:
    """The largest relative change of what belongs to tokens up to `last`."""
    pairs = [
        (after.output, before.output),
        *((after.gradients[name], before.gradients[name]) for name in after.gradients),
    ]
    sequences = [(x[:, : last + 1], y[:, : last + 1]) for x, y in pairs if x.shape[1] > last]
    return _largest(relative_error(x, y) for x, y in sequences)


def _late(after: Outcome, last: int) -> float:
    gradients = [gradient for name, gradient in after.gradients.items() if name != "initial_state"]
    return _largest(gradient[:, last + 1 :].abs().max().item() for gradient in gradients)


def _largest(errors: Iterable[float]) -> float:
    """The largest; NaN if one is."""
    found = list(errors)
    return float("nan") if any(error != error for error in found) else max(found, default=0.0)
