"""What later tokens leave of a write."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from probed import LONG, H, T, dot, heads, one, operands, outer, probed, same
from torch import Tensor

from archsearch.dsl import Kind, Rule
from archsearch.lowering import NormalForm, lower
from archsearch.mixers.probes.anatomy import evaluate, parts_of
from archsearch.mixers.probes.quantities import Name
from archsearch.mixers.probes.remaining import Remaining
from archsearch.mixers.probes.replay import Moment, prepared, replay
from archsearch.mixers.zoo import rules


def test_what_is_left_of_a_write_is_the_product_of_later_transitions() -> None:
    x = operands(rules["eda"])
    found = one(probed(rules["eda"], x), Name.REMAINING)
    times = sorted({round(t) for t in np.linspace(0, 3 * T // 4 - 1, 3 * T // 4).tolist()})
    place = found.curves["left"].x.index(4.0)
    left = list[Tensor]()
    for written in times:
        y = x["k"][:, written]
        for t in range(written + 1, written + 5):
            y = x["g"][:, t].exp() * y
            y = y - x["gamma"][:, t, :, None] * x["e"][:, t] * dot(x["e"][:, t], y)[..., None]
            y = y - x["beta"][:, t, :, None] * x["k"][:, t] * dot(x["k"][:, t], y)[..., None]
        left.append(dot(x["k"][:, written], y))
    same(tuple(head[place] for head in found.curves["left"].heads), heads(left))
    same(tuple(head[0] for head in found.curves["left"].heads), torch.ones(H))


@pytest.mark.parametrize("rule", LONG, ids=lambda rule: rule.name)
def test_what_is_left_of_a_write_does_not_depend_on_other_values(rule: Rule) -> None:
    """The state of a sequence in which only one token has a value is that write, carried on."""
    form, written = lower(rule), 5
    tensors = prepared(form, operands(rule))
    names = [operand.name for operand in form.operands if operand.kind is Kind.VALUE]
    alone = tensors | {name: torch.zeros_like(tensors[name]) for name in names}
    for name in names:
        alone[name][:, written] = 1.0
    parts = parts_of(form)
    watching = Remaining(parts, tensors["q"], [written])
    *_, last = list(seen(watching, form, alone))
    values = {name: tensor[:, written] for name, tensor in alone.items()}
    rebuilt = torch.zeros_like(last.after)
    for own in watching._own:
        rebuilt += outer(own.place[:, :, 0], evaluate(own.part.row.target, values, last.after[..., 0, :]))
    torch.testing.assert_close(rebuilt, last.after, rtol=1e-9, atol=1e-10)


def seen(watching: Remaining, form: NormalForm, tensors: dict[str, Tensor]) -> Iterator[Moment]:
    for moment in replay(form, tensors):
        watching.see(moment)
        changes = [torch.stack(own.changes).sum(1) for own in watching._own]
        if moment.time > 5:
            for own, change in zip(watching._own, changes, strict=True):
                torch.testing.assert_close(own.left[5] + change[6:].sum(0), own.left[-1], rtol=1e-9, atol=1e-10)
        yield moment
