"""No token sees a later one, in values or in gradients."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace

import torch
from torch import Tensor

from archsearch.dsl import Kind
from archsearch.kernels.conformance.handover import without_slopes_after
from archsearch.kernels.conformance.inputs import Inputs, losing
from archsearch.kernels.conformance.sensitivity import Sensitivity
from archsearch.kernels.conformance.setting import Outcome, Setting, compare, differentiate, relative_error, token_loop
from archsearch.kernels.conformance.tolerances import LEAK
from archsearch.kernels.conformance.verdict import Verdict, worst

NAME = "future_does_not_leak"
WEAK = -0.5
"""A log decay of a token: 64 of them leave e^-32 of a channel."""


def future_does_not_leak(setting: Setting) -> Verdict:
    """Later tokens are changed, once a little and once a hundredfold, inside a chunk and at its edge. What earlier
    tokens give, and the gradients they get, may move by rounding alone; the large change may not move them more than
    the small one. Later tokens get no gradient.

    Where channels decay, a backend may choose how it computes a chunk by the strongest decay in it, that of a later
    token too: the two ways differ by rounding. So the change is made where all decays are weak before and after it,
    and where one of an earlier token is strong. Where it makes a weak chunk strong, what does not change has the bounds
    of agreement.
    """
    chunk = setting.chunk_sizes[0]
    edge, inside = chunk - 1, chunk + chunk // 2
    verdicts = _changed_after(setting, edge, _unchanged(setting, edge))
    before = _unchanged(setting, inside)
    verdicts += _changed_after(setting, inside, before)
    return worst(
        NAME, verdicts if setting.form.decay_kind != "channel" else [*verdicts, *_strengthened(setting, inside, before)]
    )


def _unchanged(setting: Setting, last: int) -> Outcome:
    """What is compared with: the decays of channels are weak."""
    inputs, _ = _drawn(setting, last)
    return differentiate(setting.compiled(), _weak(setting, inputs) if setting.form.decay_kind == "channel" else inputs)


def _changed_after(setting: Setting, last: int, before: Outcome) -> list[Verdict]:
    """Everything, a little and a hundredfold; the decays of channels stay weak."""
    limit, place, kept = LEAK[setting.dtype], f"tokens after {last} changed", _named(setting, Kind.SIGN)
    inputs, later = _drawn(setting, last)
    if setting.form.decay_kind == "channel":
        inputs, later = _weak(setting, inputs), _weak(setting, later)
        place, kept = f"{place} among weak decays", kept | _named(setting, Kind.LOG_DECAY)
    small = differentiate(setting.compiled(), inputs.mapped(_changed(last, 1.001, inputs, kept)))
    large = differentiate(setting.compiled(), inputs.mapped(_changed(last, 100.0, later, kept)))
    little, much = _moved(small, before, last), _moved(large, before, last)
    growth = max(10 * little, 64 * torch.finfo(setting.dtype).eps)
    return [
        Verdict(NAME, little, limit, f"{place} by a thousandth"),
        Verdict(NAME, much, min(limit, growth), f"{place} a hundredfold"),
        Verdict(NAME, _late(large, last), limit, f"gradients of the later, {place} a hundredfold"),
    ]


def _strengthened(setting: Setting, last: int, weakly: Outcome) -> list[Verdict]:
    """Everything a hundredfold, after a decay that is strong already, and where the change brings the first. weakly:
    what there is among weak decays, unchanged.
    """
    limit, place, signs = LEAK[setting.dtype], f"tokens after {last} changed", _named(setting, Kind.SIGN)
    inputs, later = _drawn(setting, last)
    strong, weak = losing(setting.form, inputs, [last]), _weak(setting, inputs)
    before = differentiate(setting.compiled(), strong)
    after = differentiate(setting.compiled(), strong.mapped(_changed(last, 100.0, later, signs)))
    lost = _changed(last, 100.0, losing(setting.form, later, [last + 1]), signs)
    switched = differentiate(setting.compiled(), weak.mapped(lost))
    return [
        Verdict(NAME, _moved(after, before, last), limit, f"{place} after a strong decay"),
        Verdict(NAME, _late(after, last), limit, f"gradients of the later, {place} after a strong decay"),
        Verdict(NAME, _late(switched, last), limit, f"gradients of the later, {place} to a strong decay"),
        *_agreeing(setting, last, weak, weakly, switched),
    ]


def _agreeing(setting: Setting, last: int, inputs: Inputs, before: Outcome, changed: Outcome) -> list[Verdict]:
    """Tokens up to `last`, computed in two ways: as they were `before`, from `inputs`, and `changed`."""
    expected, found = _up_to(before, last, before.state), _up_to(changed, last, before.state)
    judged = compare(setting, NAME, found, expected, f"tokens after {last} changed to a strong decay")
    if setting.strict or all(verdict.passed for verdict in judged):
        return judged
    return Sensitivity(setting.rule, inputs, token_loop(setting.rule, inputs)).widened(setting, found, judged)


def _drawn(setting: Setting, last: int) -> tuple[Inputs, Inputs]:
    """Inputs whose loss sees tokens up to `last` alone, and others."""
    return without_slopes_after(setting.inputs(), last + 1), replace(setting, seed=setting.seed + 1).inputs()


def _named(setting: Setting, kind: Kind) -> set[str]:
    return {operand.name for operand in setting.form.operands if operand.kind is kind}


def _weak(setting: Setting, inputs: Inputs) -> Inputs:
    """The log decays of a token, all decay points together, are WEAK at the strongest."""
    names = _named(setting, Kind.LOG_DECAY)
    least = WEAK / len(setting.form.decays)
    return inputs.mapped(lambda name, x: x.clamp(min=least) if name in names else x)


def _changed(last: int, factor: float, later: Inputs, kept: Collection[str]) -> Callable[[str, Tensor], Tensor]:
    """The next token times `factor`, those after it from `later`: one huge token suffices, and several would overflow
    by themselves.
    """

    def changed(operand: str, tensor: Tensor) -> Tensor:
        result = torch.cat([tensor[:, : last + 1], later.tensors[operand][:, last + 1 :]], dim=1)
        if operand not in kept:
            result[:, last + 1] *= factor
        return result

    return changed


def _up_to(outcome: Outcome, last: int, state: Tensor) -> Outcome:
    """What belongs to tokens up to `last`, beside a state."""
    gradients = {
        name: gradient if name == "initial_state" else gradient[:, : last + 1]
        for name, gradient in outcome.gradients.items()
    }
    return Outcome(outcome.output[:, : last + 1], state, gradients)


def _moved(after: Outcome, before: Outcome, last: int) -> float:
    """The largest relative change of what belongs to tokens up to `last`."""
    found, expected = (_up_to(outcome, last, before.state) for outcome in (after, before))
    pairs = [
        (found.output, expected.output),
        *((found.gradients[name], expected.gradients[name]) for name in found.gradients),
    ]
    return _largest(relative_error(x, y) for x, y in pairs)


def _late(after: Outcome, last: int) -> float:
    gradients = [gradient for name, gradient in after.gradients.items() if name != "initial_state"]
    return _largest(gradient[:, last + 1 :].abs().max().item() for gradient in gradients)


def _largest(errors: Iterable[float]) -> float:
    """The largest; NaN if one is."""
    found = list(errors)
    return float("nan") if any(error != error for error in found) else max(found, default=0.0)
